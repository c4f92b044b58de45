"""Where a checkpoint stands, read from its second file."""

from __future__ import annotations

from typing import Any

import pytest

from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire import training_file
from pipesvc.wire.safetensors_stream import Layout, make_layout

POSITION = types_pb2.Position(step=7, epoch=1, steps_in_epoch=2)


def layout(**metadata: Any) -> Layout:
    return make_layout({}, metadata)


def test_the_position_and_the_texts_of_stages_in_their_order() -> None:
    texts = {f"stage-{index}": f"text {index}" for index in (10, 2, 0)}
    found = layout(position=training_file.position_text(POSITION), **texts)
    assert training_file.position_of(found) == POSITION
    assert training_file.stage_texts(found) == ["text 0", "text 2", "text 10"]


@pytest.mark.parametrize("text", [None, "", "7", "[7]", "[7, 1]", '["a", 0, 0]', "[-1, 0, 0]", "[7.5, 0, 0]", "{}"])
def test_a_file_that_says_no_position_is_refused(text: str | None) -> None:
    found = layout() if text is None else layout(position=text)
    with pytest.raises(PipesvcError, match="does not say at which step"):
        training_file.position_of(found)


def test_a_file_without_training_state_says_why() -> None:
    found = layout(position=training_file.position_text(POSITION), **{"unsavable-1": "on stage 1, it is a set"})
    with pytest.raises(PipesvcError, match="weights alone: on stage 1, it is a set") as caught:
        training_file.position_of(found)
    assert "init=" in caught.value.details.advice


def test_weights_of_another_step_are_refused() -> None:
    training_file.check_pair(layout(step="7"), POSITION)
    training_file.check_pair(layout(), POSITION)  # written by another tool
    with pytest.raises(PipesvcError, match="of step 5, and its training state is of step 7"):
        training_file.check_pair(layout(step="5"), POSITION)
