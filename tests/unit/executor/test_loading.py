"""Weights of a file in stages that share some of them: what `load_state_dict` would do to the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipesvc.worker.executor import loading
from tests.unit.executor.checkpoints import reader_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import Cluster, built
from tests.unit.executor.tied_models import make_setup


def random_state(model: nn.Module, without: str) -> dict[str, Tensor]:
    """Other values under each name, also of what is tied."""
    torch.manual_seed(5)
    state = model.state_dict()
    return {name: torch.randn_like(value) for name, value in state.items() if not name.endswith(without or "/")}


@pytest.mark.parametrize("without", ["", "wte.weight", "lm_head.weight", "0.table.weight", "6.weight"])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("name", ["parameter", "layers"])
def test_n10_tied_weights_begin_as_load_state_dict_has_them(
    name: str, num_stages: int, without: str, tmp_path: Path
) -> None:
    """The last name counts where the file has several; libraries write one of them."""
    setup = make_setup(name, num_stages)
    model = setup.build() if isinstance(setup, ModuleSetup) else nn.Sequential(*built(setup.make_layers))
    state = random_state(model, without)
    save_file(state, tmp_path / "weights.safetensors")
    reader = reader_of(tmp_path / "weights.safetensors")
    whole: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    assert loading.misfits(whole, reader.layout()) == []
    cluster = Cluster(setup, has_labels=True)
    loading.load(reader, cluster.stages.values())
    cluster.close()
    model.load_state_dict(state, strict=False)
    found = cluster.state()
    assert [key for key, value in model.state_dict().items() if not torch.equal(found[key], value)] == []
    for tie in setup.plan.ties:
        copies = [cluster.stages[stage].tied_parameter(tie.name) for stage in tie.stages]
        assert all(torch.equal(copy, copies[0]) for copy in copies)


def test_a_weight_of_which_no_name_is_in_the_file_is_named(tmp_path: Path) -> None:
    model = make_setup("parameter", 1).build()  # type: ignore[union-attr]
    state = {key: value for key, value in model.state_dict().items() if key not in ("wte.weight", "lm_head.weight")}
    save_file(state, tmp_path / "weights.safetensors")
    layout = reader_of(tmp_path / "weights.safetensors").layout()
    assert loading.misfits(model.state_dict(keep_vars=True), layout) == ["it has no wte.weight, lm_head.weight"]
