"""The text and message forms of a link are one value; what is no link is refused by name."""

from __future__ import annotations

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.links import CLIENT, FEEDER, KIND_NAMES, Link


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (Link(0, 1, types_pb2.LINK_KIND_ACTIVATION), "0>1/activation"),
        (Link(12, 3, types_pb2.LINK_KIND_GRADIENT), "12>3/gradient"),
        (Link(FEEDER, 0, types_pb2.LINK_KIND_INPUT), "feeder>0/input"),
        (Link(CLIENT, FEEDER, types_pb2.LINK_KIND_STREAM), "client>feeder/stream"),
    ],
)
def test_text_form(link: Link, text: str) -> None:
    assert str(link) == text
    assert Link.parse(text) == link


def test_every_kind_goes_both_ways_through_text_and_message() -> None:
    assert set(KIND_NAMES) == set(types_pb2.LinkKind.values()) - {types_pb2.LINK_KIND_UNSPECIFIED}
    for kind in KIND_NAMES:
        for producer in (CLIENT, FEEDER, 0, 7):
            link = Link(producer, 1, kind)
            assert Link.parse(str(link)) == link
            message = types_pb2.LinkId.FromString(link.to_message().SerializeToString())
            assert Link.from_message(message) == link


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0>1",
        "0>1/",
        "0>1/loss",
        "01>2/activation",
        "-1>0/input",
        "a>b/input",
        "0>1/activation\n",
        "0 > 1/activation",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(PipesvcError, match="does not name a link") as caught:
        Link.parse(text)
    assert caught.value.code is ErrorCode.BAD_FRAME


def test_unknown_numbers_are_refused_by_number() -> None:
    with pytest.raises(PipesvcError, match="unknown link kind number 99"):
        Link(0, 1, 99)
    with pytest.raises(PipesvcError, match="unknown link endpoint number -3"):
        Link(-3, 1, types_pb2.LINK_KIND_INPUT)
    with pytest.raises(PipesvcError, match="unknown link kind number 0"):
        Link.from_message(types_pb2.LinkId(producer=0, consumer=1))
