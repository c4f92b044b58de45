"""The bytes that a stage needs on its device, as one sum with named parts.

Apart from the search, because the same sum decides whether a plan is refused and is shown to the user when it is. It
takes single stages and arrays of stages alike: the search asks about every stage of a length at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesvc.core.costs import LayerCost
from pipesvc.core.memory import slot_parcels

IntArray = npt.NDArray[np.int64]


class Alive(NamedTuple):
    """Micro-batches that have been forwarded and not yet backwarded: on a stage, and on the one before it."""

    here: int
    before: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySums:
    """Bytes of the layers before each index (L + 1 entries), and bytes that cross at each index, 0 at both ends."""

    weights: IntArray
    gradients: IntArray
    optimizer_state: IntArray
    buffers: IntArray
    activations: IntArray  # of one micro-batch
    forward: IntArray  # crossing, of one micro-batch
    backward: IntArray  # likewise


def memory_sums(layers: Sequence[LayerCost], forward: IntArray, backward: IntArray) -> MemorySums:
    return MemorySums(
        weights=prefix_sums([layer.parameter_bytes for layer in layers]),
        gradients=prefix_sums([layer.gradient_bytes for layer in layers]),
        optimizer_state=prefix_sums([layer.optimizer_bytes for layer in layers]),
        buffers=prefix_sums([layer.buffer_bytes for layer in layers]),
        activations=prefix_sums([layer.activation_bytes for layer in layers]),
        forward=forward,
        backward=backward,
    )


def prefix_sums(values: Sequence[int]) -> IntArray:
    """Entry i is the sum of the first i values."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(values, np.int64))])


def memory_parts(sums: MemorySums, first: Any, end: Any, alive: Alive) -> dict[str, Any]:
    """What stages [first, end) hold at once, in bytes; `first` and `end` are integers or arrays of them.

    The same sum as `memory.device_memory`, but that slots are counted between two devices of one worker too. Copies for
    snapshots are not made yet and count nothing.
    """
    return {
        "weights": sums.weights[end] - sums.weights[first],
        "gradients": sums.gradients[end] - sums.gradients[first],
        "optimizer state": sums.optimizer_state[end] - sums.optimizer_state[first],
        "activations": alive.here * (sums.activations[end] - sums.activations[first]),
        "buffers": sums.buffers[end] - sums.buffers[first],
        "link slots": slot_parcels(alive.before) * sums.forward[first] + slot_parcels(alive.here) * sums.backward[end],
    }
