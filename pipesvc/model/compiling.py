"""Modules compiled by torch, each by itself, on the worker that runs them.

A whole stage would be one graph only where nothing between its modules is watched or replayed, so units are compiled
one by one: equal blocks share one compilation. Backwards must be whole, for what a compiled graph computes cannot be
left to later.

Compiled kernels add in another order than torch's own, so numbers agree with those of a run that is not compiled to
rounding: relative 1e-5 in float32. What a compiled module draws (dropout) is drawn by the compiler's own generator.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn

from pipesvc.errors import ErrorCode, PipesvcError

_CXX: Final = ("g++", "clang++")


def compile_units(units: Iterable[nn.Module], device: torch.device) -> None:
    """In place; compiling itself happens in the first step. BUILD_FAILED without a compiler."""
    _refuse_without_compiler(device)
    for unit in {id(unit): unit for unit in units}.values():
        unit.__dict__["forward"] = _compiled(unit.forward)


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(forward)

    def run(*args: Any, **kwargs: Any) -> Any:
        # Without gradients, this may be a run on shapes alone.
        return compiled(*args, **kwargs) if torch.is_grad_enabled() else forward(*args, **kwargs)

    return run


def _refuse_without_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        return  # torch's wheels bring their own (Triton)
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _CXX
    if not any(shutil.which(name) for name in names):
        raise PipesvcError(
            ErrorCode.BUILD_FAILED,
            f"compile=True needs a C++ compiler, and this host has no {' or '.join(names)}",
            advice="Install one there, name it in the environment variable CXX of the worker, or leave compile out.",
        )
