"""Status and lists as text for people. Pure: the time is an argument."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from pipesvc.client.progress import duration
from pipesvc.client.times import times_lines
from pipesvc.client.watching import ENDED, failure_of, state_name
from pipesvc.core.planner import shared_threads
from pipesvc.rpc.v1 import run_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.wire.registrations import worker_info

WAYS = {types_pb2.LINK_WAY_GRPC: "over gRPC", types_pb2.LINK_WAY_SAME_HOST: "within a host"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; nothing else, so that `grep` and `awk` read it.

    A cell is one line, and changes no terminal: control characters stand as they are written in code.
    """
    lines = [[cell if cell.isprintable() else repr(cell)[1:-1] for cell in row] for row in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def runs_text(runs: Sequence[run_pb2.Run]) -> str:
    if not runs:
        return "no runs"
    return table(("RUN", "STATE", "STEPS", "NAME", "ERROR"), [_run_row(run) for run in runs])


def status_text(status: run_pb2.GetStatusResponse, now_s: float | None = None) -> str:
    """Workers, live runs, and for each what it waits for."""
    now_s = time.time() if now_s is None else now_s
    threads = shared_threads([worker_info(worker.registration) for worker in status.workers])
    rows = [_worker_row(worker, threads[worker.registration.name]) for worker in status.workers]
    parts = [table(("WORKER", "HOST", "DEVICES", "THREADS", "BEAT", "DOES"), rows)]
    if not status.workers:
        parts = ["no workers"]
    parts += [_unreached_line(unreached, now_s) for unreached in status.unreached]
    live = [run for run in status.runs if run.state not in ENDED]
    parts.append(runs_text(live) if live else "no live runs")
    parts += [f"{run.run_id}: {line}" for run in live for line in _lines_below(run, now_s)]
    return "\n".join(parts)


def run_text(run: run_pb2.Run, now_s: float | None = None) -> str:
    """One run, also one that has ended, with what it waits for and how it goes."""
    now_s = time.time() if now_s is None else now_s
    return "\n".join([runs_text([run]), *_lines_below(run, now_s)])


def traceback_text(run: run_pb2.Run) -> str:
    """The traceback and last words of what failed the run; empty if there are none."""
    error = failure_of(run)
    return "\n".join(error.__notes__) if error is not None and hasattr(error, "__notes__") else ""


def _run_row(run: run_pb2.Run) -> tuple[str, ...]:
    steps = f"{run.num_committed_steps}/{run.num_steps}" if run.num_steps else str(run.num_committed_steps)
    failure = failure_of(run)
    return (run.run_id, state_name(run.state), steps, run.name, " ".join(str(failure).split()) if failure else "")


def _worker_row(worker: run_pb2.WorkerStatus, num_threads: int) -> tuple[str, ...]:
    """The threads are those of a run on all workers: one on fewer gives each a larger share."""
    found = worker.registration
    does = ", ".join(f"{child.run_id} {child.progress.phase}" for child in worker.children) or "idle"
    return (
        found.name,
        found.host,
        ",".join(found.devices),
        str(num_threads) if found.num_threads else f"{num_threads} of {found.num_cores}, shared",
        f"{worker.last_beat_age_s:.1f} s ago",
        f"draining, {does}" if worker.is_draining else does,
    )


def _unreached_line(found: run_pb2.Unreached, now_s: float) -> str:
    whom = "itself" if found.peer == found.worker else found.peer
    tried = f"since {duration(now_s - found.since_unix_ns / 1e9)}, tried {found.num_probes} times"
    return f"WARNING: worker {found.worker} cannot reach {whom} at {found.data_address}: {found.problem} ({tried})"


def _lines_below(run: run_pb2.Run, now_s: float) -> Iterator[str]:
    yield from _awaited_lines(run, now_s)
    yield from _link_lines(run)
    yield from _coded_lines(run)
    yield from times_lines(run)


def _link_lines(run: run_pb2.Run) -> Iterator[str]:
    """How many links go which way, and what they have carried."""
    for way, name in WAYS.items():
        found = [link for link in run.links if link.way == way]
        if found:
            total = sum(link.tensor_bytes for link in found) / 1e6
            yield f"{len(found)} links {name}, {total:.1f} MB so far"


def _awaited_lines(run: run_pb2.Run, now_s: float) -> Iterator[str]:
    for awaited in run.awaited:
        text = f"waits for {awaited.what}"
        if awaited.from_whom:
            text += f" from {awaited.from_whom}"
        if awaited.since_unix_ns:
            text += f", since {duration(now_s - awaited.since_unix_ns / 1e9)}"
        if awaited.until_unix_ns:
            text += f", for {duration(awaited.until_unix_ns / 1e9 - now_s)} more"
        yield f"{text}, then {awaited.then}" if awaited.then else text


def _coded_lines(run: run_pb2.Run) -> Iterator[str]:
    """What codecs save and what they cost, for each link that has one."""
    for total in run.links:
        if total.coded_bytes != total.tensor_bytes:
            sizes = [f"{num / 2**20:.1f} MiB" for num in (total.tensor_bytes, total.coded_bytes)]
            link = Link.from_message(total.link)
            yield f"link {link} has sent {sizes[0]} as {sizes[1]}, with a relative error of {total.relative_error:.2g}"
