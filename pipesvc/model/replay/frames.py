"""What the Python stack says about where an operation is: torch tells a mode nothing about it.

`torch.utils.checkpoint` runs its function again in backward, and `autograd.Function.apply` cuts the graph at the
tensors that it is given, so neither may be parted by a cut unseen. Only looked at while planning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType

import torch.autograd.function
import torch.utils.checkpoint

_CHECKPOINT = os.path.realpath(torch.utils.checkpoint.__file__)
_FUNCTION = os.path.realpath(torch.autograd.function.__file__)


def checkpoint_frame() -> FrameType | None:
    """Of the outermost checkpointed call that is being made."""
    found = None
    for frame in _frames():
        if frame.f_code.co_name == "checkpoint" and _is_in(frame, _CHECKPOINT):
            found = frame
    return found


def is_in_reentrant_checkpoint() -> bool:
    return any(frame.f_code.co_name == "forward" and _is_in(frame, _CHECKPOINT) for frame in _frames())


def is_in_custom_function() -> bool:
    return any(frame.f_code.co_name == "apply" and _is_in(frame, _FUNCTION) for frame in _frames())


def _is_in(frame: FrameType, path: str) -> bool:
    return frame.f_code.co_filename == path or os.path.realpath(frame.f_code.co_filename) == path


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
