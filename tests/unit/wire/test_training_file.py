"""Where a checkpoint stands, read from its second file."""

from __future__ import annotations

from typing import Any

import pytest

from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire import training_file
from pipesvc.wire.safetensors_stream import Layout, make_layout

POSITION = types_pb2.Position(step=7, epoch=1, steps_in_epoch=2, batch_size=8, accumulate=3, run_id="r")


def layout(**metadata: Any) -> Layout:
    return make_layout({}, metadata)


def test_the_position_and_the_texts_of_stages_in_their_order() -> None:
    texts = {f"stage-{index}": f"text {index}" for index in (10, 2, 0)}
    found = layout(position=training_file.position_text(POSITION), **texts)
    assert training_file.position_of(found) == POSITION
    assert training_file.stage_texts(found) == ["text 0", "text 2", "text 10"]


@pytest.mark.parametrize(
    "text", [None, "", "7", "[7]", "[7, 1]", '["a", 0, 0]', "[7, 1, 2]", "[-1, 0, 0, 8, 1]", "[7.5, 0, 0, 8, 1]", "{}"]
)
def test_a_file_that_says_no_position_is_refused(text: str | None) -> None:
    found = layout() if text is None else layout(position=text)
    with pytest.raises(PipesvcError, match="does not say at which step"):
        training_file.position_of(found)


def test_a_file_without_training_state_says_why() -> None:
    found = layout(position=training_file.position_text(POSITION), **{"unsavable-1": "on stage 1, it is a set"})
    with pytest.raises(PipesvcError, match="weights alone: on stage 1, it is a set") as caught:
        training_file.position_of(found)
    assert "init=" in caught.value.details.advice


def test_weights_of_another_step_or_run_are_refused() -> None:
    training_file.check_pair(layout(stands=training_file.stands_text(POSITION)), POSITION)
    training_file.check_pair(layout(), POSITION)  # written by another tool
    for other in ("step 5 of run r", "step 7 of run s"):
        with pytest.raises(PipesvcError, match=f"are of {other}, and its training state is of step 7 of run r"):
            training_file.check_pair(layout(stands=other), POSITION)
