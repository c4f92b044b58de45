"""Tokens per second of pipesvc beside torch.distributed.pipelining: a GPT on two processes of one thread each.

    python -m benchmarks.pipeline                    # 7 rounds; writes benchmarks/results/pipeline.json
    python -m benchmarks.pipeline --tiny --rounds 1  # does it work? writes nothing

All contenders train the same layers with the same weights on the same batch, cut at the same place into the same
micro-batches, with the same optimizer. A turn is one contender's run from its start to its end: processes are started
for it, some steps warm up, and the time counts from the end of the last of these to the end of the last step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from benchmarks import results, rounds, service_turn, torch_turn
from benchmarks.report import lines
from benchmarks.results import Result
from benchmarks.rounds import Turn
from benchmarks.sizes import FULL, TINY, Sizes

NUM_PROCESSES: Final = 2
AIM: Final = "ratio >= 0.95"
SINGLE: Final = "one process, one thread"
TORCH: Final = "torch 1F1B over gloo"
OURS: Final = "pipesvc 1F1B"

RunTurn = Callable[[], Turn]


def contenders(sizes: Sizes) -> dict[str, RunTurn]:
    """In the order of the even rounds: the two that the aim compares follow each other."""
    torch_run = partial(torch_turn.run_turn, sizes, num_processes=NUM_PROCESSES)
    service_run = partial(service_turn.run_turn, sizes, num_workers=NUM_PROCESSES)
    return {
        SINGLE: partial(torch_turn.run_turn, sizes, schedule="", num_processes=1),
        "torch GPipe over gloo": partial(torch_run, schedule="GPipe"),
        # Without being told, torch joins the outputs of all micro-batches into one tensor at the end of a step.
        "torch 1F1B over gloo, return_outputs=False": partial(torch_run, schedule="1F1B", keeps_outputs=False),
        TORCH: partial(torch_run, schedule="1F1B"),
        OURS: partial(service_run, schedule="1F1B"),
        "pipesvc GPipe": partial(service_run, schedule="GPipe"),
        "pipesvc 1F1B, in_flight=3": partial(service_run, schedule="1F1B", in_flight=3),
        "pipesvc 1F1B, in_flight=4": partial(service_run, schedule="1F1B", in_flight=4),
    }


def measure(runs: Mapping[str, RunTurn], num_rounds: int, num_tokens: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {name: [] for name in runs}
    for round_index in range(num_rounds):
        for name in rounds.order(list(runs), round_index):
            turn = runs[name]()
            turns[name].append(turn)
            print(
                f"round {round_index + 1} of {num_rounds}: {turn.tokens_per_s(num_tokens):9.0f} tokens/s  {name}",
                flush=True,
            )
    return turns


def figures(turns: Mapping[str, Sequence[Turn]], num_tokens: int, command: str) -> list[Result]:
    speeds = {name: [turn.tokens_per_s(num_tokens) for turn in own] for name, own in turns.items()}
    num_rounds = len(turns[OURS])
    found = []
    for name in sorted(speeds, key=lambda name: name != OURS):
        is_torch = name == TORCH
        found.append(
            results.result(
                f"GPT, {NUM_PROCESSES} workers: {name}" if name != SINGLE else f"GPT: {name}",
                rounds.spread(speeds[name]),
                unit="tokens/s",
                against="" if is_torch else TORCH,
                ratio=None if is_torch else rounds.spread(rounds.ratios(speeds[name], speeds[TORCH])),
                aim=AIM if name == OURS else "",
                command=command,
                num_rounds=num_rounds,
            )
        )
    difference, whose = rounds.largest_loss_difference(turns, SINGLE)
    print(f"largest relative difference of a loss: {difference:.3g}" + (f", of {whose}" if difference else ""))
    found.append(
        results.result(
            f"GPT: largest relative difference of a loss in the first {rounds.NUM_COMPARED_STEPS} steps, any contender",
            rounds.spread([difference]),
            unit="of the loss",
            against=SINGLE,
            aim=f"value <= {rounds.LOSS_TOLERANCE:g}",
            command=command,
            num_rounds=num_rounds,
        )
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second beside torch.distributed.pipelining.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="a small model, to see that it works; writes nothing")
    arguments = parser.parse_args()
    sizes = TINY if arguments.tiny else FULL
    command = f"python -m benchmarks.pipeline --rounds {arguments.rounds}" + (" --tiny" if arguments.tiny else "")
    turns = measure(contenders(sizes), arguments.rounds, sizes.num_tokens)
    found = figures(turns, sizes.num_tokens, command)
    print("\n".join(lines(found)))
    if not arguments.tiny:
        results.write(results.FOLDER / "pipeline.json", found)


if __name__ == "__main__":
    main()
