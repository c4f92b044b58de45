"""The memory of a build is that of the layers asked for. Measured in a process whose peak is nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys

MIB = 1 << 20

PROGRAM = """
import json
import torch
from torch import nn
from pipesvc.model import malloc
from tests.unit.model.ranges import build_range, inspect_layers

torch.set_num_threads(1)

class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16384, 1024) * 0.02)

    def forward(self, ids):
        return self.weight[ids]

def small():
    return nn.Sequential(nn.Embedding(5000, 100), nn.Linear(8, 8), nn.Linear(8, 8))

def embedding():
    return nn.Sequential(nn.Embedding(65536, 1024), nn.Linear(8, 8))

def made_before_registered():
    return [Table(), nn.Linear(8, 8)]

def many_layers():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), *[nn.Linear(1024, 1024) for _ in range(30)])

def rejection():
    model = nn.Sequential(nn.Embedding(16384, 1024), nn.Linear(8, 8))
    nn.init.trunc_normal_(model[0].weight, std=0.5)
    return model

def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

def growth_bytes(build):
    with open("/proc/self/clear_refs", "w") as forget:
        forget.write("5")
    before = peak_bytes()
    with malloc.while_building():
        build_range(build, 0, 1, 2)
    return peak_bytes() - before

growth_bytes(small)  # what torch loads at first use is not counted
growths = {build.__name__: growth_bytes(build) for build in (embedding, made_before_registered, many_layers, rejection)}
infos = inspect_layers(lambda: nn.Sequential(nn.Embedding(1 << 40, 64), nn.Linear(8, 8)))
print(json.dumps({"growths": growths, "largest_bytes": infos[0].parameter_bytes}))
"""


def test_layers_of_other_stages_cost_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    growths = found["growths"]
    assert growths["embedding"] < 40 * MIB  # of 256
    assert growths["made_before_registered"] < 16 * MIB  # of 64, twice
    assert growths["many_layers"] < 16 * MIB  # of 120
    assert growths["rejection"] < 16 * MIB  # of 64
    assert found["largest_bytes"] == 256 << 40  # more than any host has, and yet looked at
