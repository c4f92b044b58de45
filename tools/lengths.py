"""Refuses files and functions that have grown past what one reader holds in mind.

No linter checks both; the limits are those of CONTRIBUTING.md: 300 lines a file (400 for a state machine, named here),
60 a function.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
STATE_MACHINES = {f"pipesvc/coordinator/{name}.py" for name in ("machine", "profile_machine", "run_machine")}
MAX_STATE_MACHINE_LINES = 400
FOLDERS = ("pipesvc", "tests", "tools", "examples", "benchmarks")


def findings(root: Path) -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith("pipesvc/rpc/"):
                continue
            text = path.read_text()
            num_lines = len(text.splitlines())
            limit = MAX_STATE_MACHINE_LINES if name in STATE_MACHINES else MAX_FILE_LINES
            if num_lines > limit:
                yield f"{name}: {num_lines} lines, at most {limit}"
            for item in ast.walk(ast.parse(text)):
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.end_lineno is not None:
                    length = item.end_lineno - item.lineno + 1
                    if length > MAX_FUNCTION_LINES:
                        yield f"{name}:{item.lineno}: {item.name} has {length} lines, at most {MAX_FUNCTION_LINES}"


def main() -> int:
    found = list(findings(Path(__file__).resolve().parent.parent))
    for line in found:
        print(line)
    print("lengths: " + (f"{len(found)} too long" if found else "all within the limits"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
