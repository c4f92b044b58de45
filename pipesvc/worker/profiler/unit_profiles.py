"""From pieces that were measured to the costs of units: what a planner is told of each cut that there may be.

Units of one piece share its costs evenly, since no cut comes between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipesvc.core.flow import Flow, crossing_bytes
from pipesvc.core.flow_json import to_json
from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.inspector import layer_message
from pipesvc.worker.profiler.module_trial import Piece, PieceTrial


def add_units(
    found: local_pb2.DeviceProfile, flow: Flow, pieces: Sequence[Piece], measured: Sequence[PieceTrial]
) -> None:
    sizes = crossing_bytes(flow)
    for piece, trial in zip(pieces, measured, strict=True):
        num_units = piece.end - piece.first
        for unit in range(piece.first, piece.end):
            output_bytes, output_gradient_bytes = sizes[unit + 1]
            found.layers.add(
                layer=layer_message(flow.units[unit]),
                gradient_bytes=_share(trial.gradient_bytes, unit - piece.first, num_units),
                optimizer_bytes=_share(trial.optimizer_bytes, unit - piece.first, num_units),
                activation_bytes=_share(trial.activation_bytes, unit - piece.first, num_units),
                output_bytes=output_bytes,
                output_gradient_bytes=output_gradient_bytes,
                forward_s=trial.forward_s / num_units,
                backward_s=trial.backward_s / num_units,
                input_backward_s=trial.input_backward_s / num_units,
                weight_backward_s=trial.weight_backward_s / num_units,
                update_s=trial.update_s / num_units,
                skip_s=trial.skip_s,
            )
    found.flow_json = to_json(flow)


def _share(total: int, index: int, num_shares: int) -> int:
    """As even as whole bytes can be, which add up to the total."""
    return total * (index + 1) // num_shares - total * index // num_shares
