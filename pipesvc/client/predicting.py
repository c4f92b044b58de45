"""A prediction: the model of a job on rows that nobody trains on, and what it gives for each batch, in order.

It is a run like any other, with forwards alone; the one who reads its outputs sets its pace.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from pipesvc.client import checks, interrupts, outputs, weights_source
from pipesvc.client.job import DataSource, Job, StreamSource
from pipesvc.client.run import Run
from pipesvc.client.transport import Retries, Transport
from pipesvc.client.watching import ENDED
from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import run_pb2


def prediction_job(
    job: Job,
    data: DataSource | StreamSource | Iterable[Any],
    weights: Run | str | Path | None,
    micro_batches: int | None,
) -> Job:
    """The same model and the same plan, on this data."""
    if isinstance(data, str | bytes) or not isinstance(data, DataSource | StreamSource | Iterable):
        raise checks.refusal("data", data, "a pipesvc.DataSource, or an iterable of the inputs of whole batches")
    if not isinstance(data, DataSource | StreamSource):
        data = StreamSource(data, yields="batch", labels=False)
    if weights is not None:
        weights_source.check("weights", weights)
    checks.whole_or_none("micro_batches", micro_batches, 1)
    strategy = job.strategy if micro_batches is None else replace(job.strategy, micro_batches=micro_batches)
    return replace(
        job,
        data=data,
        init=weights,
        resume=None,
        strategy=strategy,
        epochs=None,
        max_steps=None,
        evaluation=None,
        weight=None,
        clip_norm=None,
        clip_value=None,
        accumulate=1,
        grad_scaler=False,
        scheduler=None,
        check_finite=False,
    )


class Predictions:
    """Gives what the model gives for each batch. To be read to its end, or closed, which cancels the run."""

    def __init__(self, transport: Transport, run: Run) -> None:
        self.run = run
        self._values = _values(transport, run)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._values)
        except StopIteration:
            raise
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Predictions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the run if it has not ended. Raises nothing of what it ended with."""
        self._values.close()
        with suppress(PipesvcError):
            if not self.run.has_ended:
                self.run.cancel()
            self.run.wait()


def _values(transport: Transport, run: Run) -> Generator[Any, None, None]:
    num_read = 0
    with closing(_responses(transport, run, lambda: num_read + 1)) as responses:
        for step, value in outputs.batches(responses):
            if step <= num_read:
                continue
            num_read = step
            transport.call(transport.stub.TakeOutputs, run_pb2.TakeOutputsRequest(run_id=run.run_id, step=step))
            yield value
    run.wait()


def _responses(
    transport: Transport, run: Run, next_step: Callable[[], int]
) -> Generator[run_pb2.ReadOutputsResponse, None, None]:
    """The parts of all batches, without a gap over a broken connection: a batch that broke off begins anew."""
    retries, is_over = Retries(), False
    while not is_over:
        request = run_pb2.ReadOutputsRequest(run_id=run.run_id, from_step=next_step())
        call = transport.open_stream(transport.stub.ReadOutputs, request)
        try:
            for response in call:
                transport.was_connected = True
                retries.reset()
                yield response
            is_over = run.info().state in ENDED
        except grpc.RpcError as error:
            if not transport.is_away(error) or not retries.pause():
                raise transport.error_of(error) from None
        finally:
            with interrupts.deferred():
                call.cancel()
