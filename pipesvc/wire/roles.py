"""What people call the children of a worker."""

from __future__ import annotations

from pipesvc.rpc.v1 import types_pb2


def role_name(role: int) -> str:
    """ "executor", "feeder", "inspector" or "profiler"."""
    return types_pb2.Role.Name(role).removeprefix("ROLE_").lower()
