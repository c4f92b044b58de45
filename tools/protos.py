"""Makes the stubs from protos/; with `--check` proves that stubs, style and the wire's compatibility hold.

The generator is pinned (grpcio-tools in pyproject.toml): stubs of a newer one do not import on the oldest grpcio that
we allow.
"""

from __future__ import annotations

import argparse
import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
STUBS = Path("pipesvc/rpc/v1")
BASELINE = PROTOS / "baseline.binpb"
BUF = Path(sys.executable).with_name("buf")


def generate(out: Path) -> None:
    """Write *_pb2.py and .pyi for every file, and *_pb2_grpc.py for those with a service."""
    files = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto"))
    services = [name for name in files if "\nservice " in (PROTOS / name).read_text()]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}"]
    subprocess.run([*protoc, f"--python_out={out}", f"--pyi_out={out}", *files], check=True)
    subprocess.run([*protoc, f"--grpc_python_out={out}", *services], check=True)


def stale_stubs() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        made = {path.name: path for path in (Path(folder) / STUBS).glob("*_pb2*")}
        committed = {path.name: path for path in (ROOT / STUBS).glob("*_pb2*")}
        return sorted(
            name
            for name in made.keys() | committed.keys()
            if name not in made or name not in committed or not filecmp.cmp(made[name], committed[name], shallow=False)
        )


def buf(*arguments: str) -> bool:
    return subprocess.run([str(BUF), *arguments], cwd=ROOT, check=False).returncode == 0


def check() -> int:
    stale = stale_stubs()
    for name in stale:
        print(f"{STUBS / name}: not what protos/ gives; run `make stubs`")
    results = {
        "stubs": not stale,
        "lint": buf("lint", "protos"),
        "format": buf("format", "--diff", "--exit-code", "protos"),
        "breaking": buf("breaking", "protos", "--against", str(BASELINE)),
    }
    print("protos: " + ", ".join(f"{name} {'ok' if good else 'FAILED'}" for name, good in results.items()))
    return 0 if all(results.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, lint and look for breaking changes")
    parser.add_argument("--baseline", action="store_true", help="take today's protos as the breaking baseline")
    arguments = parser.parse_args()
    if arguments.check:
        return check()
    if arguments.baseline:
        return 0 if buf("build", "protos", "-o", str(BASELINE)) else 1
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
