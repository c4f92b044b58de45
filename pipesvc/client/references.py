"""From a function to the text that imports it on a worker, proved by importing it back here.

`fn.__module__` is only a claim: torch.optim.SGD says "torch.optim.sgd", builtins of torch name no importable
module, and a function of the script says "__main__". So a reference counts only when walking it gives the
identical object; for the script it becomes the name that its file has when it is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pipesvc.client.locality import SourceFile, is_local, rooted
from pipesvc.client.module_code import bound_at_import
from pipesvc.errors import ErrorCode, PipesvcError

MAIN = "__main__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Where a worker finds an object. `source` is the file that must travel; `notebook` the namespace of cells."""

    module: str
    qualname: str
    source: SourceFile | None = None
    notebook: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def target(self, notebook_name: str = "") -> str:
        return f"{notebook_name if self.notebook is not None else self.module}:{self.qualname}"


def refuse(message: str, advice: str) -> PipesvcError:
    return PipesvcError(ErrorCode.BUNDLE_REFUSED, message, advice=advice)


def resolve(value: Callable[..., Any]) -> Reference:
    """The reference of a function or class that `calls.check_function` has let through."""
    module_name = getattr(value, "__module__", None) or ""
    if module_name == MAIN:
        return _resolve_main(value)
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if module is not None and file and is_local(Path(file)):
        if _walk(module, value.__qualname__) is not value:
            raise refuse(
                f"{module_name}:{value.__qualname__} in {file} is another object than the one in the job",
                "Give the function its own name at the top level of its file",
            )
        return Reference(module=module_name, qualname=value.__qualname__, source=rooted(Path(file), module_name))
    return _resolve_installed(value, module_name)


def _walk(module: ModuleType, qualname: str) -> object:
    value: object = module
    for name in qualname.split("."):
        value = getattr(value, name, None)
    return value


def _resolve_installed(value: Callable[..., Any], module_name: str) -> Reference:
    """The shortest public path: a parent package that shows the same object, else any module that does."""
    parts = module_name.split(".")
    names = (value.__qualname__, value.__qualname__.rsplit(".", 1)[-1])
    for end in range(1, len(parts) + 1):
        module = sys.modules.get(".".join(parts[:end]))
        for name in names:
            if module is not None and _is_importable(module) and _walk(module, name) is value:
                return Reference(module=module.__name__, qualname=name)
    for name in names:
        for other in sorted(sys.modules, key=lambda key: (key.count("."), key)):
            module = sys.modules[other]
            is_private = other == MAIN or any(part.startswith("_") for part in other.split("."))
            if is_private or not isinstance(module, ModuleType) or vars(module).get(name) is not value:
                continue
            file = getattr(module, "__file__", None)
            if _is_importable(module) and not (file and is_local(Path(file))):
                return Reference(module=other, qualname=name)
    raise refuse(
        f"no import reaches {value.__qualname__} (module {module_name or 'unknown'})",
        "Write a function at the top level of your file that calls it",
    )


def _is_importable(module: ModuleType) -> bool:
    return getattr(module, "__spec__", None) is not None


def _resolve_main(value: Callable[..., Any]) -> Reference:
    main = sys.modules[MAIN]
    namespace = getattr(value, "__globals__", vars(main))
    cells = namespace.get("In")
    file = getattr(main, "__file__", None)
    if isinstance(cells, list) and namespace.get("__name__") == MAIN and not file:
        return Reference(module=MAIN, qualname=value.__qualname__, notebook=namespace)
    if not file or not Path(file).is_file():
        raise refuse(
            f"{value.__qualname__} was typed into an interpreter and has no file that could travel",
            "Put it into a .py file and import it, or use a notebook",
        )
    source = _main_source(main, Path(file))
    _check_bound(value.__qualname__, source.path)
    return Reference(module=_main_name(main, source), qualname=value.__qualname__, source=source)


def _main_source(main: ModuleType, file: Path) -> SourceFile:
    spec = getattr(main, "__spec__", None)
    return rooted(file, spec.name if spec is not None else file.stem)


def _main_name(main: ModuleType, source: SourceFile) -> str:
    """`python -m package.module` has a dotted name; `python path/name.py` is the module `name`."""
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    stem = source.path.stem
    if not stem.isidentifier():
        raise refuse(f"the script {source.path} cannot be imported: {stem!r} is no module name", "Rename the file")
    if stem in sys.stdlib_module_names or _is_installed(stem):
        raise refuse(
            f"the script {source.path} would hide the installed module {stem!r} on a worker", "Rename the file"
        )
    return stem


def _is_installed(name: str) -> bool:
    """True when a package of that name is installed, apart from the script itself."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and bool(spec.origin) and spec.has_location and not is_local(Path(str(spec.origin)))


def _check_bound(qualname: str, path: Path) -> None:
    name = qualname.split(".")[0]
    tree = ast.parse(path.read_bytes(), filename=str(path))
    if name not in bound_at_import(tree):
        raise refuse(
            f'{name} in {path} does not exist when the file is imported: it stands under `if __name__ == "__main__":`',
            "Move it to the top level, before that line",
        )
