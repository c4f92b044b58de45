"""Cells to a module. The last test runs real cells in IPython's own shell."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pipesvc.client.notebook import make_notebook
from pipesvc.errors import ErrorCode, PipesvcError


def _source(cells: list[str], *names: str) -> str:
    namespace: dict[str, Any] = {}
    for cell in cells:
        exec(cell, namespace)
    notebook = make_notebook(cells, names, namespace)
    fresh: dict[str, Any] = {"__name__": notebook.name}
    exec(notebook.source, fresh)  # what travels must run by itself
    assert set(names) <= fresh.keys()
    return notebook.source


def test_only_what_is_needed_travels_in_order() -> None:
    cells = [
        "import math\nimport json as unused\nwidth = 4",
        "print('train')\ndepth: int = 2\nweights = [1] * width",
        "def helper(x):\n    return math.sqrt(x) * depth",
        "def build(unused_local=width):\n    weights = 1\n    return helper(weights)",
        "def other(): return json",
    ]
    assert _source(cells, "build").split("\n\n") == [
        "import math",
        "width = 4",
        "depth: int = 2",
        "def helper(x):\n    return math.sqrt(x) * depth",
        "def build(unused_local=width):\n    weights = 1\n    return helper(weights)\n",
    ]


def test_the_last_definition_counts() -> None:
    cells = ["def build(): return 1", "def build(): return helper()", "def helper(): return 2"]
    assert _source(cells, "build") == "def build():\n    return helper()\n\ndef helper():\n    return 2\n"


def test_what_runs_at_definition_keeps_the_binding_that_it_saw() -> None:
    cells = [
        "class Base: kind = 1",
        "class Model(Base): pass",
        "class Base: kind = 2",
        "def build(): return Model, Base",
    ]
    source = _source(cells, "build")
    assert source.index("kind = 1") < source.index("class Model") < source.index("kind = 2")


def test_changes_after_the_binding_travel_too() -> None:
    cells = [
        "settings = {'a': 1}",
        "total = 1",
        "settings['b'] = total",
        "total += 1",
        "def build(): return settings, total",
    ]
    assert _source(cells, "build").split("\n\n")[:4] == [
        "settings = {'a': 1}",
        "total = 1",
        "settings['b'] = total",
        "total += 1",
    ]


def test_reassignment_from_itself_keeps_the_earlier_value() -> None:
    source = _source(["x = 1", "x = x + 1", "def build(): return x"], "build")
    assert source.startswith("x = 1\n\nx = x + 1\n")


def test_a_try_import_and_a_comprehension_in_a_class_travel() -> None:
    cells = [
        "try:\n    import tomllib as t\nexcept ImportError:\n    t = None",
        "n = 3",
        "class A:\n    size = n\n    items = [n for n in range(size)]\n    def f(self): return t",
        "def build(): return A",
    ]
    assert "import tomllib as t" in _source(cells, "build")


def test_star_imports_travel_when_a_name_needs_them() -> None:
    cells = ["from math import *", "def build(): return sqrt(2)"]
    assert _source(cells, "build").startswith("from math import *")


def test_cells_that_never_ran_do_not_matter() -> None:
    notebook = make_notebook(["def build(: nonsense", "def build(): return 1"], ["build"], {"build": 1})
    assert notebook.source == "def build():\n    return 1\n"


def test_the_name_follows_from_the_text() -> None:
    one, two = (make_notebook([f"def f(): return {n}"], ["f"], {"f": 1}) for n in (1, 2))
    assert one.name.startswith("notebook_")
    assert one.name != two.name
    assert one == make_notebook(["def f(): return 1", "y = 2"], ["f"], {"f": 1})


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["def build(): return injected"], "no executed cell defines injected"),
        (["for i in range(3): total = i", "def build(): return total"], "in a `for` block"),
        (["with open('/dev/null') as f: text = f.read()", "def build(): return text"], "in a `with` block"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(cells: list[str], words: str) -> None:
    with pytest.raises(PipesvcError, match=words) as caught:
        make_notebook(cells, ["build"], {"injected": 1, "total": 2, "text": ""})
    assert caught.value.code is ErrorCode.BUNDLE_REFUSED


_SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
cells = [
    "%matplotlib_is_no_magic_here",
    "import torch\\nfrom torch import nn\\nimport pipesvc",
    "width = 4\\nprint('hello')\\n!true",
    "def build():\\n    return nn.Sequential(nn.Linear(width, 2))",
    "def reader():\\n    yield torch.zeros(width), torch.zeros(2)",
    "job = pipesvc.Job(model=build, loss=nn.functional.mse_loss, optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),"
    " data=pipesvc.DataSource(reader, batch_size=4))",
    "from pipesvc.client.spec import make_submission\\nsubmission = make_submission(job)",
]
for cell in cells:
    shell.run_cell(cell, store_history=True)
submission = shell.user_ns["submission"]
import io, zipfile
archive = zipfile.ZipFile(io.BytesIO(submission.bundle.data))
[name] = archive.namelist()
spec = submission.spec
print("RESULT", name, spec.model.target, spec.data.source.target, spec.loss.target, spec.optimizer.target)
print(archive.read(name).decode())
"""


def test_cells_of_a_real_ipython_shell(tmp_path: object) -> None:
    pytest.importorskip("IPython")
    out = subprocess.run(
        [sys.executable, "-c", _SHELL],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=str(tmp_path),
        env=_environment(str(tmp_path)),
    )
    assert "RESULT" in out.stdout, out.stdout + out.stderr
    result = out.stdout[out.stdout.index("RESULT") :]
    name, model, source, loss, optimizer = result.splitlines()[0].split()[1:]
    module = name.removesuffix(".py")
    assert module.startswith("notebook_")
    assert (model, source) == (f"{module}:build", f"{module}:reader")
    assert (loss, optimizer) == ("torch.nn.functional:mse_loss", "torch.optim:SGD")
    text = "\n".join(result.splitlines()[1:])
    assert "import pipesvc" not in text
    assert "print" not in text
    assert text.startswith("import torch\n\nfrom torch import nn\n\nwidth = 4\n\ndef build():")


def _environment(home: str) -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "IPYTHONDIR": home, "HOME": home}
