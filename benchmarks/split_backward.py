"""What splitting a backward costs: I and W of a stage of GPT blocks beside its whole backward.

    python -m benchmarks.split_backward    # 7 rounds; writes benchmarks/results/split_backward.json

One stage between two others, without links: forwards and backwards of a step's micro-batches, as an executor runs
them. In a round the two take turns step by step, and the median of their steps counts: what is to be seen is smaller
than what a machine's speed drifts by within seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

import torch
from torch import Tensor

from benchmarks import gpt, results, rounds
from benchmarks.report import lines
from benchmarks.results import Result
from benchmarks.sizes import FULL
from pipesvc.model import malloc
from pipesvc.worker.data_trial import parcel_of
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.optimizing import Updates
from pipesvc.worker.executor.sequence_program import SequenceProgram
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage

NUM_BLOCKS: Final = 2
NUM_LINEARS: Final = 4  # of a block
NUM_MICRO_BATCHES: Final = 2
NUM_STEPS: Final = 5
AIM: Final = "ratio <= 1.03"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Of the blocks and of a micro-batch."""

    width: int
    num_heads: int
    num_rows: int
    num_tokens: int
    aim: str = ""

    def __str__(self) -> str:
        return f"{NUM_BLOCKS} GPT blocks of width {self.width}, {self.num_rows} x {self.num_tokens} tokens"


# That of the other benchmarks; and a small one, in which what Python costs shows.
SHAPES: Final = (
    Shape(
        width=FULL.model.width,
        num_heads=FULL.model.num_heads,
        num_rows=FULL.micro_batch_rows,
        num_tokens=FULL.model.context,
        aim=AIM,
    ),
    Shape(width=256, num_heads=4, num_rows=4, num_tokens=64),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """Seconds of one step."""

    step_s: float
    backward_s: float  # I and W together
    weights_s: float  # W of it


class Contender:
    def __init__(self, shape: Shape, *, splits: bool) -> None:
        torch.manual_seed(0)
        blocks = [(f"block{index}", gpt.Block(shape.width, shape.num_heads)) for index in range(NUM_BLOCKS)]
        spec = StageSpec(
            index=1,
            num_stages=3,
            first_layer=1,
            device=torch.device("cpu"),
            seed=0,
            loss=None,
            check_finite=False,
            splits_backward=splits,
        )
        self._splits = splits
        self._program = SequenceProgram(spec, blocks)
        self.stage = Stage(spec, self._program, lambda _: Updates())
        size = (shape.num_rows, shape.num_tokens, shape.width)
        self._inputs = _parcel(torch.randn(size), wants_gradient=True)
        self._gradients = _parcel(torch.randn(size), wants_gradient=False)
        self.step()  # what is split is found in the first one

    @property
    def num_split(self) -> int:
        return self._program.deferral.num_split

    def step(self) -> Times:
        begin_s, stage = time.perf_counter(), self.stage
        backward_s = weights_s = 0.0
        for index in range(NUM_MICRO_BATCHES):
            stage.forward(1, index, {0: self._inputs}, None)
            run = stage.input_backward if self._splits else stage.backward
            backward_s += _seconds(partial(run, 1, index, {2: self._gradients}, 1.0))
            if self._splits:
                weights_s += _seconds(partial(stage.weight_backward, index))
        end_s = time.perf_counter()
        self.gradients = [each.grad for each in stage.trainable]
        for each in stage.trainable:  # which an optimizer would do; a weight that has one before its step is not split
            each.grad = None
        stage.update(1, None)
        return Times(step_s=end_s - begin_s, backward_s=backward_s + weights_s, weights_s=weights_s)


def one_round(contenders: Sequence[Contender]) -> list[Times]:
    steps: list[list[Times]] = [[] for _ in contenders]
    for index in range(NUM_STEPS):
        for place in rounds.order(range(len(contenders)), index):
            steps[place].append(contenders[place].step())
    return [
        Times(
            step_s=median(each.step_s for each in own),
            backward_s=median(each.backward_s for each in own),
            weights_s=median(each.weights_s for each in own),
        )
        for own in steps
    ]


def figures(shape: Shape, num_rounds: int, command: str) -> list[Result]:
    with malloc.while_building():  # which leaves the allocator as an executor has it
        whole, split = Contender(shape, splits=False), Contender(shape, splits=True)
    other, mine = zip(*(one_round([whole, split]) for _ in range(num_rounds)), strict=True)
    _check_bits(whole, split)
    columns = {
        "forwards and backwards of a step": ([each.step_s for each in mine], [each.step_s for each in other]),
        "backwards of a step": ([each.backward_s for each in mine], [each.backward_s for each in other]),
    }
    found = [
        results.result(
            f"I and W, {what}, {shape}",
            rounds.spread([value * 1e3 for value in times]),
            unit="ms",
            against="whole backwards",
            ratio=rounds.spread(rounds.ratios(times, against)),
            aim=shape.aim,
            command=command,
            num_rounds=num_rounds,
        )
        for what, (times, against) in columns.items()
    ]
    shares = [each.weights_s / each.backward_s for each in mine]
    found.append(
        results.result(
            f"part of a backward that can wait, {shape}",
            rounds.spread(shares),
            unit="of I and W",
            command=command,
            num_rounds=num_rounds,
        )
    )
    return found


def _check_bits(whole: Contender, split: Contender) -> None:
    if split.num_split != NUM_BLOCKS * NUM_LINEARS:
        raise SystemExit(f"of {NUM_BLOCKS * NUM_LINEARS} layers {split.num_split} were split")
    pairs = zip(whole.gradients, split.gradients, strict=True)
    if not all(one is not None and other is not None and torch.equal(one, other) for one, other in pairs):
        raise SystemExit("the gradients of the two differ")


def _parcel(value: Tensor, *, wants_gradient: bool) -> Parcel:
    return parcel_of(value.requires_grad_(wants_gradient))


def _seconds(call: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    call()
    return time.perf_counter() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to split backwards into I and W.")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.split_backward --rounds {arguments.rounds}"
    found = [figure for shape in SHAPES for figure in figures(shape, arguments.rounds, command)]
    print("\n".join(lines(found)))
    results.write(results.FOLDER / "split_backward.json", found)


if __name__ == "__main__":
    main()
