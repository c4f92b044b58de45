"""Hosts made of network namespaces: each with an interface, an address and files of its own, on one switch.

All of it, the switch too, lies in namespaces that are made here and removed again: nothing of the machine's own network
is touched, and nothing leaves it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# A net of RFC 5737, for documentation only: nobody's address.
_NET: Final = "192.0.2"
_HOST_FILES: Final = Path("/etc/netns")
_COMMAND_S: Final = 20.0


def missing() -> str:
    """Why this machine cannot have network namespaces; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip` command: install iproute2"
    name = f"pipesvc{os.getpid()}try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=_COMMAND_S)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.strip()}"
    _ip("netns", "del", name)
    return ""


class Host:
    """One namespace with the interface eth0."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name: Final = name
        self.address: Final = address
        self._namespace: Final = namespace

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs this here; `ip` becomes the command, so that a kill reaches it."""
        return ["ip", "netns", "exec", self._namespace, *arguments]

    def pipesvc(self, *arguments: str) -> list[str]:
        return self.command(sys.executable, "-m", "pipesvc", *arguments)

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, limit_s: float = _COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)

    def cut_off(self, peer: Host) -> None:
        """From now on nothing leaves for the peer, and the senders are told so."""
        _ip("-n", self._namespace, "route", "add", "unreachable", f"{peer.address}/32")

    def reconnect(self, peer: Host) -> None:
        _ip("-n", self._namespace, "route", "del", "unreachable", f"{peer.address}/32")

    def slow_down(self, rate: str) -> None:
        """From now on no more than this leaves, `tc` writes it as 100mbit; what the queue holds is sent in 50 ms."""
        _run("tc", "-n", self._namespace, "qdisc", "replace", "dev", "eth0", "root", *_shaped(rate))

    def name_in_hosts_file(self, lines: Sequence[str]) -> None:
        """This host's own /etc/hosts, which commands that start from now on will see."""
        folder = _HOST_FILES / self._namespace
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text("\n".join(("127.0.0.1 localhost", *lines, "")))

    def interface_bytes(self) -> tuple[int, int]:
        """What eth0 has received and sent since it was made."""
        (shown,) = json.loads(_ip("-n", self._namespace, "-s", "-j", "link", "show", "eth0"))
        return int(shown["stats64"]["rx"]["bytes"]), int(shown["stats64"]["tx"]["bytes"])


class Network:
    """Hosts on one switch. Use it in a `with`."""

    def __init__(self, *names: str) -> None:
        prefix = f"pipesvc{os.getpid()}"
        self._switch = f"{prefix}switch"
        self._namespaces = {name: f"{prefix}{name}" for name in names}
        self.hosts: Final = {
            name: Host(name, namespace, f"{_NET}.{number}")
            for number, (name, namespace) in enumerate(self._namespaces.items(), start=1)
        }

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for namespace in (*self._namespaces.values(), self._switch):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=_COMMAND_S, check=False)
            shutil.rmtree(_HOST_FILES / namespace, ignore_errors=True)

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for number, (name, namespace) in enumerate(self._namespaces.items(), start=1):
            port = f"port{number}"
            _ip("netns", "add", namespace)
            _ip("link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", port, "netns", self._switch)
            _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", namespace, "address", "add", f"{self.hosts[name].address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", "eth0", "up")


def _shaped(rate: str) -> tuple[str, ...]:
    """A token bucket that holds one of the largest packets; with more, small tensors would pass as fast as ever."""
    return "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
