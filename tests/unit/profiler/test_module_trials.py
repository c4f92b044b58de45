"""Every model that can be cut can be measured, and what a plan is told of it adds up to the model."""

from __future__ import annotations

import pytest
import torch

from pipesvc.core.flow import finest_ends
from pipesvc.model.calling import arguments_of
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.skeleton import build_module
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.data_trial import parcel_of
from pipesvc.worker.executor.optimizing import Updates
from pipesvc.worker.executor.parameter_groups import Named
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.profiler.module_trial import PieceTrials, pieces_of
from pipesvc.worker.profiler.unit_profiles import add_units
from tests.unit.model.replay_zoo import ZOO, loss_of


def _make_updates(own: Named) -> Updates:
    return Updates(optimizers={0: torch.optim.SGD(own.values(), lr=0.1)} if own else {})


@pytest.mark.parametrize("name", ZOO)
def test_every_model_is_measured(name: str) -> None:
    case = ZOO[name]
    inputs = case.inputs(2, 3)
    # As a data source gives them.
    value = (*inputs.args, *inputs.kwargs.values()) if inputs.args else dict(inputs.kwargs)
    skeleton = build_module(case.build, 0, ())
    flow = record(skeleton, Inputs(*arguments_of(skeleton.forward, value)))
    pieces = pieces_of(flow)
    spec = StageSpec(
        index=0,
        num_stages=len(pieces),
        first_layer=0,
        device=torch.device("cpu"),
        seed=0,
        loss=loss_of,
        check_finite=False,
    )
    trials = PieceTrials(flow, parcel_of(value), None, _make_updates, spec=spec, num_micro_batches=1, budget_s=0.0)
    model = build_module(case.build, 0, trials.names_in(pieces))
    measured = [trials.measure(piece, model) for piece in pieces]
    assert len(pieces) == len(finest_ends(flow)) > 1
    assert all(each.forward_s > 0 for each in measured)
    found = local_pb2.DeviceProfile()
    add_units(found, flow, pieces, measured)
    trained = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    assert sum(each.gradient_bytes for each in found.layers) <= trained
    assert sum(each.layer.parameter_bytes for each in found.layers) == sum(each.nbytes for each in model.parameters())
    assert sum(each.activation_bytes for each in found.layers) == sum(each.activation_bytes for each in measured)
