"""A worker's registration as planning sees it, for the coordinator that plans and for the client that asks first."""

from __future__ import annotations

from pipesvc.core.plan import WorkerInfo
from pipesvc.rpc.v1 import worker_pb2


def worker_info(registration: worker_pb2.Register) -> WorkerInfo:
    return WorkerInfo(
        name=registration.name,
        host=registration.host,
        boot_id=registration.boot_id,
        devices=tuple(registration.devices),
        num_cores=registration.num_cores,
        num_threads=registration.num_threads,
        memory_bytes=registration.memory_bytes,
        memory_limit_bytes=registration.memory_limit_bytes,
    )
