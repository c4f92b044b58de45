"""A coordinator's machine with simulated workers and simulated time: everything that the shell and the world do, as
plain values.

Workers answer at once and correctly unless a test says otherwise: `mute` names what a worker keeps to itself, and
`say` speaks for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pipesvc.coordinator import events
from pipesvc.coordinator.machine import Machine
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, types_pb2, worker_pb2

START_S: Final = 1_000_000.0


def make_job(
    *,
    micro_batches: int = 2,
    num_stages: int = 0,
    batch_size: int = 8,
    python_version: str = "3.11.4",
    torch_version: str = "2.13.0",
    seed: int = 0,
    check_finite: bool = False,
) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(
        name="small",
        model=types_pb2.Call(target="user.model:build"),
        loss=types_pb2.Call(target="user.model:loss", arguments_json="{}"),
        optimizer=types_pb2.Call(target="torch.optim:SGD", arguments_json='{"lr": 0.1}'),
        data=job_pb2.DataSpec(
            source=types_pb2.Call(target="user.model:read"),
            yields=job_pb2.YIELDS_SAMPLE,
            batch_size=batch_size,
            capacity=4,
            has_labels=True,
            timeout_s=30,
        ),
        strategy=job_pb2.StrategySpec(
            is_pipelined=True, micro_batches=micro_batches, schedule="1F1B", num_stages=num_stages
        ),
        epochs=1,
        seed=seed,
        check_finite=check_finite,
        worker_wait_s=20,
        build_timeout_s=60,
        step_timeout_s=40,
        python_version=python_version,
        torch_version=torch_version,
    )


def make_registration(
    name: str, *, incarnation: str = "1", fingerprint: str = "same", python: str = "3.11.9", torch: str = "2.13.1+cpu"
) -> worker_pb2.Register:
    return worker_pb2.Register(
        name=name,
        incarnation=f"{name}/{incarnation}",
        host=f"host-of-{name}",
        boot_id="boot",
        devices=["cpu"],
        num_cores=4,
        versions=worker_pb2.Versions(pipesvc="0.1.0", python=python, torch=torch, wire=1),
        data_address=f"{name}:7000",
        fingerprint=fingerprint,
    )


@dataclass(kw_only=True)
class SimulatedWorker:
    """One worker process. `mute` holds the kinds of reports that it keeps back: "ready", "applied", "shard", ..."""

    registration: worker_pb2.Register
    session: int
    beats: bool = True
    mute: set[str] = field(default_factory=set)
    received: list[worker_pb2.AttachResponse] = field(default_factory=list)
    plan: Plan | None = None
    applied: dict[int, int] = field(default_factory=dict)
    # Stage and step of the states that were asked for and wait for their step.
    unsaved: set[tuple[int, int]] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.registration.name

    def commands(self, kind: str) -> list[worker_pb2.AttachResponse]:
        return [message for message in self.received if message.WhichOneof("message") == kind]

    def issued(self) -> list[int]:
        """The steps that this worker's executor was told to run."""
        return [
            message.to_run.message.issue_step.step
            for message in self.commands("to_run")
            if message.to_run.role == types_pb2.ROLE_EXECUTOR and message.to_run.message.HasField("issue_step")
        ]


class World:
    def __init__(self, *, num_steps: int = 3, num_layers: int = 4) -> None:
        self.machine = Machine(term=7)
        self.now_s = START_S
        self.num_steps = num_steps
        self.num_layers = num_layers
        self.layer_bytes = 0  # of weights, and as much of gradients
        self.state_per_gradient = 0.0
        self.workers: dict[str, SimulatedWorker] = {}
        self.commands: list[events.Command] = []
        self.holds_merges = self.holds_conclusions = False
        # What a trial of the data finds, and on which workers (all: None); and where it kills the inspector.
        self.misfit: local_pb2.DataMisfit | None = None
        self.misfit_on: set[str] | None = None
        self.dies_trying_on: set[str] = set()
        self._num_sessions = 0
        self._queue: deque[events.Event] = deque()

    # --- the world's moves ------------------------------------------------------------------------------------------

    def add_worker(
        self, name: str, registration: worker_pb2.Register | None = None, *, mute: str = ""
    ) -> SimulatedWorker:
        self._num_sessions += 1
        worker = SimulatedWorker(
            registration=registration or make_registration(name), session=self._num_sessions, mute={mute}
        )
        self.workers[name] = worker
        self.tell(events.WorkerAttached(session=worker.session, registration=worker.registration))
        return worker

    def submit(self, run_id: str = "r", job: job_pb2.JobSpec | None = None) -> run_pb2.Run:
        self.tell(events.RunSubmitted(run_id=run_id, job=job or make_job(), link_token="secret"))
        return self.run(run_id)

    def tell(self, event: events.Event) -> None:
        self._queue.append(event)
        self.work()

    def say(self, worker: str, role: types_pb2.Role, report: local_pb2.FromChild, run_id: str = "r") -> None:
        child_report = worker_pb2.ChildReport(run_id=run_id, role=role, report=report)
        self.speak(worker, worker_pb2.AttachRequest(child_report=child_report))

    def speak(self, worker: str, message: worker_pb2.AttachRequest) -> None:
        self.tell(events.WorkerSpoke(session=self.workers[worker].session, message=message))

    def fail_child(self, worker: str, code: ErrorCode, *, is_echo: bool = False, run_id: str = "r") -> None:
        failed = types_pb2.ErrorReport(code=code.value, message=f"{code.value} happened", is_echo=is_echo)
        self.say(worker, types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(failed=failed), run_id)

    def break_stream(self, worker: str) -> None:
        self.workers[worker].beats = False
        self.tell(events.WorkerDetached(session=self.workers[worker].session))

    def pass_time(self, duration_s: float) -> None:
        """Beats every half second, ticks every tenth."""
        for tick in range(round(duration_s * 10)):
            self.now_s += 0.1
            if tick % 5 == 0:
                for worker in list(self.workers.values()):
                    if worker.beats:
                        self.speak(worker.name, worker_pb2.AttachRequest(beat=worker_pb2.Beat()))
            self.tell(events.Ticked())

    def work(self) -> None:
        """Deliver events, and what follows from them, until nothing is left to do."""
        while self._queue:
            event = self._queue.popleft()
            for command in self.machine.handle(event, self.now_s):
                self.commands.append(command)
                self._perform(command)
            if isinstance(event, events.WorkerSpoke):
                self._note_applied(event)

    # --- what a test looks at ---------------------------------------------------------------------------------------

    def run(self, run_id: str = "r") -> run_pb2.Run:
        return self.machine.run(run_id)

    def state(self, run_id: str = "r") -> str:
        return run_pb2.RunState.Name(self.run(run_id).state).removeprefix("RUN_STATE_")

    def steps(self, run_id: str = "r") -> list[run_pb2.StepRecord]:
        return [c.record for c in self.commands if isinstance(c, events.RecordStep) and c.run_id == run_id]

    def answers(self) -> list[events.AnswerWeights]:
        return [command for command in self.commands if isinstance(command, events.AnswerWeights)]

    def awaited(self, run_id: str = "r") -> list[tuple[str, str]]:
        return [(line.what, line.from_whom) for line in self.run(run_id).awaited]

    # --- commands ---------------------------------------------------------------------------------------------------

    def _perform(self, command: events.Command) -> None:
        match command:
            case events.Send():
                for worker in self.workers.values():
                    if worker.registration.incarnation == command.incarnation:
                        worker.received.append(command.message)
                        self._react(worker, command.message)
            case events.MergeShards() if not self.holds_merges:
                self._queue.append(events.WeightsMerged(run_id=command.run_id, step=command.step))
            case events.ConcludeRun() if not self.holds_conclusions:
                self._queue.append(events.RunConcluded(run_id=command.run.run_id))
            case _:
                pass

    def _react(self, worker: SimulatedWorker, message: worker_pb2.AttachResponse) -> None:
        match message.WhichOneof("message"):
            case "start_child":
                self._start(worker, message.start_child.assignment)
            case "to_run":
                self._obey(worker, message.to_run)
            case "stop_run" if "stopped" not in worker.mute:
                stopped = worker_pb2.RunStopped(run_id=message.stop_run.run_id)
                self._answer(worker, worker_pb2.AttachRequest(run_stopped=stopped))
            case _:
                pass

    def _start(self, worker: SimulatedWorker, assignment: local_pb2.Assignment) -> None:
        role, run_id = assignment.role, assignment.run_id
        if role == types_pb2.ROLE_INSPECTOR:
            size, names = self.layer_bytes, map(str, range(self.num_layers))
            layers = [local_pb2.LayerInfo(name=name, parameter_bytes=size, gradient_bytes=size) for name in names]
            trying = local_pb2.Inspected(layers=layers, is_trying=True, state_per_gradient=self.state_per_gradient)
            self._report(worker, run_id, role, "trying", local_pb2.FromChild(inspected=trying))
            if worker.name in self.dies_trying_on:
                died = types_pb2.ErrorReport(code=ErrorCode.CHILD_DIED.value, message="killed by SIGILL")
                return self._report(worker, run_id, role, "failed", local_pb2.FromChild(failed=died))
            misfit = self.misfit if self.misfit_on is None or worker.name in self.misfit_on else None
            inspected = local_pb2.Inspected(layers=layers, misfit=misfit, state_per_gradient=self.state_per_gradient)
            return self._report(worker, run_id, role, "inspected", local_pb2.FromChild(inspected=inspected))
        worker.plan, worker.applied, worker.unsaved = Plan.from_json(assignment.plan_json), {}, set()
        self._report(worker, run_id, role, "ready", local_pb2.FromChild(ready=local_pb2.Ready()))
        if role == types_pb2.ROLE_FEEDER:
            for step in range(1, self.num_steps + 1):
                batch = local_pb2.BatchAnnounced(step=step, shares=[0.5, 0.5], rows=[4, 4])
                self._report(worker, run_id, role, "batch", local_pb2.FromChild(batch_announced=batch))
            end = local_pb2.FromChild(data_ended=local_pb2.DataEnded(num_steps=self.num_steps))
            self._report(worker, run_id, role, "end", end)

    def _obey(self, worker: SimulatedWorker, to_run: worker_pb2.ToRun) -> None:
        assert worker.plan is not None
        if to_run.role != types_pb2.ROLE_EXECUTOR:
            return
        for stage in worker.plan.stages_of(worker.name):
            if to_run.message.HasField("issue_step"):
                step = to_run.message.issue_step.step
                is_last = stage.index == worker.plan.num_stages - 1
                loss = 1.0 / step if is_last else None
                applied = local_pb2.StepApplied(step=step, stage=stage.index, loss=loss)
                self._report(worker, to_run.run_id, to_run.role, "applied", local_pb2.FromChild(step_applied=applied))
            elif to_run.message.HasField("save_state"):
                worker.unsaved.add((stage.index, to_run.message.save_state.step))
        self._save(worker, to_run.run_id)

    def _note_applied(self, event: events.WorkerSpoke) -> None:
        """States of a step go out once the step is applied."""
        child_report = event.message.child_report
        applied = child_report.report.step_applied
        for worker in self.workers.values():
            if worker.session == event.session and applied.step:
                worker.applied[applied.stage] = applied.step
                self._save(worker, child_report.run_id)

    def _save(self, worker: SimulatedWorker, run_id: str) -> None:
        for stage, step in sorted(worker.unsaved):
            if worker.applied.get(stage, 0) >= step:
                worker.unsaved.remove((stage, step))
                if "shard" not in worker.mute:
                    self._queue.append(self.shard(worker.name, step, stage, run_id=run_id))

    def shard(
        self, worker: str, step: int, stage: int, *, is_whole: bool = True, run_id: str = "r"
    ) -> events.ShardGrown:
        session = self.workers[worker].session
        return events.ShardGrown(session=session, run_id=run_id, step=step, stage=stage, is_whole=is_whole)

    def _report(
        self, worker: SimulatedWorker, run_id: str, role: types_pb2.Role, kind: str, report: local_pb2.FromChild
    ) -> None:
        if kind not in worker.mute:
            child_report = worker_pb2.ChildReport(run_id=run_id, role=role, report=report)
            self._answer(worker, worker_pb2.AttachRequest(child_report=child_report))

    def _answer(self, worker: SimulatedWorker, message: worker_pb2.AttachRequest) -> None:
        self._queue.append(events.WorkerSpoke(session=worker.session, message=message))


def two_workers(**settings: int) -> World:
    world = World(**settings)
    world.add_worker("a")
    world.add_worker("b")
    return world
