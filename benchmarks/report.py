"""Prints every committed figure, the missed aims first: what is not reached must not hide between what is.

python -m benchmarks.report [--json]
python -m benchmarks.report --markdown links pipeline    # rows of README's table, from these files
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from benchmarks import results
from benchmarks.results import Result

_WORDS = {False: "MISSED", True: "met", None: "no aim"}


def collect(folder: Path) -> list[Result]:
    """Missed, met, without an aim; within each, by file and in the file's order."""
    found = [each for path in sorted(folder.glob("*.json")) for each in results.read(path)]
    return sorted(found, key=lambda each: (each.met is None, each.met is True))


def lines(found: Iterable[Result]) -> list[str]:
    texts = []
    for each in found:
        aim = f" (aim: {each.aim})" if each.aim else ""
        texts.append(f"{_WORDS[each.met]:7}{each.figure}: {_number(each.value, each.spread)} {each.unit}{aim}")
        if each.ratio is not None:
            texts.append(f"{'':7}  {_number(each.ratio, each.ratio_spread)} x {each.against}")
        texts.append(f"{'':7}  {each.command}; {each.num_rounds} rounds; {each.machine}; {each.date}")
    return texts


def markdown(found: Iterable[Result]) -> list[str]:
    """A table of those that have an aim."""
    rows = ["| figure | aim | measured | command |", "|---|---|---|---|"]
    for each in found:
        if each.met is None:
            continue
        measured = f"{_number(each.value, each.spread)} {each.unit}"
        if each.ratio is not None:
            measured += f", {_number(each.ratio, each.ratio_spread)} x {each.against}"
        cells = (each.figure, each.aim, measured + ("" if each.met else ": missed"), f"`{each.command}`")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _number(value: float, spread: tuple[float, float] | None) -> str:
    text = f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if spread is None or spread == (value, value):
        return text
    return f"{text} [{_number(spread[0], None)} to {_number(spread[1], None)}]"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print every committed figure, missed aims first.")
    parser.add_argument("--json", action="store_true", help="the same as one JSON list")
    parser.add_argument("--markdown", nargs="+", metavar="FILE", help="a table of the aims of these files")
    arguments = parser.parse_args()
    if arguments.markdown:
        named = [each for name in arguments.markdown for each in results.read(results.FOLDER / f"{name}.json")]
        print("\n".join(markdown(named)))
        return
    found = collect(results.FOLDER)
    if arguments.json:
        print(json.dumps([asdict(each) for each in found], indent=2, ensure_ascii=False))
        return
    for line in lines(found):
        print(line)
    num_missed = sum(each.met is False for each in found)
    print(f"{len(found)} figures, {sum(each.met is not None for each in found)} with an aim, {num_missed} missed")


if __name__ == "__main__":
    main()
