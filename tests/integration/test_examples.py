"""What is printed in the README and lies in examples/ runs as it stands, from a folder that is not the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]


def run_script(script: Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("options", "learns"), [((), True), (("--no-labels",), False)])
def test_embedding_fc(tmp_path: Path, options: tuple[str, ...], learns: bool) -> None:
    script = ROOT / "examples/embedding_fc.py"
    printed = run_script(script, "--cpu-for-gpu", "--epochs", "1", *options, folder=tmp_path)
    first, last, num_steps = re.findall(r"loss (\S+) at first, (\S+) at last, in (\d+) steps", printed)[0]
    assert int(num_steps) == 256
    assert float(last) < float(first)
    assert ("ids get their digit" in printed) == learns
    if learns:
        num_right = int(re.findall(r"(\d+) of 128 ids", printed)[0])
        assert num_right > 100


def test_digits(tmp_path: Path) -> None:
    printed = run_script(ROOT / "examples/digits.py", "--epochs", "2", folder=tmp_path)
    num_right, num_asked = map(int, re.findall(r"(\d+) of (\d+) digits", printed)[0])
    assert num_right > 0.7 * num_asked


def test_char_lm_leaves_weights_that_plain_torch_loads(tmp_path: Path) -> None:
    printed = run_script(ROOT / "examples/char_lm.py", "--steps", "10", "--out", "out", folder=tmp_path)
    assert "a sample:\nThe " in printed
    weights = load_file(tmp_path / "out" / "char_lm.safetensors")
    assert weights["0.characters.weight"].shape[1] == 128
