"""The user's source files on their way to the workers.

Sending the directory of the script would send data, virtual environments and secrets; sending nothing would need a
shared disk. What travels is the import closure: the files of the job's functions, and what they import among the
user's own files, found by reading them. The zip is deterministic, so equal sources have the same hash and are
unpacked once.
"""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipesvc.client.checks import shown
from pipesvc.client.locality import SourceFile, find_root, is_local
from pipesvc.client.module_code import find_submission
from pipesvc.client.references import refuse
from pipesvc.errors import PipesvcError

MAX_BUNDLE_BYTES = 16 << 20
_SHOWN_BYTES = 1 << 16
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SKIPPED_PARTS = frozenset({"__pycache__", ".git"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """A zip and its hash; both are empty when there is nothing to send."""

    data: bytes
    sha256: str


def make_bundle(
    sources: Iterable[SourceFile],
    *,
    include: Sequence[str] = (),
    include_root: Path,
    extra: dict[str, str] | None = None,
) -> Bundle:
    """The closure of `sources`, the included files, and texts that have no file (`extra`: archive name to text)."""
    contents = {name: text.encode() for name, text in (extra or {}).items()}
    origins: dict[str, Path] = {}
    num_bytes = 0
    pending = list(sources)
    for name, text in (extra or {}).items():
        pending += list(_imports(ast.parse(text), package="", root=include_root, where=name))
    while pending:
        source = pending.pop()
        if origins.get(source.arcname) == source.path:
            continue
        if source.arcname in origins:
            raise refuse(
                f"{source.path} and {origins[source.arcname]} would both be {source.arcname} on a worker",
                "Rename one of the two",
            )
        data = source.path.read_bytes()
        origins[source.arcname], contents[source.arcname] = source.path, data
        num_bytes += len(data)
        if num_bytes > MAX_BUNDLE_BYTES:
            raise _too_large(contents, "Install large packages here and on the workers; then they travel by name")
        tree = _parse(data, source.path)
        _refuse_submission(tree, source.path)
        pending += [init for init in _parent_packages(source) if init.arcname not in origins]
        pending += _imports(tree, package=source.package, root=source.root, where=str(source.path))
    for path in _included(include, include_root):
        contents[path.relative_to(include_root).as_posix()] = path.read_bytes()
    if not contents:
        return Bundle(data=b"", sha256="")
    data = _zip(contents)
    return Bundle(data=data, sha256=hashlib.sha256(data).hexdigest())


def _parse(data: bytes, path: Path) -> ast.Module:
    try:
        return ast.parse(data, filename=str(path))
    except SyntaxError as error:
        raise refuse(
            f"{path}:{error.lineno} is not valid Python: {error.msg}", "Correct it, or do not import it"
        ) from None


def _refuse_submission(tree: ast.Module, path: Path) -> None:
    found = find_submission(tree)
    if found is not None:
        line, text = found
        raise refuse(
            f"{path}:{line} calls {text}(...) when the file is imported; a worker imports it, and would submit again",
            'Put that code under `if __name__ == "__main__":`',
        )


def _parent_packages(source: SourceFile) -> Iterator[SourceFile]:
    for folder in source.path.parents:
        if folder == source.root:
            return
        if (folder / "__init__.py").is_file():
            yield SourceFile(path=folder / "__init__.py", root=source.root)


def _imports(tree: ast.Module, *, package: str, root: Path, where: str) -> Iterator[SourceFile]:
    """The user's files that this code imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name, root)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, package, where)
            if module:
                yield from _files_of(module, root)
            for alias in node.names:
                yield from _files_of(f"{module}.{alias.name}" if module else alias.name, root)


def _absolute(node: ast.ImportFrom, package: str, where: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level - 1 > len(parts):
        raise refuse(f"{where}:{node.lineno} imports from beyond its top-level package", "Use an absolute import")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _files_of(module: str, near: Path) -> Iterator[SourceFile]:
    """The files that run when `module` is imported, as far as they are the user's; nothing for other names."""
    parts = module.split(".")
    root = find_root(parts[0], near)
    if root is None:
        return
    for end in range(1, len(parts) + 1):
        base = root.joinpath(*parts[:end])
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file() and is_local(path):
                yield SourceFile(path=path.resolve(), root=root.resolve())
                break


def _included(patterns: Sequence[str], root: Path) -> Iterator[Path]:
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise refuse(f"include has {pattern!r}, which leads out of {root}", "Name files below that directory")
        try:
            matches = sorted(root.glob(pattern))
        except (ValueError, IndexError, OSError):  # of pathlib, for "**x", "." and what is too long
            raise refuse(
                f"include has {shown(pattern)}, which is no pattern of files", "Correct or remove it"
            ) from None
        if not matches:
            raise refuse(f"include has {pattern!r}, which matches nothing below {root}", "Correct or remove it")
        for match in matches:
            inside = sorted(match.rglob("*")) if match.is_dir() else [match]
            yield from (p for p in inside if p.is_file() and not _SKIPPED_PARTS.intersection(p.parts))


def _zip(contents: dict[str, bytes]) -> bytes:
    if sum(map(len, contents.values())) > MAX_BUNDLE_BYTES:
        raise _too_large(contents, "Bundles are for code: put data where the workers read it")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name])
    return buffer.getvalue()


def _too_large(contents: dict[str, bytes], advice: str) -> PipesvcError:
    """Of what has been read so far: whole packages would be read for minutes."""
    sizes: Counter[str] = Counter()
    for name, data in contents.items():
        sizes[name.split("/")[0]] += len(data)
    shown_sizes = [f"{name} {num / 2**20:.1f} MiB" for name, num in sizes.most_common(3) if num >= _SHOWN_BYTES]
    return refuse(
        f"the source bundle has more than {MAX_BUNDLE_BYTES >> 20} MiB. Largest: {', '.join(shown_sizes)}", advice
    )
