"""What a worker says of itself when it registers, found out without torch.

The agent must stay small and never initialise CUDA: a device context would cost memory and forbid children to start
cleanly. So devices are counted by a short-lived process that asks the driver, and versions are read from package
metadata.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

import pipesvc
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import worker_pb2
from pipesvc.wire.frames import WIRE_VERSION

_DEVICE: Final = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,2})")
_CUDA_PROBE_S: Final = 30.0
# cuInit and cuDeviceGetCount of the driver itself: honours CUDA_VISIBLE_DEVICES, needs no toolkit.
_CUDA_PROBE: Final = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(0)
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    print(count.value)
"""


def num_cuda_devices() -> int:
    """CUDA devices that a child of this process would see; 0 where there is no driver."""
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CUDA_PROBE], capture_output=True, text=True, timeout=_CUDA_PROBE_S
        )
    except subprocess.TimeoutExpired:
        return 0
    return int(answer.stdout) if answer.stdout.strip().isdigit() else 0


def parse_devices(text: str) -> tuple[str, ...]:
    """The devices of `--device`, such as "cpu" or "cpu,cuda:0", each of which this host has; else UNKNOWN_DEVICE."""
    devices = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    num_cuda = num_cuda_devices() if any(device.startswith("cuda") for device in devices) else 0
    present = ("cpu", *(f"cuda:{index}" for index in range(num_cuda)))
    for device in devices or (text,):
        if _DEVICE.fullmatch(device) is None:
            advice = 'Write "cpu", "cuda:0", or several with commas between'
            raise PipesvcError(ErrorCode.UNKNOWN_DEVICE, f"--device {device!r} names no device", advice=advice)
        if device not in present:
            message = f"--device {device}: this host has {', '.join(present)} only"
            raise PipesvcError(
                ErrorCode.UNKNOWN_DEVICE,
                message,
                advice="Name one of these, or check the driver and CUDA_VISIBLE_DEVICES",
            )
    return devices


def boot_id() -> str:
    """Equal for two workers exactly when they run on the same booted machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def num_cores() -> int:
    """Cores that this process may use: by its affinity, or its control group's quota where that is less."""
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        allowed = min(allowed, max(1, int(quota) // int(period)))
    return allowed


def threads_text(num_threads: int) -> str:
    """With how many threads torch will compute, for people; 0 means assigned per run."""
    if num_threads:
        return f"torch has {num_threads} thread{'s' if num_threads > 1 else ''} here (--threads)"
    return f"torch has a thread for each of this machine's {num_cores()} cores, shared among a run's workers here"


def memory_bytes() -> int:
    """Memory of the host, or of this process's control group where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _cgroup("memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def versions() -> worker_pb2.Versions:
    return worker_pb2.Versions(
        pipesvc=pipesvc.__version__, python=sys.version.split()[0], torch=torch_version(), wire=WIRE_VERSION
    )


def torch_version() -> str:
    """Empty where torch is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def fingerprint(devices: tuple[str, ...], num_threads: int) -> str:
    """Bit-equal numbers are promised between workers with equal text only; `num_threads` 0 means assigned per run."""
    kinds = sorted({device.partition(":")[0] for device in devices})
    torch = torch_version() or "absent"
    return f"torch {torch}; {_cpu_capability()}; threads {num_threads or 'by run'}; {'+'.join(kinds)}"


def host() -> str:
    return socket.gethostname()


def _cgroup(name: str) -> str:
    """A limit file of control groups version 2, as seen from inside a container or of this process's own group."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        own = ""
    root = Path("/sys/fs/cgroup")
    for folder in (root / own, root):
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return ""


def _cpu_capability() -> str:
    """The instruction set level that torch's CPU kernels choose, named as torch does."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        return "AVX512"
    return "AVX2" if {"avx2", "fma"} <= flags else os.uname().machine
