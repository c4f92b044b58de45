"""The machines must stay replayable without a clock, a loop or a socket; and no part of the coordinator knows torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pipesvc.coordinator.machine", ("torch", "grpc", "asyncio", "sqlite3")),
        ("pipesvc.coordinator.app", ("torch",)),
    ],
)
def test_modules_stay_without(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
