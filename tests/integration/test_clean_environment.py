"""W06: the package needs nothing but what it declares; what a developer has installed beside it must not hide a gap.

A virtual environment that holds only the declared packages, as links to those installed here, so that it costs no
download. The README's first job runs in it as printed, and so does the command line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def declared() -> dict[str, Distribution]:
    """What pyproject.toml asks for, and all that this needs, as pip would choose here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending = [(text, "") for text in project["dependencies"]]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    while pending:
        text, asked_for = pending.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": asked_for}):
            continue
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                found[name] = distribution(name)
                pending += [(needed, extra) for needed in found[name].requires or []]
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    packages = declared()
    assert "torch" in packages
    assert "pytest" not in packages
    tops = {
        top: package.locate_file(top)
        for package in packages.values()
        for top in {file.parts[0] for file in package.files or [] if file.parts[0] != ".."}
    }
    for top, place in tops.items():
        (site / top).symlink_to(Path(str(place)))
    (site / "pipesvc.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_w06_the_readmes_first_job_needs_nothing_undeclared(python: Path, tmp_path: Path) -> None:
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "first_job.py").write_text(code)
    printed = [line.split() for line in run(python, "first_job.py", folder=tmp_path).splitlines()]
    losses = [float(loss) for _, loss in printed]
    assert [int(index) for index, _ in printed] == list(range(1, 257))
    assert losses[-1] < 1.5 < 2.0 < losses[0]


def test_w06_the_command_line_needs_nothing_undeclared(python: Path, tmp_path: Path) -> None:
    assert "coordinator" in run(python, "-m", "pipesvc", "--help", folder=tmp_path)
    check = "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) for n in ('pytest', 'psutil', 'sklearn')))"
    run(python, "-c", check, folder=tmp_path)
