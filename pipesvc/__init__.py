"""pipesvc trains a PyTorch model whose layers do not belong on one machine.

This module names what users write; nothing is imported until it is used, so that `import pipesvc` costs neither torch
nor grpc.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipesvc.client.connection import Client as Client
    from pipesvc.client.connection import connect as connect
    from pipesvc.client.job import Call as Call
    from pipesvc.client.job import Codec as Codec
    from pipesvc.client.job import DataSource as DataSource
    from pipesvc.client.job import Evaluation as Evaluation
    from pipesvc.client.job import GradScaler as GradScaler
    from pipesvc.client.job import Job as Job
    from pipesvc.client.job import Optimizer as Optimizer
    from pipesvc.client.job import ScheduleFile as ScheduleFile
    from pipesvc.client.job import Scheduler as Scheduler
    from pipesvc.client.job import Strategy as Strategy
    from pipesvc.client.job import StreamSource as StreamSource
    from pipesvc.client.local import LocalCluster as LocalCluster
    from pipesvc.client.local import train as train
    from pipesvc.client.plan_file import read_plan as read_plan
    from pipesvc.client.run import Evaluated as Evaluated
    from pipesvc.client.run import Run as Run
    from pipesvc.client.run import Step as Step
    from pipesvc.client.watching import PipesvcWarning as PipesvcWarning
    from pipesvc.errors import PipesvcError as PipesvcError
    from pipesvc.model.marks import device_guard as device_guard
    from pipesvc.verification.verify import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "Call": "pipesvc.client.job",
    "Client": "pipesvc.client.connection",
    "Codec": "pipesvc.client.job",
    "DataSource": "pipesvc.client.job",
    "Evaluated": "pipesvc.client.run",
    "Evaluation": "pipesvc.client.job",
    "GradScaler": "pipesvc.client.job",
    "Job": "pipesvc.client.job",
    "LocalCluster": "pipesvc.client.local",
    "Optimizer": "pipesvc.client.job",
    "PipesvcError": "pipesvc.errors",
    "PipesvcWarning": "pipesvc.client.watching",
    "Run": "pipesvc.client.run",
    "ScheduleFile": "pipesvc.client.job",
    "Scheduler": "pipesvc.client.job",
    "Step": "pipesvc.client.run",
    "Strategy": "pipesvc.client.job",
    "StreamSource": "pipesvc.client.job",
    "connect": "pipesvc.client.connection",
    "device_guard": "pipesvc.model.marks",
    "read_plan": "pipesvc.client.plan_file",
    "train": "pipesvc.client.local",
    "verify": "pipesvc.verification.verify",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pipesvc' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
