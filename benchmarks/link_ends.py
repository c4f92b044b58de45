"""The processes of `benchmarks.links`: an agent with a child at each end of a link, as in a run, and two ends of gloo.

    python -m benchmarks.link_ends agent INDEX WAY      says its address, hears both, then has its child measure
    python -m benchmarks.link_ends child FD INDEX
    python -m benchmarks.link_ends gloo RANK PORT

The first end measures, says `begin` and `end` around the stream, and then one line of JSON. Last of all it measures
small tensors once more while other processes keep all cores busy.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch

from pipesvc.net import options, servers
from pipesvc.net.addresses import Address
from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.worker.agent import prepare_process
from pipesvc.worker.doors import Door
from pipesvc.worker.exchange import Exchange
from pipesvc.worker.local_socket import AgentEnd, ChildEnd, Packet, socket_pair
from pipesvc.worker.port import ParcelArrived, Port

SMALL: Final = 64 << 10
LARGE: Final = 16 << 20
NUM_SMALL: Final = 300
NUM_LARGE: Final = 48
NUM_WARM_UP: Final = 20
IN_FLIGHT: Final = 4
SAME_HOST: Final = "same-host"
GRPC: Final = "gRPC"
_THERE: Final = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
_BACK: Final = Link(1, 0, types_pb2.LINK_KIND_GRADIENT)
_LIMIT_S: Final = 60.0


class Agent:
    """The part of a worker's agent that links pass, with one child."""

    def __init__(self, index: int, way: str) -> None:
        self._index = index
        self._service = LinkService()
        self._server = servers.make_server(token=None, server_options=options.DATA_SERVER)
        self._service.add_to(self._server)
        self._address = str(servers.bind(self._server, Address(host="127.0.0.1", port=0)).address)
        self._door = Door() if way == SAME_HOST else None

    async def run(self) -> None:
        await self._server.start()
        _say(self._address)
        addresses = dict(enumerate(json.loads(await asyncio.to_thread(sys.stdin.readline))))
        agent_end, child_end = socket_pair()
        with child_end:
            command = [sys.executable, "-m", "benchmarks.link_ends", "child", str(child_end.fileno()), str(self._index)]
            child = subprocess.Popen(command, pass_fds=(child_end.fileno(),), env=os.environ | {"OMP_NUM_THREADS": "1"})
        self._end = AgentEnd(agent_end, on_packet=self._heard, on_gone=lambda: None)
        self._exchange = Exchange(
            run_id="r",
            term=1,
            token="t" * 32,
            window_parcels=IN_FLIGHT,
            addresses=addresses,
            service=self._service,
            on_failed=_fail,
            on_client_lost=_fail,
            door=self._door,
        )
        self._exchange.add(types_pb2.ROLE_EXECUTOR, self, [self._index])
        await asyncio.to_thread(sys.stdin.readline)
        child.kill()
        child.wait()

    def send(self, message: local_pb2.ToChild, descriptors: tuple[int, ...] = ()) -> None:
        self._end.send(message.SerializeToString(), descriptors)

    def _heard(self, packet: Packet) -> None:
        message = local_pb2.FromChild.FromString(packet.message)
        self._exchange.received(types_pb2.ROLE_EXECUTOR, message, packet.descriptors)


def _fail(error: Exception) -> None:
    _say(f"failed: {error}")


def _say(line: str) -> None:
    print(line, flush=True)


def child(descriptor: int, index: int) -> None:
    torch.set_num_threads(1)
    port = Port(ChildEnd(socket.socket(fileno=descriptor)))
    if index == 0:
        _say(json.dumps(_measured(partial(_round_trips, _Parcels(port)), partial(_stream, _Parcels(port)))))
    else:
        _answer(_Parcels(port))


def _measured(round_trips: Callable[[int], list[float]], stream: Callable[[], float]) -> dict[str, float]:
    one_way_s = statistics.median(round_trips(SMALL)[NUM_WARM_UP:]) / 2
    stream()
    _say("begin")
    stream_s = stream()
    _say("end")
    with _busy_cores():
        round_trips(SMALL)  # while the system learns that all of these processes are busy
        busy_one_way_s = statistics.median(round_trips(SMALL)[NUM_WARM_UP:]) / 2
    return {
        "one_way_s": one_way_s,
        "busy_one_way_s": busy_one_way_s,
        "bytes_per_s": NUM_LARGE * LARGE / stream_s,
    }


@contextmanager
def _busy_cores() -> Iterator[None]:
    """Each of them says a line when it counts, and ends with this process at the latest."""
    count = "import os; parent = os.getppid(); print(flush=True)\nwhile os.getppid() == parent: sum(range(1000))"
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", count], stdout=subprocess.PIPE))
            stack.callback(hog.kill)
            assert hog.stdout is not None
            hog.stdout.readline()
        yield


class _Parcels:
    """What comes, one at a time."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self._come: deque[ParcelArrived] = deque()

    def next(self) -> ParcelArrived:
        while not self._come:
            self._come.extend(each for each in self.port.poll(_LIMIT_S) if isinstance(each, ParcelArrived))
        return self._come.popleft()


def _round_trips(parcels: _Parcels, size: int) -> list[float]:
    payload, found, port = torch.zeros(size // 4), [], parcels.port
    for number in range(NUM_WARM_UP + NUM_SMALL):
        begin_s = time.perf_counter()
        port.send_parcel(_THERE, 1, number, payload)
        parcels.next()
        found.append(time.perf_counter() - begin_s)
        port.consumed(_BACK)
    return found


def _stream(parcels: _Parcels) -> float:
    """Large tensors, at most so many not answered; each answer is small."""
    payload, port, begin_s = torch.zeros(LARGE // 4), parcels.port, time.perf_counter()
    for number in range(NUM_LARGE + IN_FLIGHT):
        if number >= IN_FLIGHT:
            parcels.next()
            port.consumed(_BACK)
        if number < NUM_LARGE:
            port.send_parcel(_THERE, 2, number, payload)
    return time.perf_counter() - begin_s


def _answer(parcels: _Parcels) -> None:
    """A small tensor with one of its size, a large one with one number."""
    small, number, port = torch.zeros(SMALL // 4), torch.zeros(1), parcels.port
    while True:
        arrived = parcels.next()
        port.consumed(_THERE)
        is_small = arrived.step == 1
        step, micro_batch = arrived.step, arrived.micro_batch
        del arrived
        port.send_parcel(_BACK, step, micro_batch, small if is_small else number)


def gloo(rank: int, tcp_port: int) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{tcp_port}", rank=rank, world_size=2)
    small, number = torch.zeros(SMALL // 4), torch.zeros(1)
    large = [torch.zeros(LARGE // 4) for _ in range(IN_FLIGHT)]

    def round_trips(size: int) -> list[float]:
        found = []
        for _ in range(NUM_WARM_UP + NUM_SMALL):
            begin_s = time.perf_counter()
            dist.send(small, 1)
            dist.recv(small, 1)
            found.append(time.perf_counter() - begin_s)
        return found

    def stream() -> float:
        """A tensor is written before it is sent, as an executor copies what it sends."""
        begin_s, sent = time.perf_counter(), list[Any]()
        for index in range(NUM_LARGE + IN_FLIGHT):
            if index >= IN_FLIGHT:
                dist.recv(number, 1)
                sent[index - IN_FLIGHT].wait()
            if index < NUM_LARGE:
                sent.append(dist.isend(large[index % IN_FLIGHT], 1))
        return time.perf_counter() - begin_s

    if rank == 0:
        _say(json.dumps(_measured(round_trips, stream)))
    else:
        for num_calls, num_large in ((1, 2 * NUM_LARGE), (2, 0)):
            for _ in range(num_calls * (NUM_WARM_UP + NUM_SMALL)):
                dist.recv(small, 0)
                dist.send(small, 0)
            for _ in range(num_large):
                dist.recv(large[0], 0)
                dist.send(number, 0)
    dist.barrier()


def main() -> None:
    role, *arguments = sys.argv[1:]
    if role == "agent":
        from pipesvc.net import loops

        prepare_process()

        async def live() -> None:
            await Agent(int(arguments[0]), arguments[1]).run()

        loops.run(live())
        os._exit(0)
    if role == "child":
        child(int(arguments[0]), int(arguments[1]))
    else:
        gloo(int(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    main()
