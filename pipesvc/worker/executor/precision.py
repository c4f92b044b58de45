"""Autocast as a stage runs it: around forward and loss, on the stage's own device, as a plain loop does."""

from __future__ import annotations

from typing import Final

import torch

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2

_DTYPES: Final = {
    job_pb2.AUTOCAST_UNSPECIFIED: None,
    job_pb2.AUTOCAST_BFLOAT16: torch.bfloat16,
    job_pb2.AUTOCAST_FLOAT16: torch.float16,
}


def autocast_dtype(autocast: job_pb2.Autocast) -> torch.dtype | None:
    """None: everything is computed as it is."""
    if autocast not in _DTYPES:
        raise PipesvcError(ErrorCode.INVALID_JOB, f"autocast is the unknown number {autocast}")
    return _DTYPES[autocast]


def autocast(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
