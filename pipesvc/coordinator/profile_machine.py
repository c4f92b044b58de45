"""The life of one profile: it waits until no run is on the workers, has the devices measured, then the links, and ends.

A measurement beside a training run would tell what is left over and not what there is, so a profile waits for live
runs and holds the queue until it has ended. All workers measure at the same time, each its own devices one after the
other, because that is how a pipeline uses them: workers of one machine share its caches and its memory's bandwidth in a
run too. Links are measured when all devices are done, one pair after another, for in a run a link is mostly alone.

    WAITING > MEASURING > LINKING > STOPPING > ENDED
    (whatever fails goes to STOPPING; what is known already needs no worker and ends at once)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pipesvc.coordinator.events import EndProfile, ProfileAsked, ReportProfile, Send
from pipesvc.coordinator.failures import failure, failure_of, lost, placed
from pipesvc.coordinator.fleet import Loss, Member
from pipesvc.coordinator.limits import LINK_PROFILE_BOUND_S, STOP_BOUND_S
from pipesvc.coordinator.profile_parts import Wanted, device_part, joined, link_part, wanted_parts
from pipesvc.coordinator.run_view import bounded
from pipesvc.coordinator.turn import Turn
from pipesvc.core.costs import Costs
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2, worker_pb2

# A profiler sends one parcel and waits for its answer.
_WINDOW_PARCELS: Final = 2


class Phase(StrEnum):
    """Where a profile is."""

    WAITING = "waiting"
    MEASURING = "measuring devices"
    LINKING = "measuring links"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(kw_only=True, slots=True)
class _Profiler:
    """The child on one worker. `moved_s`: when it was last known to have got further."""

    incarnation: str
    endpoint: int
    moved_s: float
    doing: str = "its start"
    since_unix_ns: int = 0
    is_ready: bool = False


class ProfileMachine:
    """Turns events into commands, as `RunMachine` does for a run; its children go by the profile's id."""

    def __init__(self, asked: ProfileAsked, term: int, now_s: float) -> None:
        self.phase = Phase.WAITING
        self._asked: Final = asked
        self._term: Final = term
        self._parts: Final[dict[str, Costs]] = dict(asked.known)
        self._measured: Final[dict[str, Costs]] = {}
        self._wanted = Wanted(devices={}, links={}, threads={})
        self._registrations: list[worker_pb2.Register] = []
        self._wanted_generation = -1
        self._obstacle = ""
        self._profilers: dict[str, _Profiler] = {}
        self._pair_keys: list[str] = []
        self._unstopped: set[str] = set()
        self._shown: list[run_pb2.Awaited] = []
        self._enter(Phase.WAITING, now_s, asked.job.worker_wait_s)

    def __str__(self) -> str:
        return f"the profile of {self._asked.job.name}"

    @property
    def is_on_workers(self) -> bool:
        return self.phase not in (Phase.WAITING, Phase.ENDED)

    @property
    def is_ended(self) -> bool:
        return self.phase is Phase.ENDED

    # --- what moves it on -------------------------------------------------------------------------------------------

    def advance(self, turn: Turn, *, obstacle: str) -> None:
        """Take every step that is possible now. `obstacle` is what must end before: a run, or another profile."""
        if self.phase is Phase.WAITING:
            self._obstacle = obstacle
            self._try_start(turn)
        self._report(turn)

    def tick(self, turn: Turn) -> None:
        """Enforce the limits of what is awaited."""
        if self.phase is Phase.MEASURING:
            self._tick_measuring(turn)
        elif self._deadline_s is not None and turn.now_s >= self._deadline_s:
            self._run_out(turn)

    def abandon(self, turn: Turn) -> None:
        """Who asked has gone."""
        if self.phase not in (Phase.STOPPING, Phase.ENDED):
            self._stop(turn, "nobody waits for the profile any more")

    def _try_start(self, turn: Turn) -> None:
        members = turn.fleet.available
        if not members:
            return
        if self._wanted_generation != turn.fleet.generation:
            self._registrations = [member.registration for member in members]
            self._wanted = wanted_parts(self._asked.job, self._registrations)
            self._wanted_generation = turn.fleet.generation
        missing = (self._wanted.devices.keys() | self._wanted.links.keys()) - self._parts.keys()
        missing -= {key for key in self._wanted.links if self._is_cut(turn, key)}
        if not missing:
            self._succeed(turn)
        elif not self._obstacle:
            self._start(turn, members)

    def _start(self, turn: Turn, members: list[Member]) -> None:
        devices = [place for key, place in self._wanted.devices.items() if key not in self._parts]
        links = self._wanted.links
        self._pair_keys = [key for key in links if key not in self._parts and not self._is_cut(turn, key)]
        needed = {worker for worker, _ in devices}.union(*(self._wanted.links[key] for key in self._pair_keys))
        crew = [member for member in members if member.name in needed]
        addresses = {index: member.registration.data_address for index, member in enumerate(crew)}
        self._enter(Phase.MEASURING, turn.now_s, None)
        for index, member in enumerate(crew):
            profiler = _Profiler(incarnation=member.incarnation, endpoint=index, moved_s=turn.now_s)
            self._profilers[member.name] = profiler
            assignment = local_pb2.Assignment(
                run_id=self._asked.profile_id,
                term=self._term,
                role=types_pb2.ROLE_PROFILER,
                job=self._asked.job,
                worker=member.name,
                host=member.host,
                num_threads=self._wanted.threads[member.name],
                devices=[device for worker, device in devices if worker == member.name],
                endpoint=index,
            )
            start = worker_pb2.StartChild(
                assignment=assignment,
                addresses=addresses,
                link_token=self._asked.link_token,
                window_parcels=_WINDOW_PARCELS,
            )
            _send(turn, member.incarnation, worker_pb2.AttachResponse(start_child=start))

    def _next_link(self, turn: Turn) -> None:
        """Have the first pair that is left measured by its sender; without one, the profile is whole."""
        self._pair_keys = [key for key in self._pair_keys if not self._is_cut(turn, key)]
        if not self._pair_keys:
            self._succeed(turn)
            return
        self._enter(Phase.LINKING, turn.now_s, LINK_PROFILE_BOUND_S)
        sender, receiver = self._pair
        wanted = local_pb2.MeasureLink(endpoint=self._profilers[receiver].endpoint, worker=receiver)
        to_run = worker_pb2.ToRun(
            run_id=self._asked.profile_id,
            role=types_pb2.ROLE_PROFILER,
            message=local_pb2.ToChild(measure_link=wanted),
        )
        _send(turn, self._profilers[sender].incarnation, worker_pb2.AttachResponse(to_run=to_run))

    def _is_cut(self, turn: Turn, key: str) -> bool:
        """Whether one of the two has not reached the other when it last tried: an answer must come back, too."""
        sender, receiver = self._wanted.links[key]
        return bool(turn.fleet.reach.among([(sender, receiver), (receiver, sender)]))

    @property
    def _pair(self) -> tuple[str, str]:
        """Sender and receiver of the link that is measured now."""
        return self._wanted.links[self._pair_keys[0]]

    # --- what the world tells ---------------------------------------------------------------------------------------

    def child_reported(self, turn: Turn, member: Member, _role: int, report: local_pb2.FromChild) -> None:
        profiler = self._profilers.get(member.name)
        if profiler is None or profiler.incarnation != member.incarnation:
            return
        profiler.moved_s = turn.now_s
        match report.WhichOneof("message"):
            case "failed" if self.phase is Phase.LINKING and report.failed.is_echo and member.name in self._pair:
                pass  # of the agent, whose link is lost; the sender's profiler says so too, and goes on
            case "failed":
                self._fail(turn, placed(report.failed, member))
            case "device_profile" if self.phase is Phase.MEASURING:
                place = (member.name, report.device_profile.device)
                keys = [key for key, wanted in self._wanted.devices.items() if wanted == place]
                self._keep({key: device_part(member.name, report.device_profile) for key in keys})
            case "ready" if self.phase is Phase.MEASURING:
                profiler.is_ready = True
                if all(each.is_ready for each in self._profilers.values()):
                    self._next_link(turn)
            case "link_profile" if self.phase is Phase.LINKING and member.name == self._pair[0]:
                # Without a way it has no cost. That is not kept: the next profile tries again.
                if not report.link_profile.problem:
                    self._keep({self._pair_keys[0]: link_part(*self._pair, report.link_profile)})
                del self._pair_keys[0]
                self._next_link(turn)

    def run_stopped(self, turn: Turn, member: Member) -> None:
        """The profiler there is gone; that should have been asked for."""
        profiler = self._profilers.get(member.name)
        if profiler is None or profiler.incarnation != member.incarnation:
            return
        message = f"worker {member.name} has ended the profile's processes"
        advice = "Was the worker stopped? Look at its terminal or log"
        self._fail(turn, failure(ErrorCode.CHILD_DIED, message, advice=advice, worker=member.name, host=member.host))
        self._stopped(member.name)

    def worker_lost(self, turn: Turn, loss: Loss) -> None:
        profiler = self._profilers.get(loss.member.name)
        if profiler is not None and profiler.incarnation == loss.member.incarnation:
            error = lost(loss, None)
            error.advice = "Look at its terminal or log, start it again, and profile again"
            self._fail(turn, error)
            self._stopped(loss.member.name)

    @property
    def crew(self) -> set[str]:
        """The worker processes that may have children of it."""
        return {profiler.incarnation for profiler in self._profilers.values()}

    # --- limits and ends --------------------------------------------------------------------------------------------

    def _tick_measuring(self, turn: Turn) -> None:
        """A profiler may take as long as it gets further: from layer to layer, which its beats tell."""
        limit_s = self._asked.job.build_timeout_s
        for worker, profiler in self._profilers.items():
            member = turn.fleet.member(worker, profiler.incarnation)
            for child in member.children if member is not None else ():
                progress = child.progress
                if child.run_id == self._asked.profile_id and progress.since_unix_ns != profiler.since_unix_ns:
                    profiler.since_unix_ns, profiler.moved_s = progress.since_unix_ns, turn.now_s
                    profiler.doing = progress.phase
            if not profiler.is_ready and turn.now_s - profiler.moved_s >= limit_s:
                message = f"the profiler on {worker} got no further within {limit_s:g} s; it was {profiler.doing}"
                advice = "Raise build_timeout_s, or look why it takes so long"
                self._fail(turn, failure(ErrorCode.BUILD_TIMED_OUT, message, advice=advice, worker=worker))
                return

    def _run_out(self, turn: Turn) -> None:
        match self.phase:
            case Phase.WAITING:
                limit_s = self._asked.job.worker_wait_s
                code = ErrorCode.TIMED_OUT if self._obstacle else ErrorCode.MISSING_WORKER
                what = f"{self._obstacle} did not end" if self._obstacle else "no worker registered"
                advice = "Raise worker_wait_s, or ask again later" if self._obstacle else "Start `pipesvc worker`"
                self._fail(turn, failure(code, f"{what} within {limit_s:g} s, and {self} waits for it", advice=advice))
            case Phase.LINKING:
                sender, receiver = self._pair
                message = f"worker {sender} did not measure its link to {receiver} within {LINK_PROFILE_BOUND_S:g} s"
                self._fail(turn, failure(ErrorCode.TIMED_OUT, message, worker=sender))
            case Phase.STOPPING:
                self._enter(Phase.ENDED, turn.now_s, None)

    def _keep(self, parts: Mapping[str, Costs]) -> None:
        self._parts.update(parts)
        self._measured.update(parts)

    def _succeed(self, turn: Turn) -> None:
        try:
            costs = joined(self._wanted, self._parts, self._registrations)
        except PipesvcError as error:
            self._fail(turn, failure_of(error))
            return
        ended = EndProfile(profile_id=self._asked.profile_id, costs=costs, measured=self._measured)
        turn.commands.append(ended)
        self._stop(turn, "the profile is measured")

    def _fail(self, turn: Turn, error: types_pb2.ErrorReport) -> None:
        if self.phase not in (Phase.STOPPING, Phase.ENDED):
            error.run_id = ""  # users know it by its job
            turn.commands.append(EndProfile(profile_id=self._asked.profile_id, error=error))
            self._stop(turn, error.message)

    def _stop(self, turn: Turn, reason: str) -> None:
        """At once: a profiler has nothing that a grace would save."""
        for worker, profiler in self._profilers.items():
            if turn.fleet.member(worker, profiler.incarnation) is not None:
                stop = worker_pb2.StopRun(run_id=self._asked.profile_id, reason=reason)
                _send(turn, profiler.incarnation, worker_pb2.AttachResponse(stop_run=stop))
                self._unstopped.add(worker)
        self._enter(Phase.STOPPING if self._unstopped else Phase.ENDED, turn.now_s, STOP_BOUND_S)

    def _stopped(self, worker: str) -> None:
        self._unstopped.discard(worker)
        if self.phase is Phase.STOPPING and not self._unstopped:
            self.phase = Phase.ENDED

    def _enter(self, phase: Phase, now_s: float, limit_s: float | None) -> None:
        self.phase, self._since_s = phase, now_s
        self._deadline_s = now_s + limit_s if limit_s is not None else None

    # --- what is awaited --------------------------------------------------------------------------------------------

    def _report(self, turn: Turn) -> None:
        awaited = list(self._awaited())
        if awaited and awaited != self._shown:
            self._shown = awaited
            turn.commands.append(ReportProfile(profile_id=self._asked.profile_id, awaited=awaited))

    def _awaited(self) -> Iterator[run_pb2.Awaited]:
        match self.phase:
            case Phase.WAITING:
                what, whom = (f"the end of {self._obstacle}", "") if self._obstacle else ("a worker", "any host")
                yield bounded(what, whom, self._since_s, self._deadline_s, "the profile fails")
            case Phase.MEASURING:
                for worker, profiler in self._profilers.items():
                    if not profiler.is_ready:
                        until_s = profiler.moved_s + self._asked.job.build_timeout_s
                        yield bounded(profiler.doing, worker, profiler.moved_s, until_s, "the profile fails")
            case Phase.LINKING:
                sender, receiver = self._pair
                what = f"measuring the link to {receiver}"
                yield bounded(what, sender, self._since_s, self._deadline_s, "the profile fails")


def _send(turn: Turn, incarnation: str, message: worker_pb2.AttachResponse) -> None:
    turn.commands.append(Send(incarnation=incarnation, message=message))
