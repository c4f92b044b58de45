"""Tied weights across stages: the bits of one process, and every copy equal to its owner's after every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pipesvc.core.flow import parameters_of
from pipesvc.errors import PipesvcError, Where
from pipesvc.worker.executor.parts import make_parts
from tests.unit.executor import modules
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import train
from tests.unit.executor.owners import owners_of
from tests.unit.executor.tied_models import (
    LISTS,
    MODULES,
    EncoderDecoder,
    Functional,
    Tied,
    Words,
    make_setup,
    tied_layers,
    train_both,
    train_plain,
)
from tests.unit.model.replay_language import VOCABULARY, D

NAMES = [*MODULES, *LISTS]
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "ZBV")
STAGES = (2, 3, 4)
MICRO_BATCHES = (1, 2, 3, 8)
# Each two values of model, schedule, stages and micro-batches meet, but for ZBV, which takes even numbers of stages.
CASES = [
    (name, schedule, 4 if (schedule, stages) == ("ZBV", 3) else stages, MICRO_BATCHES[(one + 3 * other) % 4])
    for (one, name), (other, schedule) in product(enumerate(NAMES), enumerate(SCHEDULES))
    for stages in [STAGES[(one + other) % 3]]
]


def test_the_cases_cover_all_pairs() -> None:
    axes = (NAMES, SCHEDULES, STAGES, MICRO_BATCHES)
    for one, other in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        wanted = set(product(axes[one], axes[other])) - {("ZBV", 3)}
        assert {(case[one], case[other]) for case in CASES} >= wanted


@pytest.mark.parametrize(("name", "schedule", "num_stages", "m"), CASES)
def test_a09_every_partition_and_schedule_has_the_bits_of_one_process(
    name: str, schedule: str, num_stages: int, m: int
) -> None:
    owners = "aba" if (schedule, num_stages) == ("GPipe", 3) else owners_of(schedule, num_stages)
    setup = make_setup(name, num_stages, schedule=schedule, owners=list(owners))
    assert setup.plan.ties
    train_both(setup, modules.sentences(m))


@pytest.mark.parametrize("owners", ["aaaa", "abba", "aabb"])
@pytest.mark.parametrize("name", NAMES)
def test_stages_of_one_worker_hold_one_tensor(name: str, owners: str) -> None:
    """It is updated once and sent once, and what the owner has summed up is not what a later stage begins with."""
    setup = make_setup(name, 4, owners=list(owners))
    cluster = train_both(setup, modules.sentences(4))
    wanted: Counter[str] = Counter()
    for tie in setup.plan.ties:
        held = {(owners[stage], id(cluster.stages[stage].tied_parameter(tie.name))) for stage in tie.stages}
        workers = {owners[stage]: stage for stage in reversed(tie.stages)}
        assert len(held) == len(workers)
        wanted |= Counter(f"{tie.owner}>{stage}/weight" for stage in workers.values() if stage != tie.owner)
    sent = {str(link): count for link, count in cluster.network.sent.items() if str(link).endswith("/weight")}
    assert sent == {link: 3 * count for link, count in wanted.items()}
    assert bool(sent) == {"aaaa": False, "aabb": True}.get(owners, bool(wanted))


@pytest.mark.parametrize("name", ["parameter", "functional", "layers"])
def test_n10_an_embedding_tied_to_the_head_counts_once_in_the_norm(name: str) -> None:
    """Ten steps of Adam, in which clipping decides the weights; copies are compared after every one of them."""
    options = {"make_optimizer": partial(torch.optim.Adam, lr=0.01)}
    setup = make_setup(name, 2, owners=["a", "b"], **options)
    batches = modules.sentences(4, num_steps=10)
    cluster = train_both(setup, batches)
    assert setup.plan.ties[0].stages == (0, 1)
    whole = setup.build() if isinstance(setup, ModuleSetup) else nn.Sequential(*setup.make_layers())
    held = [name for stage in cluster.stages.values() for name in stage.named_parameters()]
    assert sorted(held) == sorted(name for name, _ in whole.named_parameters())
    plain = make_setup(name, 2, owners=["a", "b"], clip_norm=0.0, **options)
    assert train_plain(plain, batches)[0] != cluster.losses


def test_n10_links_of_a_step() -> None:
    """Gradients of one micro-batch after the other, new values once."""
    setup = make_setup("encoder-decoder", 3, ends=(2, 4, 6))
    cluster = train_both(setup, modules.sentences(4))
    assert [(tie.name, tie.stages) for tie in setup.plan.ties] == [("wte.weight", (0, 1, 2))]
    sent = {str(link): count for link, count in cluster.network.sent.items()}
    assert {link: count for link, count in sent.items() if "weight" in link} == {"0>1/weight": 3, "0>2/weight": 3}
    assert {link: count for link, count in sent.items() if "gradient" in link} == {
        "2>1/gradient": 12,
        "1>0/gradient": 12,
    }


def frozen_layers() -> list[nn.Module]:
    layers = tied_layers()
    layers[0].requires_grad_(False)
    layers[2].requires_grad_(False)
    return layers


class FrozenTable(Functional):
    def __init__(self) -> None:
        super().__init__()
        self.wte.requires_grad_(False)


@pytest.mark.parametrize(
    ("name", "options"), [("functional", {"build": FrozenTable}), ("layers", {"make_layers": frozen_layers})]
)
def test_what_is_frozen_is_held_by_each_and_never_sent(name: str, options: dict[str, Any]) -> None:
    setup = make_setup(name, 3, **options)
    assert [tie.is_trained for tie in setup.plan.ties] == [False] * len(setup.plan.ties) != []
    cluster = train_both(setup, modules.sentences(2))
    sent = {str(link) for link in cluster.network.sent}
    assert not {link for link in sent if link.endswith("/weight")}
    assert "2>0/gradient" not in sent


class Shifted(Functional):
    """A buffer that all stages use."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((D,), 0.5))

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        h = self.wte(ids) * self.scale
        for block in self.h:
            h = block(h) * self.scale
        return F.linear(h, self.wte.weight)


def test_a_buffer_of_several_stages_is_saved_by_one() -> None:
    setup = make_setup("functional", 3, build=Shifted)
    assert isinstance(setup, ModuleSetup)
    assert sum("scale" in parameters_of(setup.flow, setup.plan.ends, stage) for stage in range(3)) == 3
    train_both(setup, modules.sentences(2))


class Sparse(EncoderDecoder):
    """Its embedding is looked up in two stages, and nothing makes the gradient dense."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D, sparse=True)
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        memory = self.encoder[1](self.encoder[0](self.wte(ids)))
        logits: Tensor = self.head(self.decoder[0](self.wte(padding + 1), memory))
        return logits


def test_a_sparse_gradient_that_would_have_to_be_sent_is_refused() -> None:
    options: dict[str, Any] = {"make_optimizer": partial(torch.optim.SGD, lr=0.1), "clip_norm": 0.0}
    setup = make_setup("encoder-decoder", 2, build=Sparse, ends=(2, 5), **options)
    with pytest.raises(PipesvcError, match=r"the gradient of 'wte\.weight', .* is sparse") as caught:
        train(setup, modules.sentences(2, num_steps=1))
    assert caught.value.details.advice.startswith("Use sparse=False, or put all uses of the parameter into one stage")
    train_both(make_setup("encoder-decoder", 2, build=Sparse, ends=(3, 5), **options), modules.sentences(2))


def hooked(weight: Any, *, is_after: bool) -> None:
    """Doubles what the parameter gets."""
    if is_after:
        weight.register_post_accumulate_grad_hook(lambda each: each.grad.mul_(2))
    else:
        weight.register_hook(lambda gradient: 2 * gradient)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("name", ["parameter", "layers"])
def test_a_hook_that_would_see_a_part_of_the_gradient_is_refused(name: str, is_after: bool) -> None:
    def layers() -> list[nn.Module]:
        made = tied_layers()
        hooked(made[-1].weight, is_after=is_after)
        return made

    def build() -> nn.Module:
        made = MODULES["parameter"]()
        hooked(made.get_parameter("lm_head.weight"), is_after=is_after)
        return made

    options: dict[str, Any] = {"build": build} if name == "parameter" else {"make_layers": layers}
    with pytest.raises(PipesvcError, match=r"which several stages use, has a hook") as caught:
        train(make_setup(name, 2, **options), modules.sentences(2, num_steps=1))
    assert caught.value.details.advice.endswith("put all uses of the parameter into one stage")


class Bounded(Tied):
    """Its embedding shrinks rows when they are looked up, which the head sees."""

    def __init__(self) -> None:
        super().__init__()
        self.wte.max_norm = 0.5


def bounded_layers() -> list[nn.Module]:
    words, *others = tied_layers()
    assert isinstance(words, Words)
    words.table.max_norm = 0.5
    return [words, *others]


def test_what_forward_writes_to_is_used_in_one_stage() -> None:
    """Of a module no cut comes between its uses; of a list, whose forward is not seen before, the step says it."""
    setup = make_setup("parameter", 2, build=Bounded)
    assert isinstance(setup, ModuleSetup)
    with pytest.raises(PipesvcError, match=r"'wte\.weight' is used in both and changes in forward"):
        train(setup, modules.sentences(2, num_steps=1))
    with pytest.raises(
        PipesvcError, match=r"writes to a parameter that several stages use \('0\.table\.weight'"
    ) as found:
        train(make_setup("layers", 2, make_layers=bounded_layers), modules.sentences(2, num_steps=1))
    assert found.value.details.where.stage == 0
    train_both(make_setup("layers", 1, make_layers=bounded_layers), modules.sentences(2))
    train_both(make_setup("parameter", 1, build=Bounded), modules.sentences(2))


@pytest.mark.parametrize("name", ["parameter", "layers"])
def test_two_devices_of_a_worker_hold_a_tensor_each(name: str) -> None:
    """`cpu` and `cpu:0` are two devices to a plan."""
    setup = make_setup(name, 3, owners=["a"] * 3)
    devices = ("cpu", "cpu", "cpu:0")
    stages = (replace(stage, device=device) for stage, device in zip(setup.plan.stages, devices, strict=True))
    plan = replace(setup.plan, stages=tuple(stages))
    specs = [replace(setup.spec(index), device=torch.device(device)) for index, device in enumerate(devices)]
    build: Any = setup.build if isinstance(setup, ModuleSetup) else setup.make_layers
    programs = make_parts(build, plan, specs, Where()).programs
    tie = plan.ties[0]
    one, other = (programs[stage].tied_parameter(tie.name) for stage in (0, 2))
    assert one is not other
    assert torch.equal(one, other)
    assert (0, 2) in plan.weight_transfers
    assert (0, 2) not in setup.plan.weight_transfers


def ten_layers() -> list[nn.Module]:
    """The first one has a weight with each of the others."""
    first = nn.Sequential(Words(), *(nn.Linear(D, D) for _ in range(9)))
    others = [nn.Linear(D, D) for _ in range(9)]
    for index, other in enumerate(others, 1):
        other.weight = first.get_submodule(str(index)).weight  # type: ignore[assignment]
    return [first, *others[:-1], nn.Sequential(others[-1], nn.Linear(D, VOCABULARY))]


def test_more_stages_on_a_worker_than_a_schedule_looks_ahead() -> None:
    """Eight wait with their update for new weights while the ninth has work to do."""
    setup = make_setup("layers", 10, make_layers=ten_layers, owners=["a", *"b" * 9], clip_norm=0.0)
    assert [tie.stages for tie in setup.plan.ties] == [(0, stage) for stage in range(1, 10)]
    train_both(setup, modules.sentences(2))
