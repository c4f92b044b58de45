"""The one interpreter of every schedule on an executor.

A schedule written as a loop blocks on the message that it wants next, and each schedule needs its own loop. Here the
plan's priority list is data: of the actions still to run in this step, `core.choice` picks the first whose parcels
are there, and this module performs it. It is the same choice that the simulator makes.

Threads: one. `turn` is the whole life of an executor: take what has come, run at most one action, else wait.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

from pipesvc.core import choice
from pipesvc.core.actions import Action, ActionKind
from pipesvc.core.edges import Edges
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.link_codecs import LinkCodecs
from pipesvc.wire.links import Link
from pipesvc.worker.executor import passes, routes, weights
from pipesvc.worker.executor.deciding import Decider, Decision, Report
from pipesvc.worker.executor.inbox import Inbox, Parcel
from pipesvc.worker.executor.occupancy import Occupancy
from pipesvc.worker.executor.outbox import Outbox
from pipesvc.worker.executor.passes import Pass
from pipesvc.worker.executor.program import Gradients
from pipesvc.worker.executor.saving import Saver
from pipesvc.worker.executor.scaling import LossScale, ScalerSettings
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.executor.trace import TraceLog
from pipesvc.worker.port import ParcelArrived
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter

# One wait of the loop; the coordinator's limits on a build and a step bound how often it repeats.
IDLE_WAIT_S: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the interpreter needs of plan and job."""

    worker: str
    edges: Edges
    schedule: str
    in_flight: int
    # Of a schedule file; empty for a schedule by name.
    schedule_text: str
    # 0: no clipping.
    clip_norm: float
    # None: losses are not scaled.
    scaler: ScalerSettings | None
    # Of the first loss, where it is not the scaler's own.
    scale: LossScale | None = None
    start: types_pb2.Position = field(default_factory=types_pb2.Position)
    codecs: LinkCodecs = field(default_factory=LinkCodecs)


@dataclass(kw_only=True, slots=True)
class _Waits:
    """Commands that have come and are not due yet."""

    issued: deque[local_pb2.IssueStep] = field(default_factory=deque)
    # Set once the coordinator says stop; its text.
    stop_reason: str | None = None


class Runtime:
    """Runs the stages of this worker, step after step, until it is told to stop."""

    def __init__(
        self,
        port: PortLike,
        stages: Mapping[int, Stage],
        settings: Settings,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._port = port
        self._stages = dict(stages)
        self._settings = settings
        self._inbox = Inbox()
        self._outbox = Outbox(port, self._inbox, self._stages, settings.codecs)
        self._occupancy = Occupancy(port, now_ns)
        self._progress = ProgressReporter(port, now_ns, self._occupancy)
        self._trace = TraceLog(settings.worker, port.credit_ns, now_ns)
        self._decider = Decider(settings.clip_norm, settings.scaler, settings.scale)
        self._waits = _Waits()
        self._eval_mode = passes.EvalMode(root for stage in stages.values() for root in stage.roots().values())
        self._step: Pass | None = None
        self._saver = Saver(port, self._stages, self._progress, settings.start)
        self._read_by = cache(partial(routes.read_by, settings.edges))  # asked for again on each turn

    @property
    def is_stopped(self) -> bool:
        return self._waits.stop_reason is not None

    def run(self) -> None:
        while not self.is_stopped:
            self.turn(IDLE_WAIT_S)

    def turn(self, wait_s: float) -> bool:
        """Take what has come and run one action; with none ready, wait at most `wait_s`. True if an action ran."""
        self._absorb(0.0)
        if self.is_stopped:
            return False
        self._save_if_due()
        self._begin_if_issued()
        step = self._step
        if step is None:
            self._note_waiting("the next step from the coordinator")
        else:
            live = {index: stage.num_live for index, stage in self._stages.items()}
            chosen = choice.choose(step.pending, self._is_ready, live, step.bounds, step.look_ahead)
            if chosen is not None:
                self._perform_located(step, step.pending.pop(chosen))
                return True
            self._note_waiting(self._missing_text(step))
        self._absorb(wait_s)
        return False

    def _absorb(self, wait_s: float) -> None:
        for event in self._port.poll(wait_s):
            if isinstance(event, ParcelArrived):
                parcel = Parcel(
                    leaves=event.leaves,
                    requires_grad=event.requires_grad,
                    structure=event.structure,
                    is_local=False,
                )
                self._inbox.put(event.link, event.step, event.micro_batch, parcel)
            else:
                self._obey(event)

    def _obey(self, command: local_pb2.ToChild) -> None:
        match command.WhichOneof("message"):
            case "issue_step":
                self._waits.issued.append(command.issue_step)
            case "save_state":
                self._saver.ask(command.save_state.step)
            case "stop":
                self._waits.stop_reason = command.stop.reason

    def _begin_if_issued(self) -> None:
        if self._step is not None or not self._waits.issued:
            return
        issue = self._waits.issued.popleft()
        if not passes.is_step(issue):
            self._eval_mode.enter()
        else:
            self._eval_mode.leave()
            if issue.step != (after := self._saver.num_applied) + 1:
                message = f"step {issue.step} was issued after step {after} was applied"
                raise PipesvcError(ErrorCode.INTERNAL, message)
            for stage in self._stages.values():
                stage.begin(issue.step, issue.epoch)
        settings = self._settings
        self._step = passes.begun(
            issue,
            schedule=settings.schedule,
            stages=list(self._stages),
            num_stages=settings.edges.num_stages,
            in_flight=settings.in_flight,
            decides=settings.edges.decides,
            text=settings.schedule_text,
        )

    def _save_if_due(self) -> None:
        if self._step is None and self._saver.is_due:
            self._eval_mode.leave()
            self._saver.save(self._decider.scale)

    def _is_ready(self, action: Action) -> bool:
        return self._first_missing(action) is None and self._crowded(action) is None

    def _crowded(self, action: Action) -> Link | None:
        assert self._step is not None
        return passes.crowded(self._port, self._step, self._settings.edges, action, num_stages_here=len(self._stages))

    def _first_missing(self, action: Action) -> Link | None:
        assert self._step is not None
        step, micro_batch = self._step.issue.step, action.micro_batch or 0
        for link in self._read_by(action):
            if not self._inbox.has(link, step, micro_batch):
                return link
        return None

    def _perform_located(self, step: Pass, action: Action) -> None:
        """Whatever goes wrong is told with its step, stage and micro-batch."""
        try:
            self._perform(step, action)
        except PipesvcError as error:
            raise step.located(error, action) from error.__cause__

    def _perform(self, step: Pass, action: Action) -> None:
        """Compute, note the time, and only then send: a reader may start before this process runs on."""
        self._trace.starts()
        number, stage = step.issue.step, self._stages[action.stage]
        phase = step.phase_of(action)
        self._progress.busy(phase, step=step.shown_step, stage=action.stage, micro_batch=action.micro_batch)
        links = self._read_by(action)
        parcels = {link: self._take(link, number, action.micro_batch or 0) for link in links}
        deliver = self._compute(step, action, stage, parcels)
        self._trace.ends(action, step.shown_step, phase)
        deliver()
        if not step.pending:
            self._end(step)

    def _end(self, step: Pass) -> None:
        self._step = None
        if step.is_step:
            self._saver.applied(step.issue)
            return
        for stage in self._stages.values():
            self._report_applied(stage, step)

    def _compute(self, step: Pass, action: Action, stage: Stage, parcels: Mapping[Link, Parcel]) -> Callable[[], None]:
        """Runs the action; returns what hands its result on."""
        number = step.issue.step
        sent = {link.producer: parcel for link, parcel in parcels.items() if link.kind != types_pb2.LINK_KIND_LABEL}
        match action.kind, action.micro_batch:
            case ActionKind.FORWARD, int(micro_batch):
                labels = parcels.get(routes.label_link(self._settings.edges.num_stages))
                if step.is_step:
                    outputs = stage.forward(number, micro_batch, sent, labels, step.issue.shares[micro_batch])
                else:
                    outputs = passes.forward(self._port, step, stage, micro_batch, sent, labels)
                return partial(self._send_outputs, action, number, outputs)
            case ActionKind.WEIGHT_BACKWARD, int(micro_batch):
                stage.weight_backward(micro_batch)
                return _nothing
            case ActionKind.BACKWARD | ActionKind.INPUT_BACKWARD, int(micro_batch):
                share = step.issue.shares[micro_batch]
                run = stage.backward if action.kind is ActionKind.BACKWARD else stage.input_backward
                return partial(self._send_gradients, action, number, run(number, micro_batch, sent, share))
            case ActionKind.NORM, _:
                return partial(self._outbox.send, routes.norm_link(action.stage), number, 0, stage.report().to_nest())
            case ActionKind.DECIDE, _:
                reports = [Report.of_nest(each.value()) for each in parcels.values()]
                return partial(self._send_decision, number, self._decider.decide(number, reports))
            case _:
                decided = parcels.get(routes.decision_link(action.stage))
                stage.update(number, Decision.of_nest(decided.value()) if decided is not None else None)
                weights.take(self._settings.edges, stage, parcels)
                return partial(self._report_applied, stage, step)

    def _send_outputs(self, action: Action, step: int, outputs: Mapping[int, Any]) -> None:
        for consumer, value in outputs.items():
            link = routes.activation_link(action.stage, consumer)
            self._outbox.send(link, step, action.micro_batch or 0, value)

    def _send_gradients(self, action: Action, step: int, gradients: Gradients) -> None:
        for receiver, each in gradients.items():
            link = routes.gradient_link(action.stage, receiver)
            self._outbox.send_gradients(link, step, action.micro_batch or 0, each)

    def _send_decision(self, step: int, decision: Decision) -> None:
        for stage in range(self._settings.edges.num_stages):
            self._outbox.send(routes.decision_link(stage), step, 0, decision.to_nest())

    def _report_applied(self, stage: Stage, step: Pass) -> None:
        if step.is_step:
            weights.send(self._settings.edges, stage, self._outbox, step.issue.step)
        for message in self._trace.drain(self._occupancy.step_ended()):
            self._port.report(message)
        self._port.report(local_pb2.FromChild(step_applied=passes.applied(step, stage)))

    def _take(self, link: Link, step: int, micro_batch: int) -> Parcel:
        parcel = self._inbox.take(link, step, micro_batch)
        if not parcel.is_local:
            self._port.consumed(link)
        return parcel

    def _missing_text(self, step: Pass) -> str:
        for action in step.pending:
            missing = self._first_missing(action)
            if missing is not None:
                return routes.waiting_text(action, missing, step.name)
            if (crowded := self._crowded(action)) is not None:
                return routes.crowded_text(crowded)
        return ""

    def _note_waiting(self, awaiting: str) -> None:
        self._trace.waits(awaiting)
        self._progress.waiting(awaiting, step=None if self._step is None else self._step.shown_step)


def _nothing() -> None:
    """The action's result goes nowhere."""
