"""A plan as a file that people edit and submit.

The file says what was decided (`strategy`) and what that is expected to cost (`estimated`). Only the first is read
back: numbers that nobody measured again after an edit must not look like facts. Reading is strict, and tells all
faults at once by their field, because an edit that is silently ignored trains the wrong plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pipesvc.client import codec
from pipesvc.client.job import ScheduleFile, Strategy
from pipesvc.core.plan_report import PlanReport
from pipesvc.errors import ErrorCode, PipesvcError

_FORMAT: Final = 1
_ABOUT: Final = (
    "Edit `strategy`, then: pipesvc submit JOB --plan FILE. `estimated` is what this plan was expected to cost when it "
    "was made; it is not read back."
)
_ADVICE: Final = "`pipesvc plan JOB --out FILE` writes a whole one."
_FIELDS: Final = ("format", "about", "strategy", "estimated")
# What the value of each field of `strategy` must be; `Strategy` itself checks the rest.
_TYPES: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "pipeline": ("true or false", (bool,)),
    "micro_batches": ("a whole number", (int,)),
    "schedule": ('text or {"file": "PATH.csv"}', (str, dict)),
    "num_stages": ("a whole number or null", (int, type(None))),
    "boundaries": ("a list of layer names or indices", (list,)),
    "placement": ('an object like {"stage:0": "worker/device"}', (dict,)),
    "allow_cpu_for_gpu": ("true or false", (bool,)),
    "in_flight": ("a whole number or null", (int, type(None))),
    "recompute": ("true, false or a list of patterns", (bool, list)),
    "same_host": ("true or false", (bool,)),
    "compile": ("true or false", (bool,)),
    "codec": ('an object like {"activations": "int8", "gradients": "bf16"}', (dict,)),
}
# Files of before there were these.
_OPTIONAL: Final = frozenset({"recompute", "compile", "same_host", "codec"})


def plan_file_text(strategy: Strategy, report: PlanReport, folder: str | Path = ".") -> str:
    """The plan as `read_plan` takes it from a file in this folder."""
    document = {
        "format": _FORMAT,
        "about": _ABOUT,
        "strategy": {name: getattr(strategy, name) for name in _TYPES}
        | {"schedule": _schedule_value(strategy, folder), "codec": codec.as_json(strategy.codec)},
        "estimated": asdict(report),
    }
    return f"{json.dumps(document, indent=2)}\n"


def read_plan(path: str | Path) -> Strategy:
    """The strategy of a plan file, for `Job(strategy=pipesvc.read_plan("plan.json"))`.

    The path of a schedule file is relative to the plan file's folder. Raises INVALID_PLAN with every fault by field.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"the plan file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not text, or no name of a file
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"the plan file {path} cannot be read: {error}") from None
    try:
        raw = json.loads(text, object_pairs_hook=_object)
        faults = list(_faults(raw))
    except ValueError as error:
        raise PipesvcError(
            ErrorCode.INVALID_PLAN, f"the plan file {path} is not JSON: {error}", advice=_ADVICE
        ) from None
    except RecursionError:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"the plan file {path} nests too deeply", advice=_ADVICE) from None
    if faults:
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"the plan file {path}: {'; '.join(faults)}", advice=_ADVICE)
    values = raw["strategy"]
    try:
        schedule = values["schedule"]
        if isinstance(schedule, dict):
            schedule = ScheduleFile(Path(path).parent / schedule["file"])
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        codecs = {"codec": codec.from_json(values["codec"])} if "codec" in values else {}
        return Strategy(**values | lists | codecs | {"schedule": schedule})
    except PipesvcError as error:
        what = error.details.message
        raise PipesvcError(error.code, f"the plan file {path}: {what}", advice=error.details.advice) from None


def _schedule_value(strategy: Strategy, folder: str | Path) -> str | dict[str, str]:
    schedule = strategy.schedule
    return {"file": os.path.relpath(schedule.path, folder)} if isinstance(schedule, ScheduleFile) else schedule


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two values with one name Python would silently keep the second."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is there twice")
    return dict(pairs)


def _faults(raw: Any) -> Iterator[str]:
    if not isinstance(raw, dict):
        yield f"it is a {type(raw).__name__}, not an object"
        return
    yield from _differing_fields("", raw, _FIELDS, {"format", "strategy"})
    if "format" in raw and (type(raw["format"]) is not int or raw["format"] != _FORMAT):
        yield f"format is {raw['format']!r}; this version reads {_FORMAT}"
    strategy = raw.get("strategy", {})
    if not isinstance(strategy, dict):
        yield f"strategy is {strategy!r}; it must be an object"
    elif "strategy" in raw:
        yield from _differing_fields("strategy.", strategy, tuple(_TYPES), set(_TYPES) - _OPTIONAL)
        for name, (wanted, types) in _TYPES.items():
            if name in strategy and not _is_of(strategy[name], types):
                yield f"strategy.{name} is {strategy[name]!r}; it must be {wanted}"
        schedule = strategy.get("schedule")
        if isinstance(schedule, dict) and not (schedule.keys() == {"file"} and isinstance(schedule["file"], str)):
            yield f"strategy.schedule is {schedule!r}; it must be {_TYPES['schedule'][0]}"
        stages = sum(label.startswith("stage:") for label in strategy.get("placement") or ())
        is_uncut = strategy.get("boundaries") == [] and strategy.get("num_stages", 0) is None
        if stages and is_uncut and strategy.get("pipeline") is True:
            # As a job this means one stage for each worker, however many those are.
            yield (
                f"strategy.boundaries is [] and strategy.num_stages is null, while strategy.placement names {stages} "
                f"stage{'s' if stages > 1 else ''}; say how many stages there are with one of the two"
            )


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    if isinstance(value, list):
        return list in types and all(_is_of(each, (str, int)) for each in value)
    # For Python true is a whole number.
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _differing_fields(prefix: str, raw: dict[str, Any], known: tuple[str, ...], needed: set[str]) -> Iterator[str]:
    for name in raw:
        if name not in known:
            yield f"{prefix}{name} is not a field; the fields are {', '.join(known)}"
    for name in known:
        if name in needed and name not in raw:
            yield f"{prefix}{name} is missing"
