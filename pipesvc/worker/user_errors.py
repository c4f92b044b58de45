"""Exceptions of user code as errors of the service.

The client shows the traceback to the person who wrote the code, so the frames of pipesvc that lead to it are cut off,
files are named as that person knows them, and the type's name travels as text, since the class itself may exist on this
worker only.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError, Where, printable
from pipesvc.model.source_paths import shown_path, shown_traceback

# The report must fit into one message of the local socket.
MAX_TRACEBACK_CHARS: Final = 32_000
_OWN_DIR: Final = str(Path(__file__).resolve().parents[1]) + "/"


def user_error(code: ErrorCode, doing: str, cause: BaseException, *, advice: str = "", where: Where) -> PipesvcError:
    """`cause` was raised by user code while `doing` (what failed, such as "forward of layer 2")."""
    if isinstance(cause, PipesvcError):
        return cause.at(where)
    if code is ErrorCode.BUILD_FAILED and isinstance(cause, ImportError):
        code = ErrorCode.IMPORT_FAILED
        advice = advice or "Install the package on every worker, or leave the import to code that needs it"
    if isinstance(cause, FileNotFoundError):
        advice = advice or "The code runs on a worker: add the file to the job by include=, or put it on every worker"
    if place := _place_of(cause):
        advice = advice or f"It was raised at {place}"
    text = " ".join(_text_of(cause).split())
    message = f"{doing}: {type(cause).__name__}" + (f": {text}" if text else "")
    details = PipesvcError(code, message, advice=advice, where=where).details
    return PipesvcError.of(replace(details, exception_type=type(cause).__name__, traceback=user_traceback(cause)))


def _place_of(cause: BaseException) -> str:
    """The innermost line that is neither ours nor torch's, as in "train.py:12"; "" if there is none."""
    frames = traceback.extract_tb(cause.__traceback__)
    torch = getattr(sys.modules.get("torch"), "__file__", None)  # it may be missing, which is then the error
    others = (_OWN_DIR, "<", str(Path(torch).parent) + "/") if torch else (_OWN_DIR, "<")
    ours = [each for each in frames if not each.filename.startswith(others)]
    return f"{shown_path(ours[-1].filename)}:{ours[-1].lineno}" if ours else ""


def user_traceback(cause: BaseException) -> str:
    """The traceback from the first frame outside pipesvc on; the whole, if there is no such frame."""
    frame = cause.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if not name.startswith((_OWN_DIR, "<frozen importlib")) and not name.endswith("importlib/__init__.py"):
            break
        frame = frame.tb_next
    formatted = traceback.format_exception(type(cause), cause, frame or cause.__traceback__)
    text = printable(shown_traceback("".join(formatted)))
    return text if len(text) <= MAX_TRACEBACK_CHARS else "[...]" + text[-MAX_TRACEBACK_CHARS:]


def _text_of(cause: BaseException) -> str:
    """A broken `__str__` must not hide the exception that it belongs to."""
    try:
        return str(cause)
    except Exception as broken:
        return f"(its text cannot be told: str() raised {type(broken).__name__})"
