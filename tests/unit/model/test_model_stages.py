"""One builder for each stage: each runs alone, with a seed that a plain loop can set."""

from __future__ import annotations

import pytest
import torch

from pipesvc.errors import PipesvcError
from pipesvc.model.keyed import KeyedBuild
from pipesvc.model.skeleton import build_layers, whole
from pipesvc.model.stage_builds import StageBuilds
from tests.integration import stage_jobs
from tests.unit.model.ranges import build_range, inspect_layers

SEED = 7
STAGES = StageBuilds([stage_jobs.bottom, stage_jobs.middle, stage_jobs.top])


def test_each_stage_has_the_weights_of_the_chain_and_runs_no_other_builder() -> None:
    plain = stage_jobs.plain_chain(SEED)
    for index, name in enumerate(["bottom", "middle", "top"]):
        stage_jobs.BUILT.clear()
        layers = build_layers(STAGES, SEED, [index])
        assert [name] == stage_jobs.BUILT
        assert [each for each, _ in layers] == ["0", "1", "2"]
        found, expected = layers[index][1].state_dict(), plain[index].state_dict()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
        assert [sum(1 for _ in layer.parameters()) for at, (_, layer) in enumerate(layers) if at != index] == [0, 0]
    assert build_range(STAGES, SEED, 1, 3)[0][0] == "1"
    assert all(
        torch.equal(value, plain.state_dict()[f"{name}.{key}"])
        for name, layer in whole(STAGES, SEED)
        for key, value in layer.state_dict().items()
    )


def test_inspection_moves_no_generator_and_knows_what_cannot_be_built_on_shapes() -> None:
    before = torch.get_rng_state()
    layers = inspect_layers(STAGES)
    assert torch.equal(torch.get_rng_state(), before)
    assert [(each.name, each.type, each.parameter_bytes) for each in layers] == [
        ("0", "Scaled", 4 * 72),
        ("1", "Sequential", 4 * (72 + 16)),
        ("2", "Linear", 4 * 36),
    ]


def test_keyed_stages_are_built_alone_too_and_what_reads_values_is_refused() -> None:
    stages = StageBuilds([KeyedBuild(build) for build in STAGES.builds])
    expected = whole(StageBuilds(stages.builds[1:]), SEED)
    for index in (0, 1):
        found = build_layers(StageBuilds(stages.builds[1:]), SEED, [index])[index][1].state_dict()
        assert all(torch.equal(value, found[key]) for key, value in expected[index][1].state_dict().items())
    with pytest.raises(PipesvcError, match=r"the builder of stage 0: .*reads the value") as caught:
        inspect_layers(stages)
    assert 'leave out init="by_name"' in caught.value.details.advice
