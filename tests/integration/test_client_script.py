"""A user's script as it stands in the README, with a helper module beside it, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_HELPER = """
WIDTH = 64
"""

_SCRIPT = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pipesvc
from helper_of_the_script import WIDTH

def build_model():
    with pipesvc.device_guard("cpu"):
        embedding = nn.Embedding(128, WIDTH)
    with pipesvc.device_guard("gpu:0"):
        head = nn.Linear(WIDTH, 10)
    return nn.Sequential(embedding, head)

def reader():
    for i in range(36):
        yield i % 128, i % 10

job = pipesvc.Job(
    model=build_model, loss=cross_entropy,
    optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
    data=pipesvc.DataSource(reader, batch_size=8, capacity=64, double_buffer=True),
    strategy=pipesvc.Strategy(pipeline=True, micro_batches=4, schedule="1F1B", allow_cpu_for_gpu=True),
    epochs=1, seed=0,
)
"""

_SUBMIT = """
with pipesvc.LocalCluster(num_workers=2, num_threads=1) as client:
    run = client.submit(job)
    steps = list(run.steps())
    weights = run.state_dict()
    build_model().load_state_dict(weights, strict=True)
    print(len(steps), run.state, *[stage.worker for stage in run.plan().stages])
    losses = [step.loss for step in steps]
    assert losses == run.losses()
history = pipesvc.train(job)
print(history == losses)
"""


def _run(folder: Path, submit: str) -> subprocess.CompletedProcess[str]:
    (folder / "helper_of_the_script.py").write_text(_HELPER)
    script = folder / "my_training.py"
    script.write_text(_SCRIPT + submit)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def test_a21_w06_the_script_of_the_readme_runs_and_train_is_the_same_in_one_call(tmp_path: Path) -> None:
    guarded = 'if __name__ == "__main__":' + _SUBMIT.replace("\n", "\n    ")
    done = _run(tmp_path, guarded)
    assert done.returncode == 0, done.stderr
    assert [sorted(line.split()) for line in done.stdout.splitlines()] == [
        ["5", "COMPLETED", "worker-0", "worker-1"],
        ["True"],
    ]


def test_a_script_that_submits_when_imported_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    done = _run(tmp_path, _SUBMIT)
    assert done.returncode != 0
    line = done.stderr.splitlines()[-1]
    assert f"{tmp_path / 'my_training.py'}:" in line
    assert "calls pipesvc.LocalCluster(...) when the file is imported" in line
    assert 'Put that code under `if __name__ == "__main__":`' in line
