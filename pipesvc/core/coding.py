"""What a codec makes of a tensor, as far as its bytes on a link go: for a planner, who has costs and no tensors.

A plan that counts activations at full width keeps twice the micro-batches in flight that a coded link needs, and cuts
where a narrow tensor would not have to be sought. The wire has these sizes too (`wire.elements.payload_bytes`), by its
own numbers and for tensors that it holds; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pipesvc.core.ties import Pair

NONE: Final = "none"
# Types with the bytes of one element, and those of them that each codec takes. Others travel as they are.
_ELEMENT_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
_TAKEN: Final = {"bf16": {"float32"}, "fp16": {"float32"}, "int8": {*_ELEMENT_BYTES}}
_BLOCK_ELEMENTS: Final = 256
_SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class TypedBytes:
    """Bytes of tensors of one type, as they are without a codec."""

    dtype: str  # "float32"; empty: not known, and not coded
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PairCoding:
    """Names of codecs: what the earlier of two stages sends, and what comes back."""

    activations: str = NONE
    gradients: str = NONE


@dataclass(frozen=True, slots=True)
class Coding:
    """By pair of stages, earlier one first; and those of all other pairs."""

    others: PairCoding = PairCoding()
    by_pair: Mapping[Pair, PairCoding] = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        return all(each == PairCoding() for each in (self.others, *self.by_pair.values()))

    def bytes_between(self, pair: Pair, tensors: Iterable[TypedBytes]) -> int:
        """From the first stage of the pair to the second: activations go to later ones, gradients to earlier ones."""
        sender, receiver = pair
        chosen = self.by_pair.get((min(pair), max(pair)), self.others)
        codec = chosen.activations if sender < receiver else chosen.gradients
        return sum(coded_bytes(codec, each) for each in tensors)


def coded_bytes(codec: str, tensors: TypedBytes) -> int:
    """What they take on a link with this codec. Tensors of several are counted as one: their blocks are full."""
    if tensors.dtype not in _TAKEN.get(codec, ()):
        return tensors.num_bytes
    num_elements = tensors.num_bytes // _ELEMENT_BYTES[tensors.dtype]
    blocks_bytes = num_elements + _SCALE_BYTES * -(-num_elements // _BLOCK_ELEMENTS)
    return min(blocks_bytes if codec == "int8" else 2 * num_elements, tensors.num_bytes)
