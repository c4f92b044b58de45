"""Which workers have found that they cannot dial which others.

A data address that is wrong for its peers would otherwise show in the first step of a run, as a link that is lost ten
seconds later. So workers are asked to dial each other when one of them joins, and themselves, as the feeder of a run
does. What fails is tried again until it succeeds or one of the two is gone: a finding is never much older than
`REPROBE_S`, and a passing trouble is told from one that stays. Pairs that nobody has tried count as good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pipesvc.coordinator.limits import (
    FIRST_REPROBE_S,
    FRESH_FINDING_S,
    NUM_PROBED_PEERS,
    PROBE_ANSWER_BOUND_S,
    REPROBE_S,
)
from pipesvc.rpc.v1 import worker_pb2

_MAX_PROBLEM_CHARS: Final = 300


class Dialler(Protocol):
    """A registered worker, as far as it matters here."""

    @property
    def registration(self) -> worker_pb2.Register: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One worker shall dial these others."""

    incarnation: str
    peers: tuple[worker_pb2.Peer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreached:
    """`worker` could not dial `peer` (perhaps itself), `num_probes` times in a row."""

    worker: str
    peer: str
    data_address: str
    problem: str
    since_s: float
    probed_s: float
    num_probes: int = 1

    def __str__(self) -> str:
        whom = "itself" if self.peer == self.worker else f"worker {self.peer}"
        return f"worker {self.worker} cannot reach {whom} at {self.data_address}: {self.problem}"

    @property
    def advice(self) -> str:
        return (
            f"Start {self.peer} with an --advertise HOST:PORT that {self.worker} can dial, or open the port on the way"
        )

    def is_firm(self, now_s: float) -> bool:
        """It has failed again since it was found, and lately."""
        return self.num_probes > 1 and now_s - self.probed_s < FRESH_FINDING_S


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """What has become known of a pair of worker processes; `is_reached`: the trouble is over."""

    finding: Unreached
    is_reached: bool
    # Both ends, the same once if it is one worker.
    incarnations: tuple[str, ...]

    def __str__(self) -> str:
        if self.is_reached:
            finding = self.finding
            return f"worker {finding.worker} can reach {finding.peer} at {finding.data_address} now"
        return f"{self.finding}. {self.finding.advice}"


class Reach:
    """Keys are incarnations: a worker that was started anew is another."""

    def __init__(self) -> None:
        self._unreached: dict[tuple[str, str], Unreached] = {}
        # When an answer is given up, for each pair that is being tried.
        self._asked: dict[tuple[str, str], float] = {}

    def joined(self, newcomer: Dialler, others: Sequence[Dialler], now_s: float) -> list[Ask]:
        """A new worker dials itself and the latest of the others, and these dial it."""
        peers = [other for other in others if other is not newcomer][-NUM_PROBED_PEERS:]
        asks = [self._ask(newcomer, [newcomer, *peers], now_s)]
        return asks + [self._ask(peer, [newcomer], now_s) for peer in peers]

    def due(self, members: Iterable[Dialler], now_s: float) -> list[Ask]:
        """What failed and shall be tried again, by those who are here."""
        self._asked = {pair: until_s for pair, until_s in self._asked.items() if until_s > now_s}
        here = {member.registration.incarnation: member for member in members}
        wanted: dict[str, list[Dialler]] = {}
        for pair, finding in self._unreached.items():
            pause_s = FIRST_REPROBE_S if finding.num_probes == 1 else REPROBE_S
            if pair not in self._asked and now_s - finding.probed_s >= pause_s and here.keys() >= set(pair):
                wanted.setdefault(pair[0], []).append(here[pair[1]])
        return [self._ask(here[incarnation], peers, now_s) for incarnation, peers in wanted.items()]

    def answered(
        self, worker: Dialler, probes: Iterable[worker_pb2.PeerProbe], members: Iterable[Dialler], now_s: float
    ) -> list[News]:
        """Take in what a worker has found; gives what is new. Peers that are no `members` any more do not matter."""
        here = {member.registration.incarnation: member for member in members}
        news = []
        for probe in probes:
            peer = here.get(probe.peer.incarnation)
            if peer is None:
                continue
            pair = (worker.registration.incarnation, probe.peer.incarnation)
            self._asked.pop(pair, None)
            known = self._unreached.pop(pair, None)
            if probe.problem:
                found = self._unreached[pair] = _found(known, worker.registration, peer.registration, probe, now_s)
            elif known is not None:
                found = known
            if (known is None) == bool(probe.problem):
                both = tuple(dict.fromkeys(pair))
                news.append(News(finding=found, is_reached=not probe.problem, incarnations=both))
        return news

    def forget(self, incarnation: str) -> None:
        """The worker is gone."""
        self._unreached = {pair: each for pair, each in self._unreached.items() if incarnation not in pair}
        self._asked = {pair: until_s for pair, until_s in self._asked.items() if incarnation not in pair}

    @property
    def unreached(self) -> list[Unreached]:
        return list(self._unreached.values())

    def among(self, pairs: Iterable[tuple[str, str]]) -> list[Unreached]:
        """The findings of these pairs of worker names, in their order."""
        found = {(each.worker, each.peer): each for each in self._unreached.values()}
        return [found[pair] for pair in pairs if pair in found]

    def _ask(self, worker: Dialler, peers: Sequence[Dialler], now_s: float) -> Ask:
        incarnation = worker.registration.incarnation
        for peer in peers:
            self._asked[incarnation, peer.registration.incarnation] = now_s + PROBE_ANSWER_BOUND_S
        return Ask(incarnation=incarnation, peers=tuple(_peer(peer.registration) for peer in peers))


def _peer(registration: worker_pb2.Register) -> worker_pb2.Peer:
    return worker_pb2.Peer(
        name=registration.name, incarnation=registration.incarnation, data_address=registration.data_address
    )


def _found(
    known: Unreached | None,
    worker: worker_pb2.Register,
    peer: worker_pb2.Register,
    probe: worker_pb2.PeerProbe,
    now_s: float,
) -> Unreached:
    problem = probe.problem[:_MAX_PROBLEM_CHARS]
    if known is not None:
        return replace(known, problem=problem, probed_s=now_s, num_probes=known.num_probes + 1)
    return Unreached(
        worker=worker.name,
        peer=peer.name,
        data_address=peer.data_address,
        problem=problem,
        since_s=now_s,
        probed_s=now_s,
    )
