"""What people call the weights that a job begins with: the hash under which they travel tells nobody anything."""

from __future__ import annotations

from pipesvc.rpc.v1 import job_pb2


def name_of(source: job_pb2.WeightsSource) -> str:
    """As in "the file 'first.safetensors'" or "the state of run mlp-1"."""
    if source.run_id:
        return f"the state of run {source.run_id}"
    return f"the file {source.path!r}" if source.path else "the file of weights that was sent"
