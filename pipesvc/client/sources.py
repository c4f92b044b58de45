"""Where the rows of a job come from: a function that runs on a worker, or an iterable in the user's process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pipesvc.client import checks
from pipesvc.client.calls import as_call
from pipesvc.client.checks import refuse

# Batches; the coordinator refuses more.
MAX_CAPACITY: Final = 65_536
_YIELDS = ("sample", "sample_list", "batch")


@dataclass(frozen=True, slots=True)
class _Source:
    """The options that both kinds of source have."""

    source: Any
    _: dataclasses.KW_ONLY
    batch_size: int | None = None
    """Rows of a full batch. It may be left out where the source yields whole batches."""
    capacity: int = 64
    """Batches read ahead, at most."""
    double_buffer: bool = True
    """False: a batch is read only when the one before has trained. It changes no number."""
    yields: str = "sample"
    """What one item is: one "sample", a "sample_list" that makes a batch, or a whole "batch"."""
    drop_last: bool = False
    """Leave out the last batch when it is short."""
    labels: bool = True
    """False: an item is the input alone; else it is (input, label)."""
    timeout_s: float = 600.0
    """How long the source may take for one batch."""

    def __post_init__(self) -> None:
        checks.one_of("yields", self.yields, _YIELDS)
        if self.yields != "batch" and self.batch_size is None:
            raise refuse(f'batch_size is missing; with yields="{self.yields}" say how many samples make a full batch')
        checks.whole_or_none("batch_size", self.batch_size, 1)
        fix = "It counts whole batches; a few more than the training uses while the source is slow are enough"
        checks.whole("capacity", self.capacity, 1, MAX_CAPACITY, advice=fix)
        for name in ("double_buffer", "drop_last", "labels"):
            checks.flag(name, getattr(self, name))
        checks.duration("timeout_s", self.timeout_s)


@dataclass(frozen=True, slots=True)
class DataSource(_Source):
    """`source` is a function that returns an iterable; it runs on a worker, once per epoch.

    It must give the same when it is called again: when the job is submitted, it is called once more for a first batch,
    which is tried in the model and dropped.
    """

    def __post_init__(self) -> None:
        _Source.__post_init__(self)
        as_call(self.source, what="source")


@dataclass(frozen=True, slots=True)
class StreamSource(_Source):
    """`source` is an iterable in this process; its batches are streamed to the run, which needs it so long."""

    def __post_init__(self) -> None:
        _Source.__post_init__(self)
        if not isinstance(self.source, Iterable):
            fix = "Call it: StreamSource(reader())" if callable(self.source) else ""
            raise refuse(f"source is a {type(self.source).__name__}, which cannot be iterated", fix)
