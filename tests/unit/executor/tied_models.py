"""Models whose weights are used in several places, as users write them, and their jobs on the in-memory network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pipesvc.core.edges import Edges, edges_of
from pipesvc.core.plan import Plan, StagePlan
from pipesvc.core.ties import ties_of_layers
from pipesvc.errors import Where
from pipesvc.worker.executor.parts import Parts, make_parts
from pipesvc.worker.executor.spec import StageSpec
from tests.unit.executor import module_network, modules, network
from tests.unit.executor.batches import Batch, PlainRun
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import Cluster, Setup
from tests.unit.model.ranges import inspect_layers
from tests.unit.model.replay_language import VOCABULARY, Block, Cross, D

ADAM = partial(torch.optim.AdamW, lr=0.01)


class Tied(modules.Language):
    """The head's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__(p=0.1)
        self.lm_head.weight = self.wte.weight


class Functional(modules.Language):
    """An operation of the root uses the embedding's weight, and the head is left over."""

    def __init__(self) -> None:
        super().__init__(p=0.1)
        del self.lm_head

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        h = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        for block in self.h:
            h = block(h)
        return F.linear(self.ln_f(h), self.wte.weight)


class EncoderDecoder(nn.Module):
    """Like T5: one embedding at the start of the encoder, at the start of the decoder, and as the head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.encoder = nn.ModuleList(Block(0.1) for _ in range(2))
        self.decoder = nn.ModuleList(Cross() for _ in range(3))

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        memory = self.wte(ids)
        for block in self.encoder:
            memory = block(memory)
        h = self.wte(padding + 1)
        for block in self.decoder:
            h = block(h, memory)
        return F.linear(h, self.wte.weight)


class Looped(nn.Module):
    """A block that is called at the start, in the middle and at the end, where it is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.again = Block(0.1)
        self.h = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        h = self.again(self.wte(ids))
        for index, block in enumerate(self.h):
            h = block(h)
            if index % 2:
                h = self.again(h)
        logits: Tensor = self.head(self.again(h))
        return logits


class Words(nn.Module):
    """The embedding of a list of layers, which takes the dict of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, D)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        result: Tensor = self.table(inputs["ids"])
        return result


def tied_layers() -> list[nn.Module]:
    """Head and embedding are one weight, and so are two inner ones."""
    words, head = Words(), nn.Linear(D, VOCABULARY)
    blocks = [Block(0.1) for _ in range(4)]
    head.weight = words.table.weight
    first, last = blocks[1].feed[1], blocks[3].feed[1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    last.weight = first.weight
    return [words, *blocks, nn.Dropout(0.1), head]


def repeated_layers() -> list[nn.Module]:
    """One block in four places, two of them next to each other."""
    block = Block(0.1)
    return [Words(), block, nn.Tanh(), block, block, Block(), block, nn.Linear(D, VOCABULARY)]


@dataclass(frozen=True, kw_only=True)
class ListSetup(Setup):
    """Stages of a list of layers, planned and built as in a run."""

    @cached_property
    def plan(self) -> Plan:
        infos = inspect_layers(self.make_layers)
        ends = [*self.cuts, len(infos)]
        stages = tuple(
            StagePlan(
                index=index,
                label=f"stage:{index}",
                worker=self.workers[index],
                device="cpu",
                first_layer=self.first_layer(index),
                end_layer=end,
                layer_names=tuple(info.name for info in infos[self.first_layer(index) : end]),
            )
            for index, end in enumerate(ends)
        )
        plan = Plan(
            stages=stages,
            schedule=self.schedule,
            micro_batches=1,
            feeder_worker=self.workers[0],
            threads={},
            ties=ties_of_layers([info.shared for info in infos], ends),
        )
        return Plan.from_json(plan.to_json())

    def edges(self, *, has_labels: bool) -> Edges:
        return edges_of(self.plan, has_labels=has_labels, decides=self.decides)

    def make_parts(self, specs: Sequence[StageSpec]) -> Parts:
        return make_parts(self.make_layers, self.plan, specs, Where())


MODULES: dict[str, Callable[[], nn.Module]] = {
    "parameter": Tied,
    "functional": Functional,
    "encoder-decoder": EncoderDecoder,
    "looped": Looped,
}
LISTS: dict[str, Callable[[], list[nn.Module]]] = {"layers": tied_layers, "repeated layers": repeated_layers}


def make_setup(name: str, num_stages: int, **options: Any) -> ModuleSetup | ListSetup:
    options = {"loss": modules.token_loss, "make_optimizer": ADAM, "clip_norm": 0.1} | options
    if name in MODULES:
        sample = modules.sentences(4)[0][0][0]
        return ModuleSetup(**{"build": MODULES[name], "sample": sample, "parts": num_stages} | options)
    options = {"make_layers": LISTS[name]} | options
    number = len(options["make_layers"]())
    cuts = [number * stage // num_stages for stage in range(1, num_stages)]
    return ListSetup(**{"cuts": cuts} | options)


def train_plain(setup: ModuleSetup | ListSetup, batches: Sequence[Batch]) -> PlainRun:
    if isinstance(setup, ModuleSetup):
        return module_network.train_plain(setup, batches)
    return network.train_plain(setup, batches)


def train_watched(setup: ModuleSetup | ListSetup, batches: Sequence[Batch]) -> Cluster:
    """Step by step: after each, every copy must be equal to what its owner has. Gives the closed cluster."""
    cluster = Cluster(setup, has_labels=True)
    for step, batch in enumerate(batches, 1):
        cluster.issue(step, batch)
        cluster.turn_until_idle()
        applied = [each for each in cluster.reported("step_applied") if each.step == step]
        assert len(applied) == setup.num_stages, [each.awaiting for each in cluster.reported("progress")][-4:]
        cluster.losses.append(next(each.loss for each in applied if each.stage == setup.num_stages - 1))
        for tie in setup.plan.ties:
            held = [cluster.stages[stage].tied_parameter(tie.name) for stage in tie.stages]
            assert all(torch.equal(each, held[0]) for each in held), f"{tie.name} after step {step}"
            assert all(each.grad is None for each in held if each.requires_grad)
    cluster.close()
    return cluster


def train_both(setup: ModuleSetup | ListSetup, batches: Sequence[Batch]) -> Cluster:
    """With the bits of one process, and each name of the state dict from one stage alone."""
    cluster = train_watched(setup, batches)
    losses, state = train_plain(setup, batches)
    assert cluster.losses == losses
    names = [name for stage in cluster.stages.values() for name in stage.state_dict()]
    assert sorted(names) == sorted(state)
    found = cluster.state()
    assert [name for name in state if not torch.equal(found[name], state[name])] == []
    return cluster
