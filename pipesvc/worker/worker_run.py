"""One run on this worker: its directory, children and links, from the first StartChild until nothing of it is left.

A run's processes, memory and files must go together, whatever ends it. So they have one owner, which also says in words
what a child that just died could not say.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode, ErrorDetails, PipesvcError, Where
from pipesvc.net import reports
from pipesvc.net.link_service import LinkService
from pipesvc.rpc.v1 import local_pb2, types_pb2, worker_pb2
from pipesvc.wire.links import FEEDER
from pipesvc.wire.roles import role_name
from pipesvc.worker.bundles import unpack
from pipesvc.worker.children import Child, ChildExit
from pipesvc.worker.doors import Door
from pipesvc.worker.exchange import Exchange
from pipesvc.worker.nursery_client import NurseryClient
from pipesvc.worker.progress import in_words
from pipesvc.worker.progress_page import ProgressView

# Read by native thread pools when they are loaded. torch, which the nursery has loaded, is told by the child's work.
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
_TENSOR_MESSAGES: Final = ("tensor", "release_segment", "parcels_consumed", "peer_counts")


class _Listener:
    """Tells a run what one of its children said. `child` is filled in once it runs."""

    def __init__(self, run: WorkerRun, role: types_pb2.Role) -> None:
        self._run = run
        self._role = role

    def received(self, message: local_pb2.FromChild, descriptors: tuple[int, ...]) -> None:
        self._run.child_said(self._role, message, descriptors)

    def printed(self, lines: list[str], *, is_stderr: bool) -> None:
        self._run.child_printed(self._role, lines, is_stderr=is_stderr)

    def exited(self, exit: ChildExit) -> None:
        self._run.child_exited(self._role, exit)


class Upstream(Protocol):
    """Where a run's words go: in the end to the coordinator."""

    def put(self, request: worker_pb2.AttachRequest) -> None: ...


class WorkerRun:
    """Made with the first StartChild of its run."""

    def __init__(
        self,
        start: worker_pb2.StartChild,
        *,
        parent_dir: Path,
        service: LinkService,
        door: Door | None,
        nursery: NurseryClient,
        upstream: Upstream,
        has_checksums: bool = True,
    ) -> None:
        assignment = start.assignment
        self.run_id: Final = assignment.run_id
        self.term: Final = assignment.term
        self._where = Where(run_id=self.run_id, worker=assignment.worker, host=assignment.host)
        self._upstream = upstream
        self._nursery = nursery
        self._bundle_dir = ""
        self._children: dict[types_pb2.Role, Child] = {}
        self._progress: dict[types_pb2.Role, ProgressView] = {}
        # Of its executor, when that has ended.
        self._last_times: local_pb2.ExecutorTimes | None = None
        # Roles of which no further explanation is due: they failed by name, or have done all that they were there for.
        self._explained: set[types_pb2.Role] = set()
        self._is_stopping = False
        self._has_all_data = False
        self._exchange = Exchange(
            run_id=self.run_id,
            term=self.term,
            token=start.link_token,
            window_parcels=max(1, start.window_parcels),
            addresses=start.addresses,
            service=service,
            on_failed=self._link_failed,
            on_client_lost=self._client_lost,
            door=None if assignment.job.strategy.forces_grpc else door,
            has_checksums=has_checksums,
        )
        try:
            self._dir = Path(tempfile.mkdtemp(prefix="run-", dir=parent_dir))
        except OSError:
            service.close_run(self.run_id)
            raise

    def start(self, start: worker_pb2.StartChild) -> None:
        """Start a child; what prevents that is reported as the child's failure."""
        role = start.assignment.role
        try:
            self._start(start)
        except PipesvcError as error:
            self._fail(role, error)
        except OSError as error:
            advice = "Look at the disk, the memory and the open files of this worker"
            self._fail(
                role, PipesvcError(ErrorCode.INTERNAL, f"no {role_name(role)} could be started: {error}", advice=advice)
            )

    def tell(self, role: types_pb2.Role, message: local_pb2.ToChild) -> None:
        """Pass on a command of the coordinator. To a child that is gone it does nothing: its end has been reported."""
        child = self._children.get(role)
        if child is not None:
            child.send(message)

    def progress(self) -> list[worker_pb2.ChildProgress]:
        return [
            worker_pb2.ChildProgress(
                run_id=self.run_id, role=role, progress=self._progress_of(role), times=self._times_of(role)
            )
            for role, child in self._children.items()
            if child.is_running
        ]

    def link_counts(self) -> list[worker_pb2.LinkCount]:
        return self._exchange.counts()

    def pause(self) -> None:
        for child in self._children.values():
            child.pause()

    def resume(self) -> None:
        for child in self._children.values():
            child.resume()

    def kill(self) -> None:
        """End its processes now and remove its files, without the event loop: for the moment before the agent ends."""
        self._is_stopping = True
        for child in self._children.values():
            child.kill()
        shutil.rmtree(self._dir, ignore_errors=True)

    async def stop(self, reason: str, grace_s: float) -> worker_pb2.RunStopped:
        """End everything of this run; gives the final counts of its links, and the last times of its executor."""
        self._is_stopping = True
        self.resume()
        ended = await asyncio.gather(*(child.stop(reason, grace_s) for child in self._children.values()))
        for role, child, is_ended in zip(self._children, list(self._children.values()), ended, strict=True):
            if not is_ended:
                self.child_printed(role, [f"process {child.pid} was killed and does not end"], is_stderr=True)
        counts = self._exchange.counts()
        await self._exchange.close()
        shutil.rmtree(self._dir, ignore_errors=True)
        return worker_pb2.RunStopped(run_id=self.run_id, links=counts, times=self._last_times)

    def child_said(self, role: types_pb2.Role, message: local_pb2.FromChild, descriptors: tuple[int, ...]) -> None:
        kind = message.WhichOneof("message")
        if kind in _TENSOR_MESSAGES:
            try:
                self._exchange.received(role, message, descriptors)
            except PipesvcError as error:
                self._fail(role, error)
            return
        if kind == "progress_page":
            self._progress[role] = ProgressView(descriptors[0])
            self._exchange.credit_board(role).hang(self._progress[role])
            return
        if kind == "failed" or (kind == "inspected" and not message.inspected.is_trying):
            self._explained.add(role)
        self._has_all_data |= kind == "data_ended" and not message.data_ended.kind
        report = worker_pb2.ChildReport(run_id=self.run_id, role=role, report=message)
        self._upstream.put(worker_pb2.AttachRequest(child_report=report))

    def child_printed(self, role: types_pb2.Role, lines: list[str], *, is_stderr: bool) -> None:
        log_lines = worker_pb2.LogLines(run_id=self.run_id, role=role, lines=lines, is_stderr=is_stderr)
        self._upstream.put(worker_pb2.AttachRequest(log_lines=log_lines))

    def child_exited(self, role: types_pb2.Role, exit: ChildExit) -> None:
        progress = self._progress_of(role)
        self._last_times = self._times_of(role) or self._last_times
        if (view := self._progress.pop(role, None)) is not None:
            view.close()
        if self._is_stopping or role in self._explained:
            return
        where = self._where
        if progress is not None:
            where = Where(
                run_id=where.run_id,
                worker=where.worker,
                host=where.host,
                step=progress.step if progress.HasField("step") else None,
                stage=progress.stage if progress.HasField("stage") else None,
                micro_batch=progress.micro_batch if progress.HasField("micro_batch") else None,
            )
        message = f"the {role_name(role)} {exit.cause}" + (f" {in_words(progress)}" if progress else "")
        details = ErrorDetails(
            code=ErrorCode.CHILD_DIED,
            message=message + (f": {exit.reason}" if exit.reason else ""),
            advice=_advice(exit),
            where=where,
            last_words=exit.last_words,
        )
        self._fail(role, PipesvcError.of(details))

    def _progress_of(self, role: types_pb2.Role) -> local_pb2.Progress | None:
        view = self._progress.get(role)
        return view.read() if view is not None else None

    def _times_of(self, role: types_pb2.Role) -> local_pb2.ExecutorTimes | None:
        view = self._progress.get(role)
        return view.times() if view is not None else None

    def _start(self, start: worker_pb2.StartChild) -> None:
        assignment = start.assignment
        role = assignment.role
        if assignment.term != self.term or role in self._children or self._is_stopping:
            text = f"a second {role_name(role)} was asked for while this run is here or ending"
            raise PipesvcError(ErrorCode.STALE_TERM if assignment.term != self.term else ErrorCode.INTERNAL, text)
        if assignment.job.bundle_sha256 and not self._bundle_dir:
            unpack(start.bundle, assignment.job.bundle_sha256, self._dir / "bundle")
            self._bundle_dir = str(self._dir / "bundle")
        own = local_pb2.Assignment()
        own.CopyFrom(assignment)
        own.bundle_dir = self._bundle_dir
        path = self._dir / f"{role_name(role)}.assignment"
        path.write_bytes(own.SerializeToString())
        child = Child(_Listener(self, role), self._nursery, _environment(assignment.num_threads, self._dir))
        self._children[role] = child
        self._exchange.add(role, child, _endpoints(assignment))
        child.send(local_pb2.ToChild(assignment_path=str(path)))

    def _link_failed(self, error: PipesvcError) -> None:
        if self._is_stopping:
            return
        # A lost link is probably the consequence of another worker's end; a refused frame is nobody's consequence.
        is_echo = error.code in (ErrorCode.LINK_LOST, ErrorCode.RUN_NOT_FOUND)
        failure = PipesvcError.of(replace(error.details, is_echo=is_echo))
        # Which child sends on the link is not said: the run ends with all of them.
        self._fail(next(iter(self._children), types_pb2.ROLE_EXECUTOR), failure, is_explanation=False)

    def _client_lost(self, error: PipesvcError) -> None:
        if not self._is_stopping and not self._has_all_data:
            self._fail(types_pb2.ROLE_FEEDER, error)

    def _fail(self, role: types_pb2.Role, error: PipesvcError, *, is_explanation: bool = True) -> None:
        if is_explanation:
            self._explained.add(role)
        failed = local_pb2.FromChild(failed=reports.to_message(error.at(self._where).details))
        report = worker_pb2.ChildReport(run_id=self.run_id, role=role, report=failed)
        self._upstream.put(worker_pb2.AttachRequest(child_report=report))


def _advice(exit: ChildExit) -> str:
    if exit.reason:
        return "Submit again; if it comes again, look at the worker's own output and at the memory of its host"
    if exit.returncode == -9:
        return "If nobody killed it, the host ran out of memory: use smaller micro-batches or another split"
    if exit.returncode is not None and -exit.returncode in _CRASHES:
        return "Native code crashed; the last words show where, if anything could be said"
    if exit.returncode is not None and exit.returncode < 0:
        return "Something on the worker's host, or the job's own code, sent this signal; see the last words"
    return "See the last words, and `pipesvc logs` of the run"


def _endpoints(assignment: local_pb2.Assignment) -> frozenset[int]:
    """The ends of links that this child is."""
    match assignment.role:
        case types_pb2.ROLE_FEEDER:
            return frozenset({FEEDER})
        case types_pb2.ROLE_PROFILER:
            return frozenset({assignment.endpoint})
        case types_pb2.ROLE_EXECUTOR:
            stages = Plan.from_json(assignment.plan_json).stages_of(assignment.worker)
            return frozenset(stage.index for stage in stages)
        case _:
            return frozenset()


def _environment(num_threads: int, temp_dir: Path) -> dict[str, str]:
    """What a child's environment has beyond the agent's."""
    environment = {"TMPDIR": str(temp_dir)}  # what user code leaves behind goes with the run
    if num_threads:
        environment.update(dict.fromkeys(THREAD_VARIABLES, str(num_threads)))
    return environment
