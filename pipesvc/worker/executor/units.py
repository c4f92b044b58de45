"""What a strategy changes in the modules of a stage, in the one order that works.

A split backward belongs to the innermost forward, so that what is recomputed is split too; what is compiled is
compiled without the checkpoint around it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from pipesvc.model import compiling, recompute
from pipesvc.model.deferral import Deferral
from pipesvc.model.recompute import Recompute
from pipesvc.rpc.v1 import job_pb2
from pipesvc.worker.executor.spec import StageSpec


def recompute_of(strategy: job_pb2.StrategySpec) -> Recompute:
    return Recompute(is_all=strategy.recomputes_all, patterns=tuple(strategy.recompute_patterns))


def prepare(spec: StageSpec, units: Mapping[str, nn.Module], kept: Collection[nn.Parameter] = ()) -> Deferral:
    """`units` are those of this stage; the gradients of the parameters in `kept` cannot wait for W."""
    modules = [module for unit in units.values() for module in unit.modules()]
    deferral = Deferral(modules if spec.splits_backward else (), kept)
    if spec.compiles:
        compiling.compile_units(units.values(), spec.device)
    recompute.apply(units, spec.recompute)
    return deferral
