"""Binds the job's data source, says that it is there, and feeds the run until it is told to stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import torch

from pipesvc.core.plan import Plan
from pipesvc.errors import PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.worker import calls
from pipesvc.worker.feeder.evaluation import EvaluationFeed, EvaluationSettings
from pipesvc.worker.feeder.feeder import Feeder, FeederSettings, Supply
from pipesvc.worker.feeder.preparation import Preparation
from pipesvc.worker.feeder.reader import Reader
from pipesvc.worker.feeder.routes import routes_of
from pipesvc.worker.feeder.source import Reading, evaluation_reading, read
from pipesvc.worker.feeder.stream import STREAM_LINK, StreamReader
from pipesvc.worker.port_like import PortLike


def run(port: PortLike, assignment: local_pb2.Assignment) -> None:
    """The life of a feeder. Errors carry their place and are reported by `pipesvc.worker.child`."""
    where = calls.place_of(assignment)
    # The executor beside it needs the cores; user code may set more for itself.
    torch.set_num_threads(1)
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        feeder = _feeder(port, assignment, where, wake_fd)
        port.report(local_pb2.FromChild(ready=local_pb2.Ready()))
        feeder.run()
    except PipesvcError as error:
        raise error.at(where) from error.__cause__
    finally:
        os.close(wake_fd)


def _feeder(port: PortLike, assignment: local_pb2.Assignment, where: Where, wake_fd: int) -> Feeder:
    job = assignment.job
    plan = Plan.from_json(assignment.plan_json)
    num_joined = max(1, job.accumulate)
    reading = Reading(
        data=job.data,
        num_micro_batches=job.strategy.micro_batches,
        num_joined=num_joined,
        num_epochs=job.epochs,
        max_steps=job.max_steps,
        seed=job.seed,
        where=where,
        start=assignment.start,
    )
    num_permits = max(1, job.data.capacity // num_joined) if job.data.double_buffer else 1
    supply: Supply
    turns = threading.Lock()
    if job.data.is_streamed:
        supply = StreamReader(reading, num_permits, lambda: port.consumed(STREAM_LINK))
    else:
        source = calls.bind(job.data.source, "the data source", where)
        supply = Reader(read(source, reading), num_permits, lambda: os.eventfd_write(wake_fd, 1), where, turn=turns)
    prepare = Preparation(
        num_micro_batches=job.strategy.micro_batches, weight=calls.bind_weight(job, where), where=where
    )
    settings = FeederSettings(
        worker=assignment.worker,
        routes=routes_of(plan, has_labels=calls.reads_labels(job)),
        is_double_buffered=job.data.double_buffer,
        timeout_s=job.data.timeout_s,
        where=where,
        num_done=assignment.start.step,
    )
    evaluation = _evaluation(port, job, settings, lambda: os.eventfd_write(wake_fd, 1), turns)
    return Feeder(port, supply, prepare, settings, wake_fd, evaluation)


def _evaluation(
    port: PortLike,
    job: job_pb2.JobSpec,
    settings: FeederSettings,
    wake: Callable[[], None],
    turns: threading.Lock,
) -> EvaluationFeed | None:
    where, spec = settings.where, job.evaluation
    source = calls.bind_evaluation_source(job, where)
    if source is None:
        return None
    reading = evaluation_reading(job, where)
    weight = calls.bind_weight(job, where)
    evaluation = EvaluationSettings(
        open_source=lambda: read(source, reading),
        prepare=Preparation(num_micro_batches=spec.micro_batches, weight=weight, where=where, may_count_nothing=True),
        num_permits=max(1, spec.data.capacity) if spec.data.double_buffer else 1,
        timeout_s=spec.data.timeout_s,
        routes=settings.routes,
        where=where,
    )
    return EvaluationFeed(port, evaluation, wake, turns)
