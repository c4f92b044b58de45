"""The shell around the machine: turns what happens into events, performs the commands, and feeds their results back.

All of it runs on one event loop, so the machine needs no lock; what blocks (the disk) is done by other threads, and
comes back as an event like everything else. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
import traceback
from collections.abc import Coroutine
from typing import Final

from pipesvc.coordinator import events, output_events
from pipesvc.coordinator.admission import admit
from pipesvc.coordinator.failures import failure
from pipesvc.coordinator.feed import Feed
from pipesvc.coordinator.files_desk import FilesDesk, weights_message
from pipesvc.coordinator.journal import Journal
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.outbox import Outbox, Session
from pipesvc.coordinator.profile_desk import ProfileDesk
from pipesvc.coordinator.run_record import ENDED_STATES
from pipesvc.coordinator.store import OpenState, Store, read_lines
from pipesvc.coordinator.weights_desk import WeightsDesk
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.reports import from_message
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, worker_pb2

_TICK_S: Final = 0.1


class Hub:
    """For the event loop's thread."""

    def __init__(self, machine: Machine, journal: Journal, store: Store) -> None:
        self.machine: Final = machine
        self.store: Final = store
        self.feed: Final = Feed(machine, journal)
        self.files: Final = FilesDesk(machine, store, self.feed, self.tell)
        self.profiles: Final = ProfileDesk(machine, store, self.tell)
        self._weights_desk = WeightsDesk(machine, store, self.tell, self._warn)
        self._journal = journal
        self._sessions: dict[int, Session] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._asked: dict[int, asyncio.Future[tuple[int, OpenState]]] = {}
        self._num_sessions = self._num_tickets = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._admission = asyncio.Lock()
        # Wall-clock time as it was at the start, from there on by the clock that nobody sets.
        self._epoch_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        return self._epoch_s + time.monotonic()

    def start(self) -> None:
        self._spawn(self._tick())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- runs -------------------------------------------------------------------------------------------------------

    async def submit(self, run_id: str, job: job_pb2.JobSpec, bundle: bytes) -> run_pb2.Run:
        """A valid job; on return it is on the disk. A refused one does not run."""
        # A client that goes away in the middle must not leave a run in the journal that the machine does not know.
        task = asyncio.create_task(self._admit(run_id, job, bundle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)
        return self.machine.run(run_id)

    async def _admit(self, run_id: str, job: job_pb2.JobSpec, bundle: bytes) -> None:
        async with self._admission:
            if self.machine.find(run_id, job) is not None:
                return
            start = await self.files.start_of(job)
            run = run_pb2.Run(run_id=run_id, name=job.name, state=run_pb2.RUN_STATE_QUEUED, start=start)
            run.submitted_unix_ns = int(self.now_s() * 1e9)
            await admit(self._journal, self.store, run, job, bundle)
            self._queue(run, job)

    def requeue(self, run: run_pb2.Run, job: job_pb2.JobSpec) -> None:
        """A run that an earlier coordinator had queued."""
        self.store.begin_run(run.run_id)
        self._queue(run, job)

    def _queue(self, run: run_pb2.Run, job: job_pb2.JobSpec) -> None:
        submitted = events.RunSubmitted(
            run_id=run.run_id,
            job=job,
            link_token=secrets.token_urlsafe(32),
            submitted_s=run.submitted_unix_ns / 1e9,
            start=run.start if run.HasField("start") else None,
        )
        self.tell(submitted)

    def cancel(self, run_id: str) -> run_pb2.Run:
        self.tell(events.RunCancelled(run_id=run_id))
        return self.machine.run(run_id)

    async def state(self, run_id: str) -> tuple[int, OpenState]:
        """The step and the open files of a run's state; a live run's when its next step is applied."""
        self.machine.run(run_id)
        self._num_tickets += 1
        ticket = self._num_tickets
        future: asyncio.Future[tuple[int, OpenState]] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = future
        try:
            self.tell(events.WeightsAsked(run_id=run_id, ticket=ticket))
            return await future
        finally:
            del self._asked[ticket]

    # --- workers ----------------------------------------------------------------------------------------------------

    def attach(self, registration: worker_pb2.Register) -> Session:
        """Take a worker in; raises the refusal."""
        self._num_sessions += 1
        number, incarnation = self._num_sessions, registration.incarnation
        # Made first, for what the machine says at once; that of a refused worker goes with the next tick.
        outbox = self._outboxes.setdefault(incarnation, Outbox())
        self.tell(events.WorkerAttached(session=number, registration=registration))
        for earlier in list(self._sessions.values()):
            if earlier.incarnation == incarnation:
                earlier.end(failure(ErrorCode.COORDINATOR_LOST, "the worker has come back on another stream"))
        session = Session(number, incarnation, outbox)
        self._sessions[number] = session
        return session

    def detach(self, session: Session) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self.tell(events.WorkerDetached(session=session.number))

    async def hear(self, session: Session, message: worker_pb2.AttachRequest) -> None:
        """One message of a worker; what is bulky is stored first."""
        member = self.machine.fleet.speaker(session.number)
        if member is None:
            return
        report = message.child_report.report
        if message.HasField("log_lines"):
            self._store_lines(member.name, message.log_lines)
        elif report.HasField("trace"):
            self._store_trace(member.name, message.child_report.run_id, report.trace)
        elif report.HasField("state_chunk"):
            await self._weights_desk.store_chunk(session.number, message.child_report.run_id, report.state_chunk)
            return
        elif report.HasField("output_part"):
            await self.files.store_output(session.number, message.child_report.run_id, report.output_part)
            return
        elif report.HasField("read_weights"):
            self.tell(events.Heard(session=session.number))
            await self._send_weights(session, message.child_report)
            return
        self.tell(events.WorkerSpoke(session=session.number, message=message))

    async def _send_weights(self, session: Session, report: worker_pb2.ChildReport) -> None:
        try:
            piece = await self.files.piece(report.run_id, report.report.read_weights)
        except OSError as error:
            problem = f"the weights cannot be read: {error}"
            self.tell(output_events.FilesFailed(run_id=report.run_id, problem=problem))
            return
        if piece is not None:
            session.outbox.put(weights_message(report.run_id, report.role, piece))

    def _store_lines(self, worker: str, lines: worker_pb2.LogLines) -> None:
        if self.machine.record(lines.run_id) is None:
            return
        self._warn(lines.run_id, self.store.add_log_lines(lines.run_id, read_lines(worker, lines)))
        self.feed.log_grown(lines.run_id)

    def _store_trace(self, worker: str, run_id: str, trace: local_pb2.Trace) -> None:
        if self.machine.record(run_id) is None or not trace.events:
            return
        for event in trace.events:
            event.worker = event.worker or worker
        self._warn(run_id, self.store.add_trace(run_id, trace.events))

    def _warn(self, run_id: str, text: str) -> None:
        if text:
            print(f"pipesvc coordinator: run {run_id}: {text}", file=sys.stderr, flush=True)
            self.tell(events.WarningRaised(run_id=run_id, text=text))

    # --- the machine ------------------------------------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Give the machine an event and do what it says. Raises only what the machine refuses."""
        for command in self.machine.handle(event, self.now_s()):
            self._perform(command)

    def _perform(self, command: events.Command) -> None:
        match command:
            case events.Send():
                self._send(command)
            case events.Say():
                print(f"pipesvc coordinator: {command.text}", file=sys.stderr, flush=True)
            case events.EndSession():
                if (session := self._sessions.get(command.session)) is not None:
                    session.end(command.error)
            case events.PublishRun():
                self._publish(command.run)
            case events.RecordStep():
                self._journal.add_step(command.run_id, command.record)
                self.feed.step_committed(command.run_id, command.record)
            case events.RecordEvaluation():
                self._journal.add_evaluation(command.run_id, command.record)
            case events.RecordApplied():
                self._journal.add_applied(command.run_id, command.stage, command.step)
            case events.RecordPlan():
                self._journal.add_plan(command.run_id, command.digest, command.plan_json, command.made_unix_ns)
            case events.ConcludeRun():
                self._spawn(self._conclude(command.run))
            case events.MergeShards():
                self._spawn(self._weights_desk.merge(command))
            case events.KeepWeights():
                self._weights_desk.keep(command)
            case events.DropWeights():
                self.store.drop_weights(command.run_id, command.step)
            case output_events.DropOutputs():
                self.store.drop_output(command.run_id, command.step)
            case events.AnswerWeights():
                self._answer(command)
            case events.ReportProfile() | events.EndProfile():
                self.profiles.perform(command)

    def _send(self, command: events.Send) -> None:
        outbox = self._outboxes.get(command.incarnation)
        if outbox is None:
            return
        message = command.message
        if message.HasField("start_child"):
            message.start_child.bundle = self.store.bundle(message.start_child.assignment.job.bundle_sha256)
        outbox.put(message)
        if outbox.is_overfull:
            for session in self._sessions.values():
                if session.incarnation == command.incarnation:
                    session.end(failure(ErrorCode.COORDINATOR_LOST, "the worker takes no commands"))

    def _publish(self, run: run_pb2.Run) -> None:
        self._journal.update_run(run)
        self.feed.run_changed(run)
        if run.state in ENDED_STATES:
            self.store.end_run(run.run_id)
            self.store.sources.keep_only(self.machine.named_files())

    def _answer(self, command: events.AnswerWeights) -> None:
        future = self._asked.get(command.ticket)
        if future is None or future.done():
            return
        if command.error is not None:
            future.set_exception(PipesvcError.of(from_message(command.error)))
            return
        try:
            files = self.store.open_state(command.run_id, None if command.is_final else command.step)
        except OSError as error:
            future.set_exception(PipesvcError(ErrorCode.INTERNAL, f"the weights cannot be read: {error}"))
        else:
            future.set_result((command.step, files))

    async def _conclude(self, run: run_pb2.Run) -> None:
        problem = ""
        if dropped := self.store.dropped_text(run.run_id):
            self._warn(run.run_id, f"{dropped} were dropped, as they could not be written")
        self._journal.update_run(run)
        try:
            await self._journal.flush()
        except PipesvcError as error:
            problem = error.details.message
        self.tell(events.RunConcluded(run_id=run.run_id, problem=problem))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self.tell(events.Ticked())
            except Exception:
                # A fault of one run must not end the limits of all others.
                traceback.print_exc()
            known = {member.incarnation for member in self.machine.fleet.members}
            for incarnation in self._outboxes.keys() - known:
                del self._outboxes[incarnation]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
