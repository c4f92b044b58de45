"""A profile as people see it."""

from __future__ import annotations

import io
from dataclasses import replace

from pipesvc.client.profile_view import profile_text
from pipesvc.client.profiling import Profile, ProfileLines
from pipesvc.core.costs import Costs, DeviceCost, LayerCost, LayerTimes, LinkCost
from pipesvc.rpc.v1 import run_pb2

COSTS = Costs(
    layers=(
        LayerCost(
            name="0", type="Embedding", mark="cpu", parameter_bytes=3 << 20, gradient_bytes=1024, output_bytes=512
        ),
        LayerCost(name="1", type="Linear", parameter_bytes=100, optimizer_bytes=200, activation_bytes=2048),
    ),
    devices=(
        DeviceCost(
            worker="a",
            device="cpu",
            times=LayerTimes(forward_s=(0.001, 0.002), backward_s=(0.0, 0.5), update_s=(0.00002, 0.0)),
        ),
    ),
    links={("a", "b"): LinkCost(latency_s=0.00025, bytes_per_s=float(1 << 30), way="gRPC"), ("b", "a"): LinkCost()},
    micro_batch_rows=8,
)


def test_layers_sums_and_links_are_tables() -> None:
    lines = profile_text(Profile(costs=COSTS, num_devices_measured=1, num_links_measured=2)).splitlines()
    assert lines[0] == "micro-batch of 8 rows; measured now: 1 devices, 2 links"
    cells = [line.split("  ") for line in lines]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in cells]
    assert rows[1] == ["LAYER", "TYPE", "PARAMETERS", "ACTIVATIONS", "OUTPUT", "a/cpu F B U"]
    assert rows[2] == ["0 (cpu)", "Embedding", "3.0 MiB", "0 bytes", "0.5 KiB", "1 ms, 0 us, 20 us"]
    assert rows[4] == ["all", "3.0 MiB", "2.0 KiB", "3 ms, 500 ms, 20 us"]
    assert rows[7] == ["3.0 MiB", "1.0 KiB", "0.2 KiB", "0 bytes", "2.0 KiB"]
    assert rows[9:] == [["a", "b", "gRPC", "250 us", "1.0 GiB/s"], ["b", "a", "not known", "0 us", "no bound"]]


def test_a_pair_without_a_way_says_so() -> None:
    costs = replace(COSTS, links={("a", "b"): LinkCost(latency_s=float("inf"))})
    text = profile_text(Profile(costs=costs, num_devices_measured=1, num_links_measured=0))
    assert text.splitlines()[-1].split() == ["a", "b", "none", "-", "-"]


def test_what_was_known_says_how_to_measure_again() -> None:
    text = profile_text(Profile(costs=COSTS, num_devices_measured=0, num_links_measured=0))
    assert "measured before (--fresh: again)" in text.splitlines()[0]


def test_each_wait_is_told_once() -> None:
    out = io.StringIO()
    lines = ProfileLines(out)
    waits = [run_pb2.Awaited(what="measuring layer 1 of 2 on cpu", from_whom=worker) for worker in "ab"]
    for awaited in (waits, waits, waits[1:]):
        lines(awaited)
    assert out.getvalue().splitlines() == [
        "profile: waits for measuring layer 1 of 2 on cpu from a; measuring layer 1 of 2 on cpu from b",
        "profile: waits for measuring layer 1 of 2 on cpu from b",
    ]
