"""The evaluation data beside the training data: read anew for each evaluation, announced and sent like steps.

Training must not notice. The two sources are in one process and would draw from the same generators, so the training
data is not read while the evaluation data is, and finds the generators as it left them. That costs training nothing,
for it stands still meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.random_state import same_random_state_after
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.feeder.batches import CutStep, RawStep
from pipesvc.worker.feeder.preparation import Preparation
from pipesvc.worker.feeder.reader import Reader, SourceEnded
from pipesvc.worker.feeder.routes import FeederRoutes
from pipesvc.worker.feeder.sending import send_batch
from pipesvc.worker.port_like import PortLike

_KIND = local_pb2.PASS_KIND_EVALUATION


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSettings:
    """`open_source` gives the batches of one evaluation from their beginning, `prepare` cuts them."""

    open_source: Callable[[], Iterator[RawStep | None]]
    prepare: Preparation
    num_permits: int
    timeout_s: float
    routes: FeederRoutes
    where: Where


class EvaluationFeed:
    """`wake` is called on the thread that reads; `turns` is held by whoever reads a source."""

    def __init__(
        self, port: PortLike, settings: EvaluationSettings, wake: Callable[[], None], turns: threading.Lock
    ) -> None:
        self._port = port
        self._settings = settings
        self._wake = wake
        self._turns = turns
        self._after_step = 0
        self._reader: Reader | None = None
        self._announced: dict[int, CutStep] = {}
        self._num_announced = 0

    def begin(self, after_step: int) -> None:
        self.close(0.0)
        self._after_step = after_step
        self._announced, self._num_announced = {}, 0
        settings = self._settings
        self._reader = Reader(
            settings.open_source(),
            settings.num_permits,
            self._wake,
            self._where,
            throughout=_interlude(self._turns),
        )
        self._reader.start()

    def turn(self) -> None:
        """Announce what was read; raises what went wrong."""
        if self._reader is None:
            return
        self._check_time(self._reader)
        for arrival in self._reader.take():
            match arrival:
                case RawStep():
                    self._announce(arrival)
                case SourceEnded():
                    ended = local_pb2.DataEnded(num_steps=self._num_announced, kind=_KIND)
                    self._port.report(local_pb2.FromChild(data_ended=ended))
                case PipesvcError():
                    raise self._placed(arrival)

    def send(self, number: int) -> None:
        batch = self._announced.pop(number, None)
        if batch is None or self._reader is None:
            message = f"batch {number} was issued, but batches are announced up to {self._num_announced}"
            raise self._placed(PipesvcError(ErrorCode.INTERNAL, message))
        try:
            send_batch(self._port, self._settings.routes, number, batch)
        except PipesvcError as error:
            raise self._placed(error) from error
        self._reader.give_permit()

    def close(self, wait_s: float) -> None:
        if self._reader is not None:
            self._reader.close(wait_s)
            self._reader = None

    @property
    def _where(self) -> Where:
        return replace(self._settings.where, step=self._after_step)

    def _announce(self, raw: RawStep) -> None:
        try:
            batch = self._settings.prepare(raw)
        except PipesvcError as error:
            raise self._placed(error) from error.__cause__
        self._num_announced += 1
        self._announced[self._num_announced] = batch
        announced = local_pb2.BatchAnnounced(
            step=self._num_announced, shares=batch.shares, rows=batch.rows, kind=_KIND, weight=batch.weight
        )
        self._port.report(local_pb2.FromChild(batch_announced=announced))

    def _check_time(self, reader: Reader) -> None:
        since_s, limit_s = reader.reading_since_s(), self._settings.timeout_s
        if since_s is None or time.monotonic() - since_s < limit_s:
            return
        error = PipesvcError(
            ErrorCode.DATA_SOURCE_TIMED_OUT,
            f"the evaluation data source timed out: no batch came within {limit_s:g} s",
            advice="Make the source faster, or raise timeout_s of the evaluation's data",
            where=self._where,
        )
        raise PipesvcError.of(replace(error.details, traceback=reader.stuck_at()))

    def _placed(self, error: PipesvcError) -> PipesvcError:
        details = error.details
        message = f"{details.message}, in the evaluation after step {self._after_step}"
        where = replace(details.where, step=self._after_step)
        return PipesvcError.of(replace(details, message=message, where=where)).at(self._settings.where)


@contextmanager
def _interlude(turns: threading.Lock) -> Iterator[None]:
    with turns, same_random_state_after():
        yield
