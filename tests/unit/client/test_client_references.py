from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from pipesvc.client.references import resolve
from pipesvc.errors import ErrorCode, PipesvcError

_SHOW = "print(resolve(build).target(), resolve(build).source.root)"


def _run(path: Path, *, cwd: Path | None = None, module: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = ["-m", module] if module else [str(path)]
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def _script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"from pipesvc.client.references import resolve\n{body}\n")
    return path


@pytest.mark.parametrize(
    ("value", "target"),
    [
        (torch.optim.SGD, "torch.optim:SGD"),
        (torch.optim.AdamW, "torch.optim:AdamW"),
        (functional.cross_entropy, "torch.nn.functional:cross_entropy"),
        (functional.mse_loss, "torch.nn.functional:mse_loss"),
        (torch.nn.Linear, "torch.nn:Linear"),
        (torch.mean, "torch:mean"),
        (os.path.join, "posixpath:join"),
    ],
)
def test_installed_functions_go_by_their_public_name(value: object, target: str) -> None:
    reference = resolve(value)  # type: ignore[arg-type]
    assert reference.target() == target
    assert reference.source is None


def test_a_function_whose_name_means_another_object_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shadowed_module.py").write_text("def f(): ...\ng = f\ndef f(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import shadowed_module  # type: ignore[import-not-found]

    with pytest.raises(PipesvcError, match="another object") as caught:
        resolve(shadowed_module.g)
    assert caught.value.code is ErrorCode.BUNDLE_REFUSED
    reference = resolve(shadowed_module.f)
    assert reference.target() == "shadowed_module:f"
    assert reference.source is not None
    assert reference.source.root == tmp_path.resolve()


def test_a_function_of_the_script_is_named_after_its_file(tmp_path: Path) -> None:
    path = _script(tmp_path / "my_training.py", f"def build(): ...\nif __name__ == '__main__':\n    {_SHOW}")
    out = _run(path)
    assert out.stdout.split() == ["my_training:build", str(tmp_path.resolve())], out.stderr


def test_a_module_run_with_dash_m_keeps_its_dotted_name(tmp_path: Path) -> None:
    path = _script(tmp_path / "pkg" / "inner" / "go.py", f"def build(): ...\n{_SHOW}")
    out = _run(path, cwd=tmp_path, module="pkg.inner.go")
    assert out.stdout.split() == ["pkg.inner.go:build", str(tmp_path.resolve())], out.stderr


@pytest.mark.parametrize(
    ("file_name", "body", "words"),
    [
        (
            "job.py",
            f"if __name__ == '__main__':\n    def build(): ...\n    {_SHOW}",
            "does not exist when the file is imported",
        ),
        ("my-job.py", f"def build(): ...\n{_SHOW}", "'my-job' is no module name"),
        ("random.py", f"def build(): ...\n{_SHOW}", "would hide the installed module 'random'"),
    ],
)
def test_scripts_that_cannot_be_imported_are_refused(tmp_path: Path, file_name: str, body: str, words: str) -> None:
    path = _script(tmp_path / file_name, body)
    out = _run(path)
    assert out.returncode != 0
    assert words in out.stderr


def test_a_function_typed_into_an_interpreter_is_refused() -> None:
    program = "from pipesvc.client.references import resolve\ndef build(): ...\nresolve(build)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "was typed into an interpreter" in out.stderr
