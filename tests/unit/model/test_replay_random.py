"""Dropout gives the same numbers for every partition, also where it is computed again in backward."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow, parameters_of
from pipesvc.errors import PipesvcError
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.replay.run import StageReplay
from pipesvc.model.skeleton import build_module
from tests.unit.model.replay_language import Checkpointed, D, TiedParameter
from tests.unit.model.replay_pipeline import CPU, SEED, Pipeline
from tests.unit.model.replay_zoo import ZOO, Case, Noisy, loss_of, rows, sequences
from tests.unit.model.test_replay_models import OTHERS, assert_same, even_ends, flow_of

RANDOM = {
    "tied": Case(lambda: TiedParameter(0.2), ZOO["tied parameter"].inputs),
    "checkpointed": Case(Checkpointed, sequences),
    "noisy": Case(Noisy, rows),
}


@pytest.mark.parametrize("name", RANDOM)
def test_every_partition_draws_the_same(name: str) -> None:
    case = RANDOM[name]
    flow = flow_of(case)
    torch.manual_seed(1)
    batches = [case.inputs(*size) for size in OTHERS]
    expected = Pipeline(case.build, flow, (len(flow.units),)).step(batches, loss_of)
    for num_stages in (2, 3, 4):
        assert_same(Pipeline(case.build, flow, even_ends(flow, num_stages)).step(batches, loss_of), expected)


def test_units_inside_a_block_draw_as_the_block_does() -> None:
    case = RANDOM["tied"]
    inputs = case.inputs(3, 4)
    whole = flow_of(case)
    within = record(build_module(case.build, 0, ()), inputs, cuts=["h.1.feed", "h.3"])
    names = [unit.name for unit in within.units]
    ends = (names.index("h.1.feed"), names.index("h.3"), len(names))
    expected = Pipeline(case.build, whole, (len(whole.units),)).step([inputs], loss_of)
    assert_same(Pipeline(case.build, within, ends).step([inputs], loss_of), expected)


def test_checkpointing_changes_no_number() -> None:
    """Blocks checkpointed by the container together with an operation, and inside the block again."""
    inputs = [sequences(3, 4), sequences(2, 5)]
    outcomes = []
    for is_checkpointed in (False, True):
        case = Case(lambda is_checkpointed=is_checkpointed: Checkpointed(is_checkpointed), sequences)  # type: ignore[misc]
        flow = flow_of(case)
        outcomes.append(Pipeline(case.build, flow, even_ends(flow, 3)).step(inputs, loss_of))
    assert_same(outcomes[1], outcomes[0])


def test_recomputation_works_on_another_thread() -> None:
    """As on a GPU, where autograd has a thread of its own for each device."""
    case = RANDOM["checkpointed"]
    flow = flow_of(case)
    inputs = [case.inputs(3, 4)]
    ends = even_ends(flow, 2)
    expected = Pipeline(case.build, flow, ends).step(inputs, loss_of)
    pipeline = _OnThreads(case.build, flow, ends)
    assert_same(pipeline.step(inputs, loss_of), expected)
    assert pipeline.num_threads == len(ends)


class _OnThreads(Pipeline):
    num_threads = 0

    def _backward(self, *args: object) -> None:
        thread = threading.Thread(target=super()._backward, args=args)
        thread.start()
        thread.join()
        self.num_threads += 1


def one_stage(flow: Flow, build: object, seed: int = SEED) -> StageReplay:
    ends = (len(flow.units),)
    model = build_module(build, SEED, parameters_of(flow, ends, 0))  # type: ignore[arg-type]
    return StageReplay(model, flow, ends, 0, CPU, seed=seed)


def test_step_micro_batch_and_seed_decide_the_numbers() -> None:
    case = RANDOM["tied"]
    flow = flow_of(case)
    inputs = case.inputs(3, 4)
    stage = one_stage(flow, case.build)
    before = torch.get_rng_state()
    first = stage.forward(inputs, {}, step=1, micro_batch=0).result
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(stage.forward(inputs, {}, step=1, micro_batch=0).result, first)
    others = [
        stage.forward(inputs, {}, step=2, micro_batch=0).result,
        stage.forward(inputs, {}, step=1, micro_batch=1).result,
        one_stage(flow, case.build, seed=8).forward(inputs, {}, step=1, micro_batch=0).result,
    ]
    assert not any(torch.equal(first, other) for other in others)


class Twice(nn.Module):
    """The same dropout called twice in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 64)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.linear(x)
        return self.drop(h), self.drop(h)


def test_two_calls_of_a_module_draw_apart() -> None:
    case = Case(Twice, lambda b, t: Inputs((torch.randn(b, 5),)))
    one, other = one_stage(flow_of(case), Twice).forward(case.inputs(4, 1), {}).result
    assert not torch.equal(one == 0, other == 0)


def test_only_modules_that_draw_are_hooked() -> None:
    flow = flow_of(RANDOM["tied"])
    assert "drop" in flow.random_modules
    assert "h.0" in flow.random_modules
    assert "h.0.feed.4" in flow.random_modules
    assert not {"wte", "ln_f", "h.0.norm", "h.0.feed.1"} & set(flow.random_modules)
    assert flow_of(ZOO["tied parameter"]).random_modules == ()


class Unhooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(5, D), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop.forward(self.linear(x))


def test_a_random_unit_that_is_not_called_as_a_module_is_refused() -> None:
    with pytest.raises(PipesvcError, match="calls the forward of 'drop', which draws random numbers"):
        flow_of(Case(Unhooked, rows))
