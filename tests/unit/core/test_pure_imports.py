"""Pure modules are pure: importing them brings in neither torch nor grpc nor asyncio."""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

import pipesvc
import pipesvc.core

FORBIDDEN = ("torch", "grpc", "asyncio")
# The coordinator's state machines, pure by contract like everything in core.
MACHINES = (
    "events",
    "failures",
    "fleet",
    "limits",
    "machine",
    "planning",
    "queue",
    "run_machine",
    "run_record",
    "run_view",
    "saves",
    "step_ledger",
    "turn",
    "validation",
)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _pure_modules() -> list[str]:
    core = [module.name for module in pkgutil.walk_packages(pipesvc.core.__path__, "pipesvc.core.")]
    machines = [name for name in (f"pipesvc.coordinator.{machine}" for machine in MACHINES) if _exists(name)]
    return ["pipesvc", "pipesvc.errors", *core, *machines]


def test_pure_modules_bring_in_neither_torch_nor_grpc_nor_asyncio() -> None:
    modules = _pure_modules()
    assert {"pipesvc.core.schedules", "pipesvc.core.generators.per_stage"} <= set(modules)
    program = (
        "import importlib, sys\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(module)\n"
        f"    found = [name for name in {FORBIDDEN!r} if name in sys.modules]\n"
        "    if found: sys.exit(f'{module} imports {found}')\n"
    )
    root = Path(pipesvc.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
