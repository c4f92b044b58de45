"""A RunService that tells what a test wrote down, for the tests of the client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import torch
from safetensors.torch import save

from pipesvc.client.job import DataSource, Job, Optimizer, StreamSource
from pipesvc.core.plan import Plan, StagePlan
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import options, reports
from pipesvc.rpc.v1 import local_pb2, run_pb2, run_pb2_grpc, types_pb2, worker_pb2

PLAN = Plan(
    stages=(
        StagePlan(index=0, label="stage:0", worker="w", device="cpu", first_layer=0, end_layer=1, layer_names=("0",)),
    ),
    schedule="GPipe",
    micro_batches=1,
    feeder_worker="w",
    threads={"w": 1},
)


def job(data: DataSource | StreamSource | None = None, **changes: Any) -> Job:
    return Job(
        model=torch.nn.Identity,
        loss=torch.nn.functional.mse_loss,
        optimizer=Optimizer(torch.optim.SGD, lr=0.1),
        data=data or DataSource(torch.nn.Identity, batch_size=4),
        **changes,
    )


def run_event(state: str, **fields: Any) -> run_pb2.WatchRunResponse:
    run = run_pb2.Run(run_id="r", state=f"RUN_STATE_{state}", **fields)
    return run_pb2.WatchRunResponse(run=run)


def step_event(index: int) -> run_pb2.WatchRunResponse:
    record = run_pb2.StepRecord(step=index, loss=1 / index, num_rows=4, committed_unix_ns=index * 10**9)
    return run_pb2.WatchRunResponse(step=record)


class FakeRuns(run_pb2_grpc.RunServiceServicer):
    """Plays `watches` one after the other, the last one again and again. An exception in a list breaks the stream."""

    # ruff: noqa: N802

    def __init__(self) -> None:
        self.watches: list[list[Any]] = [[run_event("COMPLETED")]]
        self.watch_requests: list[run_pb2.WatchRunRequest] = []
        self.submits: list[run_pb2.SubmitRunRequest] = []
        self.refusal: PipesvcError | None = None
        self.run = run_pb2.Run(run_id="r", state=run_pb2.RUN_STATE_RUNNING)
        self.weights = save({"w": torch.arange(6.0), "b": torch.ones(2)})
        self.is_new = False
        self.num_cancels = 0
        self.worker_names: list[str] = []
        self.feeder: run_pb2.LocateFeederResponse | None = None
        self.num_not_ready = 2
        self.end = threading.Event()

    def _abort(self, context: grpc.ServicerContext, error: PipesvcError) -> None:
        report = reports.to_message(error.details).SerializeToString()
        context.set_trailing_metadata(((reports.REPORT_KEY, report),))
        context.abort(reports.status_of(error.code), "refused")

    def SubmitRun(self, request: run_pb2.SubmitRunRequest, context: grpc.ServicerContext) -> run_pb2.SubmitRunResponse:
        self.submits.append(request)
        if self.refusal is not None:
            self._abort(context, self.refusal)
        return run_pb2.SubmitRunResponse(run=run_pb2.Run(run_id=request.run_id))

    def GetRun(self, request: run_pb2.GetRunRequest, context: grpc.ServicerContext) -> run_pb2.GetRunResponse:
        if request.run_id != "r" or (self.is_new and not self.submits):
            self._abort(context, PipesvcError(ErrorCode.RUN_NOT_FOUND, f"no run {request.run_id}"))
        return run_pb2.GetRunResponse(run=self.run)

    def ListRuns(self, request: run_pb2.ListRunsRequest, context: grpc.ServicerContext) -> run_pb2.ListRunsResponse:
        return run_pb2.ListRunsResponse(runs=[self.run])

    def WatchRun(
        self, request: run_pb2.WatchRunRequest, context: grpc.ServicerContext
    ) -> Iterator[run_pb2.WatchRunResponse]:
        self.watch_requests.append(request)
        script = self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]
        for event in script:
            if event == "break":
                context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            elif event == "hold":
                assert self.end.wait(30)
            else:
                yield event

    def CancelRun(self, request: run_pb2.CancelRunRequest, context: grpc.ServicerContext) -> run_pb2.CancelRunResponse:
        self.num_cancels += 1
        self.run.state = run_pb2.RUN_STATE_CANCELLED
        self.end.set()
        return run_pb2.CancelRunResponse(run=self.run)

    def FetchWeights(
        self, request: run_pb2.FetchWeightsRequest, context: grpc.ServicerContext
    ) -> Iterator[run_pb2.FetchWeightsResponse]:
        for start in range(0, len(self.weights), 50):
            data = self.weights[start : start + 50]
            yield run_pb2.FetchWeightsResponse(step=7, total_bytes=self.total_bytes, data=data)

    @property
    def total_bytes(self) -> int:
        return len(self.weights)

    def ReadLogs(
        self, request: run_pb2.ReadLogsRequest, context: grpc.ServicerContext
    ) -> Iterator[run_pb2.ReadLogsResponse]:
        yield run_pb2.ReadLogsResponse(worker="w", role=types_pb2.ROLE_FEEDER, is_stderr=True, line="hello")

    def ReadTrace(
        self, request: run_pb2.ReadTraceRequest, context: grpc.ServicerContext
    ) -> Iterator[run_pb2.ReadTraceResponse]:
        event = local_pb2.TraceEvent(step=1, stage=0, micro_batch=2, action="F", start_unix_ns=5, end_unix_ns=9)
        yield run_pb2.ReadTraceResponse(events=[event, event])
        yield run_pb2.ReadTraceResponse(events=[event])

    def LocateFeeder(
        self, request: run_pb2.LocateFeederRequest, context: grpc.ServicerContext
    ) -> run_pb2.LocateFeederResponse:
        if self.feeder is None or self.num_not_ready > 0:
            self.num_not_ready -= 1
            self._abort(context, PipesvcError(ErrorCode.MISSING_WORKER, "no feeder yet"))
        assert self.feeder is not None
        return self.feeder

    def GetStatus(self, request: run_pb2.GetStatusRequest, context: grpc.ServicerContext) -> run_pb2.GetStatusResponse:
        registrations = [worker_pb2.Register(name=name) for name in self.worker_names]
        workers = [run_pb2.WorkerStatus(registration=registration) for registration in registrations]
        return run_pb2.GetStatusResponse(term=3, workers=workers)


@contextmanager
def serving(fake: FakeRuns) -> Iterator[str]:
    with futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=options.CONTROL_SERVER)
        run_pb2_grpc.add_RunServiceServicer_to_server(fake, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            fake.end.set()
            server.stop(0).wait(10)
