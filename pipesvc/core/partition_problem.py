"""What the partitioner is asked, as arrays, and what a cut with its devices costs: the objective, in one place.

The objective of a step with m micro-batches, in seconds, is that of a pipeline whose slowest part never waits:

    sum of stage times + hops + (m - 1) x bottleneck + largest update

- A stage's time is forward plus backward of one micro-batch of its layers on its device.
- A hop is latency + bytes / bandwidth; each boundary has one forward and one backward.
- The bottleneck is the largest stage time, or the time for which one direction of one link is busy with one
  micro-batch if that is larger. That is bytes / bandwidth without the latency: parcels follow each other into a link
  before the first has arrived, and the two directions of a link do not wait for each other. Each boundary is counted
  alone, also where two boundaries share a pair of workers.
- A value that skips layers counts at every boundary that it crosses, as if stages handed it on. That is exact for
  neighbours; over more stages it goes straight to its users, so this counts more traffic than there will be.

The simulator plays the actions and has the last word on a step's time; this objective is what can be searched.

Legend: L layers, D devices, K kinds of devices, p stages, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesvc.core.coded_ways import crossing_bytes
from pipesvc.core.coding import Coding
from pipesvc.core.costs import Costs
from pipesvc.core.partition_memory import Alive, IntArray, MemorySums, memory_parts

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# (stage index, number of stages) -> how many micro-batches are alive on that stage at most.
InFlight = Callable[[int, int], int]

INFINITY: Final = float("inf")


class Crossing(NamedTuple):
    """Bytes of one micro-batch that cross a boundary before layer i, for i in 0 to L; 0 at both ends."""

    forward_bytes: IntArray
    backward_bytes: IntArray


def crossing(costs: Costs, coding: Coding) -> Crossing:
    """What every possible boundary would send."""
    inner = crossing_bytes(costs, coding)[:-1]
    return Crossing(
        np.array([0, *(forward for forward, _ in inner), 0], np.int64),
        np.array([0, *(backward for _, backward in inner), 0], np.int64),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Costs and constraints, checked and translated to indices."""

    costs: Costs
    num_micro_batches: int
    in_flight: InFlight
    stage_counts: tuple[int, ...]  # ascending: the numbers of stages that are allowed
    may_cut: BoolArray  # [L + 1]: a boundary before layer i is allowed; both ends are
    must_cut: tuple[int, ...]  # ascending, within 1 to L - 1
    is_barred: BoolArray  # [D, L]: this layer may not be on this device
    stage_devices: Mapping[int, frozenset[int]]  # stage index -> its devices, where they are given
    crossing: Crossing
    memory: MemorySums

    @property
    def num_layers(self) -> int:
        return len(self.costs.layers)

    @property
    def cut_is_given(self) -> bool:
        """Only the devices are open."""
        return int(self.may_cut.sum()) == len(self.must_cut) + 2

    def alive(self, stage: int, num_stages: int) -> Alive:
        """Before stage 0 there is nothing; what a longer pipeline would have there lets plans share states."""
        before = (stage - 1, num_stages) if stage else (0, num_stages + 1)
        return Alive(here=self.in_flight(stage, num_stages), before=self.in_flight(*before))

    def fits(self, stage: int, num_stages: int, first: int, end: int, device: int) -> bool:
        """Whether these layers may be that stage on that device, memory included."""
        cap = self.costs.devices[device].memory_bytes
        needed = sum(memory_parts(self.memory, first, end, self.alive(stage, num_stages)).values())
        return (
            device in self.stage_devices.get(stage, (device,))
            and not self.is_barred[device, first:end].any()
            and (not cap or needed <= cap)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """Devices in groups; all devices of one are taken to be as good as the best of them in every respect.

    Where the devices of each group are alike, that is no approximation. Where they are not, it is a problem that is
    easier than the real one, so its optimum is a lower bound.
    """

    members: tuple[tuple[int, ...], ...]  # device indices per kind, ascending
    stage_s: FloatArray  # [K, L + 1]: forward + backward of the layers before each index
    update_s: FloatArray  # [K, L + 1]: likewise
    num_barred: IntArray  # [K, L + 1]: likewise
    memory_bytes: FloatArray  # [K], infinite where not limited
    latency_s: FloatArray  # [K, K] from, to
    s_per_byte: FloatArray  # [K, K] from, to

    def hop_s(self, sender: int, receiver: int, sent: Crossing, at: Any = slice(None)) -> Any:
        """Forward and backward hop over each boundary ([L + 1]), or over the one `at` an index."""
        latency_s = self.latency_s[sender, receiver] + self.latency_s[receiver, sender]
        forward_s = self.s_per_byte[sender, receiver] * sent.forward_bytes[at]
        return latency_s + forward_s + self.s_per_byte[receiver, sender] * sent.backward_bytes[at]

    def busy_s(self, sender: int, receiver: int, sent: Crossing, at: Any = slice(None)) -> Any:
        """Likewise, how long the busier direction of the link is taken by one micro-batch."""
        return np.maximum(
            self.s_per_byte[sender, receiver] * sent.forward_bytes[at],
            self.s_per_byte[receiver, sender] * sent.backward_bytes[at],
        )


def kinds_of(problem: Problem, groups: Sequence[Sequence[int]]) -> Kinds:
    """The kinds that these groups of devices make."""
    devices = problem.costs.devices
    forward = np.array([device.times.forward_s for device in devices])
    layer_s = forward + np.array([device.times.backward_s for device in devices])
    update_s = np.array([device.times.update_s for device in devices])
    memory = [float(device.memory_bytes) or INFINITY for device in devices]
    pairs = [[problem.costs.link(sender.worker, receiver.worker) for receiver in devices] for sender in devices]
    size = len(groups)
    latency_s, s_per_byte = np.zeros((size, size)), np.zeros((size, size))
    for i, senders in enumerate(groups):
        for j, receivers in enumerate(groups):
            links = [pairs[a][b] for a in senders for b in receivers if a != b]
            latency_s[i, j] = min((link.latency_s for link in links), default=0.0)
            s_per_byte[i, j] = min((1 / link.bytes_per_s for link in links), default=0.0)
    return Kinds(
        members=tuple(tuple(sorted(group)) for group in groups),
        stage_s=_prefix(np.array([_least(layer_s, problem.is_barred, group) for group in groups])),
        update_s=_prefix(np.array([_least(update_s, problem.is_barred, group) for group in groups])),
        num_barred=_prefix(np.array([problem.is_barred[list(group)].all(axis=0) for group in groups])).astype(np.int64),
        memory_bytes=np.array([max(memory[index] for index in group) for group in groups]),
        latency_s=latency_s,
        s_per_byte=s_per_byte,
    )


def _least(per_layer: FloatArray, is_barred: BoolArray, group: Sequence[int]) -> FloatArray:
    """The smallest over the devices of a group that may have the layer; 0 where none may."""
    index = list(group)
    least = np.where(is_barred[index], INFINITY, per_layer[index]).min(axis=0)
    return np.where(np.isfinite(least), least, 0.0)


def _prefix(per_layer: npt.NDArray[np.float64] | BoolArray) -> FloatArray:
    return np.concatenate([np.zeros((len(per_layer), 1)), np.cumsum(per_layer, axis=1, dtype=np.float64)], axis=1)


def alike(problem: Problem) -> list[list[int]]:
    """Groups of devices that can be swapped without a difference: times, memory, links, marks and given places."""
    devices = problem.costs.devices
    workers = list(dict.fromkeys(device.worker for device in devices))
    link = {(a, b): problem.costs.link(a, b) for a in workers for b in workers}

    def can_swap(i: int, j: int) -> bool:
        one, other = devices[i], devices[j]
        if one.memory_bytes != other.memory_bytes or one.times != other.times:
            return False
        if not np.array_equal(problem.is_barred[i], problem.is_barred[j]):
            return False
        if any((i in given) != (j in given) for given in problem.stage_devices.values()):
            return False
        if one.worker == other.worker:
            return True
        if link[one.worker, other.worker] != link[other.worker, one.worker]:
            return False
        return all(
            link[one.worker, third.worker] == link[other.worker, third.worker]
            and link[third.worker, one.worker] == link[third.worker, other.worker]
            for index, third in enumerate(devices)
            if index not in (i, j)
        )

    groups: list[list[int]] = []
    for index in range(len(devices)):
        group = next((group for group in groups if can_swap(group[0], index)), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    return groups


class Score(NamedTuple):
    """What a cut with its kinds of devices costs. The parts of the objective."""

    total_s: float  # stage times and hops
    bottleneck_s: float
    update_s: float

    def objective_s(self, num_micro_batches: int) -> float:
        return self.total_s + (num_micro_batches - 1) * self.bottleneck_s + self.update_s


def score(kinds: Kinds, sent: Crossing, edges: Sequence[int], places: Sequence[int]) -> Score:
    """The parts of the objective of stages [edges[s], edges[s + 1]) on kinds `places[s]`."""
    times, updates, hops, busy = [], [], [], [0.0]
    for stage, kind in enumerate(places):
        first, end = edges[stage], edges[stage + 1]
        times.append(float(kinds.stage_s[kind, end] - kinds.stage_s[kind, first]))
        updates.append(float(kinds.update_s[kind, end] - kinds.update_s[kind, first]))
        if stage + 1 < len(places):
            hops.append(float(kinds.hop_s(kind, places[stage + 1], sent, end)))
            busy.append(float(kinds.busy_s(kind, places[stage + 1], sent, end)))
    return Score(sum(times) + sum(hops), max(*times, *busy), max(updates))
