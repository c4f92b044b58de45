"""Compiled layers and units: the numbers of one process to rounding, since compiled kernels add in another order."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model import compiling
from pipesvc.model.recompute import Recompute
from tests.unit.executor.module_network import ModuleSetup
from tests.unit.executor.module_network import train_plain as train_plain_module
from tests.unit.executor.network import Batch, JobSetup, PlainRun, Setup, batch_of, train, train_plain

# torch's own import of its compiler warns.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
TOLERANCE = 1e-5


@pytest.fixture(autouse=True, scope="module")
def no_threads_that_stay() -> Iterator[None]:
    """The compiler keeps a pool of threads for ever."""
    with pytest.MonkeyPatch.context() as patch:
        # Not by its environment variable: another test may have imported it before.
        patch.setattr(importlib.import_module("torch._inductor.config"), "compile_threads", 1)
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(torch.nn.functional.gelu(self.a(self.norm(x)))) + x
        return result


def assert_close(setup: JobSetup, plain: PlainRun, batches: list[Batch]) -> None:
    cluster = train(setup, batches)
    losses, state = plain
    assert cluster.losses == pytest.approx(losses, rel=TOLERANCE)
    for name, value in cluster.state().items():
        assert torch.allclose(value, state[name], rtol=TOLERANCE, atol=TOLERANCE), name


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(is_all=True)], ids=["kept", "recomputed"])
def test_compiled_layers_agree_to_rounding(recompute: Recompute) -> None:
    """The last batch is short, so there are two shapes."""
    generator = torch.Generator().manual_seed(3)
    batches = [
        batch_of(torch.randn(rows, 6, generator=generator), torch.arange(rows) % 6, rows, 2) for rows in (8, 8, 6)
    ]
    setup = Setup(
        make_layers=lambda: [Block(), Block(), Block()],
        cuts=(1,),
        loss=cross_entropy,
        compiles=True,
        recompute=recompute,
    )
    assert_close(setup, train_plain(setup, batches), batches)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x = block(x) * scale
        return x + first


@pytest.mark.parametrize("owners", ["ab", "aa"])
def test_compiled_units_of_a_module_agree_to_rounding(owners: str) -> None:
    batches = [batch_of((torch.randn(8, 6), torch.rand(8, 1)), torch.arange(8) % 6, 8, 2) for _ in range(2)]
    setup = ModuleSetup(
        build=Net, loss=cross_entropy, sample=batches[0][0][0], parts=2, owners=list(owners), compiles=True
    )
    assert_close(setup, train_plain_module(setup, batches), batches)


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
