"""Dialling other workers because the coordinator asks whether that works from here.

Each question is one short task; none may outlive the agent, and none delays a beat.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from pipesvc.errors import PipesvcError
from pipesvc.net.addresses import parse
from pipesvc.net.ending import end
from pipesvc.net.probe import problem_at
from pipesvc.rpc.v1 import worker_pb2

# More than the probe's own limit, for a resolver that does not keep to it.
_GRACE_S: Final = 1.0


class Upstream(Protocol):
    """Where the answer goes: in the end to the coordinator."""

    def put(self, request: worker_pb2.AttachRequest) -> None: ...


class PeerProber:
    """For the event loop's thread."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, request: worker_pb2.ProbePeers) -> None:
        """Answered by one message, when all of them have answered or their time is over."""
        task = asyncio.create_task(self._answer(request), name="peer probes")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        await end(self._tasks)

    async def _answer(self, request: worker_pb2.ProbePeers) -> None:
        limit_s = request.timeout_ms / 1000
        probes = await asyncio.gather(*(_probe(peer, limit_s) for peer in request.peers))
        self._upstream.put(worker_pb2.AttachRequest(peers_probed=worker_pb2.PeersProbed(probes=probes)))


async def _probe(peer: worker_pb2.Peer, limit_s: float) -> worker_pb2.PeerProbe:
    try:
        async with asyncio.timeout(limit_s + _GRACE_S):
            problem = await problem_at(parse(peer.data_address), peer.name, limit_s)
    except PipesvcError as error:
        problem = error.details.message
    except TimeoutError:
        problem = f"no answer within {limit_s:g} s"
    return worker_pb2.PeerProbe(peer=peer, problem=problem)
