"""Compiled layers and units: the numbers of one process to rounding, since compiled kernels add in another order.

Calls of what was compiled are counted, and those in which a block ran as it is written: the numbers alone would hold
without a compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import compiling
from pipesvc.model.recompute import Recompute
from tests.unit.executor.batches import Batch, batch_of
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_plain as train_plain_module
from tests.unit.executor.network import Setup, train, train_plain

# torch's own import of its compiler warns.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
TOLERANCE = 1e-5
NUM_BLOCKS = 3


@pytest.fixture(autouse=True, scope="module")
def no_threads_that_stay() -> Iterator[None]:
    """The compiler keeps a pool of threads for ever."""
    with pytest.MonkeyPatch.context() as patch:
        # Not by its environment variable: another test may have imported it before.
        patch.setattr(importlib.import_module("torch._inductor.config"), "compile_threads", 1)
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """An entry for each call of what was compiled."""
    found: list[object] = []
    real = torch.compile

    def noted(forward: Callable[..., Any]) -> Callable[..., Any]:
        compiled = real(forward)

        def run(*args: Any, **kwargs: Any) -> Any:
            found.append(forward)
            return compiled(*args, **kwargs)

        return run

    monkeypatch.setattr(torch, "compile", noted)
    return found


class Block(nn.Module):
    num_plain = 0

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and not x.is_meta:  # shapes alone are followed, not computed
            Block.num_plain += 1
        result: Tensor = self.b(torch.nn.functional.gelu(self.a(self.norm(x)))) + x
        return result


def assert_close(setup: Setup | ModuleSetup, batches: list[Batch], calls: list[object]) -> None:
    num_calls = NUM_BLOCKS * sum(len(inputs) for inputs, _, _ in batches)
    Block.num_plain = 0
    cluster = train(setup, batches)
    assert Block.num_plain == 0
    assert len(calls) == num_calls * (2 if setup.recompute else 1)
    losses, state = train_plain(setup, batches) if isinstance(setup, Setup) else train_plain_module(setup, batches)
    assert Block.num_plain == num_calls
    assert cluster.losses == pytest.approx(losses, rel=TOLERANCE)
    for name, value in cluster.state().items():
        assert torch.allclose(value, state[name], rtol=TOLERANCE, atol=TOLERANCE), name


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(is_all=True)], ids=["kept", "recomputed"])
def test_compiled_layers_agree_to_rounding(recompute: Recompute, calls: list[object]) -> None:
    """The last batch is short, so there are two shapes."""
    generator = torch.Generator().manual_seed(3)
    batches = [
        batch_of(torch.randn(rows, 6, generator=generator), torch.arange(rows) % 6, rows, 2) for rows in (8, 8, 6)
    ]
    setup = Setup(
        make_layers=lambda: [Block() for _ in range(NUM_BLOCKS)],
        cuts=(1,),
        loss=cross_entropy,
        compiles=True,
        recompute=recompute,
    )
    assert_close(setup, batches, calls)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x = block(x) * scale
        return x + first


@pytest.mark.parametrize("owners", ["ab", "aa"])
def test_compiled_units_of_a_module_agree_to_rounding(owners: str, calls: list[object]) -> None:
    generator = torch.Generator().manual_seed(3)

    def batch() -> Batch:
        inputs = torch.randn(8, 6, generator=generator), torch.rand(8, 1, generator=generator)
        return batch_of(inputs, torch.arange(8) % 6, 8, 2)

    batches = [batch() for _ in range(2)]
    setup = ModuleSetup(
        build=Net, loss=cross_entropy, sample=batches[0][0][0], parts=2, owners=list(owners), compiles=True
    )
    assert_close(setup, batches, calls)


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        PipesvcError, match=r"needs a C\+\+ compiler, and this host has no g\+\+ or clang\+\+"
    ) as caught:
        compiling.compile_units([Block()], torch.device("cpu"))
    assert caught.value.code is ErrorCode.BUILD_FAILED
    monkeypatch.setenv("CXX", "icpx")
    with pytest.raises(PipesvcError, match="has no icpx"):
        compiling.compile_units([Block()], torch.device("cpu"))
