"""What a profiler finds of a module that is cut by replay: bytes by hand, and times as far as nothing else can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipesvc.core.flow_json import from_json
from pipesvc.model import skeleton
from pipesvc.rpc.v1 import local_pb2
from tests.unit.profiler import profiled_code
from tests.unit.profiler.profiling import FLOAT, column, make_job, profiled

ROWS = 8
VALUE = ROWS * 4 * FLOAT
LINEAR = (4 * 4 + 4) * FLOAT


def names(profile: local_pb2.DeviceProfile) -> list[str]:
    return [each.layer.name for each in profile.layers]


def test_units_have_the_bytes_of_what_they_hold_and_make(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("Skipping", optimizer="Adam"), monkeypatch)
    assert found.micro_batch_rows == ROWS
    assert names(found) == ["first", "blocks.0", "blocks.1", "head"]
    # The root's parameter counts for the unit behind which it is used first.
    weights = [(3 * 4 + 4) * FLOAT, LINEAR + 4 * FLOAT, LINEAR, (4 * 2 + 2) * FLOAT]
    assert [each.layer.parameter_bytes for each in found.layers] == weights
    assert column(found, "gradient_bytes") == weights
    num_parameters = [2, 3, 2, 2]
    states = [2 * each + count * FLOAT for each, count in zip(weights, num_parameters, strict=True)]
    assert column(found, "optimizer_bytes") == states
    # Rows; what first gave, the sigmoid and nothing for a scale of ones; ...; the sum, the output and the labels.
    assert column(found, "activation_bytes") == [ROWS * 3 * FLOAT, 2 * VALUE, 2 * VALUE, VALUE + 2 * ROWS * 2 * FLOAT]
    assert all(each.forward_s > 0 and each.backward_s > 0 for each in found.layers)


def test_what_skips_units_crosses_every_cut_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("Skipping"), monkeypatch)
    # The sum of the skip and the second block is made behind that block.
    assert column(found, "output_bytes") == [VALUE, 2 * VALUE, VALUE, 0]
    # The gradient of the shared scale goes from the second block to the first for each micro-batch.
    assert column(found, "output_gradient_bytes") == [VALUE, 2 * VALUE + 4 * FLOAT, VALUE, 0]
    flow = from_json(found.flow_json)
    assert [unit.name for unit in flow.units] == names(found)
    assert [(each.name, flow.parameters[each.name]) for each in flow.shared] == [("scale", (1, 2))]


@pytest.mark.usefixtures("clock")
def test_code_behind_a_unit_counts_for_it_and_code_on_the_way_to_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("Sleeping"), monkeypatch)
    assert names(found) == ["first", "blocks.0", "blocks.1", "head"]
    assert [round(each.forward_s, 3) for each in found.layers] == [0.02, 0.06, 0.06, 0.0]
    # Whoever begins at a unit runs all code before it, on what stands for the results of earlier units.
    assert [round(each.skip_s, 3) for each in found.layers] == [0.0, 0.02, 0.08, 0.14]


def test_units_that_no_cut_parts_share_their_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("Joined"), monkeypatch)
    assert names(found) == ["first", "blocks.0", "norm", "blocks.1", "head"]
    times = [(each.forward_s, each.backward_s, each.update_s) for each in found.layers]
    assert times[2] == times[3] != times[1]
    assert len({*column(found, "activation_bytes")[2:4]}) == 1
    weights = [each.layer.parameter_bytes for each in found.layers]
    assert sum(column(found, "gradient_bytes")) == sum(weights)


def test_a_module_that_writes_in_place_finds_what_it_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []

    def watched(self: Any, x: torch.Tensor) -> torch.Tensor:
        given.extend([x.clone()] if type(x) is torch.Tensor else [])
        return real(self, x)

    real = profiled_code.Writing.forward
    monkeypatch.setattr(profiled_code.Writing, "forward", watched)
    profiled(make_job("Writing"), monkeypatch)
    values = [each for each in given if not each.is_meta]  # those of the recording are
    assert len(values) > 2
    assert all(torch.equal(each, values[0]) for each in values)


def test_inputs_that_forward_writes_are_whole_for_every_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profiled(make_job("Tables", source="ids"), monkeypatch)
    assert names(found) == ["first", "second", "last"]


def test_weights_are_those_of_a_run_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.nn.Module] = []

    def build_module(build: Any, seed: int, owned: Any) -> Any:
        model = real(build, seed, owned)
        if owned:
            kept.append(model)
        return model

    real = skeleton.build_module
    monkeypatch.setattr(skeleton, "build_module", build_module)
    profiled(make_job("Skipping", optimizer="Adam"), monkeypatch)
    [ours] = kept
    torch.manual_seed(11)
    for name, value in profiled_code.Skipping().state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert all(each.grad is None for each in ours.parameters())
