"""What pipesvc itself costs beside the model's own arithmetic, in one process without a network.

    python -m benchmarks.replay    # 9 rounds, about 40 s; writes benchmarks/results/replay.json

Two figures. Replay: the last of four stages of a GPT of 24 blocks runs the model's own forward, in which 18 blocks are
skipped; the time of its forward beyond that of its own layers called directly, for a micro-batch. One stage: a step of
a whole GPT through stage and runtime, as an executor runs it, against a plain loop over the same micro-batches.
Contenders take turns within a round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from benchmarks import gpt, results, rounds
from benchmarks.report import lines
from benchmarks.results import Result
from pipesvc.core.flow import parameters_of, transfers
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.record import record
from pipesvc.model.replay.run import StageReplay
from pipesvc.model.skeleton import build_module
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.network import Cluster

VOCABULARY: Final = 512
NUM_BLOCKS: Final = 24
NUM_STAGES: Final = 4
REPLAY_AIM: Final = "value <= 3"
ONE_STAGE_AIM: Final = "ratio < 1.03"


class Gpt(nn.Module):
    """With a forward of its own, so that it is replayed."""

    def __init__(self, width: int, num_heads: int, num_blocks: int, context: int) -> None:
        super().__init__()
        self.embed = gpt.Embed(VOCABULARY, width, context)
        self.blocks = nn.ModuleList(gpt.Block(width, num_heads) for _ in range(num_blocks))
        self.head = gpt.Head(VOCABULARY, width)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        scores: Tensor = self.head(h)
        return scores


def seconds_of(call: Callable[[], object], num_calls: int) -> float:
    started_s = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - started_s) / num_calls


def replay_figure(num_rounds: int, command: str) -> Result:
    """Narrow layers: replay costs the same for wide ones, and the difference of two times is then less certain."""

    def build() -> Gpt:
        return Gpt(width=32, num_heads=2, num_blocks=NUM_BLOCKS, context=16)

    ids = torch.randint(VOCABULARY, (2, 16))
    flow = record(build_module(build, 0, ()), Inputs((ids,)))
    units = [unit.name for unit in flow.units]
    ends = [units.index(f"blocks.{NUM_BLOCKS * stage // NUM_STAGES}") for stage in range(1, NUM_STAGES)] + [len(units)]
    last = NUM_STAGES - 1
    model = build_module(build, 0, parameters_of(flow, ends, last))
    stage = StageReplay(model, flow, ends, last, torch.device("cpu"))
    (key,) = transfers(flow, ends)[last - 1, last]
    hidden = torch.randn(2, 16, 32, requires_grad=True)
    own = [model.get_submodule(name) for name in units[ends[-2] :]]

    def directly() -> None:
        h = hidden.detach().requires_grad_()
        for layer in own:
            h = layer(h)

    def replayed() -> None:
        stage.forward(Inputs((ids,)), {key: hidden})

    found_ms = []
    for index in range(num_rounds + 1):
        order = rounds.order([directly, replayed], index)
        taken_s = {call: seconds_of(call, 40) for call in order}
        found_ms.append((taken_s[replayed] - taken_s[directly]) * 1e3)
    return results.result(
        f"replay, last of {NUM_STAGES} stages, {NUM_BLOCKS} blocks, forward of a micro-batch beyond its own layers",
        rounds.spread(found_ms[1:]),  # the first round warms up
        unit="ms",
        aim=REPLAY_AIM,
        command=command,
        num_rounds=num_rounds,
    )


def one_stage_figure(num_rounds: int, command: str) -> Result:
    num_micro_batches, num_rows, context = 4, 8, 128

    def build() -> Gpt:
        return Gpt(width=256, num_heads=4, num_blocks=6, context=context)

    ids, targets = gpt.random_batch(num_rows, context, VOCABULARY, seed=1)
    batch = batch_of({"ids": ids}, targets, num_rows, num_micro_batches)
    setup = ModuleSetup(build=build, sample=None, parts=1, is_recorded=False, loss=gpt.token_loss)
    cluster = Cluster(setup, has_labels=True)
    step = 0

    def through_pipesvc() -> None:
        nonlocal step
        step += 1
        cluster.issue(step, batch)
        cluster.turn_until_idle()

    plainly = plain_step(setup, batch)
    pairs = []
    for index in range(num_rounds + 1):
        order = rounds.order([plainly, through_pipesvc], index)
        taken_s = {call: seconds_of(call, 2) for call in order}
        pairs.append((taken_s[through_pipesvc], taken_s[plainly]))
    cluster.close()
    del pairs[0]  # warms up
    return results.result(
        f"one stage, GPT of 6 blocks of width 256, {num_rows} x {context} tokens in {num_micro_batches} micro-batches",
        rounds.spread([ours_s for ours_s, _ in pairs]),
        unit="s/step",
        against="the plain loop",
        ratio=rounds.spread([ours_s / plain_s for ours_s, plain_s in pairs]),
        aim=ONE_STAGE_AIM,
        command=command,
        num_rounds=num_rounds,
    )


def plain_step(setup: ModuleSetup, batch: Batch) -> Callable[[], None]:
    model = setup.build()
    optimizer = setup.make_optimizer(list(model.parameters()))
    inputs, labels, weights = batch
    assert labels is not None

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        for each, targets, weight in zip(inputs, labels, weights, strict=True):
            loss = gpt.token_loss(model(**each), targets)
            torch.autograd.backward(loss * (weight / sum(weights)))
            loss.item()
        optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="What replay and one stage cost beside the model itself.")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.replay --rounds {arguments.rounds}"
    found = [figure(arguments.rounds, command) for figure in (replay_figure, one_stage_figure)]
    print("\n".join(lines(found)))
    results.write(results.FOLDER / "replay.json", found)


if __name__ == "__main__":
    main()
