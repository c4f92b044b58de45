"""The name of a link: one ordered stream of tensors between two endpoints of a run.

A link appears in metadata, logs, traces and messages. It is one value with one text form, so that every place prints
and reads it the same way. Endpoints are stage indices; the feeder and the client have negative numbers.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2

FEEDER: Final = -1
CLIENT: Final = -2

_ENDPOINT_NAMES: Final = {FEEDER: "feeder", CLIENT: "client"}
_ENDPOINTS: Final = {name: number for number, name in _ENDPOINT_NAMES.items()}
_KIND_PREFIX: Final = "LINK_KIND_"
KIND_NAMES: Final[dict[int, str]] = {
    number: name.removeprefix(_KIND_PREFIX).lower() for name, number in types_pb2.LinkKind.items() if number != 0
}
_KINDS: Final = {name: number for number, name in KIND_NAMES.items()}
_TEXT: Final = re.compile(r"(feeder|client|0|[1-9][0-9]{0,8})>(feeder|client|0|[1-9][0-9]{0,8})/([a-z]+)")


class _Fields(NamedTuple):
    producer: int
    consumer: int
    kind: int


class Link(_Fields):
    """`kind` is a number of LinkKind. The text form is "0>1/activation", "feeder>0/input", "client>feeder/stream".

    A tuple, because every parcel is looked up by its link many times, and a tuple's hash is not computed in Python.
    """

    __slots__ = ()

    def __new__(cls, producer: int, consumer: int, kind: int) -> Link:
        if kind not in KIND_NAMES:
            raise PipesvcError(ErrorCode.BAD_FRAME, f"unknown link kind number {kind}")
        for endpoint in (producer, consumer):
            if endpoint < CLIENT:
                raise PipesvcError(ErrorCode.BAD_FRAME, f"unknown link endpoint number {endpoint}")
        return super().__new__(cls, producer, consumer, kind)

    def __str__(self) -> str:
        return f"{endpoint_name(self.producer)}>{endpoint_name(self.consumer)}/{KIND_NAMES[self.kind]}"

    def to_message(self) -> types_pb2.LinkId:
        # A field of an enum takes any number; the stub asks for the name, which only a lookup by number would give.
        message = types_pb2.LinkId(producer=self.producer, consumer=self.consumer)
        message.kind = self.kind  # type: ignore[assignment]
        return message

    @classmethod
    def from_message(cls, message: types_pb2.LinkId) -> Link:
        return cls(message.producer, message.consumer, int(message.kind))

    @classmethod
    def parse(cls, text: str) -> Link:
        match = _TEXT.fullmatch(text)
        if match is None or match[3] not in _KINDS:
            raise PipesvcError(
                ErrorCode.BAD_FRAME,
                f"{text!r} does not name a link",
                advice=f"A link is written PRODUCER>CONSUMER/KIND with a kind of {', '.join(_KINDS)}.",
            )
        return cls(_endpoint(match[1]), _endpoint(match[2]), _KINDS[match[3]])


def endpoint_name(endpoint: int) -> str:
    """ "0", "1", ... for stages, "feeder", "client"."""
    return _ENDPOINT_NAMES.get(endpoint) or str(endpoint)


def _endpoint(name: str) -> int:
    number = _ENDPOINTS.get(name)
    return int(name) if number is None else number
