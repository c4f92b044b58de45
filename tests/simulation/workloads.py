"""Steps to simulate: equal stages for formulas, lists written by hand or by chance for everything else."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipesvc.core.actions import Action, ActionKind, needs, results
from pipesvc.core.costs import LinkCost
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.step_graph import LinkOf

# Schedules whose backward is whole, and those that may have any stage on any worker.
WHOLE = ("naive", "GPipe", "1F1B")
ANYWHERE = (*WHOLE, "ZBH1")


def equal_stages(
    homes: int | Sequence[Sequence[int]], *, forward_s: float = 1, backward_s: float = 2
) -> tuple[StageCost, ...]:
    """So many stages, each on a worker of its own; or worker w holds the stages `homes[w]`."""
    groups = [[stage] for stage in range(homes)] if isinstance(homes, int) else homes
    worker_of = {stage: f"w{worker}" for worker, stages in enumerate(groups) for stage in stages}
    return tuple(
        StageCost(worker=worker_of[stage], forward_s=forward_s, backward_s=backward_s) for stage in sorted(worker_of)
    )


def hops(latency_s: float, bytes_per_s: float = float("inf")) -> LinkOf:
    """The same between any two workers."""
    return lambda sender, receiver: LinkCost(latency_s=latency_s, bytes_per_s=bytes_per_s)


def random_lists(
    homes: Sequence[str], *, num_micro_batches: int, decides: bool, is_split: bool, seed: int
) -> dict[str, list[Action]]:
    """Lists in the order of a run in which, again and again, any one of the actions that could run did.

    Micro-batches of a kind and stage ascend, and the update is a stage's last. `is_split` has I and W for every B.
    """
    chance, num_stages = random.Random(seed), len(homes)
    kinds = [ActionKind.FORWARD]
    kinds += [ActionKind.INPUT_BACKWARD, ActionKind.WEIGHT_BACKWARD] if is_split else [ActionKind.BACKWARD]
    queues = [
        [Action(stage, kind, index) for index in range(num_micro_batches)]
        for stage in range(num_stages)
        for kind in kinds
    ]
    once = [ActionKind.NORM, ActionKind.UPDATE] if decides else [ActionKind.UPDATE]
    queues += [[Action(stage, kind)] for stage in range(num_stages) for kind in once]
    queues += [[Action(0, ActionKind.DECIDE)]] if decides else []
    lists: dict[str, list[Action]] = {worker: [] for worker in dict.fromkeys(homes)}
    made: set[object] = set()
    while queues:
        able = [
            queue
            for queue in queues
            if made.issuperset(
                needs(queue[0], num_stages=num_stages, num_micro_batches=num_micro_batches, decides=decides)
            )
        ]
        queue = chance.choice(able)
        action = queue.pop(0)
        lists[homes[action.stage]].append(action)
        made.update(results(action))
        queues = [each for each in queues if each]
    return lists
