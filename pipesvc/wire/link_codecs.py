"""Which codec each link of a run has.

Only activations and their gradients are coded. Inputs, labels, norms, decisions and the values of tied weights are few,
or must arrive as they are: a copy of a weight that was rounded would not be a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pipesvc.rpc.v1 import job_pb2, types_pb2
from pipesvc.wire.elements import CODED_TYPES, codec_name
from pipesvc.wire.links import Link

# Earlier and later stage; the message says with this one: all others.
Pair: TypeAlias = tuple[int, int]
_OTHERS: Final[Pair] = (0, 0)


@dataclass(frozen=True, slots=True)
class PairCodecs:
    """What two stages send each other; numbers of Codec."""

    activations: int = types_pb2.CODEC_NONE
    gradients: int = types_pb2.CODEC_NONE


_NO_CODECS: Final = PairCodecs()


@dataclass(frozen=True, slots=True)
class LinkCodecs:
    """By pair of stages, and those of all other pairs."""

    others: PairCodecs = _NO_CODECS
    by_pair: Mapping[Pair, PairCodecs] = field(default_factory=dict)

    @classmethod
    def of_strategy(cls, strategy: job_pb2.StrategySpec) -> LinkCodecs:
        """Of a strategy without `codec_faults`."""
        by_pair = {_pair(each): PairCodecs(int(each.activations), int(each.gradients)) for each in strategy.codecs}
        return cls(by_pair.pop(_OTHERS, _NO_CODECS), by_pair)

    def of(self, link: Link) -> int:
        """The link's number of Codec."""
        match link.kind:
            case types_pb2.LINK_KIND_ACTIVATION:
                return self.by_pair.get((link.producer, link.consumer), self.others).activations
            case types_pb2.LINK_KIND_GRADIENT:
                return self.by_pair.get((link.consumer, link.producer), self.others).gradients
            case _:
                return types_pb2.CODEC_NONE


def codec_faults(strategy: job_pb2.StrategySpec) -> Iterator[str]:
    """What contradicts itself or is not known in this version."""
    pairs = [_pair(each) for each in strategy.codecs]
    for pair, each in zip(pairs, strategy.codecs, strict=True):
        name = "all links" if pair == _OTHERS else f"{pair[0]}>{pair[1]}"
        for codec in (each.activations, each.gradients):
            if codec not in CODED_TYPES:
                yield f"the codec of {name} is {codec_name(codec)}, which is not known here"
        if pair != _OTHERS and pair[0] >= pair[1]:
            yield f"codecs are given for {name}: write the earlier stage first"
        if pairs.count(pair) > 1:
            yield f"codecs of {name} are given twice"


def unknown_pairs(strategy: job_pb2.StrategySpec, sending: Collection[Pair]) -> list[Pair]:
    """The pairs that have codecs, and of which none sends activations or gradients to the other. `sending` has (sender,
    receiver)."""
    known = {(min(pair), max(pair)) for pair in sending}
    return [pair for each in strategy.codecs if (pair := _pair(each)) != _OTHERS and pair not in known]


def _pair(message: job_pb2.LinkCodec) -> Pair:
    return message.earlier_stage, message.later_stage
