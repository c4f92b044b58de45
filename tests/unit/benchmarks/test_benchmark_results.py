"""Figures as they are committed and reported."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks import report, results
from benchmarks.results import Result
from benchmarks.rounds import Spread


def make_result(figure: str = "speed", *, ratio: float = 1.0, aim: str = "ratio >= 0.95") -> Result:
    return results.result(
        figure,
        Spread(median=100.0, lowest=90.0, highest=120.0),
        unit="tokens/s",
        against="peer",
        ratio=Spread(median=ratio, lowest=0.5, highest=2.0),
        aim=aim,
        command="python -m benchmarks.pipeline",
        num_rounds=7,
    )


@pytest.mark.parametrize(
    ("aim", "value", "ratio", "expected"),
    [
        ("", 1.0, None, None),
        ("ratio >= 0.95", 1.0, 0.95, True),
        ("ratio >= 0.95", 1.0, 0.9499, False),
        ("ratio >= 0.95", 1.0, None, False),
        ("ratio >= 0.95", 1.0, math.nan, False),
        ("value <= 5", 5.0, None, True),
        ("value < 5", 5.0, None, False),
        ("value > 300000", 300001.0, None, True),
        ("value <= 1e-05", 0.0, None, True),
        ("value <= 1e-05", math.inf, None, False),
    ],
)
def test_met(aim: str, value: float, ratio: float | None, expected: bool | None) -> None:
    assert results.is_met(aim, value, ratio) is expected


@pytest.mark.parametrize("aim", ["0.95", "ratio => 0.95", "speed >= 1", "ratio >= 0.95 or so"])
def test_an_aim_that_cannot_be_checked_is_refused(aim: str) -> None:
    with pytest.raises(ValueError, match=r"is no aim; write it like"):
        results.is_met(aim, 1.0, 1.0)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = [make_result(), make_result("none", aim="")]
    results.write(tmp_path / "one.json", written)
    assert results.read(tmp_path / "one.json") == written


def test_met_is_worked_out_anew(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    results.write(path, [make_result(ratio=0.5)])
    (entry,) = json.loads(path.read_text())
    assert entry["met"] is False
    path.write_text(json.dumps([entry | {"met": True}]))
    assert [each.met for each in results.read(path)] == [False]


@pytest.mark.parametrize("text", ["{", "{}x", '[{"speed": 1}]', '[{"figure": "a"}]', "[3]", "3"])
def test_a_file_that_holds_no_figures_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^broken\.json: "):
        results.read(path)


def test_missed_aims_come_first(tmp_path: Path) -> None:
    results.write(
        tmp_path / "a.json", [make_result("free", aim=""), make_result("met"), make_result("missed", ratio=0.9)]
    )
    results.write(tmp_path / "b.json", [make_result("missed too", ratio=0.1)])
    found = report.collect(tmp_path)
    assert [each.figure for each in found] == ["missed", "missed too", "met", "free"]
    text = "\n".join(report.lines(found))
    assert "MISSED missed: 100 [90 to 120] tokens/s (aim: ratio >= 0.95)\n" in text
    assert "0.9 [0.5 to 2] x peer\n" in text


def test_a_table_has_the_figures_with_an_aim_in_the_order_of_their_file() -> None:
    rows = report.markdown([make_result("met"), make_result("free", aim=""), make_result("missed", ratio=0.9)])
    command, aim = "`python -m benchmarks.pipeline`", "ratio >= 0.95"
    assert rows[2:] == [
        f"| met | {aim} | 100 [90 to 120] tokens/s, 1 [0.5 to 2] x peer | {command} |",
        f"| missed | {aim} | 100 [90 to 120] tokens/s, 0.9 [0.5 to 2] x peer: missed | {command} |",
    ]


def test_the_machine_has_no_name_and_no_path() -> None:
    assert re.fullmatch(r"[^/]+, \d+ cores, torch [\w.+]+", results.machine())


def test_the_committed_figures_are_in_order() -> None:
    """The files themselves, by name, so that a broken one does not first show when somebody asks for the report."""
    for path in sorted(results.FOLDER.glob("*.json")):
        for each in results.read(path):
            assert each.figure
            assert each.command.startswith("python -m benchmarks.")
            assert "--tiny" not in each.command
            assert each.num_rounds >= 1
