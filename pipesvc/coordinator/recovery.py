"""What a new coordinator makes of the journal of the one before.

Queued runs have done nothing yet and go on as if nothing had happened. Runs that were on workers cannot: their
workers ended them when the old coordinator fell silent. They fail by name, so that nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipesvc.coordinator.failures import failure
from pipesvc.coordinator.journal import StoredRun
from pipesvc.coordinator.run_record import ENDED_STATES
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import run_pb2

_LIVE_STATES = frozenset({run_pb2.RUN_STATE_BUILDING, run_pb2.RUN_STATE_RUNNING, run_pb2.RUN_STATE_SAVING})


@dataclass(frozen=True, kw_only=True, slots=True)
class Inheritance:
    """Runs in order of submission."""

    ended: list[StoredRun]
    interrupted: list[StoredRun]
    """These are among the ended ones too, with their error; the journal does not know it yet."""
    queued: list[StoredRun]


def sort_out(stored: Iterable[StoredRun], now_unix_ns: int) -> Inheritance:
    ended, interrupted, queued = [], [], []
    for item in stored:
        if item.run.state in ENDED_STATES:
            ended.append(item)
        elif item.run.state in _LIVE_STATES:
            failed = StoredRun(run=_interrupted(item.run, now_unix_ns), job=item.job)
            interrupted.append(failed)
            ended.append(failed)
        else:
            queued.append(item)
    return Inheritance(ended=ended, interrupted=interrupted, queued=queued)


def _interrupted(run: run_pb2.Run, now_unix_ns: int) -> run_pb2.Run:
    step = run.num_committed_steps
    failed = run_pb2.Run()
    failed.CopyFrom(run)
    failed.state = run_pb2.RUN_STATE_FAILED
    failed.ended_unix_ns = now_unix_ns
    del failed.awaited[:]
    error = failure(
        ErrorCode.COORDINATOR_RESTARTED,
        f"the coordinator ended while the run was live, after step {step}",
        advice="Submit the job again",
    )
    error.run_id = run.run_id
    failed.error.CopyFrom(error)
    return failed
