"""The coordinator as a process: from its settings to a listening server, and from a signal to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from pipesvc import lifeline
from pipesvc.coordinator.hub import Hub
from pipesvc.coordinator.journal import Journal
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.recovery import sort_out
from pipesvc.coordinator.service_runs import RunServicer
from pipesvc.coordinator.service_workers import WorkerServicer
from pipesvc.coordinator.settings import CoordinatorSettings
from pipesvc.coordinator.store import Store
from pipesvc.errors import CATALOGUE, ErrorCode, PipesvcError
from pipesvc.net import loops, servers, tokens
from pipesvc.net.addresses import parse
from pipesvc.rpc.v1 import run_pb2_grpc, worker_pb2_grpc

# Calls in progress at the end get this long; the process ends at once when the bound is over.
_SERVER_GRACE_S: Final = 0.5
_END_BOUND_S: Final = 10.0
_LIFELINE_EXIT: Final = 1


def main(settings: CoordinatorSettings) -> int:
    """Run until SIGTERM or SIGINT; gives the exit code. What ended it otherwise is one line on standard error."""
    try:
        loops.run(serve(settings, ready=None))
    except PipesvcError as error:
        print(f"pipesvc coordinator: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"pipesvc coordinator: {error}", file=sys.stderr, flush=True)
        return CATALOGUE[ErrorCode.INTERNAL][1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


async def serve(settings: CoordinatorSettings, *, ready: Callable[[str], None] | None) -> None:
    """Serve until a signal or a cancellation; `ready` is told the address that clients and workers dial."""
    with _using(settings.state_dir):
        token, token_path = tokens.ensure_token(settings.state_dir)
    async with _hub(settings.state_dir) as hub:
        server = servers.make_server(token=token)
        run_pb2_grpc.add_RunServiceServicer_to_server(RunServicer(hub), server)  # type: ignore[no-untyped-call]
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(hub), server)  # type: ignore[no-untyped-call]
        bound = servers.bind(server, parse(settings.listen), is_insecure=settings.is_insecure)
        pointers = tokens.write_pointers(bound.address.dialled_as(), token_path)
        try:
            with _ending() as ended:
                await server.start()
                if bound.banner:
                    print(bound.banner, file=sys.stderr, flush=True)
                where = f"(state in {settings.state_dir}, token in {token_path})"
                print(f"pipesvc coordinator listening on {bound.address} {where}", flush=True)
                if ready is not None:
                    ready(str(bound.address))
                await ended.wait()
        finally:
            await server.stop(_SERVER_GRACE_S)
            tokens.remove_pointers(pointers, token_path)


@asynccontextmanager
async def _hub(state_dir: Path) -> AsyncIterator[Hub]:
    """The coordinator without its server, with what an earlier one has left."""
    with _locked(state_dir):
        with _using(state_dir):
            store = Store(state_dir)
        journal = Journal(state_dir / "journal.sqlite3")
        term, stored = journal.open()
        try:
            inheritance = sort_out(stored, time.time_ns())
            for item in inheritance.interrupted:
                item.run.has_weights = store.has_weights(item.run.run_id)
                journal.update_run(item.run)
                store.end_run(item.run.run_id)
            hub = Hub(Machine(term=term, ended=[(item.run, item.job) for item in inheritance.ended]), journal, store)
            for item in inheritance.queued:
                with _using(state_dir):
                    hub.requeue(item.run, item.job)
            hub.start()
            try:
                yield hub
            finally:
                await hub.close()
        finally:
            store.close()
            await asyncio.to_thread(journal.close)


@contextmanager
def _using(state_dir: Path) -> Iterator[None]:
    """What the file system refuses at the start, as one line that names the directory."""
    try:
        yield
    except OSError as error:
        reason = "it is no directory" if state_dir.exists() and not state_dir.is_dir() else error.strerror or str(error)
        message = f"the state directory {state_dir} cannot be used: {reason}"
        advice = "Name another --state-dir: a directory that can be written, on a disk with free space"
        raise PipesvcError(ErrorCode.INTERNAL, message, advice=advice) from error


@contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """Two coordinators on one journal would both lead the same runs."""
    with _using(state_dir):
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"another coordinator works in the state directory {state_dir}"
            advice = "Stop it, or name another --state-dir"
            raise PipesvcError(ErrorCode.PORT_TAKEN, message, advice=advice) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _ending() -> Iterator[asyncio.Event]:
    """Set by SIGTERM or SIGINT. From then on the process has a bound; when its starter is gone it ends at once."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        if not ended.is_set():
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, _END_BOUND_S)
            ended.set()

    unwatch = lifeline.watch(lambda: os._exit(_LIFELINE_EXIT))
    # On another thread than the main one (`serve` inside another program) signals are that program's: ValueError.
    with contextlib.suppress(ValueError):
        for number in numbers:
            loop.add_signal_handler(number, end)
    try:
        yield ended
    finally:
        unwatch()
        with contextlib.suppress(ValueError):
            for number in numbers:
                loop.remove_signal_handler(number)
