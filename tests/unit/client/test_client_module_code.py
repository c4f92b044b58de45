from __future__ import annotations

import ast
import textwrap

import pytest

from pipesvc.client.module_code import bound_at_import, find_submission


def _tree(text: str) -> ast.Module:
    return ast.parse(textwrap.dedent(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import pipesvc\nwith pipesvc.connect('a:1') as client:\n    pass", 2),
        ("import pipesvc as p\nhistory = p.train(job)", 2),
        ("from pipesvc import LocalCluster as Cluster\nfor n in (1, 2):\n    c = Cluster(n)", 3),
        ("import pipesvc\ndef main():\n    pipesvc.train(job)\nmain()", 4),
        ("import pipesvc\ndef inner():\n    pipesvc.train(1)\ndef main():\n    inner()\nif x:\n    main()", 7),
        ("import pipesvc\nif __name__ == '__main__':\n    pass\nelse:\n    pipesvc.train(1)", 5),
    ],
)
def test_a_submission_at_import_is_found_with_its_line(text: str, line: int) -> None:
    found = find_submission(_tree(text))
    assert found is not None
    assert found[0] == line


@pytest.mark.parametrize(
    "text",
    [
        "import pipesvc\nif __name__ == '__main__':\n    pipesvc.train(job)",
        "import pipesvc\nif '__main__' == __name__:\n    main()\ndef main():\n    pipesvc.train(job)",
        "import pipesvc\ndef main():\n    pipesvc.train(job)",
        "import pipesvc\njob = pipesvc.Job(model=build)",
        "def train(x):\n    pass\ntrain(1)",
        "import socket\nsocket.connect('a')\npool.submit(print)",
        "import pipesvc\ndef numbers():\n    yield pipesvc.train(job)\nx = numbers()",
        "import pipesvc\nclass A:\n    def run(self):\n        pipesvc.train(job)",
        "import pipesvc\nlater = lambda: pipesvc.train(job)",
    ],
)
def test_other_code_is_left_alone(text: str) -> None:
    assert find_submission(_tree(text)) is None


def test_names_under_the_main_guard_do_not_exist_after_an_import() -> None:
    tree = _tree(
        """
        import os.path, json as j
        from a import b as c
        try:
            x = 1
        except ImportError:
            def y(): hidden = 1
        class Z: inner = 2
        with open("f") as f, g() as (h, i): pass
        if __name__ == "__main__":
            def build(): ...
        """
    )
    assert bound_at_import(tree) == {"os", "j", "c", "x", "y", "Z", "f", "h", "i"}
