"""The memory of a build is that of the layers asked for. Measured in a process whose peak is nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys

MIB = 1 << 20

PROGRAM = """
import gc
import json
import torch
from torch import nn
from pipesvc.model import malloc
from pipesvc.model.keyed import KeyedBuild
from pipesvc.model.skeleton import build_module
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

class Net(nn.Module):
    # No list: cut by replay.


    def __init__(self, rows, depth, makes_table=nn.Embedding, fills=False):
        super().__init__()
        self.table = makes_table(rows, 1024) if rows else None
        self.blocks = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(depth))
        self.head = nn.Linear(8, 8)
        if fills:  # once more, after all are made
            self.apply(lambda each: nn.init.normal_(each.weight) if hasattr(each, "weight") else None)

    def forward(self, ids):
        return ids

MODULES = {
    "module_embedding": (lambda: Net(65536, 0), "head."),
    "module_filled_again": (lambda: Net(65536, 4, fills=True), "head."),
    "module_made_before_registered": (lambda: Net(1, 0, lambda *_: Table()), "head."),
    "module_own_part": (lambda: Net(16384, 30), "blocks.7."),
    "module_own_table": (lambda: Net(16384, 30), "table."),
}

def growth_bytes(build):
    return growth_while(lambda: build_range(build, 0, 1, 2))

def growth_of_module(build, prefix):
    owned = [name for name, _ in build_module(build, 0, ()).named_parameters() if name.startswith(prefix)]
    return growth_while(lambda: build_module(build, 0, owned))

def growth_while(make):
    gc.collect()
    with open("/proc/self/clear_refs", "w") as forget:
        forget.write("5")
    before = peak_bytes()
    with malloc.while_building():
        make()
    return peak_bytes() - before

growth_bytes(small)  # what torch loads at first use is not counted
growths = {build.__name__: growth_bytes(build) for build in (embedding, made_before_registered, many_layers, rejection)}
growth_of_module(lambda: Net(0, 2), "head.")
growths |= {name: growth_of_module(*each) for name, each in MODULES.items()}
growths["keyed"] = growth_of_module(KeyedBuild(lambda: Net(65536, 30, fills=True)), "blocks.7.")
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
    assert growths["module_embedding"] < 16 * MIB  # of 256
    assert growths["module_filled_again"] < 16 * MIB
    assert growths["module_made_before_registered"] < 16 * MIB  # of 64, twice
    assert growths["module_own_part"] < (4 + 16) * MIB  # its own 4 of 184
    assert growths["module_own_table"] < (64 + 16) * MIB
    assert growths["keyed"] < (4 + 16) * MIB  # of 376
    assert found["largest_bytes"] == 256 << 40  # more than any host has, and yet looked at
