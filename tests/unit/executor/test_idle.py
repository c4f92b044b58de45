"""Where an executor's time goes: the four causes add up, whatever it does and however late the system tells."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.executor.idle import IdleClock
from pipesvc.worker.executor.occupancy import Occupancy, run_delay_ns
from tests.unit.executor.memory_network import MemoryPort, Network

MS = 1_000_000


def parts(clock: IdleClock) -> tuple[int, int, int, int]:
    times = clock.times()
    return times.computing_ns, times.no_input_ns, times.no_credit_ns, times.no_core_ns


@pytest.fixture
def clock() -> IdleClock:
    """Has computed from 1000 to 1060, waited to 1090, in which time credit was awaited for 20, and computes since."""
    made = IdleClock()
    made.begins(1000, is_waiting=False, credit_ns=500, run_delay_ns=7)
    made.turns(1060, is_waiting=True, credit_ns=505)
    made.turns(1090, is_waiting=False, credit_ns=525)
    return made


def test_a_wait_is_for_credit_as_long_as_a_parcel_waited_for_it(clock: IdleClock) -> None:
    clock.delayed(7)
    assert parts(clock) == (60, 10, 20, 0)


def test_credit_that_is_awaited_while_computing_does_not_count(clock: IdleClock) -> None:
    clock.turns(1190, is_waiting=True, credit_ns=625)
    clock.delayed(7)
    assert parts(clock) == (160, 10, 20, 0)


def test_a_wait_for_credit_is_never_longer_than_the_wait() -> None:
    clock = IdleClock()
    clock.begins(0, is_waiting=True, credit_ns=0, run_delay_ns=0)
    clock.turns(10, is_waiting=False, credit_ns=30)
    clock.delayed(0)
    assert parts(clock) == (0, 0, 10, 0)


def test_time_without_a_core_is_taken_from_computing_and_then_from_waits(clock: IdleClock) -> None:
    assert clock.delayed(7 + 50) == 50
    assert parts(clock) == (10, 10, 20, 50)
    clock.turns(1100, is_waiting=True, credit_ns=525)
    clock.turns(1120, is_waiting=False, credit_ns=525)
    assert clock.delayed(7 + 50 + 15) == 15
    assert parts(clock) == (10, 25, 20, 65)


def test_more_delay_than_time_counts_when_the_time_has_come(clock: IdleClock) -> None:
    assert clock.delayed(7 + 100) == 90
    clock.turns(1100, is_waiting=False, credit_ns=525)
    assert clock.delayed(7 + 100) == 10
    assert parts(clock) == (0, 0, 0, 100)


def test_a_system_that_tells_no_delay_leaves_it_out() -> None:
    clock = IdleClock()
    clock.begins(0, is_waiting=False, credit_ns=0, run_delay_ns=None)
    clock.turns(10, is_waiting=True, credit_ns=0)
    assert clock.delayed(None) == 0
    assert clock.times() == local_pb2.ExecutorTimes(computing_ns=10)
    assert not clock.times().HasField("no_core_ns")


def test_the_parts_add_up_to_the_time_that_has_passed() -> None:
    draw = random.Random(3)
    clock, now, credit, delay = IdleClock(), 10**18, 0, 5
    clock.begins(now, is_waiting=False, credit_ns=credit, run_delay_ns=delay)
    for _ in range(2000):
        now, credit, delay = now + draw.randrange(100), credit + draw.randrange(60), delay + draw.randrange(30)
        clock.turns(now, is_waiting=draw.random() < 0.5, credit_ns=credit)
        if draw.random() < 0.3:
            clock.delayed(delay)
    clock.delayed(delay)
    assert sum(parts(clock)) == now - 10**18
    assert min(parts(clock)) > 0


class Clocks:
    """Of an `Occupancy`: the time, the run delay, and how often the latter was asked for."""

    def __init__(self) -> None:
        self.port = MemoryPort(Network())
        self.now_ns = 1
        self.delay_ns = 0
        self.num_asked = 0
        self.occupancy = Occupancy(self.port, lambda: self.now_ns, self._delay)

    def _delay(self) -> int:
        self.num_asked += 1
        return self.delay_ns

    def after(self, passed_ns: int, step: int | None, *, is_waiting: bool) -> None:
        self.now_ns += passed_ns
        self.occupancy.note(self.now_ns, step, is_waiting=is_waiting)

    def shown(self) -> list[tuple[int, int, int, int]]:
        found = self.port.reported("executor_times")
        return [(each.computing_ns, each.no_input_ns, each.no_credit_ns, each.no_core_ns) for each in found]


@pytest.fixture
def clocks() -> Iterator[Clocks]:
    made = Clocks()
    yield made
    made.port.close()


def test_the_time_before_the_first_step_and_after_the_last_does_not_count(clocks: Clocks) -> None:
    clocks.after(100 * MS, None, is_waiting=True)
    clocks.after(900 * MS, 1, is_waiting=True)
    clocks.after(30 * MS, 1, is_waiting=False)
    clocks.now_ns += 20 * MS
    clocks.occupancy.step_ended()
    clocks.after(0, None, is_waiting=True)
    clocks.after(900 * MS, None, is_waiting=True)
    assert clocks.shown() == [(20 * MS, 30 * MS, 0, 0)]
    # Unless there is another step.
    clocks.after(100 * MS, 2, is_waiting=False)
    assert clocks.shown()[-1] == (20 * MS, 1030 * MS, 0, 0)


def test_long_steps_are_shown_before_their_end_and_short_actions_cost_nothing(clocks: Clocks) -> None:
    clocks.after(0, 1, is_waiting=False)
    for _ in range(2000):
        clocks.after(MS, 1, is_waiting=False)
    assert len(clocks.shown()) == 8
    assert clocks.num_asked == 1 + 8
    assert clocks.shown()[-1] == (2000 * MS, 0, 0, 0)


def test_a_step_is_told_all_of_its_time_without_a_core(clocks: Clocks) -> None:
    clocks.after(0, 1, is_waiting=False)
    for _ in range(3):
        clocks.delay_ns += 100 * MS
        clocks.after(300 * MS, 1, is_waiting=False)
    assert clocks.occupancy.step_ended() == 300 * MS
    assert clocks.occupancy.step_ended() == 0
    assert clocks.shown()[-1] == (600 * MS, 0, 0, 300 * MS)


def test_the_system_tells_the_run_delay_of_a_thread() -> None:
    first = run_delay_ns()
    assert first is None or (second := run_delay_ns()) is None or 0 <= first <= second


@pytest.mark.skipif(run_delay_ns() is None, reason="this system tells no run delay")
def test_a_competitor_on_the_same_core_shows() -> None:
    """Two processes that compute, both bound to one core: each has about half of it."""
    cores = os.sched_getaffinity(0)
    competitor = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    port = MemoryPort(Network())
    try:
        for pid in (0, competitor.pid):
            os.sched_setaffinity(pid, {min(cores)})
        began_ns = time.monotonic_ns()
        occupancy = Occupancy(port, time.monotonic_ns)
        occupancy.note(began_ns, 1, is_waiting=False)
        while time.monotonic_ns() < began_ns + 600 * MS:
            occupancy.note(time.monotonic_ns(), 1, is_waiting=False)
        occupancy.step_ended()
    finally:
        os.sched_setaffinity(0, cores)
        competitor.kill()
        competitor.wait()
        port.close()
    shown = port.reported("executor_times")[-1]
    assert shown.no_core_ns > 100 * MS
    assert 600 * MS <= shown.computing_ns + shown.no_core_ns <= time.monotonic_ns() - began_ns
