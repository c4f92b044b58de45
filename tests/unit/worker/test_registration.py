"""The address that a worker gives to its peers, on hosts that know themselves by misleading names."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import Address, parse
from pipesvc.worker import identity, registration
from pipesvc.worker.registration import Registration, check_listen
from pipesvc.worker.settings import WorkerSettings

COORDINATOR = "192.0.2.1:7700"
HOSTS = {"box": ["127.0.1.1"], "both": ["127.0.1.1", "192.0.2.7"], "public": ["198.51.100.9"]}


@pytest.fixture(autouse=True)
def hosts_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with the address 192.0.2.7, whose own name `box` is loopback to itself."""

    def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        if host not in HOSTS:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (literal, port)) for literal in HOSTS[host]]

    def source_towards(peer: Address, **_: object) -> str:
        if peer.is_loopback or peer.host == "box":
            return "127.0.0.1"
        return "" if peer.host == "unknown" else "192.0.2.7"

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(registration, "source_towards", source_towards)


def told(bound: str, *, advertise: str = "", coordinator: str = COORDINATOR) -> tuple[str, list[str]]:
    """What is registered when the data server is bound there, and what the terminal shows."""
    lines: list[str] = []
    settings = WorkerSettings(coordinator=coordinator, name="w", advertise=advertise)
    message = Registration(settings, ("cpu",), parse(bound), lines.append).message()
    return message.data_address, lines


@pytest.mark.parametrize(
    ("bound", "advertise", "address"),
    [
        ("0.0.0.0:5", "", "192.0.2.7:5"),
        ("192.0.2.7:5", "", "192.0.2.7:5"),
        ("0.0.0.0:5", "198.51.100.9:6", "198.51.100.9:6"),
        ("0.0.0.0:5", "public:6", "public:6"),
        ("0.0.0.0:5", "both:6", "both:6"),
        ("0.0.0.0:5", "known-elsewhere:6", "known-elsewhere:6"),
    ],
)
def test_an_address_that_others_can_have_is_given_as_it_is(bound: str, advertise: str, address: str) -> None:
    assert told(bound, advertise=advertise) == (address, [])


def test_a_name_that_is_loopback_here_becomes_what_faces_the_coordinator() -> None:
    address, lines = told("0.0.0.0:5", advertise="box:6")
    assert address == "192.0.2.7:6"
    assert lines == ["box is 127.0.1.1 on this host: peers are told to dial 192.0.2.7:6 instead of box:6"]


@pytest.mark.parametrize("coordinator", ["127.0.0.1:7700", "box:7700"])
def test_where_the_coordinator_is_here_too_the_name_stays(coordinator: str) -> None:
    assert told("0.0.0.0:5", advertise="box:6", coordinator=coordinator) == ("box:6", [])


@pytest.mark.parametrize("advertise", ["", "127.0.0.1:6", "localhost:6"])
def test_a_loopback_address_for_a_coordinator_elsewhere_is_said(advertise: str) -> None:
    address, (line,) = told("127.0.0.1:6", advertise=advertise)
    assert address == (advertise or "127.0.0.1:6")
    assert line.startswith(f"other hosts cannot reach {address}")


def test_what_faces_the_coordinator_waits_for_its_name() -> None:
    with pytest.raises(PipesvcError) as caught:
        told("0.0.0.0:5", coordinator="unknown:7700")
    assert caught.value.code is ErrorCode.COORDINATOR_ABSENT
    assert "unknown:7700" in str(caught.value)


def test_one_process_is_one_incarnation() -> None:
    settings = WorkerSettings(coordinator=COORDINATOR, name="w")
    made = Registration(settings, ("cpu",), parse("0.0.0.0:5"), print)
    assert made.message().incarnation == made.message().incarnation


@pytest.mark.parametrize(("coordinator", "instead"), [(COORDINATOR, "192.0.2.7"), ("unknown:7700", "0.0.0.0")])
def test_listening_at_a_name_that_is_loopback_here_is_refused(coordinator: str, instead: str) -> None:
    with pytest.raises(PipesvcError, match=r"--listen box:5: box is 127\.0\.1\.1 on this host") as caught:
        check_listen(WorkerSettings(coordinator=coordinator, name="w", listen="box:5", is_insecure=True))
    assert caught.value.code is ErrorCode.INVALID_JOB
    assert f"Give --listen {instead}:5" in caught.value.details.advice


@pytest.mark.parametrize(
    ("listen", "coordinator"),
    [("box:5", "box:7700"), ("both:5", COORDINATOR), ("127.0.0.1:5", COORDINATOR), ("localhost:5", COORDINATOR)],
)
def test_other_listeners_are_not(listen: str, coordinator: str) -> None:
    check_listen(WorkerSettings(coordinator=coordinator, name="w", listen=listen, is_insecure=True))


@pytest.mark.parametrize(("memory", "limit_bytes"), [("", 0), ("1MiB", 1 << 20), ("1000T", 1000 << 40)])
def test_memory_is_the_hosts_and_at_most_what_was_said(memory: str, limit_bytes: int) -> None:
    settings = WorkerSettings(coordinator=COORDINATOR, name="w", memory=memory)
    message = Registration(settings, ("cpu",), parse("192.0.2.7:5"), print).message()
    assert message.memory_limit_bytes == limit_bytes
    host_bytes = identity.memory_bytes()
    assert message.memory_bytes == (1 << 20 if memory == "1MiB" else host_bytes)
