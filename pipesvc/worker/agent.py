"""The worker's own process: small, without torch, and always able to answer.

User code may hold the interpreter for seconds or die; in one process with it, beats would come late and a crash
would take the worker along. So this process only carries messages: between the coordinator and the children that it
starts, and tensors between those and other workers. It decides nothing about training.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

from pipesvc import lifeline
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.net import loops, options, reports, servers, tokens
from pipesvc.net.addresses import parse
from pipesvc.net.ending import end
from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import local_pb2, worker_pb2
from pipesvc.worker import identity, work_dir
from pipesvc.worker.doors import Door
from pipesvc.worker.nursery_client import NurseryClient
from pipesvc.worker.parentage import adopt_orphans
from pipesvc.worker.peers import PeerProber
from pipesvc.worker.registration import Registration, check_listen
from pipesvc.worker.session import Dial, Outbox, Session
from pipesvc.worker.settings import WorkerSettings
from pipesvc.worker.worker_run import WorkerRun

DRAIN_S: Final = 30.0
SERVER_GRACE_S: Final = 0.5
LIFELINE_EXIT: Final = 1
FLUSH_S: Final = 1.0
# mallopt parameters and values (bytes): blocks of a chunk's size are kept and used again.
# Mapped anew each time they cost half a CPU second per GB received.
_MALLOC_SETTINGS: Final = ((-3, 32 << 20), (-1, (1 << 31) - 1), (-2, 64 << 20))


class Agent:
    """The runs of this worker, fed by the session. All methods are called on the event loop and none waits."""

    def __init__(self, settings: WorkerSettings, service: LinkService, work_dir: Path) -> None:
        self._settings = settings
        self._service = service
        self._work_dir = work_dir
        self._nursery = NurseryClient(self.say)
        self._term = 0
        self._runs: dict[str, WorkerRun] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.outbox = Outbox(self._pressed)
        self._peers = PeerProber(self.outbox)
        self._door = Door()

    def say(self, line: str) -> None:
        print(f"pipesvc worker {self._settings.name}: {line}", file=sys.stderr, flush=True)

    def beat(self) -> worker_pb2.Beat:
        beat = worker_pb2.Beat(sent_unix_ns=time.time_ns())
        for run in self._runs.values():
            beat.children.extend(run.progress())
            beat.links.extend(run.link_counts())
        return beat

    def welcomed(self, welcome: worker_pb2.Welcome) -> None:
        if welcome.term != self._term:
            # What waits was meant for another coordinator, which knew the runs that are here.
            self.outbox.clear()
            self._end_all("a new coordinator has taken over")
        self._term = welcome.term
        threads = identity.threads_text(self._settings.num_threads)
        self.say(f"registered at the coordinator {self._settings.coordinator}; {threads}")
        if self._is_draining:
            self.outbox.put(worker_pb2.AttachRequest(draining=True))

    def lost(self, why: str) -> None:
        if self._runs:
            self.say(f"{why}; ending its run")
        self._end_all(why)
        self.outbox.clear()

    def command(self, response: worker_pb2.AttachResponse) -> None:
        match response.WhichOneof("message"):
            case "start_child":
                self._start_child(response.start_child)
            case "to_run":
                run = self._runs.get(response.to_run.run_id)
                if run is not None:
                    run.tell(response.to_run.role, response.to_run.message)
            case "stop_run":
                stop = response.stop_run
                self._stop_run(stop.run_id, stop.reason, stop.grace_s)
            case "probe_peers":
                self._peers.ask(response.probe_peers)
            case "notice":
                self.say(response.notice.text)

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    def drain(self) -> None:
        """Take nothing new, and become idle when the present run has ended."""
        self._is_draining = True
        self.outbox.put(worker_pb2.AttachRequest(draining=True))

    async def wait_idle(self, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)
        return self.is_idle

    def vanish(self) -> None:
        """End every child and remove every file now, without the event loop."""
        for run in self._runs.values():
            run.kill()
        shutil.rmtree(self._work_dir, ignore_errors=True)

    def prepare(self) -> None:
        """Start what children are forked from."""
        self._nursery.start()

    async def close(self) -> None:
        """End every run, then the nursery, and wait for that."""
        self._end_all("the worker ends")
        await self._peers.close()
        await asyncio.gather(*self._ending.values())
        await self._door.close()
        await self._nursery.close()

    def _start_child(self, start: worker_pb2.StartChild) -> None:
        assignment = start.assignment
        run = self._runs.get(assignment.run_id)
        try:
            if run is None:
                run = WorkerRun(
                    start,
                    parent_dir=self._work_dir,
                    service=self._service,
                    door=self._door,
                    nursery=self._nursery,
                    upstream=self.outbox,
                    has_checksums=self._settings.has_checksums,
                )
                self._runs[assignment.run_id] = run
                self._idle.clear()
        except (PipesvcError, OSError) as cause:
            error = cause if isinstance(cause, PipesvcError) else PipesvcError(ErrorCode.INTERNAL, f"no start: {cause}")
            where = Where(run_id=assignment.run_id, worker=assignment.worker, host=assignment.host)
            failed = local_pb2.FromChild(failed=reports.to_message(error.at(where).details))
            report = worker_pb2.ChildReport(run_id=assignment.run_id, role=assignment.role, report=failed)
            self.outbox.put(worker_pb2.AttachRequest(child_report=report))
            return
        run.start(start)

    def _stop_run(self, run_id: str, reason: str, grace_s: float) -> None:
        run = self._runs.get(run_id)
        if run is None:
            self.outbox.put(worker_pb2.AttachRequest(run_stopped=worker_pb2.RunStopped(run_id=run_id)))
        elif run_id not in self._ending:
            task = asyncio.create_task(self._end(run, reason, grace_s), name=f"end of run {run_id}")
            self._ending[run_id] = task
        elif grace_s == 0:
            run.kill()

    def _end_all(self, reason: str) -> None:
        for run_id, run in list(self._runs.items()):
            run.kill()
            self._stop_run(run_id, reason, 0.0)

    async def _end(self, run: WorkerRun, reason: str, grace_s: float) -> None:
        try:
            stopped = await run.stop(reason, grace_s)
        finally:
            del self._runs[run.run_id], self._ending[run.run_id]
            if not self._runs:
                self._idle.set()
        self.outbox.put(worker_pb2.AttachRequest(run_stopped=stopped))

    def _pressed(self, is_pressed: bool) -> None:
        for run in self._runs.values():
            if is_pressed:
                run.pause()
            else:
                run.resume()


async def serve(settings: WorkerSettings) -> None:
    """Be a worker until told to end (SIGTERM or SIGINT: drain; a second one: at once). Refusals are raised."""
    devices = identity.parse_devices(settings.device)
    coordinator = parse(settings.coordinator)
    check_listen(settings)
    server = servers.make_server(token=None, server_options=options.DATA_SERVER)
    service = LinkService(settings.name)
    service.add_to(server)
    bound = servers.bind(server, parse(settings.listen), is_insecure=settings.is_insecure)
    await server.start()
    try:
        with work_dir.fresh() as folder:
            agent = Agent(settings, service, folder)
            if bound.banner:
                agent.say(bound.banner)
            dial = Dial(
                address=coordinator,
                find_token=lambda: tokens.find_token(coordinator, settings.token_file),
                wait_s=settings.coordinator_wait_s,
            )
            registration = Registration(settings, devices, bound.address, agent.say)
            await _work(agent, Session(dial, registration.message, agent, agent.outbox))
    finally:
        await server.stop(SERVER_GRACE_S)


async def _work(agent: Agent, session: Session) -> None:
    """Until the session fails or a signal comes, and the runs are gone."""
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    unwatch = lifeline.watch(lambda: _end_at_once(agent))
    agent.prepare()
    talking = asyncio.create_task(session.run(), name="session")
    ending = asyncio.create_task(_drained(agent, signals), name="signals")
    try:
        await asyncio.wait((talking, ending), return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            talking.result()
    finally:
        await agent.close()
        if not talking.done():
            await agent.outbox.emptied(FLUSH_S)
        await end((ending, talking))
        unwatch()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _drained(agent: Agent, signals: asyncio.Queue[signal.Signals]) -> None:
    """Wait for a signal, then for the present run or a second signal."""
    first = await signals.get()
    if agent.is_idle:
        agent.say(f"{first.name}: ends")
    else:
        agent.say(f"{first.name}: ends with the present run, in {DRAIN_S:g} s at most; once more ends it at once")
    agent.drain()
    idle = asyncio.create_task(agent.wait_idle(DRAIN_S), name="drain")
    second = asyncio.create_task(signals.get(), name="second signal")
    await asyncio.wait((idle, second), return_when=asyncio.FIRST_COMPLETED)
    for task in (idle, second):
        task.cancel()
    await asyncio.gather(idle, second, return_exceptions=True)


def _end_at_once(agent: Agent) -> None:
    agent.vanish()
    os._exit(LIFELINE_EXIT)


def prepare_process() -> None:
    """Reap what a killed nursery leaves, and have malloc keep large blocks."""
    adopt_orphans()
    libc = ctypes.CDLL(None)
    for parameter, value in _MALLOC_SETTINGS:
        libc.mallopt(parameter, value)


def main(settings: WorkerSettings) -> int:
    """Run the worker; gives the exit code. What ended it is one line on standard error."""
    prepare_process()
    try:
        loops.run(serve(settings))
    except PipesvcError as error:
        print(f"pipesvc worker {settings.name}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0
