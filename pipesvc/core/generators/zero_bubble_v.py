"""ZB-V: a worker holds an early and a late stage, and the weight gradients fill what would be the bubble.

The pipeline goes down the workers and up again, so the worker that begins also ends: with equal times of F, I and W
no worker is idle between its first and its last action, with the activations of plain 1F1B.

Legend: p workers, r the index of a worker, m micro-batches. Worker r holds stages r and 2p - 1 - r.
Alive on a worker at most: min(2m, 2p) parts.
Source: Qi et al. 2023, arXiv:2401.10241, section 6.
"""

from __future__ import annotations

from collections import Counter

from pipesvc.core.actions import Action, forward, input_backward, weight_backward


def zero_bubble_v(worker: int, num_workers: int, num_parts: int, num_micro_batches: int) -> tuple[Action, ...]:
    """Made for 2p - 1 micro-batches at least, of which those that are not there are left out."""
    early, late = worker, 2 * num_workers - 1 - worker
    num_below = num_workers - worker  # this worker and those after it
    num_warm_up = 2 * num_below - 1 + worker  # forwards of the early stage
    num_full = max(2 * num_workers - 1, num_micro_batches)
    ahead = [(forward, early)]
    early_back = [(input_backward, early), (weight_backward, early)]
    late_all = [(forward, late), (input_backward, late), (weight_backward, late)]
    order = [
        # 1. Down the workers, until the first micro-batch has come up again.
        *ahead * (2 * num_below - 1),
        # 2. Early and late in turn.
        *[(forward, late), *ahead] * worker,
        # 3. The late stage gives its first gradients.
        *late_all * num_below,
        # 4. The steady state: all of both stages. The early forwards end first.
        *[*ahead, *early_back, *late_all] * (num_full - num_warm_up),
        *[*early_back, *late_all] * (num_warm_up - num_workers),
        # 5. The last gradients; W waits, since other workers wait for I.
        *[(input_backward, early), (input_backward, late)] * worker,
        *early_back * num_below,
        *[(weight_backward, late)] * worker,
        *[(weight_backward, early)] * worker,
    ]
    num_made: Counter[tuple[object, int]] = Counter()
    actions = []
    for make, stage in order:
        action = make(stage, num_made[make, stage])
        num_made[make, stage] += 1
        if (action.micro_batch or 0) < num_micro_batches:
            actions.append(action)
    return tuple(actions)
