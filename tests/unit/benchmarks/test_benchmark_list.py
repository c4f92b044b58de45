"""No benchmark is forgotten: `make bench-all` runs each there is, `make bench` those of README's table."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Those write figures; the report reads them.
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "results.write(" in path.read_text())


def run_by(target: str) -> list[str]:
    """The modules that the target would run, in its order."""
    told = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = re.search(r"for each in ([\w ]+); do", told)
    assert listed is not None
    assert "python -m benchmarks.$each" in told
    assert told.rstrip().endswith("python -m benchmarks.report")
    return listed[1].split()


def test_every_benchmark_is_run_once() -> None:
    assert len(BENCHMARKS) > 8
    assert sorted(run_by("bench-all")) == BENCHMARKS


def readme_commands() -> list[str]:
    readme = (ROOT / "README.md").read_text()
    _, _, section = readme.partition("\n## Figures\n")
    return re.findall(r"\| `python -m benchmarks\.([^`]+)` \|", section.partition("\n## ")[0])


def test_the_figures_of_the_readme_are_those_of_make_bench() -> None:
    modules = {command.split()[0] for command in readme_commands()}
    assert modules == set(run_by("bench"))


@pytest.mark.parametrize("command", readme_commands())
def test_a_command_of_the_readme_is_understood(command: str) -> None:
    module, *arguments = command.split()
    text = (ROOT / "benchmarks" / f"{module}.py").read_text()
    assert [each for each in arguments if f'"{each}"' not in text] == []
