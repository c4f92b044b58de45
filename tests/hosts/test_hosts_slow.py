"""Workers with a slow network between them: plans know it, and numbers do not."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from benchmarks import sleeping
from benchmarks.sizes import DATA_SEED, LEARNING_RATE, MODEL_SEED
from benchmarks.slow_hosts import Conditions, slow_hosts
from pipesvc.core.costs import LinkCost
from pipesvc.core.schedule_search import choose_schedule
from pipesvc.core.stage_costs import StageCost
from tests.contract.link_harness import deaf_to_proxies
from tests.hosts.namespaces import missing
from tests.integration import plain

FORWARD_S, BACKWARD_S = 0.01, 0.02
ROWS, MICRO_BATCHES, NUM_STEPS = 4, 6, 3
NUM_STAGES: Final = 2


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if reason := missing():
        pytest.skip(reason)


def _asked(width: int, **codec: str) -> dict[str, Any]:
    model = {"width": width, "num_sleepers": NUM_STAGES, "forward_s": FORWARD_S, "backward_s": BACKWARD_S}
    arguments = {"model": model, "micro_batch_rows": ROWS, "num_micro_batches": MICRO_BATCHES}
    return {"job": "sleeping", "arguments": arguments, "codec": codec, "num_steps": NUM_STEPS}


def _true_losses(width: int) -> list[float]:
    """Of one process that does not sleep."""
    num_rows = ROWS * MICRO_BATCHES
    batch = next(sleeping.same_batch_for_ever(num_rows, DATA_SEED))
    return plain.train(
        lambda: sleeping.build_model(width, NUM_STAGES, 0.0, 0.0),
        lambda: iter([pair for _ in range(NUM_STEPS) for pair in zip(*batch, strict=True)]),
        sleeping.loss,
        lambda parameters: torch.optim.SGD(parameters, lr=LEARNING_RATE),
        batch_size=num_rows,
        micro_batches=MICRO_BATCHES,
        seed=MODEL_SEED,
    ).losses


def _in_flight_without_hops() -> int:
    stages = [StageCost(worker=worker, forward_s=FORWARD_S, backward_s=BACKWARD_S) for worker in "ab"]
    return choose_schedule(stages, num_micro_batches=MICRO_BATCHES).best.in_flight or NUM_STAGES


def _ways(answer: dict[str, Any]) -> set[tuple[str, str]]:
    return {(link["link"], link["way"]) for link in answer["links"]}


OVER_GRPC = {("0>1/activation", "gRPC"), ("1>0/gradient", "gRPC")}


def test_100_mbit_are_measured_planned_with_and_leave_the_numbers_alone() -> None:
    width = (256 << 10) // 4 // ROWS
    with slow_hosts(Conditions(rate="100mbit")) as hosts:
        found = hosts.ask(**_asked(width))
        coded = hosts.ask(**_asked(width, activations="int8", gradients="bf16"))
    assert found["losses"] == _true_losses(width)
    assert _ways(found) == OVER_GRPC
    # 256 KiB take 21 ms at 12.5 MB/s, and no wire is faster than it is.
    for link in found["links"]:
        assert link["num_bytes"] == 256 << 10
        assert 0.02 < link["hop_s"] < 0.2
    assert found["in_flight"] > _in_flight_without_hops()
    sizes = {link["link"]: link["num_bytes"] for link in coded["links"]}
    assert sizes == {"0>1/activation": (64 << 10) + (1 << 10), "1>0/gradient": 128 << 10}
    assert coded["predicted_s"] < found["predicted_s"]
    carried = {link["link"]: link["coded_bytes"] for link in coded["carried"]}
    assert {link: carried[link] for link in sizes} == {
        link: num_bytes * MICRO_BATCHES * NUM_STEPS for link, num_bytes in sizes.items()
    }


def test_50_ms_of_delay_are_planned_with_and_leave_the_numbers_alone() -> None:
    """Also where the environment names proxies, which are not for addresses of a cluster."""
    width = (16 << 10) // 4 // ROWS
    with slow_hosts(Conditions(delay_s=0.05), **deaf_to_proxies()) as hosts:
        found = hosts.ask(**_asked(width))
    assert found["losses"] == _true_losses(width)
    assert _ways(found) == OVER_GRPC
    assert {link["way"] for link in found["carried"] if link["link"] in dict(OVER_GRPC)} == {"gRPC"}
    assert min(link["hop_s"] for link in found["links"]) > 0.05
    assert found["in_flight"] > _in_flight_without_hops()


def test_without_hops_a_plan_has_no_more_in_flight_than_stages() -> None:
    """What the two above compare with."""
    assert _in_flight_without_hops() == NUM_STAGES
    stages = [
        StageCost(worker=worker, forward_s=FORWARD_S, backward_s=BACKWARD_S, output_bytes=1, output_gradient_bytes=1)
        for worker in "ab"
    ]
    late = choose_schedule(stages, num_micro_batches=8, link=lambda *_: LinkCost(latency_s=0.05)).best
    assert late.in_flight > NUM_STAGES
