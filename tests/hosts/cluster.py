"""A coordinator, workers and clients as people start them on several hosts: by command, with a copied token file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from pipesvc.net import tokens
from tests.hosts.namespaces import ROOT, Host, Network
from tests.waiting import LIMIT_S, until

PORT: Final = 7700
# The same on every host, as one would write it into a unit file: an address that leads astray meets a worker there too.
DATA_PORT: Final = 7001
PROXY_PORT: Final = 7101


class Started:
    """A process and what it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process: Final = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        return self.process.wait(limit_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


class Cluster:
    """The hosts `c` (coordinator), `a` and `b` (workers) and `d` (client) of a network. Use it in a `with`."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.hosts: Final = network.hosts
        self.address = f"{self.hosts['c'].address}:{PORT}"
        self._folder = folder
        self._started: list[Started] = []
        self._state = folder / "state"
        # The coordinator keeps a token that lies there; so it can be copied to the hosts before anything runs.
        _, token = tokens.ensure_token(self._state)
        self.token_path: Final = folder / "copied-token"
        shutil.copy(token, self.token_path)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for started in reversed(self._started):
            started.end()

    def start(self, host: Host, *arguments: str, **env: str) -> Started:
        """A command on a host, with a home of its own, so that nobody finds the token by itself."""
        output = self._folder / f"output-{len(self._started)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                host.command(sys.executable, "-m", *arguments),
                env=self._environment(host) | env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        started = Started(process, output)
        self._started.append(started)
        return started

    def start_coordinator(self, *, listen: str = "") -> Started:
        arguments = ("coordinator", "--listen", listen or self.address, "--insecure", "--state-dir", str(self._state))
        started = self.start(self.hosts["c"], "pipesvc", *arguments)
        until(lambda: "listening on" in started.output or started.process.poll() is not None, "coordinator")
        return started

    def start_worker(self, name: str, *, host: str = "", listen: str = "", advertise: str = "", **env: str) -> Started:
        """On the host of its name. `advertise` "-" leaves the option away."""
        place = self.hosts[host or name]
        arguments = ["worker", "--coordinator", self.address, "--name", name, "--threads", "1", "--insecure"]
        arguments += ["--listen", listen or f"{place.address}:{DATA_PORT}"]
        if advertise != "-":
            arguments += ["--advertise", advertise or f"{place.address}:{DATA_PORT}"]
        if "PIPESVC_TOKEN" not in env:
            arguments += ["--token-file", str(self.token_path)]
        return self.start(place, "pipesvc", *arguments, **env)

    def start_proxy(self, host: str, *, delay_s: float) -> str:
        """What other hosts are to dial instead of the data port there, which they then reach so much later."""
        address = f"{self.hosts[host].address}:{PROXY_PORT}"
        target = f"{self.hosts[host].address}:{DATA_PORT}"
        proxy = self.start(self.hosts[host], "tests.proxy", address, target, "--delay", str(delay_s))
        until(lambda: address in proxy.output or proxy.process.poll() is not None, "proxy")
        return address

    def token(self) -> str:
        return self.token_path.read_text().strip()

    def status(self) -> str:
        host = self.hosts["c"]
        command = (sys.executable, "-m", "pipesvc", "status", "--coordinator", self.address)
        done = host.run(*command, "--token-file", str(self.token_path), env=self._environment(host), limit_s=60)
        return done.stdout + done.stderr

    def await_workers(self, *names: str) -> None:
        """Until all of these are registered."""
        until(
            lambda: {line.split()[0] for line in self.status().splitlines() if " ago " in line} >= {*names}, "workers"
        )

    def start_client(self, num_steps: int) -> Started:
        return self.start(
            self.hosts["d"],
            "tests.hosts.client",
            self.address,
            str(num_steps),
            str(self._folder),
            PIPESVC_TOKEN_FILE=str(self.token_path),
        )

    def train(self, num_steps: int) -> dict[str, Any]:
        """What a client on the host `d` has seen of its run, from the beginning to the end."""
        client = self.start_client(num_steps)
        assert client.wait() == 0, client.output
        return self.result()

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "result.json").read_text())
        return found

    @property
    def weights_path(self) -> Path:
        return self._folder / "weights.safetensors"

    def _environment(self, host: Host) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PIPESVC_")}
        home = str(self._folder / f"home-of-{host.name}")
        return inherited | {"PIPESVC_HOME": home, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
