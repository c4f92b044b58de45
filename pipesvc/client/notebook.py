"""The executed cells of a notebook as a module.

Functions of a notebook have no file, and sending all cells would train again, plot and download on the worker. So
only the top-level statements travel that define the names which the job's functions need: imports, functions,
classes, assignments, in the order in which they ran. What a name needs is read from Python's own symbol tables, so
a function's local variable that is spelled like a global does not drag the global along.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import symtable
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipesvc.client.module_code import bound_by
from pipesvc.client.references import refuse

_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
_DEFINING_ALSO = (ast.AugAssign, ast.If, ast.Try)
_IMPLICIT = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "__builtins__"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Notebook:
    """Source text of the needed statements; the name follows from the text, so equal text is the same module."""

    name: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statement:
    node: ast.stmt
    # Names given a new value.
    binds: frozenset[str]
    # Names whose value it changes in place: `settings["lr"] = 1`, `total += 1`.
    changes: frozenset[str]
    # Names read while the statement runs, and those read later, by functions that it defines.
    reads_now: frozenset[str]
    reads_later: frozenset[str]


def make_notebook(cells: Sequence[str], names: Iterable[str], namespace: Mapping[str, Any]) -> Notebook:
    """The module that defines `names`, from the executed cells in their order."""
    statements = [_describe(node) for cell in cells for node in _parse(cell)]
    kept: set[int] = set()
    pending: list[tuple[str, int]] = [(name, len(statements)) for name in names]
    seen: set[tuple[str, int]] = set()
    while pending:
        need = pending.pop()
        if need in seen or need[0] in _IMPLICIT:
            continue
        seen.add(need)
        for index in _providers(statements, *need, namespace):
            if index not in kept:
                kept.add(index)
                pending += [(name, index) for name in statements[index].reads_now]
                pending += [(name, len(statements)) for name in statements[index].reads_later]
    source = "\n\n".join(ast.unparse(statements[index].node) for index in sorted(kept)) + "\n"
    return Notebook(name=f"notebook_{hashlib.sha256(source.encode()).hexdigest()[:12]}", source=source)


def _parse(cell: str) -> list[ast.stmt]:
    try:
        return ast.parse(cell).body
    except SyntaxError:  # such a cell never ran
        return []


def _providers(statements: Sequence[_Statement], name: str, before: int, namespace: Mapping[str, Any]) -> list[int]:
    """Indices of what makes `name` what it is at statement `before`: the last binding, and changes after it."""
    bindings = [i for i, statement in enumerate(statements) if name in statement.binds]
    earlier = [i for i in bindings if i < before]
    if not bindings:
        stars = [i for i, statement in enumerate(statements) if _is_star_import(statement.node)]
        if name in namespace and not stars:
            raise refuse(
                f"no executed cell defines {name} by an import, def, class or assignment at its top level",
                "Define it in a cell of its own, or put it into a .py file and import it",
            )
        return stars if name in namespace else []
    last = earlier[-1] if earlier else bindings[-1]
    if not isinstance(statements[last].node, _DEFINING + _DEFINING_ALSO):
        kind = type(statements[last].node).__name__.lower()
        raise refuse(
            f"{name} gets its value in a `{kind}` block of a cell, which does not travel",
            "Assign it at the top level of a cell, or pass it with pipesvc.Call(function, name=value)",
        )
    changes = [i for i, s in enumerate(statements) if last < i < before and name in s.changes]
    return [last, *changes]


def _is_star_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)


def _describe(node: ast.stmt) -> _Statement:
    changes: set[str] = set()
    if isinstance(node, ast.AugAssign | ast.Assign):
        targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
        changes = {base for target in targets if (base := _base_name(target)) is not None}
    is_plain_augmented = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    binds = frozenset() if is_plain_augmented else frozenset(bound_by(node))
    table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    now = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    later: set[str] = set()
    for child in table.get_children():
        _collect_globals(child, now, later)
    return _Statement(
        node=node,
        binds=binds,
        changes=frozenset(changes) - binds,
        reads_now=frozenset(now | (changes - binds)),
        reads_later=frozenset(later),
    )


def _collect_globals(table: symtable.SymbolTable, now: set[str], later: set[str]) -> None:
    """Class bodies and comprehensions run with the statement; functions run later."""
    is_function = table.get_type() == "function" and table.get_name() not in {
        "listcomp",
        "dictcomp",
        "setcomp",
        "genexpr",
    }
    into = later if is_function else now
    into |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    if table.get_type() == "class":
        into |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and not s.is_assigned()}
    for child in table.get_children():
        _collect_globals(child, later if is_function else now, later)


def _base_name(target: ast.expr) -> str | None:
    is_part = isinstance(target, ast.Subscript | ast.Attribute)
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    if isinstance(target, ast.Name) and (is_part or isinstance(target.ctx, ast.Store)):
        return target.id
    return None
