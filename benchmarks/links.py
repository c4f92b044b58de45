"""One link between two processes of this host, beside gloo: latency of 64 KiB, bandwidth at 16 MiB, CPU time.

    python -m benchmarks.links               # 7 rounds, two minutes; writes benchmarks/results/links.json
    python -m benchmarks.links --rounds 1 --no-write

Ours is a link as a run has it: a child and its agent at each end, segments, credit, the checks of every frame; gloo is
`torch.distributed` between two processes, receiving into memory that is there. A turn is started anew each time. One
way is half of a round trip of equal sizes; a stream has four tensors under way. CPU time is that of all processes of
both ends, for the second of two streams. At the end of a turn small tensors are measured once more, with both cores
kept busy by two processes that only count.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import psutil

from benchmarks import results, rounds
from benchmarks.link_ends import GRPC, LARGE, NUM_LARGE, SAME_HOST
from benchmarks.report import lines
from benchmarks.results import Result

GLOO: Final = "gloo"
WAYS: Final = (GLOO, SAME_HOST, GRPC)
# Way -> aims of: one way idle, one way busy, bandwidth, CPU seconds for a GB.
AIMS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    GLOO: ("", "", "", ""),
    SAME_HOST: ("ratio < 0.5", "", "ratio >= 2", ""),
    GRPC: ("ratio <= 2.5", "ratio < 1", "ratio >= 0.45", "value <= 1.8"),
}
Turn = dict[str, float]


def _ends(way: str) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.link_ends"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = partial(
        subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    )
    if way == GLOO:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        return [start([*command, "gloo", str(rank), port]) for rank in range(2)]
    ends = [start([*command, "agent", str(index), way]) for index in range(2)]
    addresses = [_line(end) for end in ends]
    for end in ends:
        _tell(end, json.dumps(addresses))
    return ends


def _line(end: subprocess.Popen[str]) -> str:
    assert end.stdout is not None
    line = end.stdout.readline().strip()
    if not line or line.startswith("failed"):
        raise RuntimeError(f"an end of the link said {line!r}")
    return line


def _tell(end: subprocess.Popen[str], line: str) -> None:
    assert end.stdin is not None
    end.stdin.write(f"{line}\n")
    end.stdin.flush()


def _cpu_s(ends: Sequence[subprocess.Popen[str]]) -> float:
    own = [psutil.Process(end.pid) for end in ends]
    all_of_them = [*own, *(child for process in own for child in process.children(recursive=True))]
    return sum(sum(process.cpu_times()[:2]) for process in all_of_them)


def turn(way: str) -> Turn:
    ends = _ends(way)
    try:
        assert _line(ends[0]) == "begin"
        before_s = _cpu_s(ends)
        assert _line(ends[0]) == "end"
        spent_s = _cpu_s(ends) - before_s
        found: Turn = json.loads(_line(ends[0]))
        return found | {"cpu_s_per_gb": spent_s / (NUM_LARGE * LARGE / 1e9)}
    finally:
        for end in ends:
            if way != GLOO:
                _tell(end, "over")
            end.wait(30)
            for pipe in (end.stdin, end.stdout):
                if pipe is not None:
                    pipe.close()


def measure(num_rounds: int) -> dict[str, list[Turn]]:
    found: dict[str, list[Turn]] = {way: [] for way in WAYS}
    for index in range(num_rounds):
        for way in rounds.order(WAYS, index):
            result = turn(way)
            found[way].append(result)
            print(
                f"round {index + 1} of {num_rounds}: {result['one_way_s'] * 1e6:6.0f} us, "
                f"{result['busy_one_way_s'] * 1e6:6.0f} us busy, {result['bytes_per_s'] / 1e9:5.2f} GB/s, "
                f"{result['cpu_s_per_gb']:4.2f} CPU s/GB  {way}",
                flush=True,
            )
    return found


def figures(turns: Mapping[str, Sequence[Turn]], command: str) -> list[Result]:
    num_rounds = len(turns[GLOO])
    found = []

    def add(figure: str, way: str, name: str, scale: float, unit: str, aim: str) -> None:
        values, peers = ([each[name] for each in turns[whose]] for whose in (way, GLOO))
        is_peer = way == GLOO
        found.append(
            results.result(
                f"{figure}: {way}",
                rounds.spread([each * scale for each in values]),
                unit=unit,
                against="" if is_peer else GLOO,
                ratio=None if is_peer else rounds.spread(rounds.ratios(values, peers)),
                aim=aim,
                command=command,
                num_rounds=num_rounds,
            )
        )

    for way in WAYS:
        idle, busy, bandwidth, cpu = AIMS[way]
        add("link, 64 KiB one way, idle cores", way, "one_way_s", 1e6, "us", idle)
        add("link, 64 KiB one way, both cores busy", way, "busy_one_way_s", 1e6, "us", busy)
        add("link, 16 MiB, bandwidth", way, "bytes_per_s", 1e-9, "GB/s", bandwidth)
        add("link, 16 MiB, CPU time of both ends", way, "cpu_s_per_gb", 1.0, "s/GB", cpu)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="One link beside gloo.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    found = figures(measure(arguments.rounds), f"python -m benchmarks.links --rounds {arguments.rounds}")
    print("\n".join(lines(found)))
    if not arguments.no_write:
        results.write(results.FOLDER / "links.json", found)


if __name__ == "__main__":
    main()
