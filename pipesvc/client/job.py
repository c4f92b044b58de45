"""What a user asks for, checked where it is written.

A job runs on other hosts, minutes later; a contradiction found there costs a cluster. So each value is a frozen,
keyword-only dataclass that refuses what cannot work as soon as it is made, and says the fix. What only a worker
can know (layers, devices, shapes) is checked at submit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from pipesvc.client.calls import Call, Optimizer, as_call, check_function, refuse
from pipesvc.client.schedule_file import ScheduleFile
from pipesvc.core.schedules import FILE, SCHEDULE_NAMES, check_counts

__all__ = ["Call", "DataSource", "Job", "Optimizer", "ScheduleFile", "Strategy", "StreamSource"]

# Batches; the coordinator refuses more.
MAX_CAPACITY: Final = 65_536
# A schedule that is chosen by simulation.
AUTO: Final = "auto"
# Ways to find the boundaries, beside type:REGEX[:WEIGHT]|...
_METHODS = ("auto", "uniform", "parameters")
_YIELDS = ("sample", "sample_list", "batch")


def _at_least(name: str, value: object, low: int, fix: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise refuse(f"{name} is {value!r}; it must be a whole number of {low} or more", fix)


def _duration(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
        raise refuse(f"{name} is {value!r}; it must be a positive number of seconds")


def _check_boundaries(boundaries: Sequence[int] | Sequence[str]) -> None:
    if isinstance(boundaries, str):
        if boundaries not in _METHODS and not boundaries.startswith("type:"):
            fix = f"Write boundaries=({boundaries!r},) for a layer's name, or one of {', '.join(_METHODS)}, type:REGEX"
            raise refuse(f"boundaries is the text {boundaries!r}, which is no method to cut", fix)
        return
    names = [each for each in boundaries if isinstance(each, str)]
    if names and len(names) != len(boundaries):
        raise refuse(f"boundaries are {list(boundaries)}", "Give all of them by index, or all by name")
    if len(set(boundaries)) != len(boundaries):
        raise refuse(f"boundaries are {list(boundaries)}; each cuts once, so that no stage is empty")
    indices = [each for each in boundaries if not isinstance(each, str)]
    for index in indices:
        _at_least("a boundary", index, 1, "A boundary is the index of a stage's first layer; the first stage has none")
    if indices != sorted(indices):
        raise refuse(f"boundaries are {list(boundaries)}; they must ascend, so that no stage is empty")


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
        if self.yields not in _YIELDS:
            raise refuse(f"yields is {self.yields!r}; it must be one of {', '.join(_YIELDS)}")
        if self.yields != "batch" and self.batch_size is None:
            raise refuse(f'batch_size is missing; with yields="{self.yields}" say how many samples make a full batch')
        if self.batch_size is not None:
            _at_least("batch_size", self.batch_size, 1)
        _at_least("capacity", self.capacity, 1)
        if self.capacity > MAX_CAPACITY:
            raise refuse(
                f"capacity is {self.capacity}; it counts whole batches, {MAX_CAPACITY} at most",
                "A few more than the training uses while the source is slow are enough; the default is 64",
            )
        _duration("timeout_s", self.timeout_s)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How the model is cut and in which order its micro-batches run."""

    pipeline: bool = True
    """False: the whole model is one stage, with the same numbers."""
    micro_batches: int = 1
    """Slices of each mini-batch. With 1, nothing overlaps."""
    schedule: str | ScheduleFile = "1F1B"
    """"naive", "GPipe", "1F1B", "Interleaved1F1B", "ZBH1" or "ZBV", upper and lower case are the same; or a file; or
    "auto": the fastest within memory."""
    num_stages: int | None = None
    """None: one stage per mark, or per worker where nothing is marked."""
    boundaries: Sequence[int] | Sequence[str] = ()
    """The first layer of each stage after the first, by index or by name: (1, 3) cuts five layers into 1, 2 and 2.
    Or how to find them, as one text: "auto", "uniform", "parameters", "type:REGEX[:WEIGHT]|..."."""
    placement: Mapping[str, str] = field(default_factory=dict)
    """Slot ("gpu:0", "cpu", "stage:1") to "worker" or "worker/device"."""
    allow_cpu_for_gpu: bool = False
    """Run a gpu mark on a CPU worker when the cluster has no such GPU."""
    in_flight: int | None = None
    """Micro-batches alive on stage 0 at most; None: the schedule's own number."""

    def __post_init__(self) -> None:
        _at_least("micro_batches", self.micro_batches, 1)
        if self.num_stages is not None:
            _at_least("num_stages", self.num_stages, 1)
        self._check_schedule()
        _check_boundaries(self.boundaries)
        is_given = self.boundaries and not isinstance(self.boundaries, str)
        if self.num_stages is not None and is_given and self.num_stages != len(self.boundaries) + 1:
            raise refuse(
                f"{len(self.boundaries)} boundaries make {len(self.boundaries) + 1} stages, but num_stages is "
                f"{self.num_stages}",
                "Leave num_stages out",
            )
        for label, target in self.placement.items():
            if not isinstance(label, str) or not isinstance(target, str) or not target:
                raise refuse(f'placement has {label!r}: {target!r}; write {{"gpu:0": "worker"}} or "worker/device"')

    @property
    def is_open(self) -> bool:
        """True where the cut or the schedule is left to be found: `Client.plan` closes it with measured costs."""
        return isinstance(self.boundaries, str) or self.has_open_schedule

    @property
    def has_open_schedule(self) -> bool:
        return isinstance(self.schedule, str) and self.schedule.lower() == AUTO

    def _check_schedule(self) -> None:
        if isinstance(self.schedule, ScheduleFile):
            self._check_schedule_file(self.schedule)
        elif str(self.schedule).lower() not in {name.lower() for name in (*SCHEDULE_NAMES, AUTO)}:
            raise refuse(
                f"schedule is {self.schedule!r}; it must be one of {', '.join((*SCHEDULE_NAMES, AUTO))}",
                'Or give a file of your own: schedule=pipesvc.ScheduleFile("zbv.csv")',
            )
        if self.in_flight is None:
            return
        _at_least("in_flight", self.in_flight, 1)
        if self.has_open_schedule:
            raise refuse(f'in_flight is {self.in_flight}, but schedule="auto" finds it', "Leave in_flight out")
        name = FILE if isinstance(self.schedule, ScheduleFile) else self.schedule
        check_counts(name, num_micro_batches=self.micro_batches, in_flight=self.in_flight)

    def _check_schedule_file(self, schedule: ScheduleFile) -> None:
        table = schedule.table(self.micro_batches)
        is_given = self.boundaries and not isinstance(self.boundaries, str)
        num_stages = self.num_stages or (len(self.boundaries) + 1 if is_given else table.num_stages)
        if self.pipeline and num_stages != table.num_stages:
            raise refuse(
                f"{schedule.path} is for {table.num_stages} stages, and the strategy makes {num_stages}",
                "Leave num_stages out, and give one boundary less than the file has stages",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training run: what is trained, on what, and how it is spread."""

    model: Callable[..., Any] | Call
    """A function that returns the model: an nn.Module, or its layers as an nn.Sequential or a list of modules."""
    optimizer: Optimizer
    data: DataSource | StreamSource
    loss: Callable[..., Any] | Call | None = None
    """loss(output, label), or loss(output) without labels; None: the model's last layer returns the loss."""
    strategy: Strategy = field(default_factory=Strategy)
    epochs: int | None = None
    """Passes over the data; None: one, or as many as max_steps needs."""
    max_steps: int | None = None
    """End after this many steps, also within an epoch."""
    seed: int = 0
    clip_norm: float | None = None
    """Scale gradients so that their global norm over all stages is at most this."""
    check_finite: bool = False
    """End the run with NON_FINITE_LOSS instead of training on."""
    weight: Callable[..., Any] | Call | None = None
    """weight(labels) gives one number per row; None: every row weighs the same."""
    name: str | None = None
    """For people; None: the name of the model function."""
    include: Sequence[str] = ()
    """Files or globs that user code needs beside its imports, relative to where the model's module is imported from."""
    worker_wait_s: float = 60.0
    """How long the run may wait for the workers that it needs."""
    build_timeout_s: float = 600.0
    """How long building the model, the optimizer and the source may take."""
    step_timeout_s: float = 600.0
    """How long one step may take."""

    @property
    def num_epochs(self) -> int:
        """Passes over the data; 0: as many as max_steps needs."""
        if self.epochs is not None:
            return self.epochs
        return 0 if self.max_steps is not None and isinstance(self.data, DataSource) else 1

    def __post_init__(self) -> None:
        as_call(self.model, what="model")
        self._check_optimizer()
        for what in ("loss", "weight"):
            value = getattr(self, what)
            if value is not None:
                function = as_call(value, what=what).function
                if isinstance(function, type):
                    raise refuse(
                        f"{what} is the class {function.__qualname__}, which would be called with the output",
                        "Pass a function, such as torch.nn.functional.cross_entropy",
                    )
        self._check_data()
        self._check_numbers()

    def _check_optimizer(self) -> None:
        if isinstance(self.optimizer, Optimizer):
            return
        fix = "Write optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1)"
        if isinstance(self.optimizer, Call):
            raise refuse("optimizer is a Call", fix)
        if callable(self.optimizer):
            check_function(self.optimizer, what="optimizer")
        raise refuse(f"optimizer is {self.optimizer!r}; each stage makes its own over its own parameters", fix)

    def _check_data(self) -> None:
        data = self.data
        if not isinstance(data, DataSource | StreamSource):
            raise refuse(f"data is a {type(data).__name__}", "Write data=pipesvc.DataSource(reader, batch_size=8)")
        m = self.strategy.micro_batches
        if data.batch_size is not None and data.batch_size < m:
            raise refuse(
                f"batch_size is {data.batch_size} and micro_batches is {m}: a micro-batch would have no row",
                f"Use micro_batches={data.batch_size} at most, or a batch_size of {m} or more",
            )
        if self.weight is not None and not data.labels:
            raise refuse(
                "weight is given, but labels=False leaves nothing to weigh", "Leave weight out, or give labels"
            )
        if isinstance(data, StreamSource) and self.epochs not in (None, 1):
            raise refuse(
                f"epochs is {self.epochs}, but a streamed source is read once",
                "Leave epochs out and repeat the data in the iterable",
            )

    def _check_numbers(self) -> None:
        if self.epochs is not None:
            _at_least("epochs", self.epochs, 1)
        if self.max_steps is not None:
            _at_least("max_steps", self.max_steps, 1)
        _at_least("seed", self.seed, 0)
        if self.seed >= 2**63:
            raise refuse(f"seed is {self.seed}; it must be below 2**63")
        if self.clip_norm is not None:
            is_number = isinstance(self.clip_norm, int | float) and not isinstance(self.clip_norm, bool)
            if not is_number or not isfinite(self.clip_norm) or self.clip_norm <= 0:
                raise refuse(f"clip_norm is {self.clip_norm!r}; it must be a positive number")
        if isinstance(self.include, str):
            raise refuse(f"include is the text {self.include!r}", f"Write include=[{self.include!r}]")
        for name in ("worker_wait_s", "build_timeout_s", "step_timeout_s"):
            _duration(name, getattr(self, name))
