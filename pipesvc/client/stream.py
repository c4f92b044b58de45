"""A source in the client's process, streamed to the run's feeder.

Reading the user's iterable may block, and sending must not stop for it: so one thread reads and another carries,
with an event loop of its own that disturbs no loop of a notebook. At most two batches wait between them; beyond
that the link's credit holds the reader back. What the iterable raises ends the run and comes out of the run's
methods here, where the user can see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from pipesvc.client.first_batch import Batches
from pipesvc.client.transport import Transport
from pipesvc.client.watching import ENDED
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.net import addresses
from pipesvc.net.link_sender import LinkSender
from pipesvc.net.outgoing import OutgoingTensor
from pipesvc.rpc.v1 import run_pb2, types_pb2
from pipesvc.wire.links import CLIENT, FEEDER, Link
from pipesvc.wire.tree import flatten

LINK: Final = Link(CLIENT, FEEDER, types_pb2.LINK_KIND_STREAM)
_MAX_WAITING_BATCHES: Final = 2
_POLL_S: Final = 0.2
# Seconds that a broken link may be explained by the end of the run.
_END_WAIT_S: Final = 10.0
_CLOSE_S: Final = 5.0


class BatchStream:
    """Two daemon threads that stream one job's batches; they end with the run, with the source, or by `close`."""

    def __init__(self, transport: Transport, run_id: str, batches: Batches, max_batches: int | None) -> None:
        self._transport = transport
        self._run_id = run_id
        # Gone once it has been read: the client keeps its streams, and a source may hold a data set.
        self._batches: Batches | None = batches
        self._max_batches = max_batches
        self._failure: PipesvcError | None = None
        self._has_delivered = False
        self.is_delivered = False
        """True once the receiver has everything: from then on the run does not need this process."""
        # Set from outside, when nothing matters any more; the other one also when the link or the source has ended.
        self._is_closed = threading.Event()
        self._is_stopped = threading.Event()
        self._permits = threading.Semaphore(_MAX_WAITING_BATCHES)
        self._carrier = threading.Thread(target=self._carry_all, name=f"pipesvc-carry-{run_id}", daemon=True)
        self._reader: threading.Thread | None = None
        # Gone once the carrier has ended: the traceback of the user's exception keeps the reader's frames alive, and
        # they must not keep the connection.
        self._sender: LinkSender | None = None
        self._carrier.start()

    def raise_failure(self) -> None:
        """For a run that has ended: end the stream too, and raise what failed it; the user's exception is the cause."""
        self.close()
        if self._failure is not None:
            raise self._failure from self._failure.__cause__

    def close(self) -> None:
        """End both threads. A reader that blocks in the user's iterable ends when that gives its next item."""
        self._is_closed.set()
        self._is_stopped.set()
        self._carrier.join(_CLOSE_S)
        if self._reader is not None:
            self._reader.join(_CLOSE_S)

    def _carry_all(self) -> None:
        try:
            place = self._locate_feeder()
            if place is not None:
                asyncio.run(self._carry(place))
            else:
                self._batches = None
        except PipesvcError as error:
            self._fail(error)

    def _locate_feeder(self) -> run_pb2.LocateFeederResponse | None:
        """Where the feeder is, once it is ready; None when the run ended before, or the stream was closed."""
        request = run_pb2.LocateFeederRequest(run_id=self._run_id)
        while not self._is_stopped.is_set():
            try:
                response: run_pb2.LocateFeederResponse = self._transport.call(
                    self._transport.stub.LocateFeeder, request
                )
                return response
            except PipesvcError as error:
                if self._has_ended():
                    return None
                if error.code is not ErrorCode.MISSING_WORKER:  # else the feeder is not ready yet
                    raise
            self._is_stopped.wait(_POLL_S)
        return None

    async def _carry(self, place: run_pb2.LocateFeederResponse) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[PipesvcError | None] = loop.create_future()

        def finish(error: PipesvcError | None = None) -> None:
            if not done.done():
                done.set_result(error)

        def delivered() -> None:
            self._has_delivered = True
            self._permits.release()

        def delivered_end() -> None:
            self.is_delivered = True
            finish()

        self._sender = LinkSender(
            link=LINK,
            run_id=self._run_id,
            term=place.term,
            address=addresses.parse(place.data_address),
            token=place.link_token,
            on_failed=finish,
        )

        def from_reader(function: Callable[..., None], *args: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed: then nobody wants to know any more
                loop.call_soon_threadsafe(function, *args)

        def send(parcel: list[OutgoingTensor]) -> None:
            for tensor in parcel:
                if self._sender is not None:
                    self._sender.send(tensor)

        def read() -> None:
            num_batches = self._read(lambda step, tree: from_reader(send, _parcel(step, tree, delivered)))
            if num_batches is None:
                from_reader(finish)
            else:
                from_reader(send, _parcel(num_batches + 1, {"end": True}, delivered_end))

        self._reader = threading.Thread(target=read, name=f"pipesvc-read-{self._run_id}", daemon=True)
        self._reader.start()
        try:
            while not done.done() and not self._is_stopped.is_set():
                await asyncio.wait([done], timeout=_POLL_S)
        finally:
            self._is_stopped.set()
            await self._sender.close()
            self._sender = None
        error = done.result() if done.done() else None
        if error is not None and error.code is ErrorCode.BAD_FRAME and not self._has_delivered:
            # The receiver knows this link and expects other frames than this stream's first: it is not the first.
            self._failure = self._failure or _streamed_by_another(self._run_id)
        elif error is not None and not await asyncio.to_thread(self._ends_soon):
            self._fail(error)

    def _read(self, hand_over: Callable[[int, object], None]) -> int | None:
        """Read the source to its end; the number of batches, or None when the stream was ended by another cause."""
        num_batches = 0
        batches, self._batches = self._batches, None
        assert batches is not None
        try:
            for batch in batches:
                while not self._permits.acquire(timeout=_POLL_S):
                    if self._is_stopped.is_set():
                        return None
                if self._is_stopped.is_set():
                    return None
                num_batches += 1
                hand_over(num_batches, batch)
                if num_batches == self._max_batches:
                    break
        except Exception as error:
            self._fail(_failure_of_source(error, self._run_id, num_batches + 1))
            return None
        return num_batches

    def _fail(self, error: PipesvcError) -> None:
        """Keep the first failure, and end the run: without its batches it would only wait."""
        if self._failure is not None or self._is_closed.is_set():
            return
        self._failure = error
        try:
            self._transport.call(self._transport.stub.CancelRun, run_pb2.CancelRunRequest(run_id=self._run_id))
        except PipesvcError:
            return  # the coordinator is away, and the run with it

    def _has_ended(self) -> bool:
        request = run_pb2.GetRunRequest(run_id=self._run_id)
        response: run_pb2.GetRunResponse = self._transport.call(self._transport.stub.GetRun, request)
        return response.run.state in ENDED

    def _ends_soon(self) -> bool:
        """True when the run is at its end, so that a broken link is no news."""
        deadline = time.monotonic() + _END_WAIT_S
        while time.monotonic() < deadline:
            try:
                if self._has_ended():
                    return True
            except PipesvcError:
                return True
            time.sleep(_POLL_S)
        return False


def _streamed_by_another(run_id: str) -> PipesvcError:
    return PipesvcError(
        ErrorCode.RUN_EXISTS,
        "another client streams the batches of this run; this one has sent none, and the run was left alone",
        advice=f"Follow it with `pipesvc watch {run_id}`, or submit under a new run id",
        where=Where(run_id=run_id),
    )


def _failure_of_source(error: Exception, run_id: str, batch_number: int) -> PipesvcError:
    if isinstance(error, PipesvcError):
        return error.at(Where(run_id=run_id))
    failure = PipesvcError(
        ErrorCode.DATA_SOURCE_FAILED,
        f"{type(error).__name__}: {error} while the streamed source made batch {batch_number}",
        where=Where(run_id=run_id),
    )
    text = "".join(traceback.format_exception(error))
    failure.details = replace(failure.details, exception_type=type(error).__name__, traceback=text)
    failure.__cause__ = error
    return failure


def _parcel(step: int, tree: object, on_acknowledged: Callable[[], None]) -> list[OutgoingTensor]:
    """The tensors of a batch as they go; a batch without any is one empty tensor, 0 of 0."""
    import torch

    from pipesvc.wire.tensors import element_type_of, tensor_bytes

    structure, leaves = flatten(tree, lambda value: isinstance(value, torch.Tensor))
    empty = OutgoingTensor(
        step=step,
        micro_batch=0,
        value=0,
        num_values=0,
        view=memoryview(b""),
        on_acknowledged=on_acknowledged,
        structure=structure,
    )
    parcel = [
        replace(
            empty,
            value=index,
            num_values=len(leaves),
            view=tensor_bytes(tensor),
            on_acknowledged=on_acknowledged if index == len(leaves) - 1 else _nothing,
            structure=structure if index == 0 else "",
            element_type=element_type_of(tensor),
            shape=tuple(tensor.shape),
        )
        for index, tensor in enumerate(leaves)
    ]
    return parcel or [empty]


def _nothing() -> None:
    return
