"""Every test, wherever it lives, must leave nothing behind: no thread, no process, no descriptor, no task.

A leak in one test shows as a strange failure in another, so each test is checked as it ends, against what was there
when it began.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import psutil
import pytest
import pytest_asyncio

# A closed channel or an ended child may take a moment to go.
GRACE_S = 5.0
# Descriptors that gRPC and Python make once per process and keep.
KEPT = ("anon_inode:", "pipe:", "/dev/", "/proc/")
# Threads likewise: of gRPC, and of the progress bars that the compiler of torch imports where they are installed.
KEPT_THREADS = ("grpc", "tqdm_monitor")


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and every process below inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function):
            item.add_marker(pytest.mark.usefixtures("no_leaked_tasks"))


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive()}


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True) if _is_alive(child)}


def _is_alive(process: psutil.Process) -> bool:
    """It may end between the listing and the question."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _descriptors() -> Counter[str]:
    """Open sockets, memory files and files, by what they point to."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.startswith(KEPT):
            found[target.split(":")[0] if target.startswith("socket:") else target] += 1
    return found


def _leaks(threads: set[threading.Thread], children: set[int], descriptors: Counter[str]) -> list[str]:
    new_threads = [thread.name for thread in _threads() - threads if not thread.name.startswith(KEPT_THREADS)]
    new_children = _children() - children
    new_descriptors = _descriptors() - descriptors
    found = [f"thread {name}" for name in new_threads]
    found += [f"process {pid}" for pid in new_children]
    found += [f"{count} x {target}" for target, count in new_descriptors.items()]
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs outermost; the shared cluster is made before the count begins, because wider scopes come first."""
    threads, children, descriptors = _threads(), _children(), _descriptors()
    yield
    deadline = time.monotonic() + GRACE_S
    while leaks := _leaks(threads, children, descriptors):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(leaks)}")
        gc.collect()
        time.sleep(0.02)


@pytest_asyncio.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    deadline = time.monotonic() + GRACE_S
    while leaked := [task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]:
        if time.monotonic() > deadline:
            pytest.fail(f"tasks left behind: {leaked}")
        await asyncio.sleep(0.02)
