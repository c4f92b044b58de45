"""The second file of a checkpoint: what training needs besides the weights, in the same format.

Its tensors are those that the optimizers keep for each parameter, as PARAMETER/KEY by the names of the unsplit model,
so any stage finds those of its own parameters, however the model was cut. Everything else is text in the metadata:

    position         where the training stands
    stage-K          what stage K says of its optimizers and schedulers (`worker.executor.training_state`)
    unsavable-K      why stage K cannot say it; such a file is none to go on from
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2

if TYPE_CHECKING:
    from pipesvc.wire.safetensors_stream import Layout

# The names of both files of a checkpoint, in a folder.
WEIGHTS_FILE: Final = "weights.safetensors"
TRAINING_FILE: Final = "training.safetensors"

# In the metadata of the weights.
STANDS: Final = "stands"
POSITION: Final = "position"
STAGE: Final = "stage-"
UNSAVABLE: Final = "unsavable-"


def check_pair(weights: Layout, position: types_pb2.Position) -> None:
    """Refuses weights of another step or run; those of other tools do not say theirs."""
    stands = weights.metadata.get(STANDS)
    if stands is not None and stands != stands_text(position):
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the weights of the checkpoint are of {stands}, and its training state is of {stands_text(position)}",
            advice="Both files must come from one `run.save_checkpoint`",
        )


def stands_text(position: types_pb2.Position) -> str:
    return f"step {position.step} of run {position.run_id}"


def position_text(position: types_pb2.Position) -> str:
    numbers = [position.step, position.epoch, position.steps_in_epoch, position.batch_size, position.accumulate]
    return json.dumps([*numbers, position.run_id])


def position_of(layout: Layout) -> types_pb2.Position:
    """Where a training goes on from this file. Refuses, by what is wrong, a file from which none can."""
    for name, reason in sorted(layout.metadata.items()):
        if name.startswith(UNSAVABLE):
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"the checkpoint has weights alone: {reason}",
                advice="Begin anew with its weights: init= instead of resume=",
            )
    try:
        step, epoch, steps_in_epoch, batch_size, accumulate, run_id = json.loads(layout.metadata[POSITION])
        if not 0 <= epoch <= step - steps_in_epoch or (not epoch and step != steps_in_epoch):
            raise ValueError("an epoch has a step at least")
        return types_pb2.Position(
            step=step,
            epoch=epoch,
            steps_in_epoch=steps_in_epoch,
            batch_size=batch_size,
            accumulate=accumulate,
            run_id=run_id,
        )
    except (KeyError, TypeError, ValueError) as error:
        message = "the file is not the training state of a checkpoint: it does not say at which step it stands"
        raise PipesvcError(
            ErrorCode.INVALID_JOB, message, advice="Give a folder that `run.save_checkpoint` wrote"
        ) from error


def stage_texts(layout: Layout) -> list[str]:
    """What each stage said, in the order of the stages."""
    found = {int(name.removeprefix(STAGE)): text for name, text in layout.metadata.items() if name.startswith(STAGE)}
    return [text for _, text in sorted(found.items())]
