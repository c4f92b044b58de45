"""docker/docker-compose.yml for real: images built without a network, three workers, a job, its weights, and no trace.

The tests are the chapters of one story, in the order of this file, because each image and container is made once. The
health checks are run here one by one: podman leaves that to systemd, which a machine for tests may not have.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from safetensors.numpy import load

from pipesvc.wire.links import FEEDER
from tests.compose.preparation import base_image, gather_wheels, why_no_podman
from tests.compose.record import Record

pytestmark = pytest.mark.timeout(3600)

ROOT: Final = Path(__file__).resolve().parents[2]
LOG: Final = ROOT / "docker" / "compose-test.log"
PROJECT: Final = f"pipesvc-test-{os.getpid()}"
NUM_WORKERS: Final = 3
NUM_STEPS: Final = int(os.environ.get("STEPS", "30"))
HEALTHY_WITHIN_S: Final = 90
JOB_LIMIT_S: Final = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """The project, from the build to `down`."""

    record: Record
    base: str

    def compose(
        self, *words: str, limit_s: float = 120, is_checked: bool = True, is_shown: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        command = Path(sys.executable).with_name("podman-compose")
        where = ("--file", "docker/docker-compose.yml", "--project-name", PROJECT)
        changes = {"BASE": self.base, "STEPS": str(NUM_STEPS)}
        return self.record.run(
            str(command), *where, *words, limit_s=limit_s, is_checked=is_checked, is_shown=is_shown, changes=changes
        )

    def inside(self, service: str, *command: str) -> str:
        return self.compose("exec", "-T", service, *command).stdout.decode()

    def podman(self, *words: str, is_checked: bool = True) -> str:
        return self.record.run("podman", *words, limit_s=60, is_checked=is_checked).stdout.decode()

    def containers(self) -> list[str]:
        label = f"label=io.podman.compose.project={PROJECT}"
        return sorted(self.podman("ps", "--all", "--filter", label, "--format", "{{.Names}}").split())

    def await_healthy(self, name: str) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        check = ("podman", "healthcheck", "run", name)
        while self.record.run(*check, limit_s=60, is_checked=False).returncode != 0:
            assert time.monotonic() < deadline, f"{name} is not healthy within {HEALTHY_WITHIN_S} s"
            time.sleep(1)


@pytest.fixture(scope="module")
def composed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    environment = {
        "CONTAINERS_CONF": str(ROOT / "tests" / "compose" / "containers.conf"),
        # The other format knows no health checks.
        "BUILDAH_FORMAT": "docker",
    }
    record = Record(ROOT, tmp_path_factory.mktemp("compose"), environment)
    if reason := why_no_podman(record):
        print(f"compose-test skipped: {reason}")
        pytest.skip(reason)
    num_failed = request.session.testsfailed
    header = _header()
    cluster: Composed | None = None
    try:
        record.run("podman", "--version", limit_s=60)
        gather_wheels(record, ROOT / "docker" / "wheels")
        cluster = Composed(record=record, base=base_image(record))
        cluster.compose("--podman-build-args=--network=none", "build", "coordinator", limit_s=2400)
        cluster.compose("up", "--detach", "--no-build", "--scale", f"worker={NUM_WORKERS}")
        yield cluster
    finally:
        is_good = cluster is not None and request.session.testsfailed == num_failed
        if cluster is not None and cluster.containers():
            cluster.compose("logs", is_checked=False)
            cluster.compose("down", "--volumes", is_checked=False)
        record.write(LOG, [*header, f"result: {'passed' if is_good else 'FAILED'}"])


def _header() -> list[str]:
    def git(*words: str) -> str:
        return subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    is_changed = git("status", "--porcelain", "--", ".", f":!{LOG.relative_to(ROOT)}") != ""
    now = datetime.datetime.now(datetime.UTC)
    return [
        f"command: {'STEPS=' + os.environ['STEPS'] + ' ' if 'STEPS' in os.environ else ''}make compose-test",
        f"commit: {git('rev-parse', 'HEAD') or 'unknown'}{' with uncommitted changes' if is_changed else ''}",
        f"begun: {now:%Y-%m-%d %H:%M} UTC",
    ]


def test_all_services_become_healthy_by_our_own_command(composed: Composed) -> None:
    names = composed.containers()
    assert len(names) == 1 + NUM_WORKERS, names
    for name in names:
        composed.await_healthy(name)
    health = composed.podman("image", "inspect", "--format", "{{.HealthCheck.Test}}", "pipesvc:local")
    assert "pipesvc health" in health


def test_health_of_an_unknown_worker_fails(composed: Composed) -> None:
    command = ("exec", "-T", "coordinator", "pipesvc", "health", "--worker", "nobody")
    done = composed.compose(*command, is_checked=False)
    assert done.returncode == 1
    assert b"has no worker nobody" in done.stderr


def test_three_workers_are_registered_by_the_names_of_their_containers(composed: Composed) -> None:
    lines = composed.inside("worker", "pipesvc", "status").splitlines()
    assert lines[0].split()[:2] == ["WORKER", "HOST"]
    workers = [line.split()[:2] for line in lines[1:] if " cpu " in line]
    assert len(workers) == NUM_WORKERS
    assert all(name == host for name, host in workers)


def test_programs_run_without_rights_and_publish_no_port(composed: Composed) -> None:
    for service in ("coordinator", "worker"):
        assert composed.inside(service, "id", "--user").strip() == "1000"
        assert re.fullmatch(r"CapEff:\s+0+\n", composed.inside(service, "grep", "CapEff", "/proc/1/status"))
    for name in composed.containers():
        assert composed.podman("port", name) == ""


def test_the_job_trains_on_all_workers_and_leaves_its_weights(composed: Composed) -> None:
    job = ("--profile", "job", "run", "--rm", "-T", "train")
    done = composed.compose(*job, limit_s=JOB_LIMIT_S)
    text = done.stderr.decode()
    losses = [float(loss) for loss in re.findall(rf"step \d+/{NUM_STEPS}, loss (\d+\.\d+)", text)]
    assert losses[-1] < losses[0] - 1
    completed = re.search(r"^(\S+): COMPLETED$", text, re.MULTILINE)
    assert completed is not None

    traced = composed.compose("exec", "-T", "coordinator", "pipesvc", "trace", completed[1], is_shown=False)
    stages = {event["stage"] for event in json.loads(traced.stdout)} - {FEEDER}
    assert stages == set(range(NUM_WORKERS))

    read = composed.compose(*job, "cat", "/weights/char_lm.safetensors", is_shown=False)
    weights = load(read.stdout)
    composed.record.note(f"char_lm.safetensors: {len(weights)} tensors, {len(read.stdout)} bytes")
    assert {"0.characters.weight", "1.query_key_value.weight", "5.1.bias"} <= set(weights)
    assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in weights.values())


def test_what_was_trained_outlives_the_containers(composed: Composed) -> None:
    composed.compose("down")
    assert composed.containers() == []
    composed.compose("up", "--detach", "--no-build", "coordinator")
    [name] = composed.containers()
    composed.await_healthy(name)
    assert "COMPLETED" in composed.inside("coordinator", "pipesvc", "runs")


def test_down_leaves_nothing(composed: Composed) -> None:
    composed.compose("down", "--volumes")
    assert composed.containers() == []
    for kind in ("pod", "network", "volume"):
        listed = composed.podman(kind, "ls", "--format", "{{.Name}}")
        assert PROJECT not in listed
