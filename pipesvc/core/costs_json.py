"""Costs as text: what a profile prints, keeps on the disk and sends, and what a planner is given back.

Measured costs are kept for weeks and may be edited by people, so what is read is checked field by field, and anything
else than `to_json` writes is refused by the name of the field. JSON has no infinity: a link without a bound has a
bandwidth of null, and one that is no way at all a latency of null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar, get_args, get_origin

from pipesvc.core.coding import TypedBytes
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.core.layer_info import SharedParameter
from pipesvc.core.strict_json import read_fields
from pipesvc.errors import ErrorCode, PipesvcError

_MAY_BE_EMPTY: Final = ("skip_s", "input_backward_s", "weight_backward_s")

T = TypeVar("T", Costs, DeviceCost, LayerCost, LayerTimes, LinkCost, SharedParameter, TypedBytes)


def to_json(costs: Costs, *, indent: int | None = None) -> str:
    """The same text for equal costs; one line without `indent`."""
    links = [
        {"sender": sender, "receiver": receiver, **_raw_link(link)}
        for (sender, receiver), link in sorted(costs.links.items())
    ]
    raw = {
        "layers": [asdict(layer) for layer in costs.layers],
        "devices": [asdict(device) for device in costs.devices],
        "links": links,
        "default_link": _raw_link(costs.default_link),
        "micro_batch_rows": costs.micro_batch_rows,
        "flow_json": costs.flow_json,
    }
    separators = (",", ":") if indent is None else None
    return json.dumps(raw, sort_keys=True, separators=separators, indent=indent, allow_nan=False)


def from_json(text: str) -> Costs:
    """The costs that `to_json` wrote; INVALID_PLAN names the field that is not as it should be."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"is not JSON: {error}") from None
    costs = read_fields(Costs, raw, _value, _malformed)
    for device in costs.devices:
        for name, values in asdict(device.times).items():
            if len(values) != len(costs.layers) and (values or name not in _MAY_BE_EMPTY):
                place = f"{name} of {device.worker}/{device.device}"
                raise _malformed(f"has {len(values)} values in {place} and {len(costs.layers)} layers")
    if (flow := costs.flow) is not None and [unit.name for unit in flow.units] != [each.name for each in costs.layers]:
        raise _malformed("has a flow of other units than its layers")
    return costs


def _raw_link(link: LinkCost) -> dict[str, float | str | None]:
    return {name: None if value == math.inf else value for name, value in asdict(link).items()}


def _value(hint: Any, raw: object, place: str) -> Any:
    is_whole = type(raw) is int and raw >= 0
    if hint in (str, bool) and type(raw) is hint:
        return raw
    if hint is int and is_whole:
        return raw
    if hint is float:
        is_bandwidth = place.startswith("bytes_per_s")
        if raw is None and (is_bandwidth or place.startswith("latency_s")):
            return math.inf
        if (is_whole or (isinstance(raw, float) and math.isfinite(raw) and raw >= 0)) and not (
            is_bandwidth and not raw
        ):
            return float(raw)  # type: ignore[arg-type]
    if hint in (LayerTimes, LinkCost):
        return read_fields(hint, raw, _value, _malformed)
    if isinstance(raw, list):
        if get_origin(hint) is tuple:
            item = get_args(hint)[0]
            is_plain = item in (int, float)
            return tuple(
                _value(item, each, place) if is_plain else read_fields(item, each, _value, _malformed) for each in raw
            )
        if get_origin(hint) is Mapping:
            return dict(_link(each) for each in raw)
    raise _malformed(f"has a wrong value for {place}: {raw!r}")


def _link(raw: object) -> tuple[tuple[str, str], LinkCost]:
    if not isinstance(raw, dict) or not {"sender", "receiver"} <= raw.keys():
        raise _malformed("has a link without sender or receiver")
    rest = dict(raw)
    sender = _value(str, rest.pop("sender"), "the sender of a link")
    receiver = _value(str, rest.pop("receiver"), "the receiver of a link")
    return (sender, receiver), read_fields(LinkCost, rest, _value, _malformed)


def _malformed(what: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_PLAN, f"the text of costs {what}")
