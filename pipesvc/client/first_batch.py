"""The first batch of a stream, read when its job is submitted, and then the rest.

A module is cut by following its forward, which takes an input; of a stream nobody but the client has one. So the
client reads a batch ahead, on a thread: an iterable may wait for something that comes after `submit`. Nothing is lost:
the run gets that batch first, also where the job is refused and submitted again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from pipesvc.client.batches import batches
from pipesvc.client.job import Job, StreamSource
from pipesvc.core.split import micro_batch_rows
from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import job_pb2
from pipesvc.wire import samples

# For a first batch; the job is then submitted without.
WAIT_S: Final = 10.0


class Batches:
    """Of one source, each once; `__iter__` and `sample` may be called on different threads."""

    def __init__(self, source: StreamSource) -> None:
        self.source: Final = source
        self._batches = batches(source)
        self._first: list[Any] = []
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Any]:
        """To be called once. Raises what the source raises."""
        if self._thread is not None:
            self._thread.join()
        yield from self._first
        self._first.clear()
        if self._error is not None:
            raise self._error
        yield from self._batches

    def sample(self, num_micro_batches: int) -> job_pb2.Sample:
        """The inputs of the first micro-batch, or why there are none."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="pipesvc-first-batch", daemon=True)
            self._thread.start()
        self._thread.join(WAIT_S)
        if self._thread.is_alive():
            return job_pb2.Sample(absent=f"the source gave no batch within {WAIT_S:g} s")
        if self._error is not None:
            return job_pb2.Sample(absent=f"the source raised {type(self._error).__name__}: {self._error}")
        if not self._first:
            return job_pb2.Sample(absent="the source gave no batch")
        try:
            return samples.encode(self._inputs(self._first[0], num_micro_batches))
        except PipesvcError as error:
            advice = f". {error.details.advice}" if error.details.advice else ""
            return job_pb2.Sample(absent=f"{error.details.message}{advice}")

    def _inputs(self, batch: Any, num_micro_batches: int) -> Any:
        from pipesvc.wire import collate

        inputs, labels = collate.split_pair(batch) if self.source.labels else (batch, None)
        rows = micro_batch_rows(collate.num_rows(inputs, labels), num_micro_batches)
        return collate.cut(inputs, rows)[0]

    def _read(self) -> None:
        try:
            self._first = [next(self._batches)]
        except StopIteration:
            return
        except Exception as error:
            self._error = error


class Unstreamed:
    """The batches of jobs that have no stream yet. After a refusal the same source may come again."""

    def __init__(self) -> None:
        self._known: list[Batches] = []

    def look_ahead(self, job: Job, data: job_pb2.DataSpec) -> None:
        """Puts the first inputs into the message, where the model may be cut."""
        if isinstance(job.data, StreamSource) and not job.strategy.is_one_stage:
            batches = self.take(job.data)
            self._known.append(batches)
            data.first.CopyFrom(batches.sample(job.strategy.micro_batches))

    def take(self, source: StreamSource) -> Batches:
        """Those that were read ahead, or all."""
        found = next((each for each in self._known if each.source is source), None)
        if found is None:
            return Batches(source)
        self._known.remove(found)
        return found
