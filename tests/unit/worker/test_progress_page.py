"""Progress in memory: the newest, whole, also of a child that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.progress_page import ProgressPage, ProgressView


def view_of(page: ProgressPage) -> ProgressView:
    return ProgressView(os.dup(page.descriptor))


def test_the_newest_is_read_as_often_as_one_likes() -> None:
    page = ProgressPage()
    view = view_of(page)
    assert view.read() is None
    for step in (1, 2):
        page.write(local_pb2.Progress(phase="F", step=step, stage=0, micro_batch=3))
        for _ in range(2):
            found = view.read()
            assert found is not None
            assert (found.phase, found.step, found.micro_batch) == ("F", step, 3)
    os.close(page.descriptor)


def test_long_words_are_cut() -> None:
    page = ProgressPage()
    page.write(local_pb2.Progress(phase="waiting", awaiting="ä" * 10_000))
    found = view_of(page).read()
    assert found is not None
    assert found.awaiting == "ä" * 1000
    os.close(page.descriptor)


def test_what_is_half_written_is_never_read() -> None:
    page = ProgressPage()
    view, is_over = view_of(page), threading.Event()
    texts = ["a" * 900, "b" * 3]

    def write() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            page.write(local_pb2.Progress(phase="F", awaiting=texts[number % 2]))

    page.write(local_pb2.Progress(phase="F", awaiting=texts[0]))
    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {found.awaiting for _ in range(5_000) if (found := view.read()) is not None}
    finally:
        is_over.set()
        writer.join()
    assert seen <= set(texts)
    # And what is not whole at all is not taken for news.
    page._memory[8:20] = b"x" * 12
    last = view.read()
    assert last is not None
    assert last.awaiting in texts
    os.close(page.descriptor)


def test_it_outlives_the_process_that_wrote_it() -> None:
    page = ProgressPage()
    code = (
        "import mmap, os, sys; from pipesvc.rpc.v1 import local_pb2; from pipesvc.worker import progress_page as p;"
        "page = p.ProgressPage.__new__(p.ProgressPage); page._memory = mmap.mmap(int(sys.argv[1]), 4096);"
        "page.write(local_pb2.Progress(phase='B', step=9)); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(page.descriptor)]
    assert subprocess.run(command, pass_fds=[page.descriptor], timeout=60, check=False).returncode == -9
    found = view_of(page).read()
    assert found is not None
    assert (found.phase, found.step) == ("B", 9)
    os.close(page.descriptor)


def test_times_and_waits_for_credit_lie_beside_it() -> None:
    page = ProgressPage()
    view = view_of(page)
    assert view.times() is None
    assert page.credit_waits == (0, 0)
    times = local_pb2.ExecutorTimes(computing_ns=2**60, no_input_ns=2**61, no_credit_ns=2**62, no_core_ns=2**63)
    progress = local_pb2.Progress(phase="waiting", awaiting="\U0001f600" * 1000)
    view.write_credit_waits((2**62, 2**63))
    page.write_times(times)
    page.write(progress)
    assert (view.read(), view.times(), page.credit_waits) == (progress, times, (2**62, 2**63))
    os.close(page.descriptor)
