"""Addresses as people write them: HOST:PORT, and which of them face the network.

gRPC accepts almost any text as a target and then waits for a name that nobody meant; here an address is checked when it
is read, and the question "is this loopback" has one answer for all ports. What a name means is another matter: it is
this host's own opinion, and on many hosts their own name is loopback (/etc/hosts of Debian: `127.0.1.1 NAME`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from dataclasses import dataclass, replace
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
DEFAULT_COORDINATOR: Final = "127.0.0.1:7700"
COORDINATOR_VARIABLE: Final = "PIPESVC_COORDINATOR"

_WILDCARDS: Final = ("0.0.0.0", "::")
_MAX_PORT: Final = 65_535
_ADVICE: Final = "An address is HOST:PORT, such as 127.0.0.1:7700"


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A host name or IP literal (IPv6 without brackets) and a TCP port; port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True only where no other machine can reach the port; a name other than `localhost` counts as the network."""
        literal = _literal(self.host)
        return self.host == "localhost" if literal is None else literal.is_loopback

    @property
    def is_wildcard(self) -> bool:
        return self.host in _WILDCARDS

    def dialled_as(self) -> tuple[Address, ...]:
        """The addresses by which a client on this machine may name a server that listens here."""
        hosts = [self.host]
        if self.is_wildcard:
            hosts = ["127.0.0.1", "localhost", "::1", socket.gethostname().lower()]
        elif self.is_loopback:
            hosts += ["localhost", "127.0.0.1"] if self.host != "::1" else ["localhost"]
        return tuple(Address(host=host, port=self.port) for host in dict.fromkeys(hosts))


def loopback_meant(address: Address) -> str:
    """The loopback address that this host takes the name for; "" where it means more, or nothing, or is no name.

    Asks the resolver, so it may take seconds.
    """
    if _literal(address.host) is not None or address.host == "localhost":
        return ""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    hosts = [str(sockaddr[0]) for *_, sockaddr in found]
    is_loopback = bool(hosts) and all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in hosts)
    return hosts[0] if is_loopback else ""


def source_towards(peer: Address, *, prefers_ipv4: bool = True) -> str:
    """The address of this host's interface towards the peer; "" without a route. Sends nothing, but resolves names."""
    try:
        found = socket.getaddrinfo(peer.host, peer.port, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    if prefers_ipv4:
        found.sort(key=lambda each: each[0] != socket.AF_INET)
    for family, kind, _, _, sockaddr in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as asked:
            asked.connect(sockaddr)
            return str(asked.getsockname()[0])
    return ""


def parse(text: str, *, option: str = "") -> Address:
    """The address in `text`, which is HOST:PORT or [IPV6]:PORT; raises INVALID_JOB on anything else.

    `option` is where a person wrote it, for the message.
    """
    try:
        return _parsed(text)
    except PipesvcError as error:
        if not option:
            raise
        raise PipesvcError.of(replace(error.details, message=f"{option}: {error.details.message}")) from None


def _parsed(text: str) -> Address:
    host, port_text = _cut(text.strip())
    if port_text is None:
        raise _refusal(text, "has no port")
    if port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= _MAX_PORT:
        port = int(port_text)
    else:
        raise _refusal(text, f"has {port_text!r} where the port (0 to {_MAX_PORT}) should be")
    if _literal(host) is None and _HOST_NAME.fullmatch(host) is None:
        raise _refusal(text, "has no valid host" if host else "has no host")
    return Address(host=host.lower(), port=port)


def _cut(text: str) -> tuple[str, str | None]:
    """Host and port of `text`, as written; brackets taken off."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _refusal(text, "has an unclosed bracket or text after it")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        if _literal(text) is not None:
            raise _refusal(text, "is a bare IPv6 address: write [HOST]:PORT")
        raise _refusal(text, "has more than one colon")
    host, colon, port = text.partition(":")
    return host, port if colon else None


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _refusal(text: str, why: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_JOB, f"the address {text!r} {why}", advice=_ADVICE)
