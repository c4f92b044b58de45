"""What the documents name is there, and what users can say is in them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import pipesvc
from pipesvc.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGE = ROOT / "pipesvc"


@pytest.mark.parametrize(
    "kind", [pipesvc.Job, pipesvc.Strategy, pipesvc.Evaluation, pipesvc.DataSource], ids=lambda kind: kind.__name__
)
def test_the_readme_has_all_that_a_job_can_say(kind: type) -> None:
    names = [each.name for each in fields(kind)]
    assert [name for name in names if re.search(rf"\b{name}\b", README) is None] == []


def test_the_readme_has_all_commands() -> None:
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert [name for name in names if f"pipesvc {name}" not in README] == []


def test_the_places_that_the_architecture_names_are_there() -> None:
    named = re.findall(r"`((?:[\w-]+/)*\w+\.py): (\w+)(?:\.(\w+))?[`,]", ARCHITECTURE)
    assert len(named) > 10
    missing = []
    for path, *names in named:
        files = [*PACKAGE.rglob(path), *ROOT.glob(path)]
        texts = [file.read_text() for file in files]
        if not any(all(re.search(rf"\b{name}\b", text) for name in names if name) for text in texts):
            missing.append((path, *names))
    assert missing == []


def test_every_command_file_has_its_floor() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(each["layers"] for each in contracts if each["type"] == "layers")
    placed = {name.strip() for floor in floors for name in floor.split("|")}
    stems = sorted(path.stem for path in PACKAGE.glob("cli*.py"))
    assert [stem for stem in stems if f"pipesvc.{stem}" not in placed] == []
    assert [stem for stem in stems if re.search(rf"^\W*.*\b{stem}\b", ARCHITECTURE, re.MULTILINE) is None] == []
