"""Which workers there are, and which of them are still there.

A gRPC stream alone tells neither: it breaks when a worker lives and stays open when a worker hangs. So a worker is a
name and an incarnation (one start of its process), alive while it speaks, away for a moment when its stream has
ended, and lost when it stays away or silent for the beat timeout or when another incarnation has taken its place.
Times are seconds on a clock that only goes forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pipesvc.coordinator.limits import BEAT_TIMEOUT_S, SUSPECT_SILENCE_S
from pipesvc.coordinator.reach import Reach
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import worker_pb2
from pipesvc.wire.frames import WIRE_VERSION


@dataclass(kw_only=True, slots=True)
class Member:
    """One registered worker process. `session` is None while its stream is broken."""

    registration: worker_pb2.Register
    session: int | None
    heard_s: float
    is_draining: bool = False
    children: list[worker_pb2.ChildProgress] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def incarnation(self) -> str:
        return self.registration.incarnation

    @property
    def host(self) -> str:
        return self.registration.host


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """A worker that is gone, and why."""

    member: Member
    reason: str


class Fleet:
    """The registered workers in the order of their registration."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._by_session: dict[int, Member] = {}
        self.reach = Reach()
        # Raised whenever a plan might come out differently.
        self.generation = 0

    def attach(self, session: int, registration: worker_pb2.Register, now_s: float) -> Loss | None:
        """Take a worker in, or back; the loss is that of an earlier incarnation whose place it takes."""
        _check(registration)
        known = self._members.get(registration.name)
        loss = None
        if known is not None and known.incarnation != registration.incarnation:
            if known.session is not None:
                raise _name_taken(known)
            loss = self._lose(known, "its process was started anew")
            known = None
        if known is not None:
            if known.session is not None:
                del self._by_session[known.session]
            known.registration, known.session, known.heard_s = registration, session, now_s
        else:
            known = Member(registration=registration, session=session, heard_s=now_s)
            self._members[registration.name] = known
        self._by_session[session] = known
        self.generation += 1
        return loss

    def detach(self, session: int) -> None:
        """The stream has ended; a stream that was replaced or refused is none of ours any more."""
        member = self._by_session.pop(session, None)
        if member is not None:
            member.session = None
            self.generation += 1

    def drain(self, member: Member, is_draining: bool) -> None:
        """The worker asks for nothing new."""
        member.is_draining = is_draining
        self.generation += 1

    def hear(self, session: int, now_s: float) -> Member | None:
        """Any message is a sign of life. None: the session is not (any more) a member's, and its message is void."""
        member = self._by_session.get(session)
        if member is not None:
            member.heard_s = now_s
        return member

    def speaker(self, session: int) -> Member | None:
        """The worker behind a session."""
        return self._by_session.get(session)

    def overdue(self, now_s: float) -> list[Loss]:
        """Give up the workers that stayed silent or away for too long."""
        losses = []
        for member in list(self._members.values()):
            if now_s - member.heard_s >= BEAT_TIMEOUT_S:
                reason = (
                    "its connection ended and it did not come back" if member.session is None else "it sends no beat"
                )
                losses.append(self._lose(member, f"{reason} for {BEAT_TIMEOUT_S:g} s"))
        return losses

    def member(self, name: str, incarnation: str = "") -> Member | None:
        """The worker of that name; with an incarnation, only that very process."""
        member = self._members.get(name)
        return member if member is not None and incarnation in ("", member.incarnation) else None

    def is_suspect(self, name: str, now_s: float) -> bool:
        """True while it is unclear whether the worker lives."""
        member = self._members.get(name)
        return member is None or member.session is None or now_s - member.heard_s >= SUSPECT_SILENCE_S

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def available(self) -> list[Member]:
        """Workers that may be given something new."""
        return [member for member in self._members.values() if member.session is not None and not member.is_draining]

    def _lose(self, member: Member, reason: str) -> Loss:
        del self._members[member.name]
        self.generation += 1
        self.reach.forget(member.incarnation)
        if member.session is not None:
            self._by_session.pop(member.session, None)
        return Loss(member=member, reason=reason)


def _check(registration: worker_pb2.Register) -> None:
    where = Where(worker=registration.name, host=registration.host)
    versions = registration.versions
    if versions.wire != WIRE_VERSION:
        raise PipesvcError(
            ErrorCode.WIRE_MISMATCH,
            f"worker {registration.name!r} speaks wire version {versions.wire}, the coordinator {WIRE_VERSION}",
            advice=f"Install the same pipesvc on both (the worker has {versions.pipesvc or 'an unknown one'})",
            where=where,
        )
    lacks = [field for field in ("name", "incarnation", "data_address", "devices") if not getattr(registration, field)]
    if lacks:
        raise PipesvcError(ErrorCode.INVALID_JOB, f"the registration of a worker lacks {', '.join(lacks)}", where=where)


def _name_taken(member: Member) -> PipesvcError:
    return PipesvcError(
        ErrorCode.WORKER_NAME_TAKEN,
        f"a worker named {member.name!r} is registered from {member.host} and alive",
        advice="Give this worker another --name, or stop the other one",
        where=Where(worker=member.name, host=member.host),
    )
