"""What all stages must agree on before they update: by how much gradients are clipped, whether the step counts, and the
scale of the next loss.

Each stage reports once a step; stage 0 combines the reports and answers all with one decision. Both travel as nests of
tensors and plain values.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipesvc.worker.executor import norms
from pipesvc.worker.executor.scaling import LossScale, ScalerSettings, first_scale, next_scale

_log = logging.getLogger("pipesvc.executor")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Of one stage. `norms` are those of `norms.parameter_norms`, of gradients that are no longer scaled; `overflowed`
    are the optimizers of the job, by number, of whose gradients one was not finite."""

    norms: list[Tensor] | None
    overflowed: list[int]

    def to_nest(self) -> dict[str, Any]:
        return {"norms": self.norms, "overflowed": self.overflowed}

    @classmethod
    def of_nest(cls, nest: Any) -> Report:
        return cls(norms=nest["norms"], overflowed=nest["overflowed"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """`coefficient` is what gradients are multiplied by, None: they are not; `skips` are the optimizers of the job, by
    number, that do not update; `scale` is that of the next loss."""

    coefficient: Tensor | None
    skips: list[int]
    scale: float | None

    def to_nest(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient, "skips": self.skips, "scale": self.scale}

    @classmethod
    def of_nest(cls, nest: Any) -> Decision:
        return cls(coefficient=nest["coefficient"], skips=nest["skips"], scale=nest["scale"])


class Decider:
    """Of stage 0. `clip_norm` 0: no clipping; `scaler` None: losses are not scaled; `scale` None: its first."""

    def __init__(self, clip_norm: float, scaler: ScalerSettings | None, scale: LossScale | None = None) -> None:
        self._clip_norm = clip_norm
        self._scaler = scaler
        self.scale = None if scaler is None else scale or first_scale(scaler)

    def decide(self, step: int, reports: Sequence[Report]) -> Decision:
        """`reports` are in the order of the stages."""
        coefficient = None
        if self._clip_norm:
            coefficient = norms.coefficient([each.norms or () for each in reports], self._clip_norm)
        if self._scaler is None or self.scale is None:
            return Decision(coefficient=coefficient, skips=[], scale=None)
        overflowed = sorted({number for each in reports for number in each.overflowed})
        scale = next_scale(self.scale, self._scaler, overflowed=bool(overflowed))
        if overflowed:
            _log.info("step %d is skipped where gradients overflowed, the loss scale is %g now", step, scale.value)
        self.scale = scale
        return Decision(coefficient=coefficient, skips=overflowed, scale=scale.value)
