"""The coordinator as one pure machine: the fleet, the queue, and every run and profile that has not ended.

One run at a time, first in, first out; the others are inspected meanwhile, so that a mistake shows at submission and
not hours later. A profile holds the queue. `handle` takes an event and the time, and returns commands; the shell
performs them. It raises only for refusals of a newcomer (a worker, a run id in use), and then nothing has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from pipesvc.coordinator import outputs, saves
from pipesvc.coordinator.events import (
    AnswerWeights,
    Command,
    EndSession,
    Event,
    Heard,
    ProfileAbandoned,
    ProfileAsked,
    PublishRun,
    RunCancelled,
    RunConcluded,
    RunSubmitted,
    Say,
    ShardGrown,
    Ticked,
    WarningRaised,
    WeightsAsked,
    WeightsMerged,
    WorkerAttached,
    WorkerDetached,
    WorkerSpoke,
)
from pipesvc.coordinator.failures import failure, lost
from pipesvc.coordinator.fleet import Fleet, Loss, Member
from pipesvc.coordinator.output_events import FilesFailed, OutputsTaken, ReaderCame, ReaderWent
from pipesvc.coordinator.outputs import Outputs
from pipesvc.coordinator.profile_machine import ProfileMachine
from pipesvc.coordinator.run_machine import RunMachine
from pipesvc.coordinator.run_record import Phase, RunRecord, without_first
from pipesvc.coordinator.run_view import ended_message, run_message
from pipesvc.coordinator.turn import Turn
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, run_pb2, types_pb2, worker_pb2

# Where a run may have processes on workers.
_ON_WORKERS: Final = frozenset(
    {Phase.INSPECTING, Phase.ENDING_INSPECTION, Phase.BUILDING, Phase.RUNNING, Phase.SAVING, Phase.STOPPING}
)


class Machine:
    """`ended` are the runs of earlier coordinators on the same journal, with their jobs."""

    def __init__(self, *, term: int, ended: Iterable[tuple[run_pb2.Run, job_pb2.JobSpec]] = ()) -> None:
        self.term = term
        self.fleet = Fleet()
        self._live: dict[str, RunMachine] = {}
        self._profiles: dict[str, ProfileMachine] = {}
        # As runs were last told.
        self._shown_holders: list[tuple[str, bool]] = []
        self._ended: dict[str, run_pb2.Run] = {}
        self._digests: dict[str, bytes] = {}
        for run, job in ended:
            self._ended[run.run_id] = run
            self._digests[run.run_id] = _digest(job)

    # --- questions --------------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> run_pb2.Run:
        if (live := self._live.get(run_id)) is not None:
            return self._shown(live.record)
        if (ended := self._ended.get(run_id)) is not None:
            return ended
        raise PipesvcError(ErrorCode.RUN_NOT_FOUND, f"there is no run {run_id!r}", advice="`pipesvc runs` lists them")

    def runs(self) -> list[run_pb2.Run]:
        """All runs in the order of their submission."""
        return [self.run(run_id) for run_id in self._digests]

    def live_runs(self) -> list[run_pb2.Run]:
        return [self.run(run_id) for run_id in self._live]

    def named_files(self) -> set[str]:
        """The hashes of the files that live runs read weights from."""
        jobs = [live.record.job for live in self._live.values()]
        return {source.sha256 for job in jobs for source in (job.weights, job.training)}

    def find(self, run_id: str, job: job_pb2.JobSpec) -> run_pb2.Run | None:
        """The run that this very job was submitted as; another job under the id is refused."""
        digest = self._digests.get(run_id)
        if digest is None:
            return None
        if digest != _digest(job):
            raise PipesvcError(
                ErrorCode.RUN_EXISTS,
                f"the run id {run_id!r} is in use for another job",
                advice="Leave the run id to the client, or choose a new one",
                where=Where(run_id=run_id),
            )
        return self.run(run_id)

    def record(self, run_id: str) -> RunRecord | None:
        """The inner record of a run that has not ended."""
        live = self._live.get(run_id)
        return live.record if live is not None else None

    # --- events -----------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Command]:
        turn = Turn(now_s=now_s, fleet=self.fleet)
        self._dispatch(event, turn)
        self._settle(turn)
        return turn.commands

    def _dispatch(self, event: Event, turn: Turn) -> None:
        match event:
            case WorkerSpoke():
                self._hear(event, turn)
            case Heard():
                self.fleet.hear(event.session, turn.now_s)
            case ShardGrown():
                if self.fleet.hear(event.session, turn.now_s) and (record := self.record(event.run_id)) is not None:
                    saves.shard_grown(record, turn, step=event.step, stage=event.stage, is_whole=event.is_whole)
            case Ticked():
                for loss in self.fleet.overdue(turn.now_s):
                    self._lose(loss, turn)
                turn.probe(self.fleet.reach.due(self.fleet.available, turn.now_s))
                for profile in self._profiles.values():
                    profile.tick(turn)
                for live in self._live.values():
                    if not self._holder_of(live.record):
                        live.tick(turn)
            case WorkerAttached():
                self._attach(event, turn)
            case WorkerDetached():
                self.fleet.detach(event.session)
            case RunSubmitted():
                self._submit(event, turn)
            case WeightsAsked():
                self._ask_weights(event, turn)
            case ProfileAsked():
                self._profiles[event.profile_id] = ProfileMachine(event, self.term, turn.now_s)
            case ProfileAbandoned():
                if (asked := self._profiles.get(event.profile_id)) is not None:
                    asked.abandon(turn)
            case RunCancelled() | WeightsMerged() | RunConcluded() | FilesFailed():
                self._tell_run(event, turn)
            case ReaderCame() | ReaderWent() | OutputsTaken():
                if (record := self.record(event.run_id)) is not None:
                    outputs.told(record, turn, event)
            case WarningRaised():
                if (record := self.record(event.run_id)) is not None:
                    record.other_warnings.append(event.text)
                    record.is_changed = True

    def _attach(self, event: WorkerAttached, turn: Turn) -> None:
        registration = event.registration
        is_known = self.fleet.member(registration.name, registration.incarnation) is not None
        replaced = self.fleet.attach(event.session, registration, turn.now_s)
        if replaced is not None:
            self._lose(replaced, turn)
        member = self.fleet.speaker(event.session)
        if member is not None and not is_known:
            turn.probe(self.fleet.reach.joined(member, self.fleet.available, turn.now_s))

    def _tell_run(self, event: RunCancelled | WeightsMerged | RunConcluded | FilesFailed, turn: Turn) -> None:
        live = self._live.get(event.run_id)
        if live is None:
            return
        match event:
            case RunCancelled():
                live.cancel(turn)
            case WeightsMerged():
                live.weights_merged(turn, step=event.step, problem=event.problem)
            case RunConcluded():
                live.concluded(event.problem)
            case FilesFailed():
                live.fail(turn, failure(ErrorCode.INTERNAL, event.problem, advice="Look at the coordinator's disk"))

    def _submit(self, event: RunSubmitted, turn: Turn) -> None:
        if self.find(event.run_id, event.job) is not None:
            return
        record = RunRecord(
            run_id=event.run_id,
            job=event.job,
            link_token=event.link_token,
            term=self.term,
            submitted_s=event.submitted_s or turn.now_s,
            start=event.start or types_pb2.Position(),
            outputs=Outputs(unread_since_s=turn.now_s) if event.job.is_prediction else None,
        )
        self._digests[event.run_id] = _digest(event.job)
        self._live[event.run_id] = RunMachine(record, turn.now_s)

    def _ask_weights(self, event: WeightsAsked, turn: Turn) -> None:
        record = self.record(event.run_id)
        if record is not None:
            saves.ask(record, turn, event.ticket)
            return
        run = self.run(event.run_id)
        error = None
        if not run.has_weights:
            state = run_pb2.RunState.Name(run.state).removeprefix("RUN_STATE_")
            message = f"run {event.run_id} ended without weights: it is {state}"
            error = failure(ErrorCode.WEIGHTS_NOT_READY, message)
        answer = AnswerWeights(ticket=event.ticket, run_id=event.run_id, step=run.num_committed_steps, error=error)
        turn.commands.append(answer)

    def _hear(self, event: WorkerSpoke, turn: Turn) -> None:
        member = self.fleet.hear(event.session, turn.now_s)
        if member is None:
            return
        message = event.message
        match message.WhichOneof("message"):
            case "beat":
                member.children = list(message.beat.children)
                self._count_links(member, message.beat.links)
                for child in message.beat.children:
                    self._keep_times(member, child.run_id, child)
                turn.stop_strays(member, self._crews())
            case "child_report":
                report = message.child_report
                if (owner := self._owner(report.run_id)) is not None:
                    owner.child_reported(turn, member, report.role, report.report)
            case "run_stopped":
                self._count_links(member, message.run_stopped.links)
                self._keep_times(member, message.run_stopped.run_id, message.run_stopped)
                if (owner := self._owner(message.run_stopped.run_id)) is not None:
                    owner.run_stopped(turn, member)
            case "draining":
                self.fleet.drain(member, message.draining)
            case "peers_probed":
                probes = message.peers_probed.probes
                turn.proclaim(self.fleet.reach.answered(member, probes, self.fleet.members, turn.now_s))
            case _:
                pass

    def _owner(self, run_id: str) -> RunMachine | ProfileMachine | None:
        """Whose children go by this id."""
        return self._live.get(run_id) or self._profiles.get(run_id)

    def _count_links(self, member: Member, counts: Iterable[worker_pb2.LinkCount]) -> None:
        """Keep the newest totals of the links that this worker sends on."""
        for count in counts:
            record = self.record(count.run_id)
            if record is not None and record.crew.get(member.name) == member.incarnation:
                record.links[member.name, count.link.SerializeToString(deterministic=True)] = run_pb2.LinkTotals(
                    link=count.link,
                    tensor_bytes=count.tensor_bytes,
                    wire_bytes=count.wire_bytes,
                    num_frames=count.num_frames,
                    way=count.way,
                    coded_bytes=count.coded_bytes,
                    relative_error=count.relative_error,
                    worker=member.name,
                )

    def _keep_times(self, member: Member, run_id: str, told: worker_pb2.ChildProgress | worker_pb2.RunStopped) -> None:
        """Keep what this worker's executor has done with its time, if it says so."""
        record = self.record(run_id) if told.HasField("times") else None
        if record is not None and record.crew.get(member.name) == member.incarnation:
            record.times[member.name] = told.times

    def _lose(self, loss: Loss, turn: Turn) -> None:
        if loss.member.session is not None:
            turn.commands.append(EndSession(session=loss.member.session, error=lost(loss, None)))
        turn.commands.append(Say(text=f"worker {loss.member.name} is lost: {loss.reason}"))
        owners: list[RunMachine | ProfileMachine] = [*self._live.values(), *self._profiles.values()]
        for owner in owners:
            owner.worker_lost(turn, loss)

    # --- what follows -----------------------------------------------------------------------------------------------

    @property
    def _head(self) -> str:
        """The run whose turn it is."""
        return next(iter(self._live), "")

    def _settle(self, turn: Turn) -> None:
        """Let everything go as far as it can, publish what has changed, and let go of what has ended."""
        is_settled = False
        while not is_settled:
            is_settled = self._settle_profiles(turn)
            for run_id, live in list(self._live.items()):
                is_head = run_id == self._head and not self._profiles
                live.advance(turn, is_head=is_head, inspecting=self._inspecting())
                if live.record.phase is Phase.ENDED:
                    self._end(live.record, turn)
                    is_settled = False
        for live in self._live.values():
            if live.record.is_changed:
                live.record.is_changed = False
                turn.commands.append(PublishRun(run=self._shown(live.record)))

    def _settle_profiles(self, turn: Turn) -> bool:
        """Whether none of them has ended. One at a time is on the workers, in the order in which they were asked."""
        on_workers = (f"run {run_id}" for run_id, live in self._live.items() if live.record.phase in _ON_WORKERS)
        obstacle, num_before = next(on_workers, ""), len(self._profiles)
        for profile_id, profile in list(self._profiles.items()):
            profile.advance(turn, obstacle=obstacle)
            if profile.is_ended:
                del self._profiles[profile_id]
            else:
                obstacle = obstacle or str(profile)
        holders = [(str(profile), profile.is_on_workers) for profile in self._profiles.values()]
        if holders != self._shown_holders:
            self._shown_holders = holders
            for live in self._live.values():
                live.record.is_changed |= live.record.phase not in _ON_WORKERS
        return len(self._profiles) == num_before

    def _end(self, record: RunRecord, turn: Turn) -> None:
        del self._live[record.run_id]
        run = ended_message(record, record.phase_since_s)
        self._ended[record.run_id] = run
        turn.commands.append(PublishRun(run=run))

    def _crews(self) -> dict[str, set[str]]:
        """The worker processes of each run and profile that may have children of it."""
        records = [live.record for live in self._live.values()]
        crews = {record.run_id: {*record.crew.values(), *record.inspector.values()} for record in records}
        return crews | {profile_id: profile.crew for profile_id, profile in self._profiles.items()}

    def _inspecting(self) -> frozenset[str]:
        """The workers that may not be asked to inspect."""
        if any(profile.is_on_workers for profile in self._profiles.values()):
            return frozenset(member.name for member in self.fleet.members)
        return frozenset(name for live in self._live.values() for name in live.record.inspector)

    def _shown(self, record: RunRecord) -> run_pb2.Run:
        return run_message(record, head=self._head, holder=self._holder_of(record))

    def _holder_of(self, record: RunRecord) -> str:
        """The profile for which this run waits, if it does: none starts before it, or is inspected beside it."""
        for profile in self._profiles.values():
            is_before_start = record.phase in (Phase.QUEUED, Phase.WANTING_WORKERS)
            if is_before_start or (record.phase is Phase.WANTING_INSPECTOR and profile.is_on_workers):
                return str(profile)
        return ""


def _digest(job: job_pb2.JobSpec) -> bytes:
    return hashlib.sha256(without_first(job).SerializeToString(deterministic=True)).digest()
