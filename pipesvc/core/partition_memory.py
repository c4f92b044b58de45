"""The bytes that a stage needs on its device, as one sum with named parts.

Apart from the search, because the same sum decides whether a plan is refused and is shown to the user when it is. It
takes single stages and arrays of stages alike: the search asks about every stage of a length at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesvc.core.costs import Costs
from pipesvc.core.layer_info import SharedParameter
from pipesvc.core.memory import slot_parcels

IntArray = npt.NDArray[np.int64]

# The parts of a stage's memory that are no differences between its ends.
SLOTS: Final = "link slots"
COPIES: Final = "copies of shared parameters"


class Alive(NamedTuple):
    """Micro-batches that have been forwarded and not yet backwarded: on a stage, and on the one before it."""

    here: int
    before: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySums:
    """Bytes of the layers before each index (L + 1 entries), and bytes that cross at each index, 0 at both ends.

    Copies do not add up over layers: a stage holds a shared parameter once, however many of its layers use it.
    """

    weights: IntArray
    gradients: IntArray
    optimizer_state: IntArray
    buffers: IntArray
    activations: IntArray  # of one micro-batch
    forward: IntArray  # crossing, of one micro-batch
    backward: IntArray  # likewise
    copies: IntArray | None  # [L + 1, L + 1] of a stage from a first layer to an end; None: nothing is shared


def memory_sums(costs: Costs, forward: IntArray, backward: IntArray) -> MemorySums:
    layers, shared = costs.layers, _shared(costs)
    return MemorySums(
        weights=prefix_sums([layer.parameter_bytes for layer in layers]),
        gradients=prefix_sums([layer.gradient_bytes for layer in layers]),
        optimizer_state=prefix_sums([layer.optimizer_bytes for layer in layers]),
        buffers=prefix_sums([layer.buffer_bytes for layer in layers]),
        activations=prefix_sums([layer.activation_bytes for layer in layers]),
        forward=forward,
        backward=backward,
        copies=_copies(len(layers), shared) if shared else None,
    )


def _shared(costs: Costs) -> list[tuple[list[int], int]]:
    """Of each shared parameter: the layers that use it, ascending, and what a copy takes (see `stage_costs`)."""
    flow = costs.flow
    if flow is not None:
        users = {each.name: sorted({max(user, 0) for user in flow.parameters[each.name]}) for each in flow.shared}
        return [(users[each.name], each.num_bytes * (1 + each.is_trained)) for each in flow.shared]
    holders: dict[SharedParameter, list[int]] = {}
    for index, layer in enumerate(costs.layers):
        for each in layer.shared:
            holders.setdefault(each, []).append(index)
    return [(held, each.num_bytes) for each, held in holders.items()]


def _copies(num_layers: int, shared: Sequence[tuple[Sequence[int], int]]) -> IntArray:
    """The first user of a parameter counts it with its layer; each stage that begins later and uses it has a copy."""
    found = np.zeros((num_layers + 1, num_layers + 1), np.int64)
    for users, copy_bytes in shared:
        for before, user in pairwise(users):
            found[before + 1 : user + 1, user + 1 :] += copy_bytes
    return found


def prefix_sums(values: Sequence[int]) -> IntArray:
    """Entry i is the sum of the first i values."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(values, np.int64))])


def memory_parts(sums: MemorySums, first: Any, end: Any, alive: Alive) -> dict[str, Any]:
    """What stages [first, end) hold at once, in bytes; `first` and `end` are integers or arrays of them.

    The same sum as `memory.device_memory`, but that slots are counted between two devices of one worker too. Copies for
    snapshots are not made yet and count nothing.
    """
    copies = {} if sums.copies is None else {COPIES: sums.copies[first, end]}
    return {
        "weights": sums.weights[end] - sums.weights[first],
        "gradients": sums.gradients[end] - sums.gradients[first],
        "optimizer state": sums.optimizer_state[end] - sums.optimizer_state[first],
        "activations": alive.here * (sums.activations[end] - sums.activations[first]),
        "buffers": sums.buffers[end] - sums.buffers[first],
        **copies,
        SLOTS: slot_parcels(alive.before) * sums.forward[first] + slot_parcels(alive.here) * sums.backward[end],
    }
