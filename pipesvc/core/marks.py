"""The grammar of marks: `cpu`, `cpu:NAME`, `gpu:N`.

A mark is not a torch device: it is a label of a group of layers that wants a place of its own, and the plan finds the
place. `gpu:1` is the second GPU of the cluster, wherever that is. So `cpu:0`, which torch reads as "the CPU", is
refused rather than guessed at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError

VALID_MARKS: Final = (
    'Valid marks are "cpu", "cpu:NAME" (a second CPU group; NAME begins with a letter) '
    'and "gpu:N" (the N-th GPU of the cluster, from 0).'
)

_CPU: Final = re.compile(r"cpu(?::([A-Za-z][A-Za-z0-9_-]*))?")
_GPU: Final = re.compile(r"gpu:(0|[1-9][0-9]{0,5})")


class MarkKind(StrEnum):
    """The kind of device that a mark asks for."""

    CPU = "cpu"
    GPU = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A mark as it was understood. `str` gives the label back."""

    kind: MarkKind
    group: str = ""  # of a CPU mark; empty for plain "cpu"
    gpu_index: int = 0  # of a GPU mark: counts all GPUs of the cluster

    def __str__(self) -> str:
        if self.kind is MarkKind.GPU:
            return f"gpu:{self.gpu_index}"
        return f"cpu:{self.group}" if self.group else "cpu"


def parse(label: str) -> Mark:
    """What this label asks for; a label outside the grammar is refused with the valid forms."""
    if not isinstance(label, str):
        raise PipesvcError(ErrorCode.UNKNOWN_DEVICE, f"a mark is text, not {type(label).__name__}", advice=VALID_MARKS)
    if (match := _CPU.fullmatch(label)) is not None:
        return Mark(kind=MarkKind.CPU, group=match[1] or "")
    if (match := _GPU.fullmatch(label)) is not None:
        return Mark(kind=MarkKind.GPU, gpu_index=int(match[1]))
    raise PipesvcError(ErrorCode.UNKNOWN_DEVICE, f"unknown mark {label!r}{_reason(label)}", advice=VALID_MARKS)


def _reason(label: str) -> str:
    if re.fullmatch(r"cpu:[0-9]+", label):
        return ": a CPU has no number"
    if label == "gpu":
        return ": a GPU needs its number"
    if re.fullmatch(r"cuda(:[0-9]*)?", label):
        return ': marks say "gpu:N"; torch\'s device name belongs into the placement'
    return ""
