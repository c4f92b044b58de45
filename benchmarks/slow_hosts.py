"""Two workers on hosts of their own with a bad network between them, and a client on a third one.

Hosts are network namespaces (`tests.hosts`): what `tc` shapes there is a real TCP connection with its queues and its
congestion control, which a sleep in a test's own transport would not be. Delays come from our proxy before each data
port. The same processes that users start run there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tests.hosts.cluster import Cluster
from tests.hosts.namespaces import ROOT, Host, Network

WORKERS: Final = ("a", "b")
_END_S: Final = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Of what leaves each worker. A rate as `tc` writes it; empty: as fast as the machine is."""

    rate: str = ""
    delay_s: float = 0.0  # one way, on connections between the workers

    def __str__(self) -> str:
        return " and ".join(filter(None, [self.rate, f"{self.delay_s * 1000:g} ms" if self.delay_s else ""]))


class SlowHosts:
    """The workers `a` and `b` of one coordinator."""

    def __init__(self, network: Network, client: subprocess.Popen[str]) -> None:
        self._network = network
        self._client = client

    @property
    def workers(self) -> list[Host]:
        return [self._network.hosts[name] for name in WORKERS]

    def ask(self, **asked: Any) -> dict[str, Any]:
        """One plan and one run; see `benchmarks.slow_client`."""
        to_client, from_client = _pipes(self._client)
        to_client.write(json.dumps(asked) + "\n")
        to_client.flush()
        line = from_client.readline()
        if not line:
            raise RuntimeError(f"the client on host d ended with code {self._client.wait(_END_S)}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def slow_hosts(conditions: Conditions, **env: str) -> Iterator[SlowHosts]:
    """`env` is added to the environment of workers and client. All of it is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="slow-hosts-") as folder,
        Network("c", *WORKERS, "d") as network,
        Cluster(network, Path(folder)) as cluster,
    ):
        if conditions.rate:
            for name in WORKERS:
                network.hosts[name].slow_down(conditions.rate)
        cluster.start_coordinator()
        for name in WORKERS:
            proxied = cluster.start_proxy(name, delay_s=conditions.delay_s) if conditions.delay_s else ""
            cluster.start_worker(name, advertise=proxied, **env)
        cluster.await_workers(*WORKERS)
        with _client(network.hosts["d"], cluster, env) as client:
            yield SlowHosts(network, client)


@contextmanager
def _client(host: Host, cluster: Cluster, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PIPESVC_")}
    process = subprocess.Popen(
        host.command(sys.executable, "-m", "benchmarks.slow_client", cluster.address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=inherited | {"PIPESVC_TOKEN_FILE": str(cluster.token_path), "PYTHONPATH": str(ROOT), **env},
    )
    try:
        yield process
    finally:
        for pipe in _pipes(process):
            pipe.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
