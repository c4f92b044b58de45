"""What a user may demand of a partition, checked and turned into a `Problem`: every mistake is refused here by name.

Marks, given places and boundaries speak of labels and workers; the search knows indices alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipesvc.core import marks
from pipesvc.core.coding import Coding
from pipesvc.core.costs import Costs, DeviceCost
from pipesvc.core.flow import check_ends, finest_ends
from pipesvc.core.partition_memory import memory_sums
from pipesvc.core.partition_methods import AUTO, edges_of, layer_infos, stage_edges
from pipesvc.core.partition_problem import InFlight, Problem, crossing
from pipesvc.core.plan import StrategySettings
from pipesvc.core.stages import cut
from pipesvc.errors import ErrorCode, LayersError, PipesvcError


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionConstraints:
    """What a partition must keep to. Marks are in the costs, and so is a flow, with what it keeps together."""

    num_stages: int = 0  # 0: chosen by "auto", else one per device
    boundaries: tuple[int, ...] = ()  # a stage begins at each of these layers, and perhaps elsewhere too
    places: Mapping[str, str] = field(default_factory=dict)  # mark or "stage:K" -> "worker" or "worker/device"
    allow_cpu_for_gpu: bool = False  # a gpu mark without its GPU may be on any CPU
    coding: Coding = field(default_factory=Coding)  # of what goes over the boundaries


def problem_of(
    costs: Costs,
    *,
    num_micro_batches: int,
    method: str | Sequence[int | str],
    constraints: PartitionConstraints,
    in_flight: InFlight,
) -> Problem:
    """The problem in indices.

    Raises INVALID_JOB without layers, INVALID_PLAN for indices that do not exist and demands that contradict each
    other, UNKNOWN_WORKER and UNKNOWN_DEVICE for places and marks that no device answers to.
    """
    _check(costs, num_micro_batches)
    may_cut, must_cut = _boundaries(costs, method, constraints)
    labels = _mark_labels(costs)
    sent, held = crossing(costs, constraints.coding), crossing(costs, Coding())
    stage_devices = _given_places(costs, constraints.places, labels)
    counts = _stage_counts(costs, constraints.num_stages, may_cut, must_cut, stage_devices)
    return Problem(
        costs=costs,
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        stage_counts=counts,
        may_cut=may_cut,
        must_cut=must_cut,
        is_barred=_barred(costs, constraints, labels),
        stage_devices=stage_devices,
        crossing=sent,
        memory=memory_sums(costs, held.forward_bytes, held.backward_bytes),
    )


def _refuse(what: str, advice: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_PLAN, what, advice=advice)


def _check(costs: Costs, num_micro_batches: int) -> None:
    num_layers = len(costs.layers)
    if not num_layers:
        raise PipesvcError(ErrorCode.INVALID_JOB, "the model has no layers", advice="Return at least one module.")
    if not costs.devices:
        raise _refuse("there is no device to place a stage on", "Start a worker.")
    if num_micro_batches < 1:
        raise _refuse(f"micro_batches is {num_micro_batches}", "Use 1 or more micro-batches.")
    for device in costs.devices:
        times = device.times
        lengths = {len(times.forward_s), len(times.backward_s), len(times.update_s)}
        if lengths != {num_layers}:
            raise _refuse(
                f"{_name(device)} has times for {sorted(lengths)} layers, the model has {num_layers}",
                "Profile the job again.",
            )


def _boundaries(
    costs: Costs, method: str | Sequence[int | str], constraints: PartitionConstraints
) -> tuple[npt.NDArray[np.bool_], tuple[int, ...]]:
    """Where stages may begin or end ([L + 1]), and where they must."""
    layers, asked = costs.layers, constraints
    num_layers = len(layers)
    flow = costs.flow
    may_cut = np.ones(num_layers + 1, np.bool_)
    if flow is not None:
        may_cut[1:] = False
        may_cut[list(finest_ends(flow))] = True
    must_cut = tuple(sorted(set(asked.boundaries)))
    if must_cut:
        stage_edges(StrategySettings(boundaries=must_cut), layers, 0)  # refuses marks, and what is no boundary
    if any(layer.mark for layer in layers):
        if method != AUTO:
            raise _refuse(
                f"the model has device_guard marks and the strategy cuts by {method!r}",
                "Use one of the two: remove the marks or the method.",
            )
        edges = stage_edges(StrategySettings(num_stages=asked.num_stages), layers, 0)
    elif not isinstance(method, str):
        inner = list(method)[1 if method and method[0] == 0 else 0 :]
        inner = inner[: -1 if inner and inner[-1] == num_layers else None]
        edges = stage_edges(StrategySettings(boundaries=_either(inner), num_stages=asked.num_stages), layers, 0)
        edges = edges if inner else (0, num_layers)
    elif method != AUTO:
        num_stages = asked.num_stages or min(len(costs.devices), int(may_cut.sum()) - 1)
        edges = edges_of(method, layers, num_stages, may_cut, must_cut)
    else:
        edges = ()
    if flow is not None:
        check_ends(flow, edges[1:] or (*must_cut, num_layers))
    missing = [boundary for boundary in must_cut if edges and boundary not in edges]
    if missing:
        raise _refuse(
            f"method {method!r} has no boundary at layer {missing[0]}, which the boundaries demand",
            "Leave one of the two out.",
        )
    if not edges:
        return may_cut, must_cut
    given = np.zeros_like(may_cut)
    given[list(edges)] = True
    return given, edges[1:-1]


def _either(boundaries: Sequence[int | str]) -> tuple[int, ...] | tuple[str, ...]:
    """Indices alone or names alone, as `StrategySettings` has them."""
    indices = tuple(each for each in boundaries if isinstance(each, int))
    names = tuple(each for each in boundaries if isinstance(each, str))
    if indices and names:
        raise _refuse(f"boundaries {list(boundaries)} mix names and indices", "Use one of the two.")
    return indices or names


def _stage_counts(
    costs: Costs,
    num_stages: int,
    may_cut: npt.NDArray[np.bool_],
    must_cut: Sequence[int],
    stage_devices: Mapping[int, frozenset[int]],
) -> tuple[int, ...]:
    least = max(len(must_cut) + 1, max(stage_devices, default=0) + 1)
    most = min(len(costs.devices), int(may_cut.sum()) - 1)
    counts = range(least, most + 1)
    if num_stages:
        counts = range(num_stages, num_stages + 1) if num_stages in counts else range(0)
    if not counts:
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"{num_stages or least} stages are asked for; {len(costs.layers)} layers on {len(costs.devices)} devices "
            f"can have {least} to {most}"
            if least <= most
            else f"{least} stages are needed, and there are {len(costs.devices)} devices and "
            f"{int(may_cut.sum()) - 2} allowed boundaries",
            advice="A device holds one stage: ask for fewer stages, or start more workers.",
        )
    return tuple(counts)


def _mark_labels(costs: Costs) -> dict[str, range]:
    """The layers of each mark."""
    if not any(layer.mark for layer in costs.layers):
        return {}
    stages = cut(StrategySettings(), layer_infos(costs.layers), 0)
    return {stage.label: range(stage.first_layer, stage.end_layer) for stage in stages}


def _barred(costs: Costs, constraints: PartitionConstraints, labels: Mapping[str, range]) -> npt.NDArray[np.bool_]:
    """[D, L]: what marks forbid. A given place goes before the rule of its mark."""
    is_barred = np.zeros((len(costs.devices), len(costs.layers)), np.bool_)
    for label, held in labels.items():
        allowed = _devices_of_mark(costs, label, constraints)
        outside = [index for index in range(len(costs.devices)) if index not in allowed]
        is_barred[np.ix_(outside, list(held))] = True
    return is_barred


def _devices_of_mark(costs: Costs, label: str, constraints: PartitionConstraints) -> frozenset[int]:
    mark = marks.parse(label)
    wants_gpu = mark.kind is marks.MarkKind.GPU
    wish = constraints.places.get(label)
    if wish is not None:
        named = _devices_of_wish(costs, label, wish)
        if "/" in wish:
            return named
        right = frozenset(index for index in named if _is_gpu(costs.devices[index]) == wants_gpu)
        right = right or (named if constraints.allow_cpu_for_gpu else right)
    elif wants_gpu:
        gpus = [index for index, device in enumerate(costs.devices) if _is_gpu(device)]
        right = frozenset(gpus[mark.gpu_index : mark.gpu_index + 1])
        if not right and constraints.allow_cpu_for_gpu:
            right = _cpus(costs)
    else:
        right = _cpus(costs)
    if not right:
        raise PipesvcError(
            ErrorCode.UNKNOWN_DEVICE,
            f"no device answers to mark {label!r}{f' on {wish!r}' if wish else ''}",
            advice=f"There are {_names(costs)}. Change the mark, or say allow_cpu_for_gpu=True.",
        )
    return right


def _is_gpu(device: DeviceCost) -> bool:
    return device.device.startswith("cuda")


def _cpus(costs: Costs) -> frozenset[int]:
    return frozenset(index for index, device in enumerate(costs.devices) if device.device.startswith("cpu"))


def _given_places(costs: Costs, places: Mapping[str, str], labels: Mapping[str, range]) -> dict[int, frozenset[int]]:
    """By index of the stage: the devices of its place."""
    given = {}
    order = list(labels)
    for label, wish in places.items():
        head, _, number = label.partition("stage:")
        if labels and label in labels:
            stage = order.index(label)
        elif not labels and not head and number.isdecimal() and int(number) < len(costs.layers):
            stage = int(number)
        else:
            raise _refuse(
                f"the placement names {label!r}, which the plan does not have",
                f"Its labels are {', '.join(order) or 'stage:0, stage:1, ...'}.",
            )
        given[stage] = _devices_of_wish(costs, label, wish)
    single = [next(iter(devices)) for devices in given.values() if len(devices) == 1]
    if len(set(single)) < len(single):
        raise _refuse(
            "the placement puts two stages on one device", "A device holds one stage: give each its own device."
        )
    return given


def _devices_of_wish(costs: Costs, label: str, wish: str) -> frozenset[int]:
    worker, slash, name = wish.partition("/")
    on_worker = [index for index, device in enumerate(costs.devices) if device.worker == worker]
    found = frozenset(index for index in on_worker if not slash or costs.devices[index].device == name)
    if not found:
        raise PipesvcError(
            ErrorCode.UNKNOWN_DEVICE if on_worker else ErrorCode.UNKNOWN_WORKER,
            f"{label!r} is placed on {wish!r}, which is not there",
            advice=f"There are {_names(costs)}.",
        )
    return found


def _name(device: DeviceCost) -> str:
    return f"{device.worker}/{device.device}"


def _names(costs: Costs) -> str:
    return ", ".join(map(_name, costs.devices))
