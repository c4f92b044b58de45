"""What a plan is made from and what it is: plain values, with a text form and a digest.

The plan is made once, by the coordinator, and travels to every process of a run as JSON; nobody asks again who holds
what. Two processes agree exactly when their digests do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar, get_type_hints

from pipesvc.core import flow_json
from pipesvc.core.flow import Flow
from pipesvc.core.layer_info import LayerInfo
from pipesvc.core.ties import Names, Pair, Tie, weight_transfers
from pipesvc.errors import ErrorCode, PipesvcError

__all__ = ["LayerInfo", "Plan", "StagePlan", "StrategySettings", "WorkerInfo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerInfo:
    """One registered worker, as far as planning cares."""

    name: str
    host: str = ""
    boot_id: str = ""  # equal on two workers exactly when they run on the same booted machine
    devices: tuple[str, ...] = ("cpu",)
    num_cores: int = 1
    num_threads: int = 0  # 0: shared out among the workers of the machine
    memory_bytes: int = 0  # of the host, or what `--memory` says where that is less; 0: not known
    memory_limit_bytes: int = 0  # as `--memory` says, for each device; 0: nothing was said

    def device_memory_bytes(self, device: str, own_bytes: int = 0) -> int:
        """What stages may take on this device, which has `own_bytes`; 0 is not known, or not limited.

        A CPU has its worker's memory; a GPU its own, or what `--memory` leaves of it.
        """
        if device == "cpu":
            return self.memory_bytes
        return min(filter(None, (own_bytes, self.memory_limit_bytes)), default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategySettings:
    """How the user wants the model cut and run."""

    is_pipelined: bool = True
    micro_batches: int = 1
    schedule: str = "1F1B"
    num_stages: int = 0  # 0: one per mark, or per worker where nothing is marked
    boundaries: tuple[int, ...] | tuple[str, ...] = ()  # index or name of the first layer of each stage after the first
    placement: Mapping[str, str] = field(default_factory=dict)  # slot label -> "worker" or "worker/device"
    allow_cpu_for_gpu: bool = False
    in_flight: int = 0  # micro-batches alive on stage 0 at most; 0: the schedule's own number
    schedule_text: str = ""  # of a schedule file, where the schedule is "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """One stage: which layers, and where."""

    index: int
    label: str  # of its placement slot: a mark, or "stage:K"
    worker: str
    device: str  # torch's name on that worker: "cpu", "cuda:0"
    first_layer: int
    end_layer: int  # one past the last
    layer_names: tuple[str, ...]
    parameter_bytes: int = 0  # with copies of what an earlier stage owns


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The immutable assignment of a run."""

    stages: tuple[StagePlan, ...]
    schedule: str
    micro_batches: int
    in_flight: int = 0  # as in StrategySettings
    schedule_text: str = ""  # as there
    flow_json: str = ""  # of a module that is cut by replay (`flow_json.to_json`); its units are the layers
    feeder_worker: str
    threads: Mapping[str, int]  # worker -> threads of its executor
    ties: tuple[Tie, ...] = ()  # parameters that several stages use
    warnings: tuple[str, ...] = ()

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that hold stages, each once, in the order of their first stage."""
        return tuple(dict.fromkeys(stage.worker for stage in self.stages))

    @property
    def ends(self) -> tuple[int, ...]:
        """The layers at which the stages end, as functions of flows want them."""
        return tuple(stage.end_layer for stage in self.stages)

    @property
    def flow(self) -> Flow | None:
        """None: the model is a list of layers, or one stage that runs as a whole."""
        return flow_json.known(self.flow_json) if self.flow_json else None

    @property
    def weight_transfers(self) -> dict[Pair, Names]:
        """(owner, holder) -> the parameters whose new value goes that way once a step."""
        return weight_transfers(self.ties, [(stage.worker, stage.device) for stage in self.stages])

    def stages_of(self, worker: str) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages if stage.worker == worker)

    def to_json(self) -> str:
        """One line, the same for equal plans."""
        return json.dumps({**asdict(self), "threads": dict(self.threads)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote; anything else is refused by the name of the field."""
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise _malformed(f"is not JSON: {error}") from None
        values = _checked(cls, raw)
        values["stages"] = tuple(StagePlan(**_checked(StagePlan, stage)) for stage in values["stages"])
        values["ties"] = tuple(Tie(**_checked(Tie, tie)) for tie in values["ties"])
        return cls(**values)

    @property
    def digest(self) -> str:
        """Names this plan in logs and checks that two processes hold the same one."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        lines = [f"{self.schedule}, {self.micro_batches} micro-batches, {self.num_stages} stages"]
        for stage in self.stages:
            names = stage.layer_names
            span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            lines.append(f"stage {stage.index} ({stage.label}): layers {span} on {stage.worker}/{stage.device}")
        return "\n".join(lines)


T = TypeVar("T", Plan, StagePlan, Tie)


# What the lists of a plan's JSON hold; an object where nothing is said.
_ITEMS: Final[dict[Any, type]] = {tuple[str, ...]: str, tuple[int, ...]: int}


def _malformed(what: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_PLAN, f"the text of a plan {what}")


def _checked(kind: type[T], raw: object) -> dict[str, Any]:
    """The fields of `kind` out of parsed JSON: all there, none more, each of its type; lists become tuples."""
    if not isinstance(raw, dict):
        raise _malformed(f"has no object for a {kind.__name__}")
    names = {item.name for item in fields(kind)}
    if raw.keys() != names:
        differing = ", ".join(sorted(str(name) for name in raw.keys() ^ names))
        raise _malformed(f"differs from a {kind.__name__} in {differing}")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in raw.items():
        hint = hints[name]
        if hint in (int, str, bool):
            is_right = type(value) is hint
        elif hint == Mapping[str, int]:
            is_right = isinstance(value, dict) and all(type(item) is int for item in value.values())
        else:
            wanted = _ITEMS.get(hint, dict)
            is_right = isinstance(value, list) and all(type(item) is wanted for item in value)
        if not is_right:
            raise _malformed(f"has a wrong value for {name} of a {kind.__name__}: {value!r}")
        values[name] = tuple(value) if isinstance(value, list) else value
    return values
