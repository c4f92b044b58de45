"""A ghost is a tensor of a layer that another stage holds: shape and dtype, no values (torch's meta device).

While a model is built, code may do anything with a ghost but read its value. `unreadable` is the error for that, with
the line of user code that asked.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.source_paths import shown_path

META: Final = torch.device("meta")
CPU: Final = torch.device("cpu")

_NOT_USER_CODE: Final = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_STDLIB: Final = os.path.dirname(os.__file__) + os.sep
_ADVICE: Final = (
    "Each worker holds the values of its own layers only: compute this from sizes and constants, do it inside forward, "
    "or run the model as one stage (pipeline=False)."
)


class UnreadableError(PipesvcError):
    """Building code asked for a value that this worker does not hold."""

    what = ""  # the operation
    line = ""  # of user code


def is_ghost(value: object) -> bool:
    """Asks the storage, since `Tensor.device` of a ghost says "cpu" while building (see `modes.Faces`)."""
    untyped: Any = value  # torch annotates the argument of is_lazy as if it were always lazy
    if not isinstance(value, Tensor) or is_lazy(untyped) or value.layout is not torch.strided:
        return False
    return value.untyped_storage().device == META


def address_of(tensor: Tensor) -> int:
    """Of its storage; one on meta has no other address."""
    return int(tensor.untyped_storage()._cdata)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operator: they nest in lists and tuples only."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def is_about_ghosts(error: BaseException) -> bool:
    """Whether torch raised it because a ghost has no values. It says so by NotImplementedError, which is a
    RuntimeError, where an operator has no answer on meta, else in words."""
    return isinstance(error, NotImplementedError) or re.search(r"\bmeta\b", str(error), re.IGNORECASE) is not None


def ghost_of(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter of the same class, shape, dtype and attributes, without values."""
    ghost: nn.Parameter = torch.Tensor._make_subclass(type(parameter), shape_of(parameter), parameter.requires_grad)
    ghost.__dict__.update(parameter.__dict__)
    return ghost


_reads: ContextVar[list[UnreadableError] | None] = ContextVar("unreadable_reads", default=None)


@contextmanager
def unreadable_reads() -> Iterator[list[UnreadableError]]:
    """Every such error of this block, also one that user code caught."""
    reads: list[UnreadableError] = []
    token = _reads.set(reads)
    try:
        yield reads
    finally:
        _reads.reset(token)


def shape_of(tensor: Tensor) -> Tensor:
    """Not `empty_like`: on meta that loads torch's Python decompositions, 0.5 s and 35 MB."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=META)


def unreadable(what: str) -> UnreadableError:
    """`what` is the operation, as in "`.item()`"."""
    line = user_line()
    error = UnreadableError(
        ErrorCode.BUILD_FAILED,
        f"{what} at {line} reads the value of a tensor that another stage holds",
        advice=_ADVICE,
    )
    error.what, error.line = what, line
    reads = _reads.get()
    if reads is not None:
        reads.append(error)
    return error


def user_line(frame: FrameType | None = None) -> str:
    """The innermost line that belongs neither to torch nor to this package, as `file:line (text)`.

    `frame` is where to begin; None: here.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_user_file(path):
            return shown_line(path, frame.f_lineno, linecache.getline(path, frame.f_lineno).strip())
        frame = frame.f_back
    return "an unknown line"


def shown_line(path: str, number: int | None, text: str | None) -> str:
    return f"{shown_path(path)}:{number}" + (f" (`{text}`)" if text else "")


def is_user_file(path: str) -> bool:
    in_stdlib = path.startswith(_STDLIB) and "site-packages" not in path
    return not path.startswith(_NOT_USER_CODE) and not in_stdlib and not path.startswith("<frozen")
