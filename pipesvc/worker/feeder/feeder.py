"""Announces batches ahead of the training, and sends each one when the coordinator issues its step.

Inputs go straight to the stages that need them and labels straight to the last, a link each; nothing passes through the
stages between. One thread owns the port; the reader's thread only wakes it.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2
from pipesvc.wire.links import FEEDER
from pipesvc.worker.feeder.batches import CutStep, RawStep
from pipesvc.worker.feeder.evaluation import EvaluationFeed
from pipesvc.worker.feeder.preparation import Preparation
from pipesvc.worker.feeder.reader import Arrival, SourceEnded
from pipesvc.worker.feeder.routes import FeederRoutes
from pipesvc.worker.feeder.sending import send_batch
from pipesvc.worker.feeder.stream import StreamReader
from pipesvc.worker.port import ParcelArrived
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter

# One wait of the loop, so that the source's time limit is looked at often enough.
IDLE_WAIT_S: Final = 1.0
# Given to a source that is in the middle of a batch when the run ends.
CLOSE_WAIT_S: Final = 1.0


class Supply(Protocol):
    """Where batches come from: `reader.Reader` or `stream.StreamReader`."""

    def start(self) -> None: ...

    def close(self, wait_s: float) -> None: ...

    def give_permit(self) -> None: ...

    def take(self) -> list[Arrival]: ...

    def reading_since_s(self) -> float | None: ...

    def stuck_at(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FeederSettings:
    """What the feeder needs of plan and job."""

    worker: str
    routes: FeederRoutes
    is_double_buffered: bool
    timeout_s: float
    where: Where
    # Steps of the training that were done before.
    num_done: int = 0


class Feeder:
    """`wake_fd` is an eventfd that the supply writes to when something has come."""

    def __init__(
        self,
        port: PortLike,
        supply: Supply,
        prepare: Preparation,
        settings: FeederSettings,
        wake_fd: int,
        evaluation: EvaluationFeed | None = None,
    ) -> None:
        self._port = port
        self._supply = supply
        self._prepare = prepare
        self._settings = settings
        self._wake_fd = wake_fd
        self._evaluation = evaluation
        self._progress = ProgressReporter(port)
        self._announced: dict[int, CutStep] = {}
        self._num_announced = settings.num_done
        self._num_sent = settings.num_done
        self._has_ended = False
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def run(self) -> None:
        self._supply.start()
        try:
            while not self._is_stopped:
                self.turn(IDLE_WAIT_S)
        except BaseException:
            self._close(0.0)
            raise
        self._close(CLOSE_WAIT_S)

    def turn(self, wait_s: float) -> None:
        """Take what has come from agent and supply; wait for it at most `wait_s`."""
        self._check_time()
        self._note_waiting()
        since_s = self._supply.reading_since_s()
        if since_s is not None:
            wait_s = min(wait_s, max(0.0, since_s + self._settings.timeout_s - time.monotonic()))
        ready, _, _ = select.select([self._port.fileno(), self._wake_fd], [], [], wait_s)
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        for event in self._port.poll(0.0):
            if not isinstance(event, ParcelArrived):
                self._obey(event)
            elif isinstance(self._supply, StreamReader):
                self._supply.offer(event)
        for arrival in self._supply.take():
            self._accept(arrival)
        if self._evaluation is not None:
            self._evaluation.turn()

    def _close(self, wait_s: float) -> None:
        if self._evaluation is not None:
            self._evaluation.close(wait_s)
        self._supply.close(wait_s)

    def _obey(self, command: local_pb2.ToChild) -> None:
        match command.WhichOneof("message"):
            case "begin_evaluation" if self._evaluation is not None:
                self._evaluation.begin(command.begin_evaluation.after_step)
            case "issue_step" if self._evaluation is not None and command.issue_step.kind:
                self._evaluation.send(command.issue_step.step)
            case "issue_step":
                self._send(command.issue_step.step)
            case "step_committed":
                if not self._settings.is_double_buffered:
                    self._supply.give_permit()
            case "stop":
                self._is_stopped = True

    def _accept(self, arrival: Arrival) -> None:
        match arrival:
            case RawStep():
                self._announce(arrival)
            case SourceEnded():
                self._has_ended = True
                self._port.report(local_pb2.FromChild(data_ended=local_pb2.DataEnded(num_steps=self._num_announced)))
            case PipesvcError():
                raise arrival

    def _announce(self, raw: RawStep) -> None:
        batch = self._prepare(raw)
        self._num_announced += 1
        self._announced[self._num_announced] = batch
        announced = local_pb2.BatchAnnounced(
            step=self._num_announced, epoch=raw.epoch, shares=batch.shares, rows=batch.rows
        )
        self._port.report(local_pb2.FromChild(batch_announced=announced))

    def _send(self, step: int) -> None:
        batch = self._announced.pop(step, None)
        if batch is None:
            message = f"step {step} was issued, but batches are announced up to step {self._num_announced}"
            raise PipesvcError(ErrorCode.INTERNAL, message, where=Where(step=step))
        self._progress.busy("send", step=step)
        start_ns = time.time_ns()
        send_batch(self._port, self._settings.routes, step, batch)
        self._num_sent = step
        self._trace(step, batch.raw, start_ns)
        if self._settings.is_double_buffered:
            self._supply.give_permit()

    def _trace(self, step: int, raw: RawStep, send_start_ns: int) -> None:
        read = local_pb2.TraceEvent(
            step=step,
            stage=FEEDER,
            action="read",
            start_unix_ns=raw.read_start_ns,
            end_unix_ns=raw.read_end_ns,
            worker=self._settings.worker,
        )
        send = local_pb2.TraceEvent(
            step=step,
            stage=FEEDER,
            action="send",
            start_unix_ns=send_start_ns,
            end_unix_ns=time.time_ns(),
            worker=self._settings.worker,
        )
        self._port.report(local_pb2.FromChild(trace=local_pb2.Trace(events=[read, send])))

    def _check_time(self) -> None:
        since_s = self._supply.reading_since_s()
        if since_s is None or time.monotonic() - since_s < self._settings.timeout_s:
            return
        error = PipesvcError(
            ErrorCode.DATA_SOURCE_TIMED_OUT,
            f"the data source timed out: no batch came within {self._settings.timeout_s:g} s",
            advice="Make the source faster, or raise timeout_s of the data source",
            where=replace(self._settings.where, step=self._num_announced + 1),
        )
        raise PipesvcError.of(replace(error.details, traceback=self._supply.stuck_at()))

    def _note_waiting(self) -> None:
        if self._supply.reading_since_s() is not None and not self._announced:
            step = self._num_announced + 1
            self._progress.waiting(f"batch of step {step} from the data source", step=step)
        elif self._announced:
            step = self._num_sent + 1
            self._progress.waiting(f"step {step} to be issued by the coordinator", step=step)
        else:
            what = "the end of the run" if self._has_ended else "the last step to be committed"
            self._progress.waiting(f"{what} from the coordinator")
