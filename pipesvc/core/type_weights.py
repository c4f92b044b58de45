"""The method `type:REGEX[:WEIGHT]|...`: which weight each class of layers has.

Apart from the cut, which needs numpy: a text that cannot be read is refused where a strategy is written. A `|` within
brackets, or after a backslash, belongs to its expression.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError

PREFIX: Final = "type:"
_EXAMPLE: Final = 'Write "type:Block" or "type:Embedding:2|Block:1": each is REGEX or REGEX:WEIGHT.'
_PART: Final = re.compile(r"(?P<regex>.+?)(?::(?P<weight>[0-9]+(?:\.[0-9]+)?))?")
# What stands between two `|` of the outermost level, or is one; of brackets, only whether they are open counts.
_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
# Weights of many layers are added up, and squared.
_MAX_WEIGHT: Final = 1e100


def type_parts(method: str) -> list[tuple[re.Pattern[str], float]]:
    """Each expression with its weight; INVALID_PLAN for what cannot be read."""
    parts = []
    for text in _split(method.removeprefix(PREFIX)):
        match = _PART.fullmatch(text)
        if match is None or match["regex"].endswith(":") or _has_weight_within(match["regex"]):
            raise bad_method(method, f"cannot read {text!r}")
        weight = float(match["weight"] or 1)
        if not math.isfinite(weight) or weight > _MAX_WEIGHT:
            raise bad_method(method, f"the weight of {match['regex']!r} is above {_MAX_WEIGHT:g}")
        try:
            parts.append((re.compile(match["regex"]), weight))
        except (re.error, RecursionError, OverflowError) as error:
            raise bad_method(method, f"{match['regex']!r} is no regular expression: {error}") from None
    return parts


def bad_method(method: str, what: str, kind: type[PipesvcError] = PipesvcError) -> PipesvcError:
    """A refusal with an example."""
    return kind(ErrorCode.INVALID_PLAN, f"the method {method!r}: {what}", advice=_EXAMPLE)


def _has_weight_within(regex: str) -> bool:
    """A `:` that is not that of a group such as `(?:...)`."""
    return ":" in re.sub(r"\(\?[a-zA-Z-]*:", "", regex)


def _split(text: str) -> Iterator[str]:
    part, depth = "", 0
    for token in _TOKEN.findall(text):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth <= 0:
            yield part
            part = ""
        else:
            part += token
    yield part
