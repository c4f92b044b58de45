"""What a plan will cost, stage by stage and place by place: the numbers that people ask for before a run.

The plan says who does what, the costs say what each stage needs, the simulation says what becomes of it; each alone
leaves the reader to add up. Here they are added up once, as values that the table, the JSON and the comparison with
a run all read. Pure; seconds and bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pipesvc.core.costs import Costs
from pipesvc.core.fingerprints import fingerprint_warnings
from pipesvc.core.memory import Memory
from pipesvc.core.plan import Plan, StagePlan
from pipesvc.core.schedule_search import Candidate
from pipesvc.core.stage_costs import StageCost, gradients_on_links, outputs_on_links
from pipesvc.core.ties import Pair
from pipesvc.core.timeline import Simulation


@dataclass(frozen=True, kw_only=True, slots=True)
class StageReport:
    """One stage. Times and bytes are those of one micro-batch where nothing else is said."""

    index: int
    label: str
    worker: str
    device: str
    first_layer: str
    last_layer: str
    num_layers: int
    parameter_bytes: int  # once
    forward_s: float
    backward_s: float
    update_s: float  # once a step
    peak_in_flight: int  # micro-batches alive at once
    output_bytes: int = 0  # sent to later stages on other workers
    hop_s: float = 0.0  # how long it is on its way, on the slowest of them
    gradient_bytes: int = 0  # sent back by them
    gradient_hop_s: float = 0.0

    @property
    def place(self) -> str:
        """Worker and device, as a strategy's placement writes them."""
        return f"{self.worker}/{self.device}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkReport:
    """What goes from a stage to one on another worker, for each micro-batch."""

    link: str  # as runs name it: "0>1/activation"
    num_bytes: int  # coded, where the link has a codec
    hop_s: float
    way: str = ""  # as it was measured: "same host" or "gRPC"; empty: not known


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceReport:
    """One device of a worker that holds stages."""

    worker: str
    device: str
    stages: tuple[int, ...]
    memory_bytes: int
    memory_cap_bytes: int  # 0: not limited
    memory_text: str  # the sum, against the cap
    idle: float  # the part of the step in which it does nothing
    fingerprint: str  # of its numbers; empty: unknown

    @property
    def place(self) -> str:
        return f"{self.worker}/{self.device}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanReport:
    """A plan with what it is expected to cost."""

    stages: tuple[StageReport, ...]
    places: tuple[PlaceReport, ...]
    schedule: str
    micro_batches: int
    in_flight: int  # 0: the schedule's own number
    step_s: float
    bubble: float  # the part of the workers' time in which they do nothing
    links: tuple[LinkReport, ...] = ()
    reasons: tuple[str, ...] = ()  # why this plan
    runner_up: str = ""  # the next best, and why it lost
    warnings: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


def make_report(
    plan: Plan, costs: Costs, stages: Sequence[StageCost], evaluated: Candidate, *, fingerprints: Mapping[str, str]
) -> PlanReport:
    """`stages` are what the plan's stages cost, `evaluated` is its schedule on them, `fingerprints` are by worker."""
    used = {worker: fingerprints.get(worker, "") for worker in plan.workers}
    step = evaluated.step
    outputs = _sent(costs, stages, outputs_on_links(stages), "activation")
    gradients = _sent(costs, stages, gradients_on_links(stages), "gradient")
    return PlanReport(
        stages=tuple(
            _stage_report(
                planned,
                stages[planned.index],
                step.peak_in_flight[planned.index],
                sent=[link for (sender, _), link in outputs.items() if sender == planned.index],
                sent_back=[link for (_, receiver), link in gradients.items() if receiver == planned.index],
            )
            for planned in plan.stages
        ),
        places=tuple(_place_report(place, held, stages, step, used) for place, held in evaluated.memory.items()),
        links=(*outputs.values(), *gradients.values()),
        schedule=plan.schedule,
        micro_batches=plan.micro_batches,
        in_flight=plan.in_flight,
        step_s=step.step_s,
        bubble=step.bubble,
        warnings=(*plan.warnings, *fingerprint_warnings(used)),
    )


def _sent(costs: Costs, stages: Sequence[StageCost], sizes: Mapping[Pair, int], kind: str) -> dict[Pair, LinkReport]:
    """What leaves its worker."""
    found = {}
    for (sender, receiver), num_bytes in sizes.items():
        workers = stages[sender].worker, stages[receiver].worker
        if workers[0] != workers[1]:
            cost = costs.link(*workers)
            found[sender, receiver] = LinkReport(
                link=f"{sender}>{receiver}/{kind}", num_bytes=num_bytes, hop_s=cost.hop_s(num_bytes), way=cost.way
            )
    return found


def _stage_report(
    planned: StagePlan,
    own: StageCost,
    peak_in_flight: int,
    *,
    sent: Sequence[LinkReport],
    sent_back: Sequence[LinkReport],
) -> StageReport:
    return StageReport(
        index=planned.index,
        label=planned.label,
        worker=planned.worker,
        device=planned.device,
        first_layer=planned.layer_names[0],
        last_layer=planned.layer_names[-1],
        num_layers=len(planned.layer_names),
        parameter_bytes=planned.parameter_bytes,
        forward_s=own.forward_s,
        backward_s=own.backward_s,
        update_s=own.update_s,
        peak_in_flight=peak_in_flight,
        output_bytes=sum(link.num_bytes for link in sent),
        hop_s=max((link.hop_s for link in sent), default=0.0),
        gradient_bytes=sum(link.num_bytes for link in sent_back),
        gradient_hop_s=max((link.hop_s for link in sent_back), default=0.0),
    )


def _place_report(
    place: str, memory: Memory, stages: Sequence[StageCost], step: Simulation, fingerprints: Mapping[str, str]
) -> PlaceReport:
    held = tuple(index for index, stage in enumerate(stages) if stage.place == place)
    first = stages[held[0]]
    busy_s = sum(step.busy_s[index] for index in held)
    return PlaceReport(
        worker=first.worker,
        device=first.device,
        stages=held,
        memory_bytes=memory.total_bytes,
        memory_cap_bytes=first.memory_bytes,
        memory_text=memory.text(first.memory_bytes),
        idle=1 - busy_s / step.step_s if step.step_s else 0.0,
        fingerprint=fingerprints[first.worker],
    )
