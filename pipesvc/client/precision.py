"""Mixed precision, as a job says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipesvc.client import checks

# What autocast may compute in, by the names of torch.
AUTOCAST_DTYPES: Final = ("bfloat16", "float16")
# The largest float32 number; a scale is one.
_MAX_SCALE: Final = 3.4028234663852886e38


@dataclass(frozen=True, kw_only=True, slots=True)
class GradScaler:
    """The arguments of `torch.amp.GradScaler`, whose semantics all stages keep together: one scale, and a step that
    overflows on one of them is skipped on all. Of several optimizers those skip it whose gradients overflowed; with
    clip_norm, all."""

    init_scale: float = 65536.0
    """What losses are multiplied by at first."""
    growth_factor: float = 2.0
    """The scale is multiplied by this after `growth_interval` steps without overflow, one after another."""
    backoff_factor: float = 0.5
    """And by this after a step with one."""
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        for name in ("init_scale", "growth_factor", "backoff_factor"):
            checks.positive(name, getattr(self, name))
        if self.init_scale > _MAX_SCALE:
            raise checks.refusal("init_scale", self.init_scale, f"{_MAX_SCALE:g} at most: a scale is a float32 number")
        if self.growth_factor <= 1:
            raise checks.refusal("growth_factor", self.growth_factor, "more than 1")
        if self.backoff_factor >= 1:
            raise checks.refusal("backoff_factor", self.backoff_factor, "less than 1")
        checks.whole("growth_interval", self.growth_interval, 1)
