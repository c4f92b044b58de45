"""The job behind PATH:NAME, for the command line.

The file is imported under the name that a worker will import it by, so its functions are already functions of that
module; a script that submits when imported does so here first, and is told.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

from pipesvc.client.checks import refuse
from pipesvc.client.job import Job
from pipesvc.errors import ErrorCode, PipesvcError

# Ours, and what Python runs to import.
_SKIPPED: Final = (str(Path(__file__).resolve().parents[1]) + "/", "<", importlib.__file__)


def load_job(text: str) -> Job:
    """The Job behind `examples/train.py:job` or `package.module:make_job`; a function is called without arguments."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise refuse(f"{text!r} does not name a job", "Write PATH:NAME, as in examples/train.py:job")
    module = _import(place)
    value = getattr(module, name, None)
    if value is None:
        raise refuse(f"{place} has no {name!r}")
    if callable(value):
        value = value()
    if not isinstance(value, Job):
        raise refuse(
            f"{text} is a {type(value).__name__}", "It should be a pipesvc.Job, or a function that returns one"
        )
    return value


def _import(place: str) -> ModuleType:
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise refuse(f"there is no file {place}")
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    name = path.stem if is_file else place
    try:
        module = importlib.import_module(name)
    except PipesvcError as error:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_SKIPPED)
        ]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
        raise PipesvcError.of(replace(error.details, message=f"{where}{error.details.message}")) from error
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        raise PipesvcError(
            ErrorCode.IMPORT_FAILED, f"importing {place} failed{where}: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, "__file__", None)
    if is_file and (found is None or Path(found).resolve() != path.resolve()):
        raise refuse(
            f"{place} cannot be imported: the name {name!r} belongs to {found or 'a built-in module'}", "Rename it"
        )
    return module
