"""Runs on workers whose connections are cut, whose credit is the least, or whose pools have one thread: as if not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import pipesvc
from pipesvc.net.addresses import Address
from tests.contract.link_harness import deaf_to_proxies
from tests.integration import jobs
from tests.integration.terminal import Terminal, free_port, open_terminal
from tests.integration.test_cases import finish, make_job
from tests.proxy import Proxy
from tests.waiting import until

ONE_PARCEL = """
import sys
if "coordinator" in sys.orig_argv:
    import os
    from pathlib import Path
    from pipesvc.coordinator import turn
    from pipesvc.core.memory import slot_parcels
    assert turn.slot_parcels is slot_parcels
    turn.slot_parcels = lambda num_alive: Path(os.environ["ALTERED"]).touch() or 1
"""
ONE_THREAD = """
import concurrent.futures.thread as thread
import os
from pathlib import Path
whole = thread.ThreadPoolExecutor.__init__
def narrow(self, max_workers=None, *rest, **more):
    Path(os.environ["ALTERED"]).touch()
    whole(self, 1, *rest, **more)
thread.ThreadPoolExecutor.__init__ = narrow
"""
WAYS = pytest.mark.parametrize("same_host", [True, False], ids=["same host", "gRPC"])
NUM_STEPS = 40


class ProxyThread:
    """A proxy that cuts connections, beside a test that waits for a run."""

    def __init__(self, target: Address) -> None:
        self._proxy = Proxy(target)
        self._loop = asyncio.new_event_loop()
        self._is_up, self._is_over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> ProxyThread:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)
        self._loop.close()

    @property
    def address(self) -> Address:
        return self._proxy.address

    @property
    def num_connections(self) -> int:
        return self._proxy.num_connections

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.cut)

    async def _serve(self) -> None:
        async with self._proxy:
            self._is_up.set()
            await self._is_over.wait()


@contextmanager
def service(terminal: Terminal, folder: Path, num_workers: int, *last_worker: str) -> Iterator[pipesvc.Client]:
    """A coordinator and workers w0, w1, ... with one thread each, started by hand."""
    address = f"127.0.0.1:{free_port()}"
    terminal.start("coordinator", "--listen", address, "--state-dir", str(folder / "state"))
    for index in range(num_workers):
        more = last_worker if index == num_workers - 1 else ()
        of_worker = ("--coordinator", address, "--name", f"w{index}", "--device", "cpu", "--threads", "1")
        terminal.start("worker", *of_worker, *more)
    until(lambda: terminal.run("status", "--coordinator", address).stdout.count("cpu") >= num_workers, "workers")
    with pipesvc.connect(address) as client:
        yield client


@contextmanager
def altered_service(folder: Path, sitecustomize: str, num_workers: int) -> Iterator[pipesvc.Client]:
    """Each Python process of it runs this text first."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(sitecustomize)
    with open_terminal(folder) as terminal:
        path = str(Path(__file__).parents[2])
        terminal.env["PYTHONPATH"] = f"{folder / 'site'}:{path}"
        terminal.env["ALTERED"] = str(folder / "altered")
        with service(terminal, folder, num_workers) as client:
            yield client
    assert (folder / "altered").exists(), "what was altered is not used"


def sure(same_host: bool, num_stages: int, num_micro_batches: int = 8) -> pipesvc.Job:
    strategy = pipesvc.Strategy(micro_batches=num_micro_batches, num_stages=num_stages, same_host=same_host)
    return make_job(model=pipesvc.Call(jobs.mlp, depth=2), strategy=strategy, clip_norm=0.1, epochs=4)


def assert_as_undisturbed(cluster: pipesvc.Client, found: pipesvc.Client, job: pipesvc.Job) -> None:
    losses, weights = finish(found, job)
    expected, truth = finish(cluster, job)
    assert losses == expected
    assert all(torch.equal(weights[name], value) for name, value in truth.items())


@WAYS
def test_f10_four_stages_with_credit_of_one_parcel_complete(
    cluster: pipesvc.Client, tmp_path: Path, same_host: bool
) -> None:
    with altered_service(tmp_path, ONE_PARCEL, 4) as client:
        assert_as_undisturbed(cluster, client, sure(same_host, 4))


@WAYS
def test_f11_pools_of_one_thread_suffice(cluster: pipesvc.Client, tmp_path: Path, same_host: bool) -> None:
    with altered_service(tmp_path, ONE_THREAD, 2) as client:
        assert_as_undisturbed(cluster, client, sure(same_host, 2))


def cut_while(run: pipesvc.Run, cut: Callable[[], None]) -> int:
    """Each half second until the run has ended; gives how often."""
    num_cuts = 0
    next(run.steps())
    while run.state == "RUNNING":
        cut()
        num_cuts += 1
        time.sleep(0.5)
    return num_cuts


@WAYS
def test_f17_a_run_whose_connections_are_cut_loses_and_doubles_no_step(
    cluster: pipesvc.Client, tmp_path: Path, same_host: bool
) -> None:
    """All that goes to the second worker's data port goes through a proxy. Where both are on one host, little does."""
    port = free_port()
    source = pipesvc.Call(jobs.slow_samples, num_rows=8 * NUM_STEPS, pause_s=0.01)
    strategy = pipesvc.Strategy(micro_batches=4, num_stages=2, same_host=same_host)
    job = make_job(data=pipesvc.DataSource(source, batch_size=8), strategy=strategy)
    with open_terminal(tmp_path) as terminal, ProxyThread(Address(host="127.0.0.1", port=port)) as proxy:
        last = ("--listen", f"127.0.0.1:{port}", "--advertise", str(proxy.address))
        with service(terminal, tmp_path, 2, *last) as client:
            run = client.submit(job)
            num_cuts = cut_while(run, proxy.cut)
            run.wait()
            assert num_cuts >= 3
            assert proxy.num_connections > num_cuts / 2
            assert [step.index for step in run.steps()] == list(range(1, NUM_STEPS + 1))
            assert run.stage_steps() == [NUM_STEPS] * 2
            losses, weights = run.losses(), run.state_dict()
            counts = {link["link"]: link for link in run.links()}
    assert counts["0>1/activation"]["tensor_bytes"] == NUM_STEPS * 8 * jobs.WIDTH * 4
    expected, truth = finish(cluster, job)
    assert losses == expected
    assert all(torch.equal(weights[name], value) for name, value in truth.items())


@WAYS
def test_w02_everything_behind_dead_proxies_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_host: bool
) -> None:
    """Coordinator, workers, their children, their doors, the client and the commands."""
    for name, value in {**deaf_to_proxies(), **dict.fromkeys(("no_proxy", "NO_PROXY", "no_grpc_proxy"), "")}.items():
        monkeypatch.setenv(name, value)
    job = sure(same_host, 2, 4)
    with open_terminal(tmp_path) as terminal, service(terminal, tmp_path, 2) as client:
        run = client.submit(job)
        run.wait()
        assert len(run.losses()) == NUM_STEPS
        ways = {link["link"]: link["way"] for link in run.links()}
        assert ways["0>1/activation"] == ("same host" if same_host else "gRPC")
        outputs = list(client.predict(job, pipesvc.DataSource(jobs.inputs_alone, batch_size=8, labels=False), run))
        assert len(outputs) == 10
