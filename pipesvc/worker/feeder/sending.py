"""A batch on its way to the stages that read it."""

from __future__ import annotations

from pipesvc.errors import PipesvcError, Where
from pipesvc.worker.feeder.batches import CutStep
from pipesvc.worker.feeder.routes import FeederRoutes
from pipesvc.worker.port_like import PortLike


def send_batch(port: PortLike, routes: FeederRoutes, number: int, batch: CutStep) -> None:
    """`number` is that of its step, or of its pass in an evaluation."""
    for index, inputs in enumerate(batch.inputs):
        try:
            labels = None if batch.labels is None else batch.labels[index]
            for link, value in routes.parcels(inputs, labels):
                port.send_parcel(link, number, index, value)
        except PipesvcError as error:
            raise error.at(Where(step=number, micro_batch=index)) from error
