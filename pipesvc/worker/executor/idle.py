"""What an executor does with its time: how much of it computes, and why the rest does not.

A stage that is idle says "slow", not why. It may have no input, which another stage or the feeder owes it; it may have
made parcels that their receiver does not take yet; or it could run and the machine has no core for it. Each asks for
another cure, so they are told apart: every nanosecond since the first step began is one of four.

Pure: times are nanoseconds, and arguments. `occupancy` has the clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesvc.rpc.v1 import local_pb2


@dataclass(kw_only=True, slots=True)
class Times:
    """Nanoseconds, by cause."""

    computing: int = 0
    no_input: int = 0
    no_credit: int = 0
    no_core: int = 0


class IdleClock:
    """Counts from `begins` on. All that is no wait is computing, also sending and saving."""

    def __init__(self) -> None:
        self._times = Times()
        # What has been counted since the run delay was last told, which it may have been part of.
        self._fresh = Times()
        self._is_waiting = False
        self._since_ns = 0
        self._credit_ns = 0
        self._run_delay_ns: int | None = None

    @property
    def is_waiting(self) -> bool:
        return self._is_waiting

    def begins(self, now_ns: int, *, is_waiting: bool, credit_ns: int, run_delay_ns: int | None) -> None:
        """`run_delay_ns` is None where the system does not tell it."""
        self._is_waiting, self._since_ns = is_waiting, now_ns
        self._credit_ns, self._run_delay_ns = credit_ns, run_delay_ns

    def turns(self, now_ns: int, *, is_waiting: bool, credit_ns: int) -> None:
        """From now on this process waits, or computes. `credit_ns` is how long parcels have waited for credit since
        the process began: as much of a wait as that has grown was for credit."""
        elapsed_ns = max(0, now_ns - self._since_ns)
        if self._is_waiting:
            no_credit = min(elapsed_ns, max(0, credit_ns - self._credit_ns))
            self._fresh.no_credit += no_credit
            self._fresh.no_input += elapsed_ns - no_credit
        else:
            self._fresh.computing += elapsed_ns
        self._is_waiting, self._since_ns, self._credit_ns = is_waiting, now_ns, credit_ns

    def delayed(self, run_delay_ns: int | None) -> int:
        """The main thread has been able to run, without a core, for so long since it began; returns what is new of it.

        It is taken from the computing since it was last told, and from waits only as far as it is longer: who waits
        wants no core, except for the moment after he is woken. So the four always add up to the time that has passed.
        """
        fresh, self._fresh = self._fresh, Times()
        no_core = left = 0
        if run_delay_ns is not None and self._run_delay_ns is not None:
            all_ns = fresh.computing + fresh.no_input + fresh.no_credit
            no_core = left = min(max(0, run_delay_ns - self._run_delay_ns), all_ns)
            self._run_delay_ns += no_core
        for name in ("computing", "no_input", "no_credit"):
            counted = getattr(fresh, name)
            taken = min(left, counted)
            left -= taken
            setattr(self._times, name, getattr(self._times, name) + counted - taken)
        self._times.no_core += no_core
        return no_core

    def times(self) -> local_pb2.ExecutorTimes:
        """As of the last `delayed`."""
        return local_pb2.ExecutorTimes(
            computing_ns=self._times.computing,
            no_input_ns=self._times.no_input,
            no_credit_ns=self._times.no_credit,
            no_core_ns=None if self._run_delay_ns is None else self._times.no_core,
        )
