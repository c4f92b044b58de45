"""Which source files are the user's own, and where an import of them is rooted.

Packages that pip installed are on the workers too and travel by name; the user's files are not and travel in a
bundle. Asking the import system without importing tells the two apart.

Packages are installed outside of site-packages too (`pip install --target`, then PYTHONPATH). There the record that pip
leaves beside them says what it has put there; a folder may have files of the user as well. The `.egg-info` of a project
that is being worked on has no such record, so its sources stay the user's.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pipesvc

_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file of the user, and the directory that imports of it start from."""

    path: Path
    root: Path

    @property
    def arcname(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def package(self) -> str:
        """The dotted package that relative imports in this file start from."""
        return ".".join(self.path.relative_to(self.root).parts[:-1])


@cache
def _foreign_roots() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return (
        Path(paths["stdlib"]).resolve(),
        Path(paths["platstdlib"]).resolve(),
        Path(pipesvc.__file__).resolve().parent,
    )


@cache
def _installed_in(folder: Path) -> frozenset[str]:
    """Top-level modules and packages that an installer has put into this folder."""
    try:
        records = [*folder.glob("*.dist-info/RECORD"), *folder.glob("*.egg-info/installed-files.txt")]
        lines = [(record, line) for record in records for line in record.read_text(errors="replace").splitlines()]
    except OSError:
        return frozenset()
    # A RECORD counts from the folder, an old installed-files.txt from its own.
    paths = [line if record.name == "RECORD" else line.removeprefix("../") for record, line in lines]
    return frozenset(path.split(",")[0].strip('"').split("/")[0].removesuffix(".py") for path in paths)


def is_local(path: Path) -> bool:
    """True for a source file that belongs neither to Python, nor to an installed package, nor to pipesvc."""
    resolved = path.resolve()
    if resolved.suffix != ".py" or _INSTALLED.intersection(resolved.parts):
        return False
    if any(resolved.is_relative_to(root) for root in _foreign_roots()):
        return False
    names = zip(resolved.parents, (resolved, *resolved.parents), strict=False)
    return not any(inside.name.removesuffix(".py") in _installed_in(folder) for folder, inside in names)


def rooted(path: Path, module: str) -> SourceFile:
    """The file of `module`, with its root counted back from the depth of the dotted name."""
    resolved = path.resolve()
    depth = module.count(".") + (1 if resolved.name == "__init__.py" else 0)
    return SourceFile(path=resolved, root=resolved.parents[depth])


def find_root(top_name: str, near: Path) -> Path | None:
    """The directory where `import top_name` finds local sources, beside the importing code first; None: not local."""
    if _holds(near, top_name):
        return near
    try:
        spec = importlib.util.find_spec(top_name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        origin = Path(spec.origin)
        return rooted(origin, top_name).root if is_local(origin) else None
    for place in spec.submodule_search_locations or ():
        if is_local(Path(place) / "__init__.py"):
            return Path(place).resolve().parent
    return None


def _holds(root: Path, name: str) -> bool:
    if not is_local(root / f"{name}.py"):
        return False
    return (root / f"{name}.py").is_file() or ((root / name).is_dir() and any((root / name).glob("*.py")))
