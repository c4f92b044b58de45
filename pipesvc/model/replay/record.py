"""Planning: what the forward of a model does, found by running it on shapes.

The run is cheap (no values, no memory) and happens before anything is placed, so it is also where a forward that
cannot be cut is refused, with its line. It is made for two sizes of the inputs: a forward whose steps depend on the
size would number the same tensor differently from one micro-batch to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from torch import nn

from pipesvc.core.flow import Flow, difference
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.random_state import same_random_state_after
from pipesvc.model.replay.guards import GuardInsideUnitError
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.recording import Recording
from pipesvc.model.replay.refusals import OTHERWISE, refused
from pipesvc.model.replay.units import units_of


def record(model: nn.Module, inputs: Inputs, other: Inputs | None = None, *, cuts: Sequence[str] = ()) -> Flow:
    """The flow of `model`, which must be on meta (`skeleton.build_module` with nothing owned) and in training mode.

    `inputs` is a micro-batch, `other` one of another size (by default one row more). `cuts` are the names of modules at
    which a stage shall begin. Where they are units anyway, the units are those that there are without names, so that
    measured costs serve every cut. Else, or where a forward cannot be followed so closely, units are the largest
    modules that contain no cut.
    """
    assert all(each.is_meta for each in [*model.parameters(), *model.buffers()])
    other = other or inputs.with_one_more_row()
    if cuts and units_of(model).keys() >= set(cuts):
        with suppress(PipesvcError):
            return _record_both(model, inputs, other, cuts, opening=())
    return _record_both(model, inputs, other, cuts, opening=cuts)


def _record_both(model: nn.Module, inputs: Inputs, other: Inputs, cuts: Sequence[str], opening: Sequence[str]) -> Flow:
    flow = _record(model, inputs, cuts, opening)
    if what := difference(flow, _record(model, other, cuts, opening)):
        raise refused(
            f"forward does not do the same for inputs of two sizes: {what}",
            f"Keep what depends on sizes inside one unit, {OTHERWISE}.",
        )
    return flow


def _record(model: nn.Module, inputs: Inputs, cuts: Sequence[str], opening: Sequence[str]) -> Flow:
    opened: set[str] = set()
    while True:
        units = units_of(model, opening, opened)
        recording = Recording(model, units)
        try:
            with same_random_state_after():
                flow = recording.run(inputs)
        except GuardInsideUnitError as found:
            opened.add(str(found))
            continue
        if not flow.units:
            raise refused("forward calls no module of the model, so nothing can be cut", "Put the parts into modules.")
        _check_cuts(flow, cuts, recording.lines)
        return flow


def _check_cuts(flow: Flow, cuts: Sequence[str], lines: dict[str, str]) -> None:
    order = {unit.name: index for index, unit in enumerate(flow.units)}
    for cut in cuts:
        if cut not in order:
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"cut {cut!r} was never called in forward",
                advice=f"Called were: {', '.join(order)}.",
            )
    for before, after in pairwise(cuts):
        if order[before] > order[after]:
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"cuts are out of program order: {after!r} runs before {before!r} ({lines[after]})",
                advice="Give them in the order in which forward calls them.",
            )
