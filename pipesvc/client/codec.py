"""In which form stages send each other tensors, as a strategy says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipesvc.client import checks
from pipesvc.core.coding import Coding, PairCoding

# pipesvc.wire.codecs has their errors.
CODECS: Final = ("none", "bf16", "fp16", "int8")
_LINK: Final = re.compile(r"(0|[1-9][0-9]{0,4})>([1-9][0-9]{0,4})")
_FIX: Final = 'Write codec=pipesvc.Codec(activations="int8", gradients="bf16")'


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec:
    """What travels in fewer bits than it has. The numbers of a run are then not those of one process, bit for bit."""

    activations: str = "none"
    """"none", "bf16", "fp16", or "int8" with a scale for each 256 numbers."""
    gradients: str = "none"
    """The same for the gradients that come back."""
    links: Mapping[str, Codec] = field(default_factory=dict)
    """Of single pairs of stages, earlier one first, instead of these: {"0>1": pipesvc.Codec(activations="int8")}."""

    def __post_init__(self) -> None:
        checks.one_of("activations", self.activations, CODECS)
        checks.one_of("gradients", self.gradients, CODECS)
        fix = 'Write links={"0>1": pipesvc.Codec(activations="int8")}'
        checks.is_a("links", self.links, Mapping, "a dict of pairs of stages to codecs", fix)
        for name, codec in self.links.items():
            self._check_link(name, codec, fix)

    @property
    def is_none(self) -> bool:
        return not self.links and (self.activations, self.gradients) == ("none", "none")

    @property
    def by_pair(self) -> dict[tuple[int, int], Codec]:
        """The same by the numbers of the stages; (0, 0) stands for all pairs that are not in `links`."""
        return {(0, 0): self} | {_stages(name): codec for name, codec in self.links.items()}

    def _check_link(self, name: object, codec: object, fix: str) -> None:
        checks.text("a pair of stages in links", name, fix)
        found = _LINK.fullmatch(str(name))
        if found is None or int(found[1]) >= int(found[2]):
            raise checks.refusal(
                "a pair of stages in links", name, 'two stages, the earlier one first, like "0>1"', fix
            )
        checks.is_a(f"links has {name!r}, whose value", codec, Codec, "a pipesvc.Codec", fix)
        if isinstance(codec, Codec) and codec.links:
            raise checks.refuse(f"links has {name!r}, whose Codec has links of its own", "Give links once, at the top")


def check_codec(codec: object) -> None:
    checks.is_a("codec", codec, Codec, "a pipesvc.Codec", _FIX)


def coding_of(codec: Codec) -> Coding:
    """For a planner."""
    pairs = {pair: PairCoding(each.activations, each.gradients) for pair, each in codec.by_pair.items()}
    return Coding(pairs.pop((0, 0)), pairs)


def as_json(codec: Codec) -> dict[str, Any]:
    """As a plan file has it."""
    own = {"activations": codec.activations, "gradients": codec.gradients}
    return own | ({"links": {name: as_json(each) for name, each in codec.links.items()}} if codec.links else {})


def from_json(value: Any) -> Codec:
    """Refuses, as INVALID_JOB, what `as_json` does not write."""
    checks.is_a("codec", value, dict, 'an object like {"activations": "int8", "gradients": "bf16"}')
    fields = ("activations", "gradients", "links")
    for name in value:
        checks.one_of("a field of codec", name, fields)
    links = value.get("links", {})
    checks.is_a("links", links, dict, 'an object like {"0>1": {"activations": "int8"}}')
    return Codec(**value | {"links": {name: from_json(each) for name, each in links.items()}})


def _stages(name: str) -> tuple[int, int]:
    earlier, later = name.split(">")
    return int(earlier), int(later)
