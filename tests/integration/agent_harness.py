"""A coordinator that does what a test says, and a real worker process that dials it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from pipesvc.errors import PipesvcError
from pipesvc.net import reports, servers
from pipesvc.net.addresses import Address
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2, worker_pb2, worker_pb2_grpc

LIMIT_S = 30.0
RUN = "run-1"
TERM = 3


class Attached:
    """One stream of the worker, as the coordinator sees it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._arrived = asyncio.Condition()
        self.received: list[worker_pb2.AttachRequest] = []
        self.hang_up = asyncio.Event()
        self.is_over = False

    async def add(self, request: worker_pb2.AttachRequest) -> None:
        async with self._arrived:
            self.received.append(request)
            self._arrived.notify_all()

    async def send(self, **message: Any) -> None:
        await self._context.write(worker_pb2.AttachResponse(**message))

    async def until(
        self, is_it: Callable[[worker_pb2.AttachRequest], bool], limit_s: float = LIMIT_S
    ) -> worker_pb2.AttachRequest:
        """The first request, past or to come, that is it."""
        async with asyncio.timeout(limit_s), self._arrived:
            await self._arrived.wait_for(lambda: any(map(is_it, self.received)))
        return next(filter(is_it, self.received))

    async def until_failed(self, limit_s: float = LIMIT_S) -> types_pb2.ErrorReport:
        request = await self.until(lambda each: each.child_report.report.HasField("failed"), limit_s)
        return request.child_report.report.failed

    async def until_printed(self, text: str) -> worker_pb2.LogLines:
        request = await self.until(lambda each: any(text in line for line in each.log_lines.lines))
        return request.log_lines

    async def until_stopped(self, run_id: str = RUN) -> worker_pb2.RunStopped:
        request = await self.until(lambda each: each.run_stopped.run_id == run_id)
        return request.run_stopped


class FakeCoordinator(worker_pb2_grpc.WorkerServiceServicer):
    """Welcomes every worker, unless `refusal` is set, and records what it says."""

    def __init__(self, *, term: int = TERM, token: str | None = None, refusal: PipesvcError | None = None) -> None:
        self._term = term
        self._refusal = refusal
        self._streams: asyncio.Queue[Attached] = asyncio.Queue()
        self._open: list[Attached] = []
        self._server = servers.make_server(token=token)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.address = ""

    async def start(self, port: int = 0) -> None:
        bound = servers.bind(self._server, Address(host="127.0.0.1", port=port))
        self.address = str(bound.address)
        await self._server.start()

    async def __aenter__(self) -> FakeCoordinator:
        if not self.address:
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        for attached in self._open:
            attached.hang_up.set()
        await self._server.stop(0.0)

    async def attached(self, limit_s: float = LIMIT_S) -> Attached:
        """The next stream, after its registration."""
        async with asyncio.timeout(limit_s):
            return await self._streams.get()

    async def Attach(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        if self._refusal is not None:
            await reports.abort_with(context, self._refusal)
        attached = Attached(context)
        self._open.append(attached)
        await attached.add(await context.read())
        assert attached.received[0].HasField("register")
        welcome = worker_pb2.Welcome(term=self._term, beat_interval_ms=100, beat_timeout_ms=3000)
        await attached.send(welcome=welcome)
        await self._streams.put(attached)
        reading = asyncio.create_task(self._read(attached, context))
        hanging_up = asyncio.create_task(attached.hang_up.wait())
        try:
            await asyncio.wait((reading, hanging_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            attached.is_over = True
            for task in (reading, hanging_up):
                task.cancel()
            await asyncio.gather(reading, hanging_up, return_exceptions=True)

    async def _read(self, attached: Attached, context: Any) -> None:
        while isinstance(request := await context.read(), worker_pb2.AttachRequest):
            await attached.add(request)


_RUNNER = """
import sys
from pipesvc.worker.agent import main
from pipesvc.worker.settings import WorkerSettings
coordinator, wait_s, device, listen = sys.argv[1:]
said = {"coordinator": coordinator, "device": device, "listen": listen, "coordinator_wait_s": float(wait_s)}
sys.exit(main(WorkerSettings(name="w", **said)))
"""


class AgentProcess:
    """A worker agent of its own, with its files below `folder`."""

    def __init__(
        self,
        coordinator: str,
        folder: Path,
        *,
        wait_s: float = 60.0,
        device: str = "cpu",
        listen: str = "127.0.0.1:0",
        variables: Mapping[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self.folder = folder
        self._stderr_path = folder / "stderr"
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "TMPDIR": str(folder),
            "PIPESVC_HOME": str(folder / "home"),
            **(variables or {}),
        }
        with self._stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RUNNER, coordinator, str(wait_s), device, listen],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                pass_fds=pass_fds,
                start_new_session=True,
            )

    @property
    def stderr(self) -> str:
        return self._stderr_path.read_text()

    def nursery(self) -> psutil.Process:
        """The process that forks the children."""
        (nursery,) = psutil.Process(self.process.pid).children()
        assert "pipesvc.worker.nursery" in nursery.cmdline()
        return nursery

    def descendants(self) -> list[psutil.Process]:
        """Children, and theirs: all but the nursery."""
        nurseries = psutil.Process(self.process.pid).children()
        return [process for nursery in nurseries for process in nursery.children(recursive=True)]

    def num_descriptors(self) -> int:
        return psutil.Process(self.process.pid).num_fds()

    def run_dirs(self) -> list[Path]:
        return list(self.folder.glob("pipesvc-worker-*/run-*"))

    async def wait(self, limit_s: float = LIMIT_S) -> int:
        return await asyncio.to_thread(self.process.wait, limit_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.asynccontextmanager
async def worker_of(
    coordinator: FakeCoordinator, folder: Path, **options: Any
) -> AsyncIterator[tuple[AgentProcess, Attached]]:
    """A worker that is registered at a coordinator; both are ended afterwards."""
    async with coordinator:
        with AgentProcess(coordinator.address, folder, **options) as agent:
            yield agent, await coordinator.attached()


async def until(is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for something that announces itself to nobody."""
    async with asyncio.timeout(limit_s):
        while not is_so():
            await asyncio.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def start_child(
    source: str,
    *,
    run_id: str = RUN,
    role: types_pb2.Role = types_pb2.ROLE_INSPECTOR,
    term: int = TERM,
    sha256: str = "",
) -> worker_pb2.StartChild:
    """A child that imports `source` as a module of the user's."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("user_module.py", source)
    bundle = buffer.getvalue()
    job = job_pb2.JobSpec(
        model=types_pb2.Call(target="user_module:build"),
        bundle_sha256=sha256 or hashlib.sha256(bundle).hexdigest(),
    )
    assignment = local_pb2.Assignment(run_id=run_id, term=term, role=role, job=job, worker="w", host="h", num_threads=1)
    return worker_pb2.StartChild(assignment=assignment, bundle=bundle, link_token="t" * 32, window_parcels=2)
