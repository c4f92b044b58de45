"""What a model's forward does, as far as cutting it into stages needs to know.

A chain of layers has one tensor between two of them. An `nn.Module` with a forward of its own has skips, masks, tied
weights and tuples, so what crosses a cut is known only from watching it run (`model.replay.record`). What was seen is
kept here apart from any cut, as plain values: for every way to cut, the functions below say what goes where.

A *unit* is a module that stays whole, at the place of its first call. A *position* is the index of the unit that was
reached last, so code between two units belongs to the unit before it, and what comes before the first unit has the
position -1, which lies on stage 0. `ends` are the positions at which stages end: stage s holds the units from
`ends[s - 1]` up to `ends[s]`, exclusive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Final

from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.errors import ErrorCode, PipesvcError

Keys = tuple[str, ...]

PARAMETER: Final = "parameter:"  # before the name of a shared parameter, where its gradient is named


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A tensor that is used at a later position than the one that made it."""

    key: str  # "CALL.OPERATION.LEAF" in program order: equal in every process that runs the same forward
    producer: int  # position
    users: tuple[int, ...]  # positions, ascending, all after the producer
    shape: tuple[int, ...]  # of the recorded run, as are the three below
    dtype: str
    num_bytes: int
    is_differentiable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """Units `first` to `last`, inclusive, which no cut may part."""

    first: int
    last: int
    reason: str  # a sentence without its full stop
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """One recorded run."""

    units: tuple[LayerInfo, ...]
    values: tuple[Value, ...]  # in program order
    input_users: Mapping[str, tuple[int, ...]]  # path of a tensor of the inputs -> positions that read it
    parameters: Mapping[str, tuple[int, ...]]  # name -> positions that use it; none: held, and never used
    buffers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    shared: tuple[SharedParameter, ...] = ()  # those of `parameters` that are used at several positions
    joined: tuple[Joined, ...] = ()
    random_modules: tuple[str, ...] = ()  # paths of the modules in whose call random numbers were drawn
    random_operations: tuple[str, ...] = ()  # "CALL.OPERATION" of those drawn between units


def check_ends(flow: Flow, ends: Sequence[int]) -> None:
    """Refuses stages that are empty, do not hold every unit once, or part what must stay together."""
    if not ends or ends[-1] != len(flow.units) or any(end <= before for before, end in pairwise([0, *ends])):
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"stages that end at {list(ends)} do not cut {len(flow.units)} units into non-empty stages",
            advice="Give ascending ends, the last one the number of units.",
        )
    for each in flow.joined:
        stages = stage_of(ends, each.first), stage_of(ends, each.last)
        if stages[0] != stages[1]:
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"units {flow.units[max(each.first, 0)].name!r} and {flow.units[each.last].name!r} cannot lie on "
                f"stages {stages[0]} and {stages[1]}: {each.reason}",
                advice=each.advice,
            )


def finest_ends(flow: Flow) -> tuple[int, ...]:
    """The ends of as many stages as the flow allows."""
    barred = {end for each in flow.joined for end in range(max(each.first, 0) + 1, each.last + 1)}
    return tuple(end for end in range(1, len(flow.units) + 1) if end not in barred)


def crossing_bytes(flow: Flow) -> list[tuple[int, int]]:
    """What would go over a single cut before each unit, and after the last: outputs, and gradients back.

    With more cuts a value goes straight to its users. So what crosses several of them is counted at each one here, and
    sent once for each stage that uses it.
    """
    sizes = [[0, 0] for _ in range(len(flow.units) + 1)]
    for value in flow.values:
        for cut in range(max(value.producer, 0) + 1, value.users[-1] + 1):
            sizes[cut][0] += value.num_bytes
            sizes[cut][1] += value.num_bytes * value.is_differentiable
    for each in flow.shared:
        users = flow.parameters[each.name]
        for cut in range(max(users[0], 0) + 1, users[-1] + 1):
            sizes[cut][1] += each.num_bytes * each.is_trained
    return [(forward, backward) for forward, backward in sizes]


def stage_of(ends: Sequence[int], position: int) -> int:
    return bisect_right(ends, max(position, 0))


def transfers(flow: Flow, ends: Sequence[int]) -> dict[tuple[int, int], Keys]:
    """(producer stage, consumer stage) -> keys. Each value goes straight from its maker to each stage that uses it."""
    check_ends(flow, ends)
    edges = ((producer, consumer, key) for producer, consumers, key in _hops(flow, ends) for consumer in consumers)
    return _grouped(edges)


def gradient_transfers(flow: Flow, ends: Sequence[int]) -> dict[tuple[int, int], Keys]:
    """(sender stage, receiver stage) -> keys of the values and shared parameters whose gradient goes that way.

    Floating-point addition is not associative, and one process adds the gradients of all uses of a tensor one after
    the other, the latest use first. Sums that are made per stage and then added would have other bits as soon as a
    stage uses the tensor twice. So a gradient goes from the last user to the user before it, which adds its own uses
    to it, and so on down to the maker: as many messages as consumers, and the order of one process. A parameter has
    no maker, and its gradient ends at the first user.
    """
    check_ends(flow, ends)
    differentiable = {value.key for value in flow.values if value.is_differentiable}
    edges = (
        (later, earlier, key)
        for producer, consumers, key in _hops(flow, ends)
        if key in differentiable
        for earlier, later in pairwise([producer, *consumers])
    )
    users, trained = shared_parameters(flow, ends), [each.name for each in flow.shared if each.is_trained]
    tied = ((later, earlier, PARAMETER + name) for name in trained for earlier, later in pairwise(users.get(name, ())))
    return _grouped(chain(edges, tied))


def inputs_of(flow: Flow, ends: Sequence[int], stage: int) -> tuple[str, ...]:
    """The paths of the input tensors that this stage reads."""
    check_ends(flow, ends)
    return tuple(path for path, users in flow.input_users.items() if stage in _stages(ends, users))


def parameters_of(flow: Flow, ends: Sequence[int], stage: int) -> tuple[str, ...]:
    """The names of the parameters and buffers that this stage holds; one that nobody uses lies on stage 0."""
    check_ends(flow, ends)
    return tuple(name for name, stages in _holders(flow, ends) if stage in stages)


def owned_by(flow: Flow, ends: Sequence[int], stage: int) -> tuple[str, ...]:
    """Those of them that this stage updates and saves: each belongs to the first stage that holds it."""
    check_ends(flow, ends)
    return tuple(name for name, stages in _holders(flow, ends) if stage == stages[0])


def shared_parameters(flow: Flow, ends: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Parameter -> the stages that use it, ascending, where they are several (tied, or a unit called again).

    Its gradient goes from the last of them down to the first (`gradient_transfers`) for each micro-batch.
    """
    check_ends(flow, ends)
    used = {name: _stages(ends, users) for name, users in flow.parameters.items()}
    return {name: stages for name, stages in used.items() if len(stages) > 1}


def difference(one: Flow, other: Flow) -> str:
    """The first thing in which two runs of one model differ, sizes apart; "" if they do not."""
    if [unit.name for unit in one.units] != [unit.name for unit in other.units]:
        pairs = zip([*one.units, None], [*other.units, None], strict=False)
        first = next((a, b) for a, b in pairs if a is None or b is None or a.name != b.name)
        names = [repr(unit.name) if unit is not None else "the end of forward" for unit in first]
        return f"it goes on with {names[0]} in one and {names[1]} in the other"
    mine, theirs = ({value.key: _without_sizes(value) for value in flow.values} for flow in (one, other))
    for key in [*mine, *theirs]:
        if mine.get(key) != theirs.get(key):
            found = mine.get(key) or theirs[key]
            place = f"after {one.units[found[0]].name!r}" if found[0] >= 0 else "before the first unit"
            return f"what is made {place} and used later differs (value {key})"
    for what in ("input_users", "parameters", "buffers"):
        tables = getattr(one, what), getattr(other, what)
        for name in [*tables[0], *tables[1]]:
            if tables[0].get(name) != tables[1].get(name):
                return f"{name!r} is used by other units"
    return "" if one.joined == other.joined else "other units must stay together"


def _without_sizes(value: Value) -> tuple[int, tuple[int, ...], str, bool]:
    return value.producer, value.users, value.dtype, value.is_differentiable


def _holders(flow: Flow, ends: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    named = [*flow.parameters.items(), *flow.buffers.items()]
    return [(name, _stages(ends, users) or (0,)) for name, users in named]


def _stages(ends: Sequence[int], positions: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({stage_of(ends, position) for position in positions}))


def _hops(flow: Flow, ends: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...], str]]:
    """(producer stage, its consumer stages ascending, key) of each value that crosses."""
    for value in flow.values:
        producer = stage_of(ends, value.producer)
        consumers = tuple(stage for stage in _stages(ends, value.users) if stage != producer)
        if consumers:
            yield producer, consumers, value.key


def _grouped(edges: Iterable[tuple[int, int, str]]) -> dict[tuple[int, int], Keys]:
    found: dict[tuple[int, int], list[str]] = {}
    for source, target, key in edges:
        found.setdefault((source, target), []).append(key)
    return {edge: tuple(keys) for edge, keys in sorted(found.items())}
