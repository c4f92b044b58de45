"""Loss and metrics of a micro-batch of the evaluation data, on the last stage.

A metric that fails is nan and says why: it is asked in order to watch a run, so it may not end one that has been
training for hours. One that fails at once is refused at submit, by the same words (`worker.data_trial`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor import losses
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.program import failed
from pipesvc.worker.executor.spec import StageSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """`values`: the loss, then the metrics in the order of the job, nan where `failures` has the reason by name."""

    values: list[float]
    failures: dict[str, PipesvcError] = field(default_factory=dict)


def measure(spec: StageSpec, output: Any, labels: Parcel | None, where: Where) -> Measured:
    """Raises what the loss function meets, without which nothing is known of the micro-batch."""
    found = Measured(values=[losses.number_of(spec, output, labels, where).item()])
    arguments = losses.arguments_of(spec, output, labels)
    for name, metric in spec.metrics:
        try:
            found.values.append(_number(name, _called(name, metric, arguments, where), where))
        except PipesvcError as error:
            found.values.append(math.nan)
            found.failures[name] = error
    return found


def _called(name: str, metric: Callable[..., Any], arguments: tuple[Any, ...], where: Where) -> Any:
    try:
        return metric(*arguments)
    except (Exception, KeyboardInterrupt) as cause:
        raise failed(f"the metric {name!r} on {', '.join(map(describe, arguments))}", cause, where) from cause


def _number(name: str, value: Any, where: Where) -> float:
    found = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if isinstance(found, Real):
        return float(found)
    raise PipesvcError(
        ErrorCode.INVALID_JOB,
        f"the metric {name!r} gave {describe(value)}, not a number",
        advice="Return one number, or a tensor of one, such as the mean over the rows",
        where=where,
    )
