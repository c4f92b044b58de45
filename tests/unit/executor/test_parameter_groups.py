"""Groups of parameters are those of the unsplit model, whichever stage holds what; a plain loop groups by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor.parameter_groups import Group, OptimizerChoice, allot
from pipesvc.worker.optimizer_trial import Whole, try_updates
from tests.unit.executor import modules
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_both as train_both_modules
from tests.unit.executor.network import Setup, train_both, train_plain
from tests.unit.executor.test_equality import CUTS, make_batches, make_layers

VARIANTS: dict[str, Callable[[list[Any]], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
}
PATTERNS: Mapping[str, Mapping[str, Any]] = {
    "2.*": {"lr": 0.5},  # the norm; its bias is not in the next group
    "*.bias": {"weight_decay": 0.0, "lr": 0.3},
}


def by_hand(model: nn.Module) -> list[Any]:
    named = {name: each for name, each in model.named_parameters() if each.requires_grad}
    norm = [each for name, each in named.items() if name.startswith("2.")]
    biases = [each for name, each in named.items() if name.endswith(".bias") and not name.startswith("2.")]
    rest = [each for name, each in named.items() if name.endswith(".weight") and not name.startswith("2.")]
    groups = [(norm, {"lr": 0.5}), (biases, {"weight_decay": 0.0, "lr": 0.3}), (rest, {})]
    return [{"params": parameters, **options} for parameters, options in groups if parameters]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_a19_groups_by_pattern_are_those_of_the_whole_model(num_stages: int, variant: str) -> None:
    """With four stages some have no norm, one has no parameters, and none has all three groups."""
    setup = Setup(
        make_layers=make_layers,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=VARIANTS[variant],
        groups=PATTERNS,
        plain_optimizers=lambda model: [VARIANTS[variant](by_hand(model))],
    )
    batches = make_batches(2)
    cluster = train_both(setup, batches)
    assert cluster.losses != train_plain(replace(setup, groups={}, plain_optimizers=None), batches)[0]
    for stage in cluster.stages.values():
        for optimizer in stage.updates.optimizers.values():
            assert set(optimizer.state) == set(stage.named_parameters().values())  # no state of other stages
            assert [group["lr"] for group in optimizer.param_groups][:2] == [0.5, 0.3]
            assert len(optimizer.param_groups) == 3


def no_decay_for_vectors(name: str, parameter: nn.Parameter) -> dict[str, Any]:
    return {"weight_decay": 0.0} if parameter.ndim == 1 else {"lr": 0.02}


def by_rank(model: nn.Module) -> list[Any]:
    parameters = [each for each in model.parameters() if each.requires_grad]
    return [
        {"params": [each for each in parameters if each.ndim != 1], "lr": 0.02},
        {"params": [each for each in parameters if each.ndim == 1], "weight_decay": 0.0},
    ]


def frozen_head() -> list[nn.Module]:
    """The last stage of four has nothing that is trained, and its norm's bias is frozen."""
    layers = make_layers()
    layers[5].requires_grad_(False)
    layers[2].bias.requires_grad_(False)
    return layers


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
@pytest.mark.parametrize("num_stages", [1, 3, 4])
def test_groups_by_a_rule_with_frozen_parameters(num_stages: int, clip_norm: float) -> None:
    setup = Setup(
        make_layers=frozen_head,
        cuts=CUTS[num_stages],
        loss=cross_entropy,
        make_optimizer=VARIANTS["AdamW"],
        rule=no_decay_for_vectors,
        plain_optimizers=lambda model: [VARIANTS["AdamW"](by_rank(model))],
        clip_norm=clip_norm,
    )
    batches = make_batches(4)
    cluster = train_both(setup, batches)
    assert cluster.losses != train_plain(replace(setup, rule=None, plain_optimizers=None), batches)[0]
    if num_stages == 4:
        assert cluster.stages[3].updates.optimizers == {}
        assert cluster.stages[3].trainable == []


def biases_first(model: nn.Module) -> list[Any]:
    named = list(model.named_parameters())
    return [
        {"params": [each for name, each in named if name.endswith("bias")], "weight_decay": 0.0},
        {"params": [each for name, each in named if not name.endswith("bias")]},
    ]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_groups_of_a_module_that_is_replayed(parts: int) -> None:
    batches = modules.sentences(4)
    setup = ModuleSetup(
        build=modules.Language,
        sample=batches[0][0][0],
        parts=parts,
        loss=modules.token_loss,
        make_optimizer=VARIANTS["AdamW"],
        groups={"*bias": {"weight_decay": 0.0}},
        plain_optimizers=lambda model: [VARIANTS["AdamW"](biases_first(model))],
        clip_norm=0.1,
    )
    cluster = train_both_modules(setup, batches)
    orders = [len(stage.updates.optimizers[0].param_groups) for stage in cluster.stages.values()]
    assert orders == [2] * parts


def named(**shapes: tuple[int, ...]) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}


def choice(**changes: Any) -> OptimizerChoice:
    given: dict[str, Any] = {"make": torch.optim.SGD, "groups": {}, "rule": None}
    return OptimizerChoice(**(given | changes))


def test_the_first_pattern_that_matches_counts_and_empty_groups_are_left_out() -> None:
    [found] = allot(
        [choice(groups={"b": {"lr": 1}, "[ab]": {"lr": 2}, "?": {"lr": 3}})], named(a=(1,), b=(1,)), Where()
    )
    assert found.groups == (Group(options={"lr": 1}, names=("b",)), Group(options={"lr": 2}, names=("a",)))


def test_a_pattern_may_match_frozen_parameters_alone() -> None:
    parameters = named(a=(1,), b=(1,))
    parameters["a"].requires_grad_(False)
    [found] = allot([choice(groups={"a": {"lr": 1}})], parameters, Where())
    assert found.groups == (Group(options={}, names=("b",)),)


def test_rule_groups_come_in_the_order_of_first_asking() -> None:
    options = {"a": {"lr": 1, "momentum": 0}, "b": {}, "c": {"momentum": 0, "lr": 1}}
    [found] = allot([choice(rule=lambda name, _: options[name])], named(a=(1,), b=(1,), c=(1,)), Where())
    assert found.groups is not None
    assert [group.names for group in found.groups] == [("a", "c"), ("b",)]


def refused(given: OptimizerChoice, parameters: Mapping[str, nn.Parameter]) -> PipesvcError:
    with pytest.raises(PipesvcError) as caught:
        try_updates([given], None, Whole(parameters=parameters, sparse=frozenset()), Where(worker="w"))
    return caught.value


def failing_rule(name: str, parameter: nn.Parameter) -> dict[str, Any]:
    raise LookupError(name)


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (choice(groups={"*.bais": {}}), ErrorCode.INVALID_JOB, "'*.bais' of groups matches no parameter of the model"),
        (choice(groups={"A": {}}), ErrorCode.INVALID_JOB, "The model has a, b"),
        (choice(groups={"a": {"weight_decy": 0.0}}), ErrorCode.INVALID_JOB, "'a' the option 'weight_decy', which SGD"),
        (choice(make=int), ErrorCode.BUILD_FAILED, "making the optimizer: TypeError"),
        (choice(make=len), ErrorCode.INVALID_JOB, "the optimizer is a int"),
        (
            choice(make=torch.optim.Muon),
            ErrorCode.INVALID_JOB,
            "the optimizer does not take 'b': Muon only supports 2D",
        ),
        (choice(make=torch.optim.Muon), ErrorCode.INVALID_JOB, "with size: torch.Size([7])"),
        (choice(make=torch.optim.Muon, groups={"b": {"lr": 1.0}}), ErrorCode.INVALID_JOB, '={"b": pipesvc.Optimizer('),
        (choice(make=partial(torch.optim.AdamW, betas=(0.9, 1.5))), ErrorCode.BUILD_FAILED, "Invalid beta parameter"),
        (choice(make=partial(torch.optim.AdamW, fused=True, foreach=True)), ErrorCode.BUILD_FAILED, "cannot be `True`"),
        (choice(make=partial(torch.optim.AdamW, differentiable=True)), ErrorCode.INVALID_JOB, "Change the arguments"),
        (choice(rule=failing_rule), ErrorCode.BUILD_FAILED, "the rule of groups for 'a': LookupError"),
        (choice(rule=lambda *_: None), ErrorCode.INVALID_JOB, "the rule of groups gave NoneType None for 'a'"),
        (choice(rule=lambda *_: {"lr": torch.ones(())}), ErrorCode.INVALID_JOB, "dict of options with plain values"),
        (choice(rule=lambda *_: {3: 1}), ErrorCode.INVALID_JOB, "dict of options with plain values"),
    ],
)
def test_what_an_optimizer_would_not_take_is_refused_before_the_run(
    given: OptimizerChoice, code: ErrorCode, words: str
) -> None:
    error = refused(given, named(a=(1, 5), b=(7,)))
    assert error.code is code
    assert words in str(error)
    assert error.details.where.worker == "w"


def picky(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    raise RuntimeError("too small")


@pytest.mark.parametrize("make", [picky, partial(torch.optim.AdamW, capturable=True)])
def test_what_may_be_of_the_stand_ins_making_is_left_to_the_run(make: Callable[..., Any]) -> None:
    """Such as that they are on a CPU, while the stage may be on a GPU."""
    try_updates([choice(make=make)], None, Whole(parameters=named(a=(1,)), sparse=frozenset()), Where())


def test_muon_over_matrices_alone_is_tried_with_its_arguments() -> None:
    """Vectors have another optimizer; then a step shows what making it does not."""
    whole = Whole(parameters=named(a=(3, 5), b=(7,)), sparse=frozenset())
    rest = choice(pattern="b")
    try_updates([rest, choice(make=torch.optim.Muon)], None, whole, Where())
    with pytest.raises(PipesvcError, match=r"Muon cannot update 'a'.*Number of steps must be less than 100"):
        try_updates([rest, choice(make=partial(torch.optim.Muon, ns_steps=1000))], None, whole, Where())
