"""Memory as a sum with its parts."""

from __future__ import annotations

import pytest

from pipesvc.core.memory import Held, Memory, against_text, bytes_text, check_memory, device_memory, too_small
from pipesvc.core.stage_costs import StageCost
from pipesvc.errors import ErrorCode, PipesvcError

GIB = 2**30
MIB = 2**20


def _stage(worker: str, **more: int) -> StageCost:
    return StageCost(worker=worker, forward_s=1, backward_s=2, **more)  # type: ignore[arg-type]


def test_the_sum_is_said_in_words() -> None:
    memory = Memory(
        weight_bytes=4 * GIB,
        gradient_bytes=4 * GIB,
        optimizer_bytes=8 * GIB,
        activations=(Held(3, GIB // 2),),
        link_slots=(Held(4, 16 * MIB), Held(4, 16 * MIB)),
        snapshot_bytes=300,
    )
    assert memory.total_bytes == 16 * GIB + 3 * GIB // 2 + 8 * 16 * MIB + 300
    assert memory.text(16 * GIB) == (
        "4.0 GiB weights + 4.0 GiB gradients + 8.0 GiB optimizer state + 3 x 0.5 GiB activations"
        " + 8 x 16.0 MiB link slots + 0.3 KiB snapshot copies = 17.6 GiB of 16.0 GiB"
    )
    assert not memory.fits(16 * GIB)
    assert memory.fits(18 * GIB)
    assert memory.fits(0)


def test_parts_that_are_nothing_are_left_out() -> None:
    assert Memory(buffer_bytes=5, activations=(Held(3, 0), Held(0, 7))).text() == "5 bytes buffers = 5 bytes"
    assert Memory().text(GIB) == "nothing = 0 bytes of 1.0 GiB"


def test_two_stages_on_a_device_add_up() -> None:
    both = Memory(weight_bytes=1, activations=(Held(2, 10),)) + Memory(weight_bytes=2, activations=(Held(1, 30),))
    assert both == Memory(weight_bytes=3, activations=(Held(2, 10), Held(1, 30)))
    assert both.total_bytes == 3 + 50


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (102, "102 bytes"), (103, "0.1 KiB"), (MIB, "1.0 MiB"), (GIB // 8, "0.1 GiB"), (GIB, "1.0 GiB")],
)
def test_units(num_bytes: int, text: str) -> None:
    assert bytes_text(num_bytes) == text


def test_a_sum_just_above_its_limit_does_not_look_equal_to_it() -> None:
    assert against_text(16 * GIB, 16 * GIB) == "16.0 GiB of 16.0 GiB"
    assert against_text(16 * GIB + 9 * MIB, 16 * GIB) == "16.01 GiB of 16.00 GiB"
    assert against_text(16 * GIB, 0) == "16.0 GiB"


def test_links_between_workers_have_a_window_of_slots() -> None:
    """a: stages 0 and 1; b: stage 2. Nothing crosses between 0 and 1."""
    stages = [
        _stage("a", output_bytes=1000, output_gradient_bytes=2000, activation_bytes=10),
        _stage("a", output_bytes=100, output_gradient_bytes=200, activation_bytes=20),
        _stage("b", activation_bytes=30),
    ]
    assert device_memory(stages, {0: 4, 1: 3, 2: 1}) == {
        "a/cpu": Memory(activations=(Held(4, 10), Held(3, 20)), link_slots=(Held(3, 200),)),
        "b/cpu": Memory(activations=(Held(1, 30),), link_slots=(Held(3, 100),)),
    }
    assert device_memory(stages, dict.fromkeys(range(3), 1))["b/cpu"].link_slots == (Held(2, 100),)


def test_p04_what_does_not_fit_is_refused_with_the_sum() -> None:
    """It would fit if the optimizer's state were forgotten."""
    stages = [
        _stage("a", weight_bytes=GIB, gradient_bytes=GIB, optimizer_bytes=2 * GIB, memory_bytes=3 * GIB),
        _stage("b", weight_bytes=GIB, gradient_bytes=GIB, optimizer_bytes=2 * GIB, memory_bytes=4 * GIB),
    ]
    memory = device_memory(stages, {0: 1, 1: 1})
    assert too_small(stages, memory) == {"a/cpu": 3 * GIB}
    with pytest.raises(PipesvcError) as caught:
        check_memory(stages, memory)
    assert caught.value.code is ErrorCode.INVALID_PLAN
    assert "a/cpu would need 1.0 GiB weights + 1.0 GiB gradients + 2.0 GiB optimizer state = 4.0 GiB of 3.0 GiB" in str(
        caught.value
    )
    assert "b/cpu" not in str(caught.value)
    assert caught.value.details.advice == "Put fewer layers there, or place them on a worker with more memory."
    check_memory(stages[1:], device_memory(stages[1:], {0: 1}))


def test_smaller_micro_batches_are_advised_where_they_can_help() -> None:
    stages = [_stage("a", weight_bytes=2 * GIB, activation_bytes=GIB, memory_bytes=3 * GIB)]
    with pytest.raises(PipesvcError, match=r"2 x 1.0 GiB activations = 4.0 GiB of 3.0 GiB. .*smaller micro-batches"):
        check_memory(stages, device_memory(stages, {0: 2}))
