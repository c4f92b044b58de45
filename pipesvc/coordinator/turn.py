"""One turn of the machine: the time, the fleet, and the commands that come out.

Transitions deep inside a run need all three; carried as one value they stay plain functions of what they are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from pipesvc.coordinator.events import Command, RecordPlan, Say, Send
from pipesvc.coordinator.fleet import Fleet, Member
from pipesvc.coordinator.limits import PROBE_TIMEOUT_S, STOP_GRACE_S
from pipesvc.coordinator.reach import Ask, News
from pipesvc.coordinator.run_record import RunRecord, without_first
from pipesvc.core.memory import slot_parcels
from pipesvc.core.planner import dry_run
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2


@dataclass(kw_only=True, slots=True)
class Turn:
    now_s: float
    fleet: Fleet
    commands: list[Command] = field(default_factory=list)

    def probe(self, asks: Iterable[Ask]) -> None:
        """Have workers dial each other's data addresses."""
        for ask in asks:
            request = worker_pb2.ProbePeers(peers=ask.peers, timeout_ms=int(PROBE_TIMEOUT_S * 1000))
            self._send(ask.incarnation, probe_peers=request)

    def proclaim(self, news: Iterable[News]) -> None:
        """Say here, and at the terminals of both workers, what has become known of a pair."""
        for item in news:
            self.commands.append(Say(text=str(item)))
            for incarnation in item.incarnations:
                self._send(incarnation, notice=worker_pb2.Notice(text=str(item)))

    def start_inspector(self, record: RunRecord, worker: str, incarnation: str) -> None:
        assignment = self._assignment(record, worker, types_pb2.ROLE_INSPECTOR, num_threads=1)
        self._send(incarnation, start_child=worker_pb2.StartChild(assignment=assignment))

    def start_crew(self, record: RunRecord) -> None:
        """Journal the plan, and start an executor on each of its workers, and the feeder."""
        plan = record.plan
        assert plan is not None
        made_unix_ns = int(self.now_s * 1e9)
        made = RecordPlan(
            run_id=record.run_id, digest=plan.digest, plan_json=record.plan_json, made_unix_ns=made_unix_ns
        )
        self.commands.append(made)
        registrations = {name: self._registration(name) for name in record.crew}
        addresses = {stage.index: registrations[stage.worker].data_address for stage in plan.stages}
        addresses[-1] = registrations[plan.feeder_worker].data_address
        most_alive = max(dry_run(plan).values())
        children = [(worker, types_pb2.ROLE_EXECUTOR, plan.threads[worker]) for worker in plan.workers]
        children.append((plan.feeder_worker, types_pb2.ROLE_FEEDER, 1))
        for worker, role, num_threads in children:
            start = worker_pb2.StartChild(
                assignment=self._assignment(record, worker, role, num_threads=num_threads),
                addresses=addresses,
                link_token=record.link_token,
                window_parcels=slot_parcels(most_alive),
            )
            self._send(record.crew[worker], start_child=start)

    def to_executors(self, record: RunRecord, message: local_pb2.ToChild) -> None:
        assert record.plan is not None
        for worker in record.plan.workers:
            self._to_run(record, worker, types_pb2.ROLE_EXECUTOR, message)

    def issue(
        self,
        record: RunRecord,
        batch: local_pb2.BatchAnnounced,
        kind: local_pb2.PassKind = local_pb2.PASS_KIND_UNSPECIFIED,
        after_step: int = 0,
    ) -> None:
        """Have the stages compute an announced batch, and the feeder send it."""
        issue = local_pb2.IssueStep(
            step=batch.step,
            epoch=batch.epoch,
            shares=batch.shares,
            rows=batch.rows,
            kind=kind,
            after_step=after_step,
        )
        message = local_pb2.ToChild(issue_step=issue)
        self.to_executors(record, message)
        self.to_feeder(record, message)

    def to_feeder(self, record: RunRecord, message: local_pb2.ToChild) -> None:
        assert record.plan is not None
        self._to_run(record, record.plan.feeder_worker, types_pb2.ROLE_FEEDER, message)

    def stop_children(self, record: RunRecord, workers: Iterable[tuple[str, str]], reason: str) -> set[str]:
        """Ask the workers that are still there to end their children of this run; returns those asked."""
        asked = set()
        for worker, incarnation in workers:
            if self.fleet.member(worker, incarnation) is not None:
                stop = worker_pb2.StopRun(run_id=record.run_id, grace_s=STOP_GRACE_S, reason=reason)
                self._send(incarnation, stop_run=stop)
                asked.add(worker)
        return asked

    def stop_strays(self, member: Member, crews: Mapping[str, Set[str]]) -> None:
        """End children of runs that have ended or given this worker up, as when it was away for a moment too long."""
        runs = dict.fromkeys(child.run_id for child in member.children)
        for run_id in runs:
            if member.incarnation not in crews.get(run_id, ()):
                stop = worker_pb2.StopRun(run_id=run_id, reason="the run has ended without this worker")
                self._send(member.incarnation, stop_run=stop)

    def _assignment(
        self, record: RunRecord, worker: str, role: types_pb2.Role, *, num_threads: int
    ) -> local_pb2.Assignment:
        return local_pb2.Assignment(
            run_id=record.run_id,
            term=record.term,
            role=role,
            job=record.job if role == types_pb2.ROLE_INSPECTOR else without_first(record.job),
            plan_json="" if role == types_pb2.ROLE_INSPECTOR else record.plan_json,
            worker=worker,
            host=self._registration(worker).host,
            num_threads=num_threads,
            start=record.start,
        )

    def _registration(self, worker: str) -> worker_pb2.Register:
        member = self.fleet.member(worker)
        assert member is not None, f"{worker} was planned with and is not registered"
        return member.registration

    def _to_run(self, record: RunRecord, worker: str, role: types_pb2.Role, message: local_pb2.ToChild) -> None:
        to_run = worker_pb2.ToRun(run_id=record.run_id, role=role, message=message)
        self._send(record.crew[worker], to_run=to_run)

    def _send(
        self,
        incarnation: str,
        *,
        start_child: worker_pb2.StartChild | None = None,
        to_run: worker_pb2.ToRun | None = None,
        stop_run: worker_pb2.StopRun | None = None,
        probe_peers: worker_pb2.ProbePeers | None = None,
        notice: worker_pb2.Notice | None = None,
    ) -> None:
        message = worker_pb2.AttachResponse(
            start_child=start_child, to_run=to_run, stop_run=stop_run, probe_peers=probe_peers, notice=notice
        )
        self.commands.append(Send(incarnation=incarnation, message=message))
