"""What an inspection says of layers beside their names, on its way to the coordinator."""

from __future__ import annotations

import torch
from torch import nn

from pipesvc.coordinator.planning import layers_of
from pipesvc.core.layer_info import SharedParameter
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.inspector import layer_message
from tests.unit.model.ranges import inspect_layers


def test_gradients_are_counted_where_they_are_certain_and_shared_weights_once() -> None:
    def build() -> nn.Sequential:
        model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 4))
        model[1].requires_grad_(False)
        assert isinstance(model[3], nn.Linear)
        model[3].weight = nn.Parameter(torch.zeros(8, 4))
        model[2].weight = model[3].weight
        return model

    layers = tuple(inspect_layers(build))
    sizes = [(layer.parameter_bytes, layer.gradient_bytes) for layer in layers]
    assert sizes == [(4 * 32, 0), (4 * 20, 0), (4 * 40, 4 * 40), (4 * 4, 4 * 4)]
    shared = SharedParameter(name="2.weight", num_bytes=4 * 32, is_trained=True)
    assert [layer.shared for layer in layers] == [(), (), (shared,), (shared,)]
    assert layers_of(local_pb2.Inspected(layers=map(layer_message, layers))) == layers
