"""Agents import the wire: it must cost them no torch, and nothing of it may do input or output by itself."""

from __future__ import annotations

import subprocess
import sys

MODULES = ["ahead", "checksum", "credit", "elements", "frames", "links", "safetensors_stream", "segments", "tree"]
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"pipesvc.wire.{name}")
print([name for name in ("torch", "grpc", "asyncio", "numpy", "safetensors") if name in sys.modules])
"""


def test_all_but_tensors_and_collate_are_free_of_torch_grpc_and_asyncio() -> None:
    command = [sys.executable, "-c", PROGRAM, *MODULES]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
