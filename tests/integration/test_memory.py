"""How much each process of the service ever holds, from building a model to its exported file.

Peaks are those that the kernel keeps (VmHWM), so what two looks at a process miss is only what it does last of all.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pipesvc
from tests.integration import jobs, plain

MIB = 1 << 20
ROWS, WIDTH = 400_000, 64
TABLE_BYTES = ROWS * WIDTH * 4  # 98 MiB; the model has two
# Beside its stage: first uses of torch and gRPC, numbers drawn for other stages, chunks of a state on their way. Less
# than one layer, so a second table would show in any process.
OTHER_BYTES = 64 * MIB


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.second = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, jobs.NUM_CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.first(ids))
        result: Tensor = self.head(h + self.second(ids))
        return result


def far_rows() -> Iterator[tuple[int, int]]:
    for i in range(80):
        yield i * 6007 % ROWS, i % jobs.NUM_CLASSES


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


class Watch:
    """How much the peaks of this process and of all below it grow while it is open. Those that are born meanwhile are
    all forked from equal ones, so they begin with what the one seen earliest had."""

    def __init__(self) -> None:
        self.begins: dict[int, int] = {}
        self.births: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # forgets the peak of before
            self.begins[process.pid] = peak_bytes(process.pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def growths(self) -> list[int]:
        born = min(self.births.values())
        return [peak - self.begins.get(pid, born) for pid, peak in self.peaks.items()]

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, OSError, StopIteration):  # it has just ended
                self.peaks[process.pid] = peak = peak_bytes(process.pid)
                if process.pid not in self.begins:
                    self.births.setdefault(process.pid, peak)


def trained(client: pipesvc.Client, model: Any, boundary: str, source: Any, file: Path) -> list[float]:
    """And exported; the losses."""
    run = client.submit(
        pipesvc.Job(
            model=model,
            loss=jobs.cross_entropy,
            optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.5),
            data=pipesvc.DataSource(source, batch_size=8),
            strategy=pipesvc.Strategy(boundaries=(boundary,), micro_batches=4),
            seed=7,
        )
    )
    run.wait()
    run.save_weights(file)
    return run.losses()


def test_a02_no_process_ever_holds_more_than_its_own_stage(tmp_path: Path) -> None:
    """Building, training with sparse gradients, saving and the export, in executors, feeder, inspector, agents,
    coordinator and client."""
    file = tmp_path / "weights.safetensors"
    with pipesvc.LocalCluster(num_workers=2, num_threads=1) as client:
        trained(client, jobs.named, "head", jobs.samples, file)  # so that all has been used once
        with Watch() as watch:
            losses = trained(client, TwoTables, "second", far_rows, file)
    holders = [growth for growth in watch.growths() if growth > TABLE_BYTES]
    assert len(holders) == 2, watch.growths()
    assert max(holders) < TABLE_BYTES + OTHER_BYTES
    assert max(growth for growth in watch.growths() if growth not in holders) < OTHER_BYTES
    truth = plain.train(
        TwoTables, far_rows, jobs.cross_entropy, functools.partial(torch.optim.SGD, lr=0.5), batch_size=8, seed=7
    )
    assert losses == truth.losses
    weights = load_file(file)
    assert weights.keys() == truth.weights.keys()
    assert all(torch.equal(weights[name], value) for name, value in truth.weights.items())
