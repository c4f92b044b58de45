"""A run's events, without a gap over a broken connection.

The coordinator replays a run's events from its journal, so a watcher that lost its stream only has to ask again
from the step after the last that it saw. Only a coordinator that stays away longer than the retries ends the
watch.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import grpc

from pipesvc.client import interrupts
from pipesvc.client.transport import Retries, Transport
from pipesvc.errors import PipesvcError
from pipesvc.net import reports
from pipesvc.rpc.v1 import run_pb2

ENDED: Final = frozenset({run_pb2.RUN_STATE_COMPLETED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED})
# Watching from here shows the run's states only.
NO_STEP: Final = 2**62


class PipesvcWarning(UserWarning):
    """Something about a run that works, but probably not as meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One committed step."""

    index: int
    """Counts the steps of the run from 1."""
    epoch: int
    """Counts the passes over the data from 0."""
    loss: float
    """Mean over the mini-batch by weight, as the one-process loop would give it."""
    num_rows: int
    time: float
    """When all stages had applied it, in seconds since 1970, by the coordinator's clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """What an evaluation has found."""

    step: int
    """The weights are those after this step."""
    epoch: int
    """In which that step was, counted from 0."""
    loss: float
    """Mean over the rows of the evaluation data, or over their weights."""
    metrics: dict[str, float]
    """Such means too, by name."""
    num_rows: int
    time: float
    """When it was done, in seconds since 1970, by the coordinator's clock."""

    def __str__(self) -> str:
        """ "evaluation after step 10: loss 0.1234, accuracy 0.9300, 200 rows"."""
        values = {"loss": self.loss} | self.metrics
        said = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        return f"evaluation after step {self.step}: {said}, {self.num_rows} rows"


def evaluated_of(record: run_pb2.EvaluationRecord) -> Evaluated:
    return Evaluated(
        step=record.step,
        epoch=record.epoch,
        loss=record.loss,
        metrics={metric.name: metric.value for metric in record.metrics},
        num_rows=record.num_rows,
        time=record.evaluated_unix_ns / 1e9,
    )


def step_of(record: run_pb2.StepRecord) -> Step:
    return Step(
        index=record.step,
        epoch=record.epoch,
        loss=record.loss,
        num_rows=record.num_rows,
        time=record.committed_unix_ns / 1e9,
    )


def state_name(state: int) -> str:
    """ "RUNNING" for RUN_STATE_RUNNING; a number that this version does not know stays a number."""
    try:
        return run_pb2.RunState.Name(state).removeprefix("RUN_STATE_")
    except ValueError:
        return f"state {state}"


def failure_of(run: run_pb2.Run) -> PipesvcError | None:
    """The error of a run that failed."""
    if run.state != run_pb2.RUN_STATE_FAILED:
        return None
    return PipesvcError.of(reports.from_message(run.error))


def watch(
    transport: Transport, run_id: str, from_step: int = 1, *, limit_s: float | None = None
) -> Generator[run_pb2.Run | Step | Evaluated, None, None]:
    """The run whenever it changes, and each step and evaluation once in ascending order, until the run has ended.

    A run may train for weeks, so there is no limit unless `limit_s` sets one; a lost coordinator ends the watch.
    """
    next_step, is_over = max(1, from_step), False
    next_evaluation = next_step
    retries = Retries()
    while not is_over:
        request = run_pb2.WatchRunRequest(run_id=run_id, from_step=next_step)
        call = transport.open_stream(transport.stub.WatchRun, request, limit_s=limit_s)
        try:
            for event in call:
                transport.was_connected = True
                retries.reset()
                if event.HasField("step"):
                    if event.step.step >= next_step:
                        next_step = event.step.step + 1
                        yield step_of(event.step)
                elif event.HasField("evaluation"):
                    if event.evaluation.step >= next_evaluation:
                        next_evaluation = event.evaluation.step + 1
                        yield evaluated_of(event.evaluation)
                else:
                    is_over = event.run.state in ENDED
                    yield event.run
        except grpc.RpcError as error:
            if not transport.is_away(error) or not retries.pause():
                raise transport.error_of(error) from None
        else:
            if not is_over and not retries.pause():
                raise transport.ended_early(f"the event stream of run {run_id}")
        finally:
            with interrupts.deferred():
                call.cancel()
