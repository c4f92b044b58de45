"""A real coordinator on loopback, workers that are only streams, and a client that is only a stub."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from pipesvc.coordinator.app import serve
from pipesvc.coordinator.settings import CoordinatorSettings
from pipesvc.core.plan import Plan
from pipesvc.errors import PipesvcError
from pipesvc.net import channels, reports
from pipesvc.net.addresses import parse
from pipesvc.rpc.v1 import local_pb2, run_pb2, run_pb2_grpc, types_pb2, worker_pb2, worker_pb2_grpc
from pipesvc.wire.safetensors_stream import make_layout
from tests.unit.coordinator.coordinator_world import make_registration

LIMIT_S = 20.0


@asynccontextmanager
async def coordinator(state_dir: Path) -> AsyncIterator[str]:
    """The address of a coordinator that ends with the block."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = CoordinatorSettings(listen="127.0.0.1:0", state_dir=state_dir)
    serving = asyncio.create_task(serve(settings, ready=ready.set_result))
    try:
        waiting: set[asyncio.Future[Any]] = {serving, ready}
        await asyncio.wait(waiting, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield ready.result()
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


class Client:
    """The client's calls, with errors as PipesvcError."""

    def __init__(self, address: str, token: str) -> None:
        self._address = address
        self._metadata = channels.auth_metadata(token)
        self._channel = channels.aio_channel(parse(address))
        self.stub: Any = run_pb2_grpc.RunServiceStub(self._channel)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        await self._channel.close(None)

    async def call(self, name: str, request: Any) -> Any:
        try:
            return await getattr(self.stub, name)(request, metadata=self._metadata, timeout=LIMIT_S)
        except grpc.RpcError as error:
            raise reports.from_rpc_error(error, address=self._address) from error

    async def stream(self, name: str, request: Any) -> AsyncIterator[Any]:
        try:
            async for response in getattr(self.stub, name)(request, metadata=self._metadata, timeout=LIMIT_S):
                yield response
        except grpc.RpcError as error:
            raise reports.from_rpc_error(error, address=self._address) from error

    async def run(self, run_id: str = "r") -> run_pb2.Run:
        response: run_pb2.GetRunResponse = await self.call("GetRun", run_pb2.GetRunRequest(run_id=run_id))
        return response.run

    async def first(self, name: str, request: Any) -> Any:
        """The first answer of a stream."""
        async for response in self.stream(name, request):
            return response
        raise AssertionError(f"{name} ended without an answer")

    async def until(self, state: run_pb2.RunState, run_id: str = "r") -> run_pb2.Run:
        """Watch the run until it is in this state."""
        async for response in self.stream("WatchRun", run_pb2.WatchRunRequest(run_id=run_id, from_step=2**63)):
            if response.HasField("run") and response.run.state == state:
                run: run_pb2.Run = response.run
                return run
        raise AssertionError(f"the run ended without {state}: {await self.run(run_id)}")


@asynccontextmanager
async def client_of(address: str, token: str) -> AsyncIterator[Client]:
    client = Client(address, token)
    try:
        yield client
    finally:
        await client.close()


class FakeWorker:
    """Registers, beats, and does what it is told; `mute` holds the kinds of reports that it keeps back."""

    def __init__(self, address: str, token: str, registration: worker_pb2.Register, *, num_steps: int = 3) -> None:
        self.registration = registration
        self.num_steps = num_steps
        self.mute: set[str] = set()
        self.welcome: worker_pb2.Welcome | None = None
        self._address = address
        self._channel = channels.aio_channel(parse(address))
        stub: Any = worker_pb2_grpc.WorkerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Attach(metadata=channels.auth_metadata(token))
        self._writing = asyncio.Lock()
        self.saw_save = asyncio.Event()
        self._applied = 0
        self._unsaved: list[int] = []
        self._plan: Plan | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def attach(self) -> None:
        """Raises the refusal."""
        try:
            await self.send(worker_pb2.AttachRequest(register=self.registration))
            response = await asyncio.wait_for(self._call.read(), LIMIT_S)
            if not isinstance(response, worker_pb2.AttachResponse):
                raise AssertionError(f"{await self._call.code()}: {await self._call.details()}")
        except grpc.RpcError as error:
            raise reports.from_rpc_error(error, address=self._address) from error
        self.welcome = response.welcome
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._obey())]

    async def close(self) -> None:
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)

    async def send(self, message: worker_pb2.AttachRequest) -> None:
        async with self._writing:
            await self._call.write(message)

    async def report(self, run_id: str, role: types_pb2.Role, report: local_pb2.FromChild) -> None:
        child_report = worker_pb2.ChildReport(run_id=run_id, role=role, report=report)
        await self.send(worker_pb2.AttachRequest(child_report=child_report))

    async def _beat(self) -> None:
        while True:
            await self.send(worker_pb2.AttachRequest(beat=worker_pb2.Beat()))
            await asyncio.sleep(0.5)

    async def _obey(self) -> None:
        while isinstance(message := await self._call.read(), worker_pb2.AttachResponse):
            match message.WhichOneof("message"):
                case "start_child":
                    await self._start(message.start_child.assignment)
                case "to_run":
                    await self._work(message.to_run)
                case "stop_run":
                    stopped = worker_pb2.RunStopped(run_id=message.stop_run.run_id)
                    await self.send(worker_pb2.AttachRequest(run_stopped=stopped))

    async def _start(self, assignment: local_pb2.Assignment) -> None:
        run_id, role = assignment.run_id, assignment.role
        if role == types_pb2.ROLE_INSPECTOR:
            layers = [local_pb2.LayerInfo(name=str(index), type="Linear") for index in range(2)]
            await self.report(run_id, role, local_pb2.FromChild(inspected=local_pb2.Inspected(layers=layers)))
            return
        self._plan, self._applied = Plan.from_json(assignment.plan_json), 0
        lines = worker_pb2.LogLines(run_id=run_id, role=role, lines=[f"hello from {self.registration.name}"])
        await self.send(worker_pb2.AttachRequest(log_lines=lines))
        await self.report(run_id, role, local_pb2.FromChild(ready=local_pb2.Ready()))
        if role == types_pb2.ROLE_FEEDER:
            for step in range(1, self.num_steps + 1):
                batch = local_pb2.BatchAnnounced(step=step, shares=[1.0], rows=[8])
                await self.report(run_id, role, local_pb2.FromChild(batch_announced=batch))
            if "end" not in self.mute:
                ended = local_pb2.DataEnded(num_steps=self.num_steps)
                await self.report(run_id, role, local_pb2.FromChild(data_ended=ended))

    async def _work(self, to_run: worker_pb2.ToRun) -> None:
        if to_run.role != types_pb2.ROLE_EXECUTOR or "work" in self.mute:
            return
        if to_run.message.HasField("issue_step"):
            await self._apply(to_run, to_run.message.issue_step.step)
        elif to_run.message.HasField("save_state"):
            self._unsaved.append(to_run.message.save_state.step)
            self.saw_save.set()
        for step in [step for step in self._unsaved if step <= self._applied]:
            self._unsaved.remove(step)
            await self._save(to_run.run_id, step)

    async def _apply(self, to_run: worker_pb2.ToRun, step: int) -> None:
        assert self._plan is not None
        self._applied = step
        for stage in self._plan.stages_of(self.registration.name):
            is_last = stage.index == self._plan.num_stages - 1
            trace = local_pb2.Trace(events=[local_pb2.TraceEvent(step=step, stage=stage.index, action="F")])
            await self.report(to_run.run_id, to_run.role, local_pb2.FromChild(trace=trace))
            applied = local_pb2.StepApplied(step=step, stage=stage.index, loss=1.0 / step if is_last else None)
            await self.report(to_run.run_id, to_run.role, local_pb2.FromChild(step_applied=applied))

    async def _save(self, run_id: str, step: int) -> None:
        """One tensor of three bytes for each stage, in two pieces."""
        assert self._plan is not None
        for stage in self._plan.stages_of(self.registration.name):
            name = f"{stage.index}.weight"
            data = make_layout({name: (types_pb2.ELEMENT_TYPE_UINT8, (3,))}).header + b"abc"
            for offset, end in ((0, 10), (10, len(data))):
                chunk = local_pb2.StateChunk(step=step, stage=stage.index, offset=offset, data=data[offset:end])
                await self.report(run_id, types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(state_chunk=chunk))
            training = make_layout({}, {"position": json.dumps([step, 0, step, 4, 1, "r"])}).header
            chunk = local_pb2.StateChunk(step=step, stage=stage.index, data=training, is_last=True, is_training=True)
            await self.report(run_id, types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(state_chunk=chunk))


@asynccontextmanager
async def workers(address: str, token: str, *names: str, num_steps: int = 3) -> AsyncIterator[list[FakeWorker]]:
    attached = [FakeWorker(address, token, make_registration(name), num_steps=num_steps) for name in names]
    try:
        for worker in attached:
            await worker.attach()
        yield attached
    finally:
        for worker in attached:
            await worker.close()


async def refusal_of_worker(address: str, token: str, registration: worker_pb2.Register) -> PipesvcError | None:
    """What a worker that registers is told."""
    worker = FakeWorker(address, token, registration)
    try:
        await worker.attach()
    except PipesvcError as error:
        return error
    finally:
        await worker.close()
    return None
