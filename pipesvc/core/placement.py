"""Which worker and device each stage gets.

Explicit wishes are met first, then marks in the order of their stages, by rules short enough to foresee: CPU groups
go to workers in registration order, `gpu:N` to the N-th GPU counted over the workers in registration order. What
cannot be met is either a mistake (named, with what there is) or a worker that has not come yet (named, to be waited
for).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipesvc.core import marks
from pipesvc.core.plan import WorkerInfo
from pipesvc.errors import ErrorCode, PipesvcError


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingWorkers:
    """The plan can be made as soon as these have come."""

    text: str  # "2 of 3 workers, waiting for ..."
    num_have: int
    num_need: int
    missing: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A worker's device."""

    worker: str
    device: str


@dataclass(slots=True)
class _Placing:
    """What is known while slots are filled one after the other."""

    workers: Sequence[WorkerInfo]
    allows_cpu_for_gpu: bool
    homes: Mapping[str, int]  # slot label -> number; equal numbers belong on one worker
    places: dict[str, Place] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # slot label -> what is awaited
    errors: list[PipesvcError] = field(default_factory=list)  # raised when no worker can still be on its way

    def is_used(self, worker: str) -> bool:
        return any(place.worker == worker for place in self.places.values())


def reachable_first(workers: Iterable[WorkerInfo], broken: Iterable[tuple[str, str]]) -> list[WorkerInfo]:
    """Workers in their order, but those with more broken ways later, so that slots are filled without them.

    `broken` are pairs of names: the first cannot dial the second.
    """
    trouble = Counter(name for pair in broken for name in set(pair))
    return sorted(workers, key=lambda worker: trouble[worker.name])


def place(
    labels: Sequence[str],
    placement: Mapping[str, str],
    workers: Sequence[WorkerInfo],
    *,
    allows_cpu_for_gpu: bool,
    homes: Sequence[int] = (),
) -> dict[str, Place] | MissingWorkers:
    """The place of each label, or the workers that are awaited. Mistakes are refused.

    `homes` numbers the worker of each label: unmarked stages of equal number go to one place. Empty: each its own.
    """
    unknown = [label for label in placement if label not in labels]
    if unknown:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"the placement names {unknown[0]!r}, which the plan does not have",
            advice=f"Its labels are {', '.join(labels)}.",
        )
    numbers = dict(zip(labels, homes or range(len(labels)), strict=True))
    state = _Placing(workers=workers, allows_cpu_for_gpu=allows_cpu_for_gpu, homes=numbers)
    _check_mates(placement, numbers)
    for label, wish in placement.items():
        _place_by_wish(state, label, wish)
    free = [label for label in labels if label not in placement]
    # A GPU that is there has no choice of worker, so it comes first.
    for label in sorted(free, key=lambda label: _gpu_of(state, label) is None):
        if label.startswith("gpu:"):
            _place_gpu(state, label)
        elif label.startswith("stage:"):
            _place_unmarked(state, label)
        else:
            _place_cpu(state, label)
    if not state.missing and not state.errors:
        return {label: state.places[label] for label in labels}
    named = {wish.partition("/")[0] for wish in placement.values()}
    num_need = len(named) + len({numbers[label] for label in free} - {numbers[label] for label in placement})
    if state.errors and len(workers) >= num_need:
        raise state.errors[0]
    missing = tuple(dict.fromkeys(state.missing[label] for label in labels if label in state.missing))
    num_have = min(len(workers), num_need - len(missing))
    text = f"{num_have} of {num_need} workers, waiting for {', '.join(missing)}"
    return MissingWorkers(text=text, num_have=num_have, num_need=num_need, missing=missing)


def _check_mates(placement: Mapping[str, str], homes: Mapping[str, int]) -> None:
    first: dict[int, str] = {}
    for label, wish in placement.items():
        mate = first.setdefault(homes[label], label)
        if placement[mate].partition("/")[0] != wish.partition("/")[0]:
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"{mate!r} and {label!r} are placed on {placement[mate]!r} and {wish!r}, but the schedule wants both "
                "on one worker",
                advice="Leave placement out, or name one worker for both.",
            )


def best_device(worker: WorkerInfo) -> str:
    """The first GPU, else what there is."""
    return next(iter(_gpus(worker)), "cpu" if "cpu" in worker.devices or not worker.devices else worker.devices[0])


def _gpus(worker: WorkerInfo) -> list[str]:
    return [device for device in worker.devices if device.startswith("cuda")]


def describe(workers: Sequence[WorkerInfo]) -> str:
    """The workers and their devices, for a message."""
    if not workers:
        return "no worker is registered"
    return "; ".join(f"{worker.name}: {', '.join(worker.devices) or 'no device'}" for worker in workers)


def _place_by_wish(state: _Placing, label: str, wish: str) -> None:
    name, slash, device = wish.partition("/")
    worker = next((worker for worker in state.workers if worker.name == name), None)
    if worker is None:
        state.missing[label] = f"worker {name!r}"
        state.errors.append(
            PipesvcError(
                ErrorCode.UNKNOWN_WORKER,
                f"the placement of {label!r} names worker {name!r}, which is not registered",
                advice=f"Registered: {', '.join(worker.name for worker in state.workers) or 'none'}.",
            )
        )
        return
    if slash and device not in worker.devices:
        raise _no_device(label, worker, f"device {device!r}")
    if not slash:
        device = _device_for(state, label, worker)
    state.places[label] = Place(worker=name, device=device)


def _device_for(state: _Placing, label: str, worker: WorkerInfo) -> str:
    """The device of a worker that was named without one."""
    if label.startswith("stage:"):
        return best_device(worker)
    if marks.parse(label).kind is marks.MarkKind.GPU:
        taken = {place.device for place in state.places.values() if place.worker == worker.name}
        gpus = sorted(_gpus(worker), key=lambda device: device in taken)
        if gpus:
            return gpus[0]
        if not state.allows_cpu_for_gpu:
            raise _no_device(label, worker, "GPU")
    if "cpu" not in worker.devices:
        raise _no_device(label, worker, "device 'cpu'")
    return "cpu"


def _no_device(label: str, worker: WorkerInfo, wanted: str) -> PipesvcError:
    return PipesvcError(
        ErrorCode.UNKNOWN_DEVICE,
        f"{label!r} is placed on worker {worker.name!r}, which has no {wanted}",
        advice=f"Worker {worker.name!r} has {', '.join(worker.devices) or 'no device'}.",
    )


def _all_gpus(workers: Sequence[WorkerInfo]) -> list[Place]:
    return [Place(worker=worker.name, device=device) for worker in workers for device in _gpus(worker)]


def _gpu_of(state: _Placing, label: str) -> Place | None:
    """The GPU that a mark names, if the cluster has it."""
    if not label.startswith("gpu:"):
        return None
    return next(iter(_all_gpus(state.workers)[marks.parse(label).gpu_index :]), None)


def _place_gpu(state: _Placing, label: str) -> None:
    gpu = _gpu_of(state, label)
    if gpu is not None:
        state.places[label] = gpu
        return
    if state.allows_cpu_for_gpu:
        for worker in state.workers:
            if "cpu" in worker.devices and not state.is_used(worker.name):
                state.places[label] = Place(worker=worker.name, device="cpu")
                return
        state.missing[label] = f"one more worker with a CPU for {label!r}"
        return
    state.missing[label] = f"a worker with the GPU for {label!r}"
    state.errors.append(
        PipesvcError(
            ErrorCode.UNKNOWN_DEVICE,
            f"mark {label!r} names a GPU that the cluster does not have: "
            f"it has {len(_all_gpus(state.workers))} ({describe(state.workers)})",
            advice="Start a worker with that GPU, change the mark, or say allow_cpu_for_gpu=True.",
        )
    )


def _place_unmarked(state: _Placing, label: str) -> None:
    mates = [other for other, number in state.homes.items() if number == state.homes[label]]
    if any(mate in state.missing for mate in mates):
        return
    for mate in mates:
        if mate in state.places:
            state.places[label] = state.places[mate]
            return
    for worker in state.workers:
        if not state.is_used(worker.name):
            state.places[label] = Place(worker=worker.name, device=best_device(worker))
            return
    state.missing[label] = f"one more worker for {label!r}"


def _place_cpu(state: _Placing, label: str) -> None:
    """A worker without a GPU if one is free, else any free one, else one whose GPU alone is in use."""
    with_cpu = [worker for worker in state.workers if "cpu" in worker.devices]
    free = [worker for worker in with_cpu if not state.is_used(worker.name)]
    on_cpu = {place.worker for place in state.places.values() if place.device == "cpu"}
    beside_gpu = [worker for worker in with_cpu if state.is_used(worker.name) and worker.name not in on_cpu]
    candidates = [*sorted(free, key=lambda worker: bool(_gpus(worker))), *beside_gpu]
    if candidates:
        state.places[label] = Place(worker=candidates[0].name, device="cpu")
    else:
        state.missing[label] = f"one more worker with a CPU for {label!r}"
