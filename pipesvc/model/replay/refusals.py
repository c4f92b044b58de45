"""What a forward may not do if it is to be cut, in words: the line, the tensor, and the way out."""

from __future__ import annotations

import traceback
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.ghosts import UnreadableError, is_user_file, shown_line

OTHERWISE: Final = "or run the model as one stage (pipeline=False)"


# Why units must stay together, with the way out.
def in_one_checkpoint(line: str) -> tuple[str, str]:
    """`line` makes the checkpoint."""
    return (
        f"a checkpointed function calls both, {line}",
        "Cut where that function begins, or checkpoint each unit by itself.",
    )


def called_again(name: str) -> tuple[str, str]:
    return (
        f"{name!r} is called in both and has state that changes in forward",
        "Keep its calls in one stage, or give the later call a module of its own.",
    )


def changed_in_several(name: str) -> tuple[str, str]:
    return f"{name!r} is used in both and changes in forward", "Keep its uses in one stage."


def refused(message: str, advice: str) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_JOB, message, advice=advice)


def value_read(operation: str, line: str, maker: str) -> PipesvcError:
    return refused(
        f"{operation} at {line} reads the value of a tensor that {maker} computes, which other stages do not have",
        f"Compute it from shapes or from integer inputs, keep it out of forward, {OTHERWISE}.",
    )


def value_read_inside(unit: str, error: BaseException) -> PipesvcError:
    """A unit that cannot run on shapes: the stages that skip it would not know what it gives."""
    if isinstance(error, UnreadableError):
        what, line = error.what, error.line
    else:
        what, line = f"{type(error).__name__} ({str(error).splitlines()[0][:120]})", line_of(error)
    return refused(
        f"unit {unit!r} cannot be planned on shapes alone: {what} at {line} needs the value of a tensor",
        f"Compute it from shapes, {OTHERWISE}.",
    )


def random_decides(line: str) -> PipesvcError:
    return refused(
        f"{line} branches on a random number, so forward takes another way each time, and stages are cut along one way",
        f"Switch it off (layerdrop=0.0 in transformers), draw inside the module that may be skipped, {OTHERWISE}.",
    )


def custom_function(line: str) -> PipesvcError:
    return refused(
        f"{line} calls an autograd.Function between two units, which the stages cannot follow",
        "Call it in the forward of a module of its own.",
    )


def forward_called(name: str, line: str) -> PipesvcError:
    return refused(
        f"{line} calls the forward of {name!r}, which draws random numbers, without calling the module itself",
        "Call the module: its hooks are what gives it a stream of random numbers of its own.",
    )


def reentrant_checkpoint(line: str) -> PipesvcError:
    return refused(f"{line} runs inside a reentrant checkpoint around units", "Use use_reentrant=False.")


def kept_from_elsewhere(line: str) -> PipesvcError:
    return refused(
        f"{line} uses a tensor that was kept from elsewhere (an attribute that forward sets?)",
        "Pass it as an argument or a result.",
    )


def written_by_view(line: str) -> PipesvcError:
    return refused(
        f"{line} uses a tensor that code of a later unit wrote in place through a view of it",
        "Write out of place, or write to the tensor itself.",
    )


def written_without_origin(line: str) -> PipesvcError:
    return refused(
        f"{line} writes what a unit computed into a tensor that was made without one",
        "Make the target from a computed tensor: h.new_zeros(...) or torch.zeros_like(h) instead of torch.zeros(...).",
    )


def guard_goes_back(label: str, after: str, line: str) -> PipesvcError:
    return refused(
        f"device_guard({label!r}) at {line} goes back to an earlier stage after device_guard({after!r})",
        'Stages follow the order of the program: give the later part a label of its own, such as "cpu:second".',
    )


def foreign_object(unit: str, kind: str, doing: str, line: str) -> PipesvcError:
    return refused(
        f"unit {unit!r} {doing} a {kind} object at {line}; "
        "only tensors, numbers, strings, None and containers of them can cross",
        "Set use_cache=False if it is a cache; otherwise pass its tensors.",
    )


def line_of(error: BaseException) -> str:
    """The innermost user line of a traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return shown_line(frame.filename, frame.lineno, frame.line)
    return "an unknown line"
