"""A TCP proxy that is a bad network: late, slow, deaf, or cutting connections off.

This kernel has no netem, and a shaper in the kernel could not be told to go wrong in the middle of a tensor. So what
connects to the proxy is forwarded to a target, and what happens on the way is said by attributes, which may be changed
while connections are open. All of it in the event loop that made it; `python -m tests.proxy` is a process of its own:

    python -m tests.proxy LISTEN TARGET --delay 0.05 --rate 12.5e6    # host:port; seconds one way; bytes a second

It prints the address where it listens, and goes on until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from asyncio import StreamReader, StreamWriter
from enum import Enum
from typing import Final, Self

from pipesvc.net.addresses import Address, parse

_READ_BYTES: Final = 1 << 18
# What a slow way takes before it makes its sender wait, in seconds of its own rate, as `tc tbf latency` has it.
_QUEUE_S: Final = 0.05


class Direction(Enum):
    """Of bytes, as seen from who connects."""

    THERE = "to the target"
    BACK = "from the target"


class Proxy:
    """Forwards TCP connections to a target, until told otherwise. Use it in an `async with`.

    `delay_s` is how long bytes are on their way, in each direction. `bytes_per_s` is what all connections together may
    send, in each direction. Bytes come in order; how many are on their way is not limited but by senders.
    """

    def __init__(
        self,
        target: Address,
        budgets: list[int] | None = None,
        *,
        listen: Address | None = None,
        delay_s: float = 0.0,
        bytes_per_s: float = math.inf,
    ) -> None:
        self.target = target
        # Where it listens, once it does; port 0 is one that the system chooses.
        self.address = listen or Address(host="127.0.0.1", port=0)
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s
        self.num_connections = 0
        self.num_cuts = 0
        self.is_deaf = False  # answers of the target are thrown away
        self.changes: list[tuple[bytes, bytes]] = []  # on the way to the target, each once, in one piece that was read
        self.refuses = False
        # Bytes towards the target after which a connection is cut, one for each connection; later ones live on.
        self._budgets = list(budgets or [])
        self._writers: set[StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # When each direction has sent what it was given.
        self._free_s = dict.fromkeys(Direction, 0.0)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.address.host, self.address.port, limit=_READ_BYTES)
        self.address = Address(host=self.address.host, port=self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break all connections with a reset."""
        self.num_cuts += bool(self._writers)
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        if self.refuses:
            writer.transport.abort()
            return
        self.num_connections += 1
        budget = self._budgets.pop(0) if self._budgets else None
        onward = await asyncio.open_connection(self.target.host, self.target.port, limit=_READ_BYTES)
        pair = {writer, onward[1]}
        self._writers |= pair
        await asyncio.gather(
            self._pump(reader, onward[1], Direction.THERE, budget),
            self._pump(onward[0], writer, Direction.BACK, None),
            return_exceptions=True,
        )
        for end in pair:
            end.transport.abort()
        self._writers -= pair

    async def _pump(self, reader: StreamReader, writer: StreamWriter, direction: Direction, budget: int | None) -> None:
        """One direction of one connection, until its sender ends it."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(on_the_way, writer))
        try:
            while data := await reader.read(_READ_BYTES):
                if direction is Direction.BACK and self.is_deaf:
                    continue
                if budget is not None:
                    budget -= len(data)
                    if budget < 0:
                        self.cut()
                        return
                if self.changes and direction is Direction.THERE and self.changes[0][0] in data:
                    data = data.replace(*self.changes.pop(0), 1)
                on_the_way.put_nowait((await self._sent_s(len(data), direction) + self.delay_s, data))
                if not self.delay_s:
                    await on_the_way.join()  # a receiver that does not read makes its sender wait
            await on_the_way.join()
            writer.close()
        finally:
            delivering.cancel()

    async def _sent_s(self, num_bytes: int, direction: Direction) -> float:
        """When these bytes have gone out; waits while too many others are before them."""
        clock = asyncio.get_running_loop().time
        while (waits_s := self._free_s[direction] - clock() - _QUEUE_S) > 0:
            await asyncio.sleep(waits_s)
        self._free_s[direction] = max(self._free_s[direction], clock()) + num_bytes / self.bytes_per_s
        return self._free_s[direction]

    async def _deliver(self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due_s, data = await on_the_way.get()
            if (early_s := due_s - clock()) > 0:
                await asyncio.sleep(early_s)
            try:
                writer.write(data)
                await writer.drain()
            except ConnectionError:
                writer.transport.abort()
            on_the_way.task_done()


async def _serve(proxy: Proxy) -> None:
    async with proxy:
        print(proxy.address, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A TCP proxy that is late and slow.")
    parser.add_argument("listen", type=parse)
    parser.add_argument("target", type=parse)
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--rate", type=float, default=math.inf, metavar="BYTES_PER_S")
    given = parser.parse_args()
    proxy = Proxy(given.target, listen=given.listen, delay_s=given.delay, bytes_per_s=given.rate)
    asyncio.run(_serve(proxy))


if __name__ == "__main__":
    main()
