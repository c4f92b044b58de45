"""What the link tests share: a receiving worker and tensors of known bytes."""

from __future__ import annotations

import asyncio
import mmap
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pipesvc.errors import PipesvcError
from pipesvc.net import options, servers
from pipesvc.net.addresses import Address, parse
from pipesvc.net.link_sender import LinkSender
from pipesvc.net.link_service import LinkService
from pipesvc.net.outgoing import OutgoingTensor
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.frames import FrameHeader
from pipesvc.wire.links import Link

RUN = "run-1"
TERM = 3
TOKEN = "token-of-the-run"
FORWARD = Link.parse("0>1/activation")
BACKWARD = Link.parse("1>0/gradient")
LIMIT_S = 30.0


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition, by name and with a limit."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within {LIMIT_S:g} s: {what}") from None


def noise(num_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


@dataclass
class RecordingSink:
    """Keeps what arrives, and consumes each parcel at once if told so."""

    service: LinkService
    run_id: str = RUN
    consumes: bool = True
    headers: list[FrameHeader] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    num_allocated: int = 0
    num_parcels: dict[Link, int] = field(default_factory=dict)
    num_consumed: dict[Link, int] = field(default_factory=dict)
    most_outstanding: int = 0
    losses: list[tuple[Link, float]] = field(default_factory=list)

    def allocate(self, link: Link, header: FrameHeader) -> memoryview:
        self.num_allocated += 1
        return memoryview(bytearray(header.total_bytes))

    def deliver(self, link: Link, header: FrameHeader, view: memoryview) -> None:
        self.headers.append(header)
        self.links.append(link)
        self.contents.append(bytes(view))
        if header.ends_parcel:
            self.num_parcels[link] = self.num_parcels.get(link, 0) + 1
            outstanding = self.num_parcels[link] - self.num_consumed.get(link, 0)
            self.most_outstanding = max(self.most_outstanding, outstanding)
            if self.consumes:
                asyncio.get_running_loop().call_soon(self.consume, link)

    def lost(self, link: Link, since_s: float) -> None:
        self.losses.append((link, since_s))

    def consume(self, link: Link) -> None:
        self.num_consumed[link] = self.num_consumed.get(link, 0) + 1
        self.service.consumed(self.run_id, link, self.num_consumed[link])

    @property
    def sequences(self) -> list[int]:
        return [header.sequence for header in self.headers]


@dataclass
class Receiver:
    address: Address
    service: LinkService
    sink: RecordingSink


@asynccontextmanager
async def receiver(
    *, window_parcels: int = 2, consumes: bool = True, is_open: bool = True, lost_after_s: float = 10.0
) -> AsyncIterator[Receiver]:
    service = LinkService()
    sink = RecordingSink(service, consumes=consumes)
    if is_open:
        service.open_run(
            RUN,
            term=TERM,
            token=TOKEN,
            window_parcels=window_parcels,
            sink=sink,
            on_lost=sink.lost,
            lost_after_s=lost_after_s,
        )
    server = servers.make_server(token=None, server_options=options.DATA_SERVER)
    service.add_to(server)
    bound = servers.bind(server, parse("127.0.0.1:0"))
    await server.start()
    try:
        yield Receiver(bound.address, service, sink)
    finally:
        service.close_run(RUN)
        await server.stop(None)


@dataclass
class Sending:
    sender: LinkSender
    failures: list[PipesvcError]
    # Each time that a tensor began (True) or ceased to wait for credit.
    awaited: list[bool] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    num_sent: int = 0

    def send(self, content: bytes | mmap.mmap, *, value: int = 0, num_values: int = 1, micro_batch: int = 0) -> None:
        """A uint8 tensor; its place in the order of sending is noted when it is acknowledged."""
        index = self.num_sent
        self.num_sent += 1
        self.sender.send(
            OutgoingTensor(
                step=1,
                micro_batch=micro_batch,
                value=value,
                num_values=num_values,
                view=memoryview(content),
                on_acknowledged=lambda: self.acknowledged.append(index),
                structure="[0]" if value == 0 else "",
                element_type=types_pb2.ELEMENT_TYPE_UINT8,
                shape=(len(content),),
                requires_grad=True,
            )
        )


@asynccontextmanager
async def sending(
    address: Address,
    link: Link = FORWARD,
    *,
    term: int = TERM,
    token: str = TOKEN,
    lost_after_s: float = 10.0,
    has_checksums: bool = True,
) -> AsyncIterator[Sending]:
    failures: list[PipesvcError] = []
    awaited: list[bool] = []
    sender = LinkSender(
        link=link,
        run_id=RUN,
        term=term,
        address=address,
        token=token,
        on_failed=failures.append,
        on_awaiting=awaited.append,
        lost_after_s=lost_after_s,
        has_checksums=has_checksums,
    )
    try:
        yield Sending(sender, failures, awaited)
    finally:
        await sender.close()


def deaf_to_proxies() -> Mapping[str, str]:
    """Environment that sends any proxy-minded client to a dead address."""
    names = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    return {variant: "http://127.0.0.1:9" for name in names for variant in (name, name.upper())}
