"""A link with one end in Node, made by Node's own gRPC and protobuf from the .proto files, and the other one ours."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pipesvc.net import channels
from pipesvc.net.addresses import Address
from pipesvc.net.link_sender import link_metadata
from pipesvc.wire.checksum import crc32c
from tests.contract.link_harness import FORWARD, RUN, TERM, TOKEN, noise, receiver, sending

SCRIPT = Path(__file__).with_name("link_node.cjs")
LIMIT_S = 30.0
NEEDS = (
    "node with @grpc/grpc-js and @grpc/proto-loader is not here: npm install --prefix DIR @grpc/grpc-js "
    "@grpc/proto-loader, and NODE_PATH=DIR/node_modules"
)


def has_node() -> bool:
    if shutil.which("node") is None:
        return False
    tried = 'require("@grpc/grpc-js"); require("@grpc/proto-loader")'
    return subprocess.run(["node", "-e", tried], capture_output=True, check=False, timeout=30).returncode == 0


pytestmark = pytest.mark.skipif(not has_node(), reason=NEEDS)


@asynccontextmanager
async def node(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "node", str(SCRIPT), *arguments, stdin=pipe, stdout=pipe, limit=4 << 20
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "node has ended"
    return json.loads(line)


def frame(sequence: int, payload: bytes, **fields: Any) -> dict[str, Any]:
    made = {"run_id": RUN, "term": str(TERM), "step": "1", "num_values": 1, "sequence": str(sequence)}
    kinds = {"dtype": "ELEMENT_TYPE_UINT8", "codec": "CODEC_NONE", "shape": [str(len(payload))]}
    text = base64.b64encode(payload).decode()
    return {**made, **kinds, "total_bytes": str(len(payload)), "payload": text, **fields}


@pytest.mark.asyncio
async def test_node_sends_to_the_service() -> None:
    """In chunks, without elements, without dimensions, and with a checksum."""
    whole = noise(1_500_000)
    halves = whole[: 1 << 20], whole[1 << 20 :]
    size = {"total_bytes": str(len(whole)), "shape": [str(len(whole))]}
    frames = [
        frame(1, halves[0], structure="[0]", **size),
        frame(1, halves[1], chunk_offset=str(1 << 20), **size),
        frame(2, b"", micro_batch=1),
        frame(3, b"\x2a", micro_batch=2, shape=[], requires_grad=True),
        frame(4, b"abc", micro_batch=3, crc32c=crc32c(memoryview(b"abc"))),
    ]
    metadata = [*link_metadata(FORWARD, RUN, TERM), *channels.auth_metadata(TOKEN)]
    async with receiver() as there, node("send", str(there.address)) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({"metadata": metadata, "frames": frames}).encode())
        process.stdin.close()
        replies = [await said(process)]
        while replies[-1]["acknowledged_sequence"] != "4":
            replies.append(await said(process))
        assert await process.wait() == 0
    assert (replies[0]["acknowledged_sequence"], replies[0]["credit_parcels"]) == ("0", "2")
    assert there.sink.contents == [whole, b"", b"\x2a", b"abc"]
    assert [header.shape for header in there.sink.headers] == [(1_500_000,), (0,), (), (3,)]
    assert [header.requires_grad for header in there.sink.headers] == [False, False, True, False]
    assert there.sink.headers[0].structure == "[0]"


@pytest.mark.asyncio
async def test_node_understands_the_sender() -> None:
    whole = noise(1_500_000)
    async with node("receive") as process:
        address = Address(host="127.0.0.1", port=(await said(process))["port"])
        async with sending(address) as here:
            here.send(whole, value=0, num_values=2, micro_batch=5)
            here.send(b"", value=1, num_values=2, micro_batch=5)
            metadata = (await said(process))["metadata"]
            got = [await said(process) for _ in range(3)]
            await here.sender.drain(20)
        assert here.acknowledged == [0, 1]
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
    expected = {"pipesvc-run": RUN, "pipesvc-term": "3", "pipesvc-link": "0>1/activation"}
    assert metadata.items() >= {**expected, "authorization": f"Bearer {TOKEN}"}.items()
    payloads = [base64.b64decode(each["payload"]) for each in got]
    assert payloads == [whole[: 1 << 20], whole[1 << 20 :], b""]
    assert [each.get("crc32c") for each in got[:2]] == [crc32c(memoryview(each)) for each in payloads[:2]]
    assert [(each["sequence"], each["chunk_offset"], each["structure"]) for each in got] == [
        ("1", "0", "[0]"),
        ("1", str(1 << 20), ""),
        ("2", "0", ""),
    ]
    assert [(each["value"], each["shape"], each["dtype"], each["requires_grad"]) for each in got[1:]] == [
        (0, ["1500000"], "ELEMENT_TYPE_UINT8", True),
        (1, ["0"], "ELEMENT_TYPE_UINT8", True),
    ]
