"""Flows as text: what an inspector finds travels to the coordinator, and in the plan to every process of a run.

All of them number the same steps by it, so what is read is checked field by field, and anything else than `to_json`
writes is refused by the name of the field. The order of the tables is kept: that of `input_users` is the order of the
tensors in the inputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args, get_origin

from pipesvc.core.flow import Flow, Joined, Value
from pipesvc.core.layer_info import LayerInfo, SharedParameter
from pipesvc.core.strict_json import read_fields
from pipesvc.errors import ErrorCode, PipesvcError

T = TypeVar("T", Flow, LayerInfo, SharedParameter, Value, Joined)

_MOST_SHOWN_CHARS: Final = 80


def to_json(flow: Flow) -> str:
    """One line, the same for equal flows."""
    return json.dumps(asdict(flow), separators=(",", ":"))


def from_json(text: str) -> Flow:
    """The flow that `to_json` wrote; INVALID_PLAN names the field that is not as it should be."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"is not JSON: {error}") from None
    flow = read_fields(Flow, raw, _value, _malformed)
    for place, position in _positions(flow):
        if not -1 <= position < len(flow.units):
            raise _malformed(f"names unit {position} of {len(flow.units)} in {place}")
    return flow


@lru_cache(maxsize=4)  # asked again for every step, and a process has few plans
def known(text: str) -> Flow:
    """As `from_json`, of a text that is asked about again and again."""
    return from_json(text)


def _value(hint: Any, raw: object, place: str) -> Any:
    if hint in (int, str, bool) and type(raw) is hint:
        return raw
    if hint in (LayerInfo, SharedParameter, Value, Joined):
        return read_fields(hint, raw, _value, _malformed)
    if get_origin(hint) is tuple and isinstance(raw, list):
        return tuple(_value(get_args(hint)[0], each, place) for each in raw)
    if get_origin(hint) is Mapping and isinstance(raw, dict):
        return {name: _value(get_args(hint)[1], each, place) for name, each in raw.items()}
    raise _malformed(f"has a wrong value for {place}: {repr(raw)[:_MOST_SHOWN_CHARS]}")


def _positions(flow: Flow) -> Iterator[tuple[str, int]]:
    """Every position, with the place where it stands."""
    for value in flow.values:
        yield from ((f"value {value.key}", position) for position in (value.producer, *value.users))
    for table in ("input_users", "parameters", "buffers"):
        for name, users in getattr(flow, table).items():
            yield from ((f"{table} of {name!r}", position) for position in users)
    for joined in flow.joined:
        yield from (("joined", position) for position in (joined.first, joined.last))


def _malformed(what: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_PLAN, f"the text of a flow {what}")
