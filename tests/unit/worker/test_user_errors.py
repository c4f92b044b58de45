"""Exceptions of user code that would hide themselves, or end the process without a word."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.worker import calls, child
from pipesvc.worker.local_socket import ChildEnd, receive_now, socket_pair
from pipesvc.worker.user_errors import user_error

WHERE = Where(run_id="r", step=4, stage=1, worker="w")


class BrokenTextError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def raised(cause: BaseException) -> PipesvcError:
    try:
        raise cause
    except BaseException as error:
        return user_error(ErrorCode.STAGE_FAILED, "forward of layer 2", error, where=WHERE)


def test_f12_exception_whose_text_raises_keeps_its_type_and_place() -> None:
    details = raised(BrokenTextError()).details
    assert details.exception_type == "BrokenTextError"
    assert details.message.startswith("forward of layer 2: BrokenTextError: ")
    assert "str() raised ValueError" in details.message
    assert (details.where.step, details.where.stage) == (4, 1)
    assert "BrokenTextError" in details.traceback
    assert "raise cause" in details.traceback


def test_missing_file_is_told_with_the_way_to_bring_it() -> None:
    details = raised(FileNotFoundError(2, "No such file or directory", "words.txt")).details
    assert "words.txt" in details.message
    assert "include=" in details.advice


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "script_of_the_user.py"
    sys.modules.pop("script_of_the_user", None)


@pytest.mark.parametrize(("code", "told"), [("2", "sys.exit(2)"), ("", "sys.exit()")])
def test_module_that_exits_when_imported_is_refused_by_name(module: Path, code: str, told: str) -> None:
    module.write_text(f"import sys\nsys.exit({code})\n")
    with pytest.raises(PipesvcError) as caught:
        calls.bind(types_pb2.Call(target="script_of_the_user:build"), "the model", WHERE)
    details = caught.value.details
    assert details.code is ErrorCode.IMPORT_FAILED
    assert f"importing script_of_the_user.py for the model called {told}" in details.message
    assert 'if __name__ == "__main__"' in details.advice
    assert "sys.exit(" in details.traceback


def test_keyboard_interrupt_of_user_code_becomes_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        @staticmethod
        def run(port: object, assignment: local_pb2.Assignment) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(child, "import_module", lambda _name: Module)
    agent, own = socket_pair()
    with agent, own:
        assignment = local_pb2.Assignment(run_id="r", role=types_pb2.ROLE_EXECUTOR, worker="w")
        assert child.work(ChildEnd(own), assignment) == 1
        failed = local_pb2.FromChild.FromString(receive_now(agent).message).failed
    assert failed.message == "in the executor: KeyboardInterrupt"
    assert failed.exception_type == "KeyboardInterrupt"
