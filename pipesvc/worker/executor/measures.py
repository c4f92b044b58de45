"""Loss and metrics of a micro-batch of the evaluation data, on the last stage."""

from __future__ import annotations

from numbers import Real
from typing import Any

from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.worker.executor import losses
from pipesvc.worker.executor.describe import describe
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.program import failed
from pipesvc.worker.executor.spec import StageSpec


def measure(spec: StageSpec, output: Any, labels: Parcel | None, where: Where) -> list[float]:
    """The loss, then the metrics in the order of the job."""
    values = [losses.number_of(spec, output, labels, where).item()]
    arguments = losses.arguments_of(spec, output, labels)
    for name, metric in spec.metrics:
        try:
            value = metric(*arguments)
        except (Exception, KeyboardInterrupt) as cause:
            doing = f"the metric {name!r} on {', '.join(map(describe, arguments))}"
            raise failed(doing, cause, where) from cause
        values.append(_number(name, value, where))
    return values


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
