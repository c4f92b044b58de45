"""How late a worker's beats are while its stage computes, and holds the GIL; beside a thread of its own.

python -m benchmarks.beats

A real worker attaches to a coordinator that only listens, and starts one child, which idles, multiplies matrices, and
then makes a library call of 30 s that keeps the GIL. The obvious place for beats, a thread beside the computing one,
runs there too and sends datagrams at the same pace. Lateness is what a gap between two arrivals has more than the
interval; with the longest gap counts what is missing at a phase's end. 50 s.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks import results
from benchmarks.rounds import Spread, spread
from pipesvc.net import servers
from pipesvc.net.addresses import parse
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2, worker_pb2, worker_pb2_grpc

INTERVAL_S: Final = 0.5
HOLD_S: Final = 30
PHASES: Final = {"idle": 6, "matmul": 8, "GIL held": HOLD_S}
COMMAND: Final = "python -m benchmarks.beats"
CHILD: Final = f"""
import ctypes, os, socket, threading, time, torch
to = ("127.0.0.1", int(os.environ["BEATS_PORT"]))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def beat():
    while True:
        sock.sendto(b"thread", to)
        time.sleep({INTERVAL_S})
threading.Thread(target=beat, daemon=True).start()
sock.sendto(b"idle", to)
time.sleep({PHASES["idle"]})
sock.sendto(b"matmul", to)
one, end_s = torch.ones(512, 512), time.monotonic() + {PHASES["matmul"]}
while time.monotonic() < end_s:
    one @ one
sock.sendto(b"GIL held", to)
ctypes.PyDLL(None).sleep({HOLD_S})
sock.sendto(b"over", to)
"""


@dataclass
class Heard(asyncio.DatagramProtocol, worker_pb2_grpc.WorkerServiceServicer):
    """All arrivals, on one clock."""

    agent_s: list[float] = field(default_factory=list)
    thread_s: list[float] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def datagram_received(self, data: bytes, addr: object) -> None:
        if data == b"thread":
            self.thread_s.append(time.monotonic())
            return
        self.phases_s[data.decode()] = time.monotonic()
        if data == b"over":
            self.is_over.set()

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        await context.read()
        beat_ms = int(INTERVAL_S * 1000)
        welcome = worker_pb2.Welcome(term=1, beat_interval_ms=beat_ms, beat_timeout_ms=3000)
        await context.write(worker_pb2.AttachResponse(welcome=welcome))
        await context.write(worker_pb2.AttachResponse(start_child=_start()))
        while isinstance(request := await context.read(), worker_pb2.AttachRequest):
            if request.HasField("beat"):
                self.agent_s.append(time.monotonic())


def _start() -> worker_pb2.StartChild:
    """A child that imports the text above as if it were a module of a user's."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("user_module.py", CHILD)
    bundle = buffer.getvalue()
    call = types_pb2.Call(target="user_module:build")
    job = job_pb2.JobSpec(model=call, bundle_sha256=hashlib.sha256(bundle).hexdigest())
    assignment = local_pb2.Assignment(
        run_id="run", term=1, role=types_pb2.ROLE_INSPECTOR, job=job, worker="w", host="h", num_threads=1
    )
    return worker_pb2.StartChild(assignment=assignment, bundle=bundle, link_token="t" * 32, window_parcels=2)


async def listen() -> Heard:
    heard = Heard()
    server = servers.make_server(token=None)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(heard, server)  # type: ignore[no-untyped-call]
    address = servers.bind(server, parse("127.0.0.1:0")).address
    await server.start()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: heard, sock=sock)
    command = [sys.executable, "-m", "pipesvc", "worker", "--coordinator", str(address), "--name", "w"]
    environment = {**os.environ, "BEATS_PORT": str(sock.getsockname()[1]), "PYTHONPATH": str(Path.cwd())}
    worker = subprocess.Popen([*command, "--device", "cpu"], env=environment)
    try:
        async with asyncio.timeout(sum(PHASES.values()) + 30):
            await heard.is_over.wait()
    finally:
        for _ in range(2):  # the second one does not wait for the child
            worker.terminate()
            await asyncio.sleep(0.5)
        await asyncio.to_thread(worker.wait, 20)
        transport.close()
        await server.stop(None)
    return heard


def lateness_ms(arrivals_s: Sequence[float], begin_s: float, end_s: float) -> list[float]:
    """Of each beat of the phase; what has not come by its end is as late as it is by then."""
    before = [each for each in arrivals_s if each < begin_s][-1:]
    within = [*before, *(each for each in arrivals_s if begin_s <= each <= end_s)]
    late = [(after - each - INTERVAL_S) * 1000 for each, after in pairwise(within)]
    overdue_ms = (end_s - (within[-1] if within else begin_s) - INTERVAL_S) * 1000
    return [max(0.0, each) for each in (*late, *([overdue_ms] if overdue_ms > 0 else []))]


def figures(heard: Heard) -> list[results.Result]:
    found = []
    for phase, (begin_s, end_s) in _spans(heard.phases_s).items():
        agent = lateness_ms(heard.agent_s, begin_s, end_s)
        thread = lateness_ms(heard.thread_s, begin_s, end_s)
        measured, beside = spread(agent), spread(thread)
        latest, ratio = measured.highest, measured.highest / max(beside.highest, 1e-3)
        print(f"{phase}: beats of the agent are late by {_text(measured)}, of a thread by {_text(beside)}")
        name = f"lateness of a beat, {phase} for {PHASES[phase]} s"
        found.append(results.result(f"{name}: median", measured, unit="ms", command=COMMAND, num_rounds=len(agent)))
        found.append(
            results.result(
                f"{name}: latest",
                Spread(median=latest, lowest=measured.lowest, highest=latest),
                unit="ms",
                command=COMMAND,
                num_rounds=len(agent),
                against="a thread beside the computation",
                ratio=Spread(median=ratio, lowest=ratio, highest=ratio),
                aim="value < 1000" if phase == "GIL held" else "",
            )
        )
    return found


def _text(late_ms: Spread) -> str:
    return f"{late_ms.median:.1f} ms, at most {late_ms.highest:.1f} ms"


def _spans(phases_s: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    return {name: (begin, end) for (name, begin), (_, end) in pairwise(phases_s.items())}


def main() -> None:
    argparse.ArgumentParser(description="Lateness of beats at the coordinator.").parse_args()
    results.write(results.FOLDER / "beats.json", figures(asyncio.run(listen())))


if __name__ == "__main__":
    main()
