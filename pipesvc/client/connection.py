"""A connection to a coordinator: submit, list, attach.

All calls are blocking ones on a plain gRPC channel, not asyncio: they then work the same in a script, in a
notebook whose event loop is running, and in any thread.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from pipesvc.client import checks
from pipesvc.client.await_plan import await_plan
from pipesvc.client.first_batch import Unstreamed
from pipesvc.client.job import DataSource, Job, Strategy, StreamSource
from pipesvc.client.predicting import Predictions, prediction_job
from pipesvc.client.profiling import OnEvent, Profile, profile
from pipesvc.client.run import Run
from pipesvc.client.run_ids import check_run_id, new_run_id
from pipesvc.client.spec import check_is_job, make_submission, measurable
from pipesvc.client.stale import difference, doubting
from pipesvc.client.stream import BatchStream
from pipesvc.client.transport import Transport
from pipesvc.client.watching import PipesvcWarning
from pipesvc.client.weights_source import send, sources_of
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import COORDINATOR_VARIABLE, DEFAULT_COORDINATOR
from pipesvc.rpc.v1 import run_pb2

if TYPE_CHECKING:
    from pipesvc.client.compare import Line
    from pipesvc.client.planning import Planned

# Seconds for the first answer.
CONNECT_S: Final = 10.0


def connect(address: str | None = None, *, token_file: str | Path | None = None) -> Client:
    """A client of the coordinator at HOST:PORT; None: PIPESVC_COORDINATOR, or else 127.0.0.1:7700, as the CLI has it.

    The token is found as `pipesvc --help` tells, or in `token_file`.
    """
    refuse_inside_worker()
    if address is None:
        address = os.environ.get(COORDINATOR_VARIABLE) or DEFAULT_COORDINATOR
    client = Client(address, token_file=token_file)
    try:
        client.status()
    except BaseException:
        client.close()
        raise
    return client


def refuse_inside_worker() -> None:
    """A job that is submitted while a worker imports the user's file would submit itself again and again."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == "pipesvc.worker.nursery":
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            "the file submits a job whenever it is imported, and a worker imports it",
            advice='Put that code under `if __name__ == "__main__":`',
        )


class Client:
    """Runs of one coordinator. Use `connect` or `LocalCluster` to make one; close it, or use it in a `with`."""

    def __init__(self, address: str, *, token_file: str | Path | None = None) -> None:
        checks.is_a("address", address, str, "text, such as 127.0.0.1:7700")
        if token_file is not None:
            checks.path("token_file", token_file)
        self._transport = Transport(address, Path(token_file) if token_file is not None else None)
        # Streamed runs that this client submitted first, with their stream once it has begun.
        self._streams: dict[str, BatchStream | None] = {}
        self._unstreamed = Unstreamed()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return str(self._transport.address)

    def submit(
        self,
        job: Job,
        run_id: str | None = None,
        *,
        on_event: Callable[[run_pb2.Run], None] | None = None,
        is_planned: bool = False,
    ) -> Run:
        """Hand the job over; returns when it has a plan, or stands behind another run. Raises what it was refused for.

        A strategy with open parts (`boundaries="auto"`, `schedule="auto"`) is planned first, as by `plan`; with
        `is_planned` any other is as well, which refuses one that does not fit.
        A repeat with the same `run_id` and the same job gives the same run; where its batches are streamed, only the
        client that submitted it first streams them. `on_event` is told the run as soon as the coordinator has it, and
        its changes until `submit` returns.
        """
        check_is_job(job)
        return self._submit(job, run_id, on_event, is_planned=is_planned)

    def predict(
        self,
        job: Job,
        data: DataSource | StreamSource | Iterable[Any],
        weights: Run | str | Path | None = None,
        *,
        micro_batches: int | None = None,
    ) -> Predictions:
        """What the job's model gives for each batch of `data`, in order, in eval() mode and without gradients.

        An iterable gives the inputs of whole batches. `weights` are those of a run that has ended, or of a safetensors
        file on this host; None: as the model is built. The run is a few batches ahead of the reading, no more.
        """
        check_is_job(job)
        run = self._submit(prediction_job(job, data, weights, micro_batches), None, None, is_prediction=True)
        return Predictions(self._transport, run)

    def _submit(
        self,
        job: Job,
        run_id: str | None,
        on_event: Callable[[run_pb2.Run], None] | None,
        *,
        is_planned: bool = False,
        is_prediction: bool = False,
    ) -> Run:
        refuse_inside_worker()
        if run_id is not None:
            check_run_id(run_id)
        planned = self._planned(job, run_id) if job.strategy.is_open or is_planned else None
        if job.strategy.is_open:
            job = replace(job, strategy=planned.strategy if planned else self._strategy_of(run_id, job))
        submission = make_submission(job, is_prediction=is_prediction)
        run_id = run_id if run_id is not None else new_run_id(submission.spec.name)
        request = run_pb2.SubmitRunRequest(run_id=run_id, job=submission.spec, bundle=submission.bundle.data)
        if isinstance(job.data, StreamSource) and run_id not in self._streams and not self._exists(run_id):
            self._streams[run_id] = None
            self._unstreamed.look_ahead(job, request.job.data)
        for source, named in zip(sources_of(job), (request.job.weights, request.job.training), strict=True):
            if isinstance(source, Path):
                send(self._transport, source, named.sha256)
        try:
            response = self._transport.call(self._transport.stub.SubmitRun, request)
            if on_event is not None:
                on_event(response.run)
            with doubting(planned is not None):
                await_plan(self._transport, run_id, job, on_event, self.farewell)
            if planned is not None:
                self._warn_of_other_layers(run_id, planned)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(self.farewell(run_id))
            raise
        return Run(self._transport, run_id, self._start_stream(run_id, job))

    def plan(self, job: Job, *, on_event: OnEvent | None = None) -> Planned:
        """What the job's strategy comes to on the workers that are registered now, from measured costs.

        The costs are measured first if they are not known; `on_event` is told what that waits for. Raises INVALID_PLAN
        with the sum where a device's memory does not suffice, and MISSING_WORKER where the workers do not.
        """
        from pipesvc.client import planning  # brings numpy, which no other command needs

        known = self.profile(measurable(job), on_event=on_event)
        with doubting(known.are_kept):
            return planning.plan_job(job, known.costs, planning.crew_of(self.status()))

    def compare(
        self, job: Job, run_id: str, *, is_planned: bool = False, on_event: OnEvent | None = None
    ) -> list[Line]:
        """What the job's costs let expect of the plan of a run, beside what its trace and links say.

        The plan and the micro-batches are the run's own; with `is_planned`, a strategy that says otherwise is refused
        with what differs. Costs are measured first if they are not known; `on_event` is told what that waits for.
        """
        from pipesvc.client.comparing import compare_run

        return compare_run(self, job, run_id, is_planned=is_planned, on_event=on_event)

    def is_source_of(self, run_id: str) -> bool:
        """True for a run that cannot go on without this client, which has not streamed all of its batches."""
        if run_id not in self._streams:
            return False
        stream = self._streams[run_id]
        return stream is None or not stream.is_delivered

    def farewell(self, run_id: str) -> str:
        """What becomes of the run when this process leaves now, and how to end it."""
        if self.is_source_of(run_id):
            return f"The run {run_id} cannot go on without the stream of this process; end it: pipesvc cancel {run_id}"
        return f"The run {run_id} goes on; follow it: pipesvc watch {run_id}; end it: pipesvc cancel {run_id}"

    def attach(self, run_id: str) -> Run:
        """A run that was submitted by this or another process."""
        check_run_id(run_id)
        run = Run(self._transport, run_id)
        run.info()
        return run

    def runs(self) -> list[run_pb2.Run]:
        """All runs that the coordinator knows, oldest first."""
        response = self._transport.call(self._transport.stub.ListRuns, run_pb2.ListRunsRequest())
        return list(response.runs)

    def status(self) -> run_pb2.GetStatusResponse:
        """Workers, queue, and what is awaited, from whom, since when, until when."""
        request = run_pb2.GetStatusRequest()
        response: run_pb2.GetStatusResponse = self._transport.call(
            self._transport.stub.GetStatus, request, timeout_s=CONNECT_S
        )
        return response

    def profile(self, job: Job, *, is_fresh: bool = False, on_event: OnEvent | None = None) -> Profile:
        """Measure the job's layers on every worker and the links between workers, as far as they are not known.

        Waits until no run is on the workers. `on_event` is told what is awaited, whenever that changes.
        """
        refuse_inside_worker()
        return profile(self._transport, job, is_fresh=is_fresh, on_event=on_event)

    def close(self) -> None:
        """End the streams and the connection. Runs go on."""
        try:
            for stream in self._streams.values():
                if stream is not None:
                    stream.close()
            self._streams.clear()
        finally:
            self._transport.close()

    def _planned(self, job: Job, run_id: str | None) -> Planned | None:
        """None for a run that is there already: a repeat of a submission is the same run whatever has changed."""
        is_there = run_id is not None and self._exists(run_id) and self.attach(run_id).info().plan_json
        return None if is_there else self.plan(job)

    def _strategy_of(self, run_id: str | None, job: Job) -> Strategy:
        from pipesvc.client import planning

        assert run_id is not None, "an open strategy is planned, or its run is there"
        return planning.strategy_of(self.attach(run_id).plan(), job.strategy)

    def _warn_of_other_layers(self, run_id: str, planned: Planned) -> None:
        run = self.attach(run_id)
        if run.info().plan_json and (text := difference(planned.plan, run.plan())):
            warnings.warn(text, PipesvcWarning, stacklevel=4)

    def _exists(self, run_id: str) -> bool:
        try:
            self._transport.call(self._transport.stub.GetRun, run_pb2.GetRunRequest(run_id=run_id))
        except PipesvcError as error:
            if error.code is not ErrorCode.RUN_NOT_FOUND:
                raise
            return False
        return True

    def _start_stream(self, run_id: str, job: Job) -> BatchStream | None:
        if not isinstance(job.data, StreamSource):
            return None
        if run_id not in self._streams:
            text = f"the run {run_id} was there before: its batches come from the client that submitted it first"
            warnings.warn(text, PipesvcWarning, stacklevel=4)
            return None
        stream = self._streams[run_id]
        if stream is None:
            batches = self._unstreamed.take(job.data)
            num_done = self.attach(run_id).info().start.step
            max_batches = None if job.max_steps is None else (job.max_steps - num_done) * job.accumulate
            stream = self._streams[run_id] = BatchStream(self._transport, run_id, batches, max_batches)
        return stream
