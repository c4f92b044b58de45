"""The new values of tied parameters, once a step: from the stage that owns them to those that hold copies.

Copies are never updated by themselves: equal gradients and equal optimizers would do for many steps, and then drift.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipesvc.core.edges import Edges
from pipesvc.wire.links import Link
from pipesvc.worker.executor import routes
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.outbox import Outbox
from pipesvc.worker.executor.stage import Stage


def take(edges: Edges, stage: Stage, parcels: Mapping[Link, Parcel]) -> None:
    """What the owners have after this step becomes what this stage has."""
    holder = stage.spec.index
    for owner in edges.weight_owners(holder):
        leaves = parcels[routes.weight_link(owner, holder)].leaves
        for name, value in zip(edges.weights[owner, holder], leaves, strict=True):
            assert value is not None
            with torch.no_grad():
                stage.tied_parameter(name).copy_(value)


def send(edges: Edges, stage: Stage, outbox: Outbox, step: int) -> None:
    """To be called after the update."""
    owner = stage.spec.index
    for holder in edges.weight_holders(owner):
        values = [stage.tied_parameter(name).detach() for name in edges.weights[owner, holder]]
        outbox.send(routes.weight_link(owner, holder), step, 0, values)
