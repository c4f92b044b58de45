"""The states of the partitioner's dynamic program: which devices a suffix of stages may have used, and which are equal.

Apart from the program itself, because states depend on devices and demands alone: they are listed once, and the
program is then run on them for many caps.

Legend: L layers, K kinds of devices, N states of a level, G groups of kinds to which every sender's link is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipesvc.core.partition_memory import COPIES, SLOTS, Alive, IntArray, memory_parts
from pipesvc.core.partition_problem import INFINITY, FloatArray, Kinds, Problem

IndexArray = npt.NDArray[np.intp]
CountArray = npt.NDArray[np.int16]


class Step(NamedTuple):
    """From the states of one level to those of the next by one more stage, in front, on this kind."""

    kind: int
    target: IndexArray  # [N]: index in the next level, -1 where all devices of the kind are used


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """The states that plans of some numbers of stages share: those whose stages, counted from the last, are alike."""

    problem: Problem
    kinds: Kinds
    stage_counts: tuple[int, ...]
    alive: tuple[Alive, ...]  # by stage, from the last
    sizes: CountArray  # [K]: devices
    levels: tuple[CountArray, ...]  # [N, K] used devices; level k has k stages
    steps: tuple[tuple[Step, ...], ...]
    groups: tuple[tuple[int, ...], ...]  # kinds by link
    group_of: IndexArray  # [K]: the group of each kind
    hop_s: FloatArray  # [K, G, L + 1]: from a stage of this kind to one of that group, and back
    busy_s: FloatArray  # likewise: how long one micro-batch takes the link
    least_s: FloatArray  # [L + 1]: the layers before each index, each where it is fastest
    first: IndexArray  # [L]: 0 to L - 1
    last_end: IndexArray  # [K, L]: the furthest end of a stage from each layer, by marks and boundaries that must be
    held: Mapping[Alive, IntArray]  # [L + 1]: bytes of the layers before each index
    slots: Mapping[Alive, tuple[IntArray, IntArray]]  # [L + 1]: bytes of a stage's slots if it begins, or ends, there
    room: tuple[FloatArray, ...]  # per level [N]: seconds of `least_s` that the unused devices can do in one second


def states_of(problem: Problem, kinds: Kinds, max_states: int) -> list[States] | None:
    """States for all allowed numbers of stages, or None where they would be more than that."""
    shared: list[tuple[list[int], list[tuple[Alive, frozenset[int]]]]] = []
    for count in problem.stage_counts:
        profile = _profile(problem, kinds, count)
        if shared and profile[: len(shared[-1][1])] == shared[-1][1]:
            shared[-1][0].append(count)
            shared[-1][1][:] = profile
        else:
            shared.append(([count], profile))
    sizes = np.array([len(members) for members in kinds.members], np.int16)
    groups = _receiver_groups(kinds)
    group_of = np.array([next(i for i, group in enumerate(groups) if kind in group) for kind in range(len(sizes))])
    hop_s, busy_s = _links(problem, kinds, groups)
    least_s, speeds = _speeds(kinds)
    last_end = _last_end(problem, kinds)
    built = []
    for counts, profile in shared:
        grown = _grow(sizes, [allowed for _, allowed in profile], max_states)
        if grown is None:
            return None
        levels, steps = grown
        built.append(
            States(
                problem=problem,
                kinds=kinds,
                stage_counts=tuple(counts),
                alive=tuple(alive for alive, _ in profile),
                sizes=sizes,
                levels=levels,
                steps=steps,
                groups=groups,
                group_of=group_of,
                hop_s=hop_s,
                busy_s=busy_s,
                least_s=least_s,
                first=np.arange(problem.num_layers),
                last_end=last_end,
                held={alive: _held(problem, alive) for alive, _ in profile},
                slots={alive: _slots(problem, alive) for alive, _ in profile},
                room=tuple((sizes - level) @ speeds for level in levels),
            )
        )
    return built


def _profile(problem: Problem, kinds: Kinds, num_stages: int) -> list[tuple[Alive, frozenset[int]]]:
    """By stage, from the last: how many micro-batches are alive, and the kinds that may hold it."""
    edges = [0, *problem.must_cut, problem.num_layers] if problem.cut_is_given else []
    profile = []
    for stage in reversed(range(num_stages)):
        devices = problem.stage_devices.get(stage)
        allowed = frozenset(
            kind
            for kind, members in enumerate(kinds.members)
            if (devices is None or not devices.isdisjoint(members))
            and (not edges or kinds.num_barred[kind, edges[stage + 1]] == kinds.num_barred[kind, edges[stage]])
        )
        profile.append((problem.alive(stage, num_stages), allowed))
    return profile


def _grow(
    sizes: CountArray, allowed: Sequence[frozenset[int]], max_states: int
) -> tuple[tuple[CountArray, ...], tuple[tuple[Step, ...], ...]] | None:
    """The states that can be reached, level by level, with the steps between them."""
    levels: list[CountArray] = [np.zeros((1, len(sizes)), np.int16)]
    all_steps: list[tuple[Step, ...]] = []
    num_states = 1
    for kinds in allowed:
        moves = []
        for kind in sorted(kinds):
            source = np.flatnonzero(levels[-1][:, kind] < sizes[kind])
            grown = levels[-1][source]
            grown[:, kind] += 1
            moves.append((kind, source, grown))
        if not any(len(source) for _, source, _ in moves):
            break
        states, index = np.unique(np.concatenate([grown for *_, grown in moves]), axis=0, return_inverse=True)
        num_states += len(states)
        if num_states > max_states:
            return None
        # Descending, so that of equal states the one with the first kinds is found first.
        index = len(states) - 1 - index.reshape(-1)
        parts = np.split(index, np.cumsum([len(source) for _, source, _ in moves])[:-1])
        steps = []
        for (kind, source, _), part in zip(moves, parts, strict=True):
            target = np.full(len(levels[-1]), -1)
            target[source] = part
            steps.append(Step(kind, target))
        all_steps.append(tuple(steps))
        levels.append(states[::-1])
    return tuple(levels), tuple(all_steps)


def _last_end(problem: Problem, kinds: Kinds) -> IndexArray:
    forced = np.array([*problem.must_cut, problem.num_layers])
    last_end = forced[forced.searchsorted(np.arange(problem.num_layers), "right")]
    return np.array([np.minimum(last_end, sums.searchsorted(sums[:-1], "right") - 1) for sums in kinds.num_barred])


def _held(problem: Problem, alive: Alive) -> IntArray:
    """[L + 1] What adds up over layers: a stage needs the difference between its ends, and its slots."""
    parts = memory_parts(problem.memory, 0, np.arange(problem.num_layers + 1), alive)
    return np.asarray(sum(part for name, part in parts.items() if name not in (SLOTS, COPIES)))


def _slots(problem: Problem, alive: Alive) -> tuple[IntArray, IntArray]:
    index, end = np.arange(problem.num_layers + 1), problem.num_layers
    before = memory_parts(problem.memory, index, end, alive)[SLOTS]
    after = memory_parts(problem.memory, 0, index, alive)[SLOTS]
    return np.asarray(before), np.asarray(after)


def _links(problem: Problem, kinds: Kinds, groups: Sequence[tuple[int, ...]]) -> tuple[FloatArray, FloatArray]:
    """[K, G, L + 1] each: hops, and how long a link is busy."""
    hop_s, busy_s = [], []
    for kind in range(len(kinds.members)):
        # A kind of one device is not followed by itself.
        alone = (kind,) if len(kinds.members[kind]) == 1 else None
        receivers = [next((other for other in group if other != kind), kind) for group in groups]
        ways = [kinds.hop_s(kind, receiver, problem.crossing) for receiver in receivers]
        hop_s.append([INFINITY + way if group == alone else way for group, way in zip(groups, ways, strict=True)])
        busy_s.append([kinds.busy_s(kind, receiver, problem.crossing) for receiver in receivers])
    return np.array(hop_s), np.array(busy_s)


def _receiver_groups(kinds: Kinds) -> tuple[tuple[int, ...], ...]:
    """Kinds to which the way from, and back to, every other kind is the same."""
    ways = np.stack([kinds.latency_s, kinds.latency_s.T, kinds.s_per_byte, kinds.s_per_byte.T])  # [4, from, to]
    groups: list[list[int]] = []
    for kind, members in enumerate(kinds.members):
        for group in groups:
            if all(_is_same_way(ways, kind, other, len(members), len(kinds.members[other])) for other in group):
                group.append(kind)
                break
        else:
            groups.append([kind])
    return tuple(map(tuple, groups))


def _is_same_way(ways: FloatArray, one: int, other: int, num_one: int, num_other: int) -> bool:
    differs = (ways[:, :, one] != ways[:, :, other]).any(axis=0)
    # From itself to itself there is no way where a kind has one device.
    differs[one] &= num_one > 1
    differs[other] &= num_other > 1
    return not differs.any()


def _speeds(kinds: Kinds) -> tuple[FloatArray, FloatArray]:
    """[L + 1] each layer where it is fastest, summed; and [K] how much of that a device of a kind does in a second."""
    layer_s = np.diff(kinds.stage_s, axis=1)
    is_free = np.diff(kinds.num_barred, axis=1) == 0
    least = np.where(is_free, layer_s, INFINITY).min(axis=0)
    least = np.where(np.isfinite(least), least, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness = np.where(is_free & (least > 0), layer_s / least, INFINITY).min(axis=1)
    speed = np.where(np.isfinite(slowness), 1 / slowness, 1.0)
    return np.concatenate([[0.0], np.cumsum(least)]), speed
