"""The stand-in for a tensor that this stage does not have, or does not have yet.

It is a meta tensor that knows its key. While a run is active, the run decides what an operation on it means. A
checkpointed function of a container keeps such stand-ins as its arguments and is run again in backward: on another
thread if the device is a GPU, and with no run around it. So the stand-in itself remembers the tensor that was received
for it, and operations go to that one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.ghosts import user_line
from pipesvc.model.replay import nest
from pipesvc.model.replay.operations import Key

# Inside it, a stand-in is the meta tensor that it is. torch has no public name for it.
plain_tensors: Any = torch._C.DisableTorchFunctionSubclass


class Ghost(Tensor):
    key: Key
    same: tuple[Key, ...]
    """Earlier keys of the same values: a dropout in eval() mode gives back its argument."""
    wants_gradient: bool
    received: Tensor | None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Only outside of a run."""
        return func(*nest.transform(args, _received), **nest.transform(kwargs or {}, _received))


def ghost(meta: Tensor, key: Key, *, wants_gradient: bool, is_written: bool = True) -> Ghost:
    """`meta` itself if it is one already: an operation in place gives back its argument.

    So does one that has nothing to do; then the argument is not written, and goes by its earlier keys too.
    """
    if not isinstance(meta, Ghost):
        meta = meta.as_subclass(Ghost)
        meta.received, meta.same = None, ()
    else:
        meta.same = () if is_written else (meta.key, *meta.same)
    meta.key = key
    meta.wants_gradient = wants_gradient
    return meta


def _received(leaf: Any) -> Any:
    if not isinstance(leaf, Ghost):
        return leaf
    if leaf.received is None:
        raise PipesvcError(
            ErrorCode.STAGE_FAILED,
            f"{user_line()} uses a tensor of another stage that was not needed when forward ran",
            advice="Let a checkpointed function do the same each time it is called.",
        )
    return leaf.received
