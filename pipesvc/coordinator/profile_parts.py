"""What a profile is put together from: a part for each device and each link, under a key that says what it depends on.

A measurement is worth keeping exactly as long as nothing changes that it measures. So the key of a device's part has
all of that in it: the job's functions and sources, the rows of a micro-batch, the device, its numeric fingerprint, its
threads and the workers that share its machine; a link's has its two ends and the way that it must go. Each part is a
`Costs` with one device or one link; `joined` makes the whole of them. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations
from typing import Final

from pipesvc.coordinator.planning import shared_of
from pipesvc.core.coding import TypedBytes
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.flow import difference
from pipesvc.core.planner import shared_threads
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2, worker_pb2
from pipesvc.wire.registrations import worker_info

# Of a pair that no part is of: one of the two cannot dial the other.
NO_WAY: Final = LinkCost(latency_s=math.inf)

_WAYS: Final = {types_pb2.LINK_WAY_GRPC: "gRPC", types_pb2.LINK_WAY_SAME_HOST: "same host"}

Registrations = Sequence[worker_pb2.Register]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """All parts of a profile of one job on these workers."""

    devices: Mapping[str, tuple[str, str]]  # key -> worker, device
    links: Mapping[str, tuple[str, str]]  # key -> sending worker, receiving worker
    threads: Mapping[str, int]  # of an executor, by worker


def wanted_parts(job: job_pb2.JobSpec, workers: Registrations) -> Wanted:
    """With as many threads as a run on all of these workers would give to each."""
    threads = shared_threads([worker_info(worker) for worker in workers])
    measured = _measured_part(job)
    devices = {
        _key("device", measured, *_facts(worker, threads), *_neighbours(worker, workers, threads), device): (
            worker.name,
            device,
        )
        for worker in workers
        for device in worker.devices
    }
    way = ("gRPC",) if job.strategy.forces_grpc else ()
    links = {
        _key("link", sender.name, sender.host, receiver.name, receiver.host, *way): (sender.name, receiver.name)
        for sender, receiver in permutations(workers, 2)
    }
    return Wanted(devices=devices, links=links, threads=threads)


def device_part(worker: str, profile: local_pb2.DeviceProfile) -> Costs:
    layers = tuple(
        LayerCost(
            name=each.layer.name,
            type=each.layer.type,
            mark=each.layer.mark,
            parameter_bytes=each.layer.parameter_bytes,
            gradient_bytes=each.gradient_bytes,
            optimizer_bytes=each.optimizer_bytes,
            buffer_bytes=each.layer.buffer_bytes,
            activation_bytes=each.activation_bytes,
            output_bytes=each.output_bytes,
            output_gradient_bytes=each.output_gradient_bytes,
            outputs=_typed(each.outputs),
            output_gradients=_typed(each.output_gradients),
            shared=shared_of(each.layer),
        )
        for each in profile.layers
    )
    # A worker of an earlier version does not measure it.
    is_split = all(each.HasField("input_backward_s") for each in profile.layers)
    times = LayerTimes(
        forward_s=tuple(each.forward_s for each in profile.layers),
        backward_s=tuple(each.backward_s for each in profile.layers),
        update_s=tuple(each.update_s for each in profile.layers),
        skip_s=tuple(each.skip_s for each in profile.layers) if profile.flow_json else (),
        input_backward_s=tuple(each.input_backward_s for each in profile.layers if is_split),
        weight_backward_s=tuple(each.weight_backward_s for each in profile.layers if is_split),
    )
    device = DeviceCost(worker=worker, device=profile.device, times=times, memory_bytes=profile.memory_bytes)
    return Costs(
        layers=layers,
        devices=(device,),
        micro_batch_rows=profile.micro_batch_rows,
        flow_json=profile.flow_json,
    )


def link_part(sender: str, receiver: str, profile: local_pb2.LinkProfile) -> Costs:
    link = LinkCost(latency_s=profile.latency_s, bytes_per_s=profile.bytes_per_s, way=_WAYS.get(profile.way, ""))
    return Costs(layers=(), devices=(), links={(sender, receiver): link})


def joined(wanted: Wanted, parts: Mapping[str, Costs], workers: Registrations) -> Costs:
    """The whole, in the order of the workers; a link without a part is no way.

    Raises BUILD_FAILED if two workers built different layers.
    """
    known = {worker.name: worker_info(worker) for worker in workers}
    found = [parts[key] for key in wanted.devices]
    _check_same_layers(found)
    return Costs(
        layers=tuple(_largest(same) for same in zip(*(part.layers for part in found), strict=True)),
        devices=tuple(
            replace(
                device,
                memory_bytes=known[device.worker].device_memory_bytes(device.device, own_bytes=device.memory_bytes),
            )
            for part in found
            for device in part.devices
        ),
        links={pair: parts[key].links[pair] if key in parts else NO_WAY for key, pair in wanted.links.items()},
        micro_batch_rows=found[0].micro_batch_rows,
        flow_json=found[0].flow_json,
    )


def _typed(found: Iterable[local_pb2.TypedBytes]) -> tuple[TypedBytes, ...]:
    return tuple(TypedBytes(each.dtype, each.num_bytes) for each in found)


def _check_same_layers(parts: Sequence[Costs]) -> None:
    first = parts[0]
    for part in parts[1:]:
        ours, theirs = part.flow, first.flow
        is_same = ours is theirs is None or (ours is not None and theirs is not None and not difference(ours, theirs))
        if not is_same or [layer.name for layer in part.layers] != [layer.name for layer in first.layers]:
            here, there = part.devices[0].worker, first.devices[0].worker
            raise PipesvcError(
                ErrorCode.BUILD_FAILED,
                f"the model has {len(part.layers)} layers on worker {here} and {len(first.layers)} on {there}, "
                "or others by name",
                advice="The model function must do the same everywhere; look for versions that differ, or for a file "
                "that it reads. If that has changed since some were measured: `pipesvc profile JOB --fresh`",
                where=Where(worker=here),
            )


def _largest(same: Sequence[LayerCost]) -> LayerCost:
    """One layer as the devices found it. A GPU's kernels may keep other activations than a CPU's: the most is safe."""
    sizes = [item.name for item in fields(LayerCost) if item.name.endswith("_bytes")]
    return replace(same[0], **{name: max(getattr(each, name) for each in same) for name in sizes})


def _measured_part(job: job_pb2.JobSpec) -> str:
    """Of a job, what its layers' costs depend on. What is not known to be without influence counts."""
    part = job_pb2.JobSpec()
    part.CopyFrom(job)
    for name in ("name", "weight", "epochs", "max_steps", "check_finite", "python_version"):
        part.ClearField(name)
    for name in ("torch_version", "worker_wait_s", "build_timeout_s", "step_timeout_s"):
        part.ClearField(name)
    for name in ("clip_norm", "clip_value", "scheduler", "grad_scaler"):
        part.ClearField(name)
    for name in ("capacity", "double_buffer", "timeout_s"):
        part.data.ClearField(name)
    part.strategy.CopyFrom(job_pb2.StrategySpec(micro_batches=job.strategy.micro_batches))
    return hashlib.sha256(part.SerializeToString(deterministic=True)).hexdigest()


def _facts(worker: worker_pb2.Register, threads: Mapping[str, int]) -> list[str]:
    return [worker.name, worker.host, worker.fingerprint, f"{threads[worker.name]} of {worker.num_cores}"]


def _neighbours(
    worker: worker_pb2.Register, workers: Iterable[worker_pb2.Register], threads: Mapping[str, int]
) -> list[str]:
    """Who computes on the same machine, and is measured at the same time."""
    others = [other for other in workers if other.boot_id == worker.boot_id and other.name != worker.name]
    return sorted(" ".join(_facts(other, threads)) for other in others)


def _key(kind: str, *facts: str) -> str:
    return f"{kind}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"
