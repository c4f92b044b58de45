from __future__ import annotations

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import Address, parse


@pytest.mark.parametrize(
    ("text", "host", "port", "written"),
    [
        ("127.0.0.1:7700", "127.0.0.1", 7700, "127.0.0.1:7700"),
        ("  GPU-Box:0 ", "gpu-box", 0, "gpu-box:0"),
        ("[::1]:65535", "::1", 65535, "[::1]:65535"),
        ("a_b.example:1", "a_b.example", 1, "a_b.example:1"),
    ],
)
def test_reads_and_writes(text: str, host: str, port: int, written: str) -> None:
    address = parse(text)
    assert address == Address(host=host, port=port)
    assert str(address) == written
    assert parse(written) == address


def test_the_option_is_named_in_which_a_person_wrote_it() -> None:
    with pytest.raises(PipesvcError, match=r"--listen: the address 'box' has no port"):
        parse("box", option="--listen")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("127.0.0.1", "no port"),
        ("", "no port"),
        (":7700", "no host"),
        ("box:", "''"),
        ("box:65536", "'65536'"),
        ("box:-1", "'-1'"),
        ("box:+1", "'\\+1'"),
        ("box:٣", "port"),
        ("::1", "bare IPv6"),
        ("::1:7700", "bare IPv6"),
        ("a:b:1", "more than one colon"),
        ("http://box:1", "more than one colon"),
        ("[::1:7700", "bracket"),
        ("[::1]7700", "bracket"),
        ("bo x:1", "valid host"),
        ("-box:1", "valid host"),
        ("[box:1", "bracket"),
    ],
)
def test_refuses_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(PipesvcError, match=why) as caught:
        parse(text)
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert "HOST:PORT" in caught.value.details.advice


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("box", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert Address(host=host, port=1).is_loopback is expected


def test_names_under_which_a_listener_is_dialled() -> None:
    loopback = {str(address) for address in parse("127.0.0.1:7").dialled_as()}
    assert loopback == {"127.0.0.1:7", "localhost:7"}
    wildcard = [address.host for address in parse("0.0.0.0:7").dialled_as()]
    assert {"127.0.0.1", "localhost"} <= set(wildcard)
    assert "0.0.0.0" not in wildcard
    assert [str(address) for address in parse("10.1.1.1:7").dialled_as()] == ["10.1.1.1:7"]
