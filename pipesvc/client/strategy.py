"""How a model is cut and ordered, as a value of a job.

Each field alone may be right and two of them contradict each other: a strategy whose fields say different numbers of
stages would train another plan than was meant. So all of them are held against each other where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pipesvc.client import checks
from pipesvc.client.checks import refuse
from pipesvc.client.codec import Codec, check_codec
from pipesvc.client.schedule_file import ScheduleFile
from pipesvc.core.schedules import FILE, SCHEDULE_NAMES, check_counts, check_placement, splits_backward
from pipesvc.core.type_weights import type_parts
from pipesvc.errors import PipesvcError

# Slices of a batch; the coordinator refuses more.
MAX_MICRO_BATCHES: Final = 65_536
# A schedule that is chosen by simulation.
AUTO: Final = "auto"
# Ways to find the boundaries, beside type:REGEX[:WEIGHT]|...
_METHODS = ("auto", "uniform", "parameters")


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
    recompute: bool | Sequence[str] = False
    """Compute activations again in backward rather than keep them, with the same numbers. True: of every layer or
    unit; or of the modules that match these patterns: ("blocks.*",)."""
    compile: bool = False
    """torch.compile every layer or unit on its worker; numbers then agree to rounding."""
    same_host: bool = True
    """Links between workers of one host go through memory that both share; False: over gRPC, like all others."""
    codec: Codec = field(default_factory=Codec)
    """Fewer bits for what goes from worker to worker: Codec(activations="int8", gradients="bf16")."""

    def __post_init__(self) -> None:
        for name in ("pipeline", "allow_cpu_for_gpu", "compile", "same_host"):
            checks.flag(name, getattr(self, name))
        check_codec(self.codec)
        checks.whole("micro_batches", self.micro_batches, 1, MAX_MICRO_BATCHES)
        checks.whole_or_none("num_stages", self.num_stages, 1)
        checks.whole_or_none("in_flight", self.in_flight, 1)
        _check_boundaries(self.boundaries)
        self._check_schedule()
        self._check_recompute()
        self._check_num_stages()
        checks.is_a("placement", self.placement, Mapping, 'a dict of slots to workers, like {"gpu:0": "worker/cuda:0"}')
        for label, target in self.placement.items():
            checks.text("a slot in placement", label, 'Write placement={"gpu:0": "worker"}')
            checks.text(f"placement has {label!r}, whose worker", target, 'Write "worker" or "worker/device"')

    def cut_between(self, num_builders: int) -> Strategy:
        """The same for one builder for each stage. Refused where it says that the model is cut otherwise."""
        between = tuple(range(1, num_builders))
        if not self.pipeline:
            return self
        for name, value, fitting in (
            ("num_stages", self.num_stages, (None, num_builders)),
            ("boundaries", self.boundaries, ((), between, tuple(map(str, between)))),
        ):
            if (tuple(value) if isinstance(value, list) else value) not in fitting:
                text = f"model has {num_builders} builders, one for each stage, but {name} is {checks.shown(value)}"
                raise refuse(text, f"Leave {name} out")
        return replace(self, boundaries=between)

    @property
    def is_open(self) -> bool:
        """True where the cut or the schedule is left to be found: `Client.plan` closes it with measured costs."""
        return isinstance(self.boundaries, str) or self.has_open_schedule

    @property
    def is_one_stage(self) -> bool:
        """True where the model is not cut, whatever it is."""
        return not self.pipeline or self.num_stages == 1

    @property
    def has_open_schedule(self) -> bool:
        return isinstance(self.schedule, str) and self.schedule.lower() == AUTO

    def _check_schedule(self) -> None:
        schedule, choices = self.schedule, (*SCHEDULE_NAMES, AUTO)
        is_file = isinstance(schedule, ScheduleFile)
        if not is_file and (not isinstance(schedule, str) or schedule.lower() not in map(str.lower, choices)):
            fix = 'Or give a file of your own: schedule=pipesvc.ScheduleFile("zbv.csv")'
            raise checks.refusal("schedule", schedule, f"one of {', '.join(choices)}", fix)
        if self.in_flight is None:
            return
        if self.has_open_schedule:
            raise refuse(f'in_flight is {self.in_flight}, but schedule="auto" finds it', "Leave in_flight out")
        name = FILE if isinstance(schedule, ScheduleFile) else schedule
        check_counts(name, num_micro_batches=self.micro_batches, in_flight=self.in_flight)

    def _check_recompute(self) -> None:
        patterns = () if isinstance(self.recompute, bool) else self.recompute
        fix = 'Write recompute=("blocks.*",)'
        checks.sequence("recompute", patterns, "True, False or a tuple of patterns on names of modules", fix)
        for pattern in patterns:
            checks.text("a pattern of recompute", pattern, fix)
        if not self.compile:
            return
        if patterns:
            text = "compile=True compiles whole layers, and recompute names modules inside them"
            raise refuse(text, "Use recompute=True, or leave one of the two out")
        is_file = isinstance(self.schedule, ScheduleFile)
        text = self.schedule.text if isinstance(self.schedule, ScheduleFile) else ""
        name = FILE if is_file else str(self.schedule)
        if not self.has_open_schedule and splits_backward(name, text):
            what = "the schedule file" if is_file else self.schedule
            raise refuse(
                f"{what} splits backwards into I and W, and compile=True makes them whole",
                "Use 1F1B, GPipe or Interleaved1F1B, or leave compile out",
            )

    def _check_num_stages(self) -> None:
        """All that is said of the number of stages must be one number."""
        num_stages = self.num_stages
        if not self.pipeline:
            self._check_one_stage()
            num_stages = 1
        elif self.boundaries and not isinstance(self.boundaries, str):
            num_cut = len(self.boundaries) + 1
            if num_stages not in (None, num_cut):
                text = f"{num_cut - 1} boundaries make {num_cut} stages, but num_stages is {num_stages}"
                raise refuse(text, "Leave num_stages out")
            num_stages = num_cut
        if isinstance(self.schedule, ScheduleFile):
            table = self.schedule.table(self.micro_batches)
            if num_stages not in (None, table.num_stages):
                raise refuse(
                    f"{self.schedule.path} is for {table.num_stages} stages, and the strategy makes {num_stages}",
                    "Leave pipeline and num_stages out, and give one boundary less than the file has stages",
                )

    def _check_one_stage(self) -> None:
        for name in ("num_stages", "boundaries"):
            value = getattr(self, name)
            if value and value != 1:
                raise refuse(
                    f"pipeline=False makes one stage, but {name} is {checks.shown(value)}", f"Leave {name} out"
                )
        if isinstance(self.schedule, ScheduleFile) or self.has_open_schedule:
            return
        try:
            check_placement(self.schedule, [[0]])
        except PipesvcError as error:
            text = f"pipeline=False makes one stage, but schedule is {self.schedule!r}: {error.details.message}"
            raise refuse(text, "Leave one of the two out") from None


# A stage is a process's share of a model; `range(10**12)` is a slip.
_MAX_BOUNDARIES: Final = 65_536


def _check_boundaries(boundaries: Sequence[int] | Sequence[str]) -> None:
    if isinstance(boundaries, str):
        if boundaries not in _METHODS and not boundaries.startswith("type:"):
            fix = f"Write boundaries=({checks.shown(boundaries)},) for a layer's name"
            raise checks.refusal("boundaries", boundaries, f"one of {', '.join(_METHODS)}, type:REGEX as one text", fix)
        if boundaries not in _METHODS:
            type_parts(boundaries)  # refuses what cannot be read
        return
    checks.sequence("boundaries", boundaries, "a tuple of layers, by index or by name", "Write boundaries=(1, 3)")
    if len(boundaries) > _MAX_BOUNDARIES:
        raise checks.refusal("boundaries", boundaries, f"{_MAX_BOUNDARIES} at most")
    names = [each for each in boundaries if isinstance(each, str)]
    if names and len(names) != len(boundaries):
        raise refuse(f"boundaries is {checks.shown(boundaries)}", "Give all of them by index, or all by name")
    for name in names:
        checks.text("a boundary", name)
    indices = [each for each in boundaries if not isinstance(each, str)]
    fix = "A boundary is the index of a stage's first layer; the first stage has none"
    for index in indices:
        checks.whole("a boundary", index, 1, advice=fix)
    if len(set(boundaries)) != len(boundaries):
        raise refuse(f"boundaries is {checks.shown(boundaries)}; each cuts once, so that no stage is empty")
    if indices != sorted(indices):
        raise refuse(f"boundaries is {checks.shown(boundaries)}; they must ascend, so that no stage is empty")
