"""Costs that were measured before, of a model that is another one by now.

What is measured is kept by the job's functions, arguments and sources. A model that takes its width from a file is
another one while all of these stay the same; nothing but the coordinator's own look at the layers shows it. So whatever
does not fit kept costs says that they may be old, and how to measure again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode, LayersError, PipesvcError

MEASURE_AGAIN: Final = "measure again: `pipesvc profile JOB --fresh`, or client.profile(job, is_fresh=True)"
_ADVICE: Final = f"If the model reads something beside its code that has changed, such as a file, {MEASURE_AGAIN}."


@contextmanager
def doubting(are_kept: bool) -> Iterator[None]:
    """Lets a plan be refused within; where costs that were kept from before may be the cause, the refusal says so."""
    try:
        yield
    except PipesvcError as error:
        is_local = not error.details.where.run_id  # what the coordinator says of a run has passed here before
        if (
            not are_kept
            or error.code is not ErrorCode.INVALID_PLAN
            or (is_local and not isinstance(error, LayersError))
        ):
            raise
        advice = f"{error.details.advice.removesuffix('.')}. {_ADVICE}" if error.details.advice else _ADVICE
        raise PipesvcError.of(replace(error.details, advice=advice)) from None


def difference(measured: Plan, made: Plan) -> str:
    """What the layers of the plan that was made are other than those that were measured; empty if they are the same."""
    if _layers(measured) == _layers(made):
        return ""
    return (
        f"the plan was found for {_layers_text(measured)}, which were measured before, and the model has "
        f"{_layers_text(made)}: their times and memory are not known. To plan with these, {MEASURE_AGAIN}"
    )


def _layers(plan: Plan) -> list[tuple[tuple[str, ...], int]]:
    return [(stage.layer_names, stage.parameter_bytes) for stage in plan.stages]


def _layers_text(plan: Plan) -> str:
    num_layers = sum(len(stage.layer_names) for stage in plan.stages)
    num_bytes = sum(stage.parameter_bytes for stage in plan.stages)
    return f"{num_layers} layer{'s' if num_layers > 1 else ''} with {num_bytes} bytes of parameters"
