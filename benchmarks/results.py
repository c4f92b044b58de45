"""A measured figure as it is committed: what, how much, beside whom, the aim, and how to measure it again.

`met` is written for people who read the file; whoever reads it by program works it out again from value, ratio and
aim, so that no one can edit one without the other.
"""

from __future__ import annotations

import datetime
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.rounds import Spread

FOLDER: Final = Path(__file__).resolve().parent / "results"
_AIM: Final = re.compile(r"(value|ratio) (>=|<=|<|>) (\d+(?:\.\d+)?(?:e-?\d+)?)")
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One figure. `aim` reads "ratio >= 0.95" or "value <= 5"; "" where there is none, and `met` is then None."""

    figure: str
    value: float
    unit: str
    against: str
    """The contender that `ratio` compares with; "" and None where there is none."""
    ratio: float | None
    aim: str
    met: bool | None
    command: str
    machine: str
    date: str
    num_rounds: int
    spread: tuple[float, float] | None = None
    """Lowest and highest value of the rounds."""
    ratio_spread: tuple[float, float] | None = None


def is_met(aim: str, value: float, ratio: float | None) -> bool | None:
    """None where there is no aim. A figure that is missing or not a number meets none."""
    if not aim:
        return None
    matched = _AIM.fullmatch(aim)
    if matched is None:
        raise ValueError(f'{aim!r} is no aim; write it like "ratio >= 0.95"')
    name, comparison, limit = matched.groups()
    measured = value if name == "value" else ratio
    return measured is not None and _COMPARISONS[comparison](measured, float(limit))


def result(
    figure: str,
    value: Spread,
    *,
    unit: str,
    command: str,
    num_rounds: int,
    against: str = "",
    ratio: Spread | None = None,
    aim: str = "",
) -> Result:
    """A figure taken here and now."""
    return Result(
        figure=figure,
        value=value.median,
        unit=unit,
        against=against,
        ratio=None if ratio is None else ratio.median,
        aim=aim,
        met=is_met(aim, value.median, None if ratio is None else ratio.median),
        command=command,
        machine=machine(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        num_rounds=num_rounds,
        spread=(value.lowest, value.highest),
        ratio_spread=None if ratio is None else (ratio.lowest, ratio.highest),
    )


def machine() -> str:
    """What figures depend on; no names and no paths."""
    text = Path("/proc/cpuinfo").read_text()
    models = re.findall(r"^model name\s*: (.*)$", text, flags=re.MULTILINE) or ["unknown CPU"]
    return f"{models[0].strip()}, {len(os.sched_getaffinity(0))} cores, torch {version('torch')}"


def write(path: Path, results: Iterable[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in results], indent=2, ensure_ascii=False) + "\n")


def read(path: Path) -> list[Result]:
    """The file's figures, `met` worked out anew; raises ValueError that names what is wrong."""
    try:
        entries = json.loads(path.read_text())
        return [_parse(entry) for entry in entries]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from error


def _parse(entry: Mapping[str, Any]) -> Result:
    known = {field.name for field in fields(Result)}
    if not isinstance(entry, dict) or not entry.keys() <= known:
        raise ValueError(f"{entry!r} is no result; it has {', '.join(sorted(known))}")
    values: dict[str, Any] = {"spread": None, "ratio_spread": None} | entry
    if missing := known - values.keys() - {"met"}:
        raise ValueError(f"the figure {entry.get('figure')!r} has no {', '.join(sorted(missing))}")
    for name in ("spread", "ratio_spread"):
        values[name] = None if values[name] is None else tuple(values[name])
    return Result(**(values | {"met": is_met(values["aim"], values["value"], values["ratio"])}))
