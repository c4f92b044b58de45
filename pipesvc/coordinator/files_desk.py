"""The bulky files of predictions and of weights that children read: outputs in, weights out, uploads in.

Nothing is held in memory but the piece that is on its way; what blocks is done on other threads.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from pipesvc.coordinator import events, output_events
from pipesvc.coordinator.feed import Feed
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.run_record import ENDED_STATES
from pipesvc.coordinator.store import Store
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, types_pb2, worker_pb2
from pipesvc.wire.weights_name import name_of

# Of one answer; a child asks for less.
_MAX_PIECE_BYTES: Final = 1 << 20


class FilesDesk:
    """For the event loop's thread."""

    def __init__(self, machine: Machine, store: Store, feed: Feed, tell: Callable[[events.Event], None]) -> None:
        self._machine = machine
        self._store = store
        self._feed = feed
        self._tell = tell

    # --- outputs ----------------------------------------------------------------------------------------------------

    async def store_output(self, session: int, run_id: str, part: local_pb2.OutputPart) -> None:
        record = self._machine.record(run_id)
        self._tell(events.Heard(session=session))
        if record is None or record.outputs is None:
            return
        try:
            await asyncio.to_thread(self._store.add_output, run_id, part)
        except OSError as error:
            problem = f"the outputs of batch {part.step} could not be stored: {error}"
            self._tell(output_events.FilesFailed(run_id=run_id, problem=problem))

    async def read_outputs(self, run_id: str, from_step: int) -> AsyncIterator[run_pb2.ReadOutputsResponse]:
        """Each batch as it comes, until the run has ended."""
        self._machine.run(run_id)
        record = self._machine.record(run_id)
        if record is not None and not record.job.is_prediction:
            raise PipesvcError(
                ErrorCode.INVALID_JOB, f"run {run_id} is no prediction and has no outputs", where=Where(run_id=run_id)
            )
        step = max(1, from_step)
        self._tell(output_events.ReaderCame(run_id=run_id))
        try:
            with self._feed.watching(run_id) as woken:
                while True:
                    woken.clear()
                    run = self._machine.run(run_id)
                    while step <= run.num_committed_steps and run.state not in ENDED_STATES:
                        async for response in self._batch(run_id, step):
                            yield response
                        step += 1
                        run = self._machine.run(run_id)
                    if run.state in ENDED_STATES:
                        return
                    await woken.wait()
        finally:
            self._tell(output_events.ReaderWent(run_id=run_id))

    async def _batch(self, run_id: str, step: int) -> AsyncIterator[run_pb2.ReadOutputsResponse]:
        held: local_pb2.OutputPart | None = None
        offset = 0
        while True:
            messages, offset = await asyncio.to_thread(self._store.output, run_id, step, offset)
            for message in messages:
                if held is not None:
                    yield run_pb2.ReadOutputsResponse(part=held)
                held = local_pb2.OutputPart.FromString(message)
            if not messages:
                break
        yield run_pb2.ReadOutputsResponse(part=held, is_last=True)

    # --- weights ----------------------------------------------------------------------------------------------------

    async def piece(self, run_id: str, ask: local_pb2.ReadWeights) -> local_pb2.WeightsPiece | None:
        """A range of a file that the run's job names; None: nobody wants it any more."""
        record = self._machine.record(run_id)
        if record is None:
            return None
        data, total_bytes = await asyncio.to_thread(self._store.read_source, record.job, ask, _MAX_PIECE_BYTES)
        return local_pb2.WeightsPiece(offset=ask.offset, data=data, total_bytes=total_bytes)

    async def start_of(self, job: job_pb2.JobSpec) -> types_pb2.Position | None:
        """Where a new run begins: None at the beginning. Refuses a job whose files are not here or do not fit it."""
        for name, is_training in (("weights", False), ("training", True)):
            if job.HasField(name):
                self._check(job, is_training=is_training)
        if not job.HasField("training"):
            return None
        try:
            start = await asyncio.to_thread(self._store.source_position, job)
        except PipesvcError as error:
            what = f"no training goes on from {name_of(job.training)}: {error.details.message}"
            advice = error.details.advice or "Save the checkpoint again"
            raise PipesvcError(ErrorCode.INVALID_JOB, what, advice=advice) from error
        then, now = (start.accumulate, start.batch_size), (job.accumulate, job.data.batch_size)
        if then != now and not job.data.is_streamed:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"a step of the checkpoint is accumulate={then[0]} x batch_size={then[1]}, and that of the job "
                f"{now[0]} x {now[1]}: its place in the data is counted in steps",
                advice="Leave both as they were; or begin anew with its weights: init= instead of resume=",
            )
        if job.max_steps and start.step >= job.max_steps:
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the checkpoint stands after step {start.step}, and max_steps is {job.max_steps}: nothing is left",
                advice="max_steps counts from the beginning of the training: raise it",
            )
        return start

    def _check(self, job: job_pb2.JobSpec, *, is_training: bool) -> None:
        source, what = (job.training, "training state") if is_training else (job.weights, "weights")
        state = self._machine.run(source.run_id).state if source.run_id else None
        if self._store.has_source(job, is_training=is_training):
            return
        if state is None:
            told, advice = f"{name_of(source)} is not here", "Send it again: submit the job once more"
        elif state in ENDED_STATES:
            told, advice = f"run {source.run_id} ended without {what}", "Name a run that has some, or a file"
        else:
            told, advice = f"run {source.run_id} has no {what} yet", "Wait for the end of that run"
        raise PipesvcError(ErrorCode.WEIGHTS_NOT_READY, told, advice=advice)

    async def upload(self, requests: AsyncIterator[run_pb2.UploadWeightsRequest]) -> None:
        """Store a file under its hash; of one that is here, nothing is read."""
        draft, digest, sha256 = None, hashlib.sha256(), ""
        try:
            async for request in requests:
                if draft is None:
                    sha256 = request.sha256
                    if self._store.sources.renew(sha256):
                        return
                    draft = await asyncio.to_thread(self._store.sources.begin)
                digest.update(request.data)
                await asyncio.to_thread(draft.write, request.data)
            if draft is None or digest.hexdigest() != sha256:
                raise PipesvcError(
                    ErrorCode.INVALID_JOB, "the file that was sent does not have the hash that was named"
                )
            await asyncio.to_thread(self._store.sources.end, draft, sha256)
        finally:
            if draft is not None:
                await asyncio.to_thread(self._store.sources.close, draft)


def weights_message(run_id: str, role: int, piece: local_pb2.WeightsPiece) -> worker_pb2.AttachResponse:
    to_run = worker_pb2.ToRun(run_id=run_id, message=local_pb2.ToChild(weights_piece=piece))
    to_run.role = role  # type: ignore[assignment]
    return worker_pb2.AttachResponse(to_run=to_run)
