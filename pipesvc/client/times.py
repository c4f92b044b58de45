"""What executors did with their time, as people see it: computing, and idle by its cause."""

from __future__ import annotations

from collections.abc import Iterator

from pipesvc.rpc.v1 import local_pb2, run_pb2

NO_INPUT = "no input"
NO_CREDIT = "no credit"


def times_of(run: run_pb2.Run) -> dict[str, dict[str, float | None]]:
    """By worker, in seconds."""
    return {
        worker: {
            "computing_s": run.times[worker].computing_ns / 1e9,
            "no_input_s": run.times[worker].no_input_ns / 1e9,
            "no_credit_s": run.times[worker].no_credit_ns / 1e9,
            "no_core_s": run.times[worker].no_core_ns / 1e9 if run.times[worker].HasField("no_core_ns") else None,
        }
        for worker in sorted(run.times)
    }


def times_lines(run: run_pb2.Run) -> Iterator[str]:
    """One line for each worker, in percent of its own time."""
    for worker, times in times_of(run).items():
        known = {name: seconds for name, seconds in times.items() if seconds is not None}
        total_s = sum(known.values())
        if not total_s:
            continue
        busy, no_input, no_credit, no_core = (
            f"{known[name] / total_s:.0%}" if name in known else "unknown"
            for name in ("computing_s", "no_input_s", "no_credit_s", "no_core_s")
        )
        yield f"worker {worker} is busy {busy}, no input {no_input}, no credit {no_credit}, no core {no_core}"


def cause_of(event: local_pb2.TraceEvent) -> str:
    """Why nothing ran before this action; "" if it began at once."""
    if not event.awaited_ns:
        return ""
    return NO_CREDIT if 2 * event.awaited_credit_ns > event.awaited_ns else NO_INPUT
