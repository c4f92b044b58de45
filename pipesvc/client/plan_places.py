"""Where several stages lie on one device: what the partitioner, which gives each device one stage, is asked instead.

A device that is to hold k stages is offered to it k times. A schedule for several stages on each worker says itself
which of them belong together, so there the place of every stage is given, and the order of the workers is tried. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations
from typing import Final

from pipesvc.core.costs import Costs, DeviceCost

# Workers of which all orders are tried, with a search for each. Of more, the one in which they are given.
_MAX_ORDERED: Final = 4


def repeated(costs: Costs, places: Mapping[str, str], *, shares_memory: bool) -> Costs:
    """Each device as often as these places name it, once at least.

    `shares_memory` gives each an equal part of the device's memory; without it, a sum is left to be checked later.
    """
    counts = _num_named(costs.devices, places)
    devices = [
        replace(device, memory_bytes=device.memory_bytes // counts[index] if shares_memory else device.memory_bytes)
        for index, device in enumerate(costs.devices)
    ]
    # All of them before the second of any: of equal ones the search takes the first.
    again = [devices[index] for copy in range(1, max(counts)) for index, count in enumerate(counts) if count > copy]
    return replace(costs, devices=(*devices, *again))


def _num_named(devices: Sequence[DeviceCost], places: Mapping[str, str]) -> list[int]:
    """How often each is named; a worker that is named without a device fills its devices evenly."""
    counts = [0] * len(devices)
    for label, wish in sorted(places.items(), key=lambda item: "/" not in item[1]):
        worker, slash, name = wish.partition("/")
        own = [index for index, each in enumerate(devices) if each.worker == worker and name in ("", each.device)]
        if not slash and not label.startswith("stage:"):
            wants_gpu = label.startswith("gpu:")
            own = [index for index in own if _is_gpu(devices[index]) == wants_gpu] or own
        if own:
            counts[min(own, key=lambda index: counts[index])] += 1
    return [max(1, count) for count in counts]


def shared_places(homes: Sequence[int], wishes: Mapping[str, str], costs: Costs) -> Iterator[dict[str, str]]:
    """A place for every stage, for some orders of the workers; `homes` numbers the worker of each stage.

    None where there are too few workers, and where the wishes cannot be met: the planner says so.
    """
    # By worker: of its devices, the one that stages get, as in `core.placement`.
    device_of: dict[str, str] = {}
    for each in [*costs.devices, *filter(_is_gpu, reversed(costs.devices))]:
        if _is_gpu(each) or each.worker not in device_of:
            device_of[each.worker] = each.device
    home_of = {f"stage:{stage}": home for stage, home in enumerate(homes)}
    given: dict[int, str] = {}
    for label, wish in wishes.items():
        worker, _, device = wish.partition("/")
        known = label in home_of and worker in device_of
        if not known or given.setdefault(home_of[label], worker) != worker:
            return
        device_of[worker] = device or device_of[worker]
    if len(set(given.values())) < len(given):
        return
    free = [worker for worker in device_of if worker not in given.values()]
    open_homes = [home for home in range(max(homes) + 1) if home not in given]
    for order in islice(permutations(free, len(open_homes)), None if len(free) <= _MAX_ORDERED else 1):
        worker_of = given | dict(zip(open_homes, order, strict=True))
        yield {label: f"{worker_of[home]}/{device_of[worker_of[home]]}" for label, home in home_of.items()}


def _is_gpu(device: DeviceCost) -> bool:
    return device.device.startswith("cuda")
