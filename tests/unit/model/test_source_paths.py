"""Files of user code are named from where imports start, not from a folder of a worker."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, Where
from pipesvc.model.ghosts import user_line
from pipesvc.model.source_paths import shown_path, shown_traceback
from pipesvc.worker.user_errors import user_error


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundle of a run lies in a folder that is in `sys.path` too."""
    (tmp_path / "bundle").mkdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "bundle"), *sys.path])
    return tmp_path


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("bundle/train.py", "train.py"),
        ("bundle/models/blocks.py", "models/blocks.py"),
        ("beside.py", "beside.py"),
        ("bundle_of_another.py", "bundle_of_another.py"),
    ],
)
def test_a_path_is_shown_from_the_innermost_root(roots: Path, path: str, shown: str) -> None:
    assert shown_path(str(roots / path)) == shown


@pytest.mark.parametrize("path", ["/nowhere/train.py", "<string>", "train.py"])
def test_other_paths_stay_as_they_are(roots: Path, path: str) -> None:
    assert shown_path(path) == path


_CODE = """
from pipesvc.model.ghosts import user_line

def line():
    return user_line()

def fail():
    try:
        raise KeyError("one")
    except KeyError as error:
        raise ValueError("File \\"/tmp/x\\", line 3") from error
"""


def test_lines_and_tracebacks_of_a_bundle_are_those_of_the_user(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (roots / "bundle" / "code_of_a_bundle.py").write_text(_CODE)
    module = importlib.import_module("code_of_a_bundle")
    monkeypatch.delitem(sys.modules, "code_of_a_bundle")
    assert module.line() == "code_of_a_bundle.py:5 (`return user_line()`)"
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        module.fail()
    text = user_error(ErrorCode.STAGE_FAILED, "forward", caught.value, where=Where()).details.traceback
    assert str(roots) not in text
    assert text.count('  File "code_of_a_bundle.py", line ') == 2
    assert 'raise KeyError("one")' in text
    assert 'File "/tmp/x", line 3' in text


def test_a_stack_is_shown_likewise(roots: Path) -> None:
    text = shown_traceback("".join(traceback.format_stack()))
    assert 'File "tests/unit/model/test_source_paths.py"' in text


def test_a_line_can_be_asked_from_a_frame_on() -> None:
    def inner() -> str:
        return user_line(sys._getframe(1))

    line = inner()
    assert line.endswith("(`line = inner()`)")
