"""Tables with sparse gradients, alone with SGD or beside an optimizer of their own, and clipping of both kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor import norms
from pipesvc.worker.executor.parameter_groups import OptimizerChoice, allot
from pipesvc.worker.optimizer_trial import Whole, try_updates
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_both as train_both_modules
from tests.unit.executor.network import MakeOptimizer, Setup, train_both, train_plain
from tests.unit.executor.test_equality import CUTS, make_batches, make_layers

NUM_WORDS = 12


def sparse_layers() -> list[nn.Module]:
    """Words come several times in a micro-batch, and in several micro-batches."""
    table = nn.Embedding(NUM_WORDS, 6, sparse=True)
    return [table, nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)]


class Bags(nn.Module):
    """A table that is called late, of a model with a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)
        self.words = nn.Embedding(NUM_WORDS, 6, sparse=True)
        self.mid = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.bag = nn.EmbeddingBag(NUM_WORDS, 6, mode="sum", sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        for layer in self.mid:
            h = torch.tanh(layer(h))
        result: Tensor = self.head(h + self.bag(ids[:, None]))
        return result


def word_batches(num_micro_batches: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(6):
        ids = torch.randint(NUM_WORDS // 2, (16,), generator=generator)
        batches.append(batch_of(ids, ids % 4, 16, num_micro_batches))
    return batches


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def sparse_adam(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(parameters, lr=0.05)


def adamw(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


CLIPS: Sequence[dict[str, float]] = [{}, {"clip_norm": 0.02}, {"clip_value": 0.003}]


@pytest.mark.parametrize("clips", CLIPS, ids=str)
@pytest.mark.parametrize("cuts", [(), (1,), (2, 3)])
def test_sparse_gradients_with_sgd(cuts: Sequence[int], clips: dict[str, float]) -> None:
    setup = Setup(make_layers=sparse_layers, cuts=cuts, loss=cross_entropy, make_optimizer=sgd, **clips)  # type: ignore[arg-type]
    train_both(setup, word_batches())
    free = Setup(make_layers=sparse_layers, loss=cross_entropy, make_optimizer=sgd)
    assert (train_plain(setup, word_batches())[0] != train_plain(free, word_batches())[0]) == bool(clips)


def table_apart(model: nn.Module) -> list[torch.optim.Optimizer]:
    named = dict(model.named_parameters())
    table = [named.pop("0.weight")]
    return [sparse_adam(table), adamw(list(named.values()))]


@pytest.mark.parametrize("clips", CLIPS, ids=str)
@pytest.mark.parametrize("cuts", [(), (1,), (2, 3)])
def test_a_table_with_sparse_adam_beside_a_dense_optimizer(cuts: Sequence[int], clips: dict[str, float]) -> None:
    setup = Setup(
        make_layers=sparse_layers,
        cuts=cuts,
        loss=cross_entropy,
        more_optimizers={"0.*": sparse_adam},
        make_optimizer=adamw,
        plain_optimizers=table_apart,
        **clips,  # type: ignore[arg-type]
    )
    cluster = train_both(setup, word_batches())
    kinds = [[type(each).__name__ for each in stage.updates.optimizers.values()] for stage in cluster.stages.values()]
    assert kinds[0][0] == "SparseAdam"
    assert kinds[-1][-1] == "AdamW"


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_tables_of_a_module_that_is_replayed(parts: int) -> None:
    def tables_apart(model: nn.Module) -> list[torch.optim.Optimizer]:
        assert isinstance(model, Bags)
        dense = [each for name, each in model.named_parameters() if name.startswith(("head", "mid"))]
        return [sparse_adam([model.words.weight, model.bag.weight]), adamw(dense)]

    setup = ModuleSetup(
        build=Bags,
        sample=word_batches()[0][0][0],
        parts=parts,
        loss=cross_entropy,
        more_optimizers={"[wb]*.weight": sparse_adam},
        make_optimizer=adamw,
        plain_optimizers=tables_apart,
        clip_norm=0.02,
    )
    train_both_modules(setup, word_batches())


def test_the_norm_of_a_sparse_gradient_is_that_of_the_dense_one() -> None:
    """To rounding: the zeros of the dense one change the order of the sum."""
    table = nn.Embedding(NUM_WORDS, 64, sparse=True)
    for ids in ([1, 1, 3], [3, 5]):
        table(torch.tensor(ids)).square().sum().backward()
    assert table.weight.grad is not None
    dense = table.weight.grad.to_dense()
    parameters = list(table.parameters())
    found = norms.parameter_norms(parameters, [0])
    assert found is not None
    torch.testing.assert_close(found[0][0], torch.linalg.vector_norm(dense))
    norms.clip_values(parameters, 0.5)
    assert torch.equal(table.weight.grad.to_dense(), dense.clamp(-0.5, 0.5))


@pytest.mark.parametrize("num_stages", [1, 3])
def test_values_are_clipped_as_torch_does(num_stages: int) -> None:
    setup = Setup(make_layers=make_layers, cuts=CUTS[num_stages], loss=cross_entropy, clip_value=0.01)
    losses = train_both(setup, make_batches(4)).losses
    assert losses != train_plain(Setup(make_layers=make_layers, loss=cross_entropy), make_batches(4))[0]


def named(*names: str) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.zeros(2, 2)) for name in names}


def choices(**makes: MakeOptimizer) -> list[OptimizerChoice]:
    patterns = {"table": "0.*", "bias": "*.bias", "rest": "*"}
    return [OptimizerChoice(pattern=patterns[name], make=make, groups={}, rule=None) for name, make in makes.items()]


def test_each_parameter_goes_to_the_first_optimizer_that_takes_it() -> None:
    found = allot(choices(table=sgd, bias=adamw, rest=sgd), named("0.bias", "1.weight", "1.bias"), Where())
    assert [each.names for each in found] == [("0.bias",), ("1.bias",), ("1.weight",)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (choices(table=sgd), "no optimizer takes the parameter '1.weight'"),
        (choices(rest=sgd, table=sgd), "'0.*' of optimizer is left with no parameter"),
        (choices(bias=sgd, rest=sgd), "'*.bias' of optimizer matches no parameter of the model"),
        (choices(rest=adamw), "AdamW cannot update '0.weight', whose gradients are sparse: Adam does not support"),
        (choices(table=sgd, rest=sparse_adam), "SparseAdam cannot update '1.weight', whose gradients are dense"),
    ],
)
def test_what_would_fail_in_the_first_step_is_refused_before_the_run(given: list[OptimizerChoice], words: str) -> None:
    whole = Whole(parameters=named("0.weight", "1.weight"), sparse=frozenset(["0.weight"]))
    with pytest.raises(PipesvcError) as caught:
        try_updates(given, None, whole, Where())
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert words in str(caught.value)


def test_what_takes_both_kinds_of_gradients_passes() -> None:
    whole = Whole.of([("0", nn.Embedding(3, 2, sparse=True)), ("1", nn.Linear(2, 2))])
    assert whole.sparse == {"0.weight"}
    try_updates(choices(rest=sgd), None, whole, Where())
    try_updates(choices(table=sparse_adam, rest=adamw), None, whole, Where())
