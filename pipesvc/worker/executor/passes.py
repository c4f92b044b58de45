"""One pass of a batch through the stages of a worker: a step of training, or forwards alone (evaluation, prediction).

What tells the two apart is here: the actions, the mode of the modules, the random numbers, and how people call it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from pipesvc.core import schedules
from pipesvc.core.actions import EVALUATING, Action
from pipesvc.core.edges import Edges
from pipesvc.core.live import live_peaks
from pipesvc.errors import PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.executor import outputs, routes
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.program import Parcels
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.port_like import PortLike

_log = logging.getLogger("pipesvc.executor")

# Such passes draw random numbers for steps that no training reaches; the same ones in each evaluation.
_FIRST_SEEDED: Final = 1 << 48


@dataclass(kw_only=True, slots=True)
class Pass:
    """What of it is left, and how many micro-batches may be alive on each stage."""

    issue: local_pb2.IssueStep
    schedule: str
    pending: list[Action]
    bounds: dict[int, int]
    look_ahead: int

    @property
    def is_step(self) -> bool:
        return is_step(self.issue)

    @property
    def name(self) -> str:
        match self.issue.kind:
            case local_pb2.PASS_KIND_EVALUATION:
                return f"batch {self.issue.step} of the evaluation after step {self.issue.after_step}"
            case local_pb2.PASS_KIND_PREDICTION:
                return f"batch {self.issue.step}"
            case _:
                return f"step {self.issue.step}"

    @property
    def shown_step(self) -> int:
        """Of an evaluation, the step before it."""
        return self.issue.after_step if self.issue.kind == local_pb2.PASS_KIND_EVALUATION else self.issue.step

    @property
    def seeded_step(self) -> int:
        return self.issue.step if self.is_step else _FIRST_SEEDED + self.issue.step

    def phase_of(self, action: Action) -> str:
        """What progress and trace call it."""
        return action.kind.value if self.is_step else EVALUATING

    def located(self, error: PipesvcError, action: Action) -> PipesvcError:
        """The same error with its place."""
        placed = error.at(Where(step=self.issue.step, stage=action.stage, micro_batch=action.micro_batch))
        if self.is_step:
            return placed
        details = placed.details
        where = replace(details.where, step=self.shown_step)
        return PipesvcError.of(replace(details, message=f"{details.message}, in {self.name}", where=where))


def is_step(issue: local_pb2.IssueStep) -> bool:
    return issue.kind == local_pb2.PASS_KIND_UNSPECIFIED


def crowded(port: PortLike, step: Pass, edges: Edges, action: Action, *, num_stages_here: int) -> Link | None:
    """The link that keeps this action from making more than its receiver takes (`wire.ahead`).

    Never in a step of training, whose schedule has a bound of its own, nor on a worker of several stages: its list is
    kept in order, and what is held back there might be what a later entry, which others wait for, may not pass.
    """
    if step.is_step or num_stages_here > 1:
        return None
    links = (routes.activation_link(action.stage, consumer) for consumer in edges.consumers(action.stage))
    return next((link for link in links if not port.has_room(link)), None)


def forward(
    port: PortLike, step: Pass, stage: Stage, micro_batch: int, inputs: Parcels, labels: Parcel | None
) -> Mapping[int, Any]:
    """Of a pass without a backward. What a prediction gives leaves at once."""
    issue = step.issue
    if issue.kind == local_pb2.PASS_KIND_EVALUATION:
        return stage.evaluate(step.seeded_step, micro_batch, inputs, labels, issue.shares[micro_batch])
    found = stage.predict(step.seeded_step, micro_batch, inputs)
    if stage.spec.is_last:
        for part in outputs.parts(issue, micro_batch, found.result):
            port.report(local_pb2.FromChild(output_part=part))
    return found.outputs


def applied(step: Pass, stage: Stage) -> local_pb2.StepApplied:
    """The report of this stage, after its last action of the pass."""
    issue = step.issue
    report = local_pb2.StepApplied(step=issue.step, stage=stage.spec.index, kind=issue.kind)
    if measured := _measured(step, stage):
        report.loss = measured[0]
        report.metrics.extend(measured[1:])
    for error in stage.take_failures():
        details = error.details
        said = f"{details.message}, in micro-batch {details.where.micro_batch} of {step.name}"
        report.metric_warnings.append(f"{said}: the metric is nan where it fails, and training goes on")
        _log.warning("%s\n%s", said, details.traceback)
    return report


def _measured(step: Pass, stage: Stage) -> list[float]:
    """Loss and metrics, from the last stage alone. A prediction has no loss."""
    if step.issue.kind == local_pb2.PASS_KIND_PREDICTION:
        return [math.nan] if stage.spec.is_last else []
    if not step.is_step:
        return stage.take_measured(step.issue.shares)
    loss = stage.take_loss(step.issue.shares)
    return [] if loss is None else [loss]


def begun(
    issue: local_pb2.IssueStep,
    *,
    schedule: str,
    stages: Sequence[int],
    num_stages: int,
    in_flight: int,
    decides: bool,
    text: str,
) -> Pass:
    """A worker with these stages begins; the schedule and what belongs to it are those of a step."""
    if not is_step(issue):
        schedule, in_flight, text = schedules.FORWARDS, 0, ""
    pending = schedules.worker_actions(
        schedule,
        stages=stages,
        num_stages=num_stages,
        num_micro_batches=len(issue.shares),
        in_flight=in_flight,
        decides=decides,
        text=text,
    )
    return Pass(
        issue=issue,
        schedule=schedule,
        pending=list(pending),
        bounds=live_peaks(pending),
        look_ahead=schedules.look_ahead(schedule, len(stages)),
    )


class EvalMode:
    """Takes modules into eval() mode and back to what they were: some may never be in train mode.

    `train` is called as a plain loop would call it, for a module may do more in it; then each gets its own flag back.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._roots = list({id(root): root for root in roots}.values())
        self._flags: list[tuple[nn.Module, bool]] | None = None

    def enter(self) -> None:
        if self._flags is None:
            self._flags = [(module, module.training) for root in self._roots for module in root.modules()]
            for root in self._roots:
                root.eval()

    def leave(self) -> None:
        flags, self._flags = self._flags, None
        if flags is None:
            return
        own = {id(module): flag for module, flag in flags}
        for root in self._roots:
            root.train(own[id(root)])
        for module, flag in flags:
            module.training = flag
