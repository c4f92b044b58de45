"""What an inspector knows of a model so far: it is filled in step by step, for the time may be over before the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesvc.core.layer_info import LayerInfo
from pipesvc.errors import ErrorDetails
from pipesvc.worker.feeder.batches import CutStep


@dataclass(kw_only=True, slots=True)
class Inspection:
    # Of a module with a forward of its own: its units.
    layers: Sequence[LayerInfo]
    model_bytes: int
    flow_json: str = ""
    # Why a module has no flow.
    reason: ErrorDetails | None = None
    # Bytes of the optimizer's state for each byte of gradients, at least.
    state_per_gradient: float = 0.0
    # What the data source gives first, once it has been read.
    batch: CutStep | None = None

    @property
    def is_module(self) -> bool:
        """As `skeleton.layer_infos` says it: one layer without a name."""
        return not self.layers[0].name
