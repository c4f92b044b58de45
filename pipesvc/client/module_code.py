"""What a file does when it is imported, read from its syntax tree.

A worker imports the user's script. Code at its top level that submits a job would submit it again there, and
again; the same trap as with multiprocessing, where it is found by a machine that stalls. It is found here before
anything is sent. Only clear cases are refused: a call, at import, of something that pipesvc offers for submitting,
directly or through a function of the file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

_SUBMITTING = frozenset({"connect", "LocalCluster", "train"})


def is_main_guard(statement: ast.stmt) -> bool:
    """True for `if __name__ == "__main__":`, either way round."""
    test = statement.test if isinstance(statement, ast.If) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, test.comparators[0]]
    has_name = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return has_name and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def bound_at_import(tree: ast.Module) -> set[str]:
    """Names that the module has after an import: bound anywhere at its top level but under the main guard."""
    return {name for statement in _run_at_import(tree.body) for name in bound_by(statement)}


def bound_by(statement: ast.stmt) -> set[str]:
    """Names that this one statement binds in its own scope, those of nested blocks included."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in _walk_scope(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def find_submission(tree: ast.Module) -> tuple[int, str] | None:
    """Line and text of a top-level call that would submit a job when the file is imported; None: there is none."""
    aliases = _pipesvc_names(tree)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and not _is_generator(node)}
    guilty = {name for name, node in functions.items() if any(_submits(call, aliases) for call in _calls(node.body))}
    while True:
        more = {n for n, node in functions.items() if n not in guilty and _names_called(node.body) & guilty}
        if not more:
            break
        guilty |= more
    for statement in _run_at_import(tree.body):
        for call in _calls([statement]):
            is_through_function = isinstance(call.func, ast.Name) and call.func.id in guilty
            if is_through_function or _submits(call, aliases):
                return call.lineno, ast.unparse(call.func)
    return None


def _is_generator(node: ast.FunctionDef) -> bool:
    """True for a generator, whose body does not run when it is called."""
    return any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in _walk_scope(node, is_root_open=True))


def _pipesvc_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> name in pipesvc; the module itself is ""."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or "pipesvc": "" for alias in node.names if alias.name == "pipesvc"}
        elif isinstance(node, ast.ImportFrom) and node.module == "pipesvc" and not node.level:
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    return names


def _submits(call: ast.Call, aliases: dict[str, str]) -> bool:
    func = call.func
    if isinstance(func, ast.Name):
        return aliases.get(func.id) in _SUBMITTING
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return aliases.get(func.value.id) == "" and func.attr in _SUBMITTING
    return False


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements that run at import: all but those under the main guard, whose `else` does run."""
    for statement in body:
        if isinstance(statement, ast.If) and is_main_guard(statement):
            yield from statement.orelse
        else:
            yield statement


def _names_called(body: list[ast.stmt]) -> set[str]:
    return {call.func.id for call in _calls(body) if isinstance(call.func, ast.Name)}


def _calls(body: Iterable[ast.stmt]) -> Iterator[ast.Call]:
    """Calls made when these statements run; bodies of functions in them do not run."""
    for statement in body:
        if is_main_guard(statement):
            continue
        yield from (node for node in _walk_scope(statement) if isinstance(node, ast.Call))


def _walk_scope(root: ast.AST, *, is_root_open: bool = False) -> Iterator[ast.AST]:
    """Like ast.walk, without the inside of functions, classes and lambdas, whose names are their own."""
    closed = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    yield root
    if isinstance(root, closed) and not is_root_open:
        return
    for child in ast.iter_child_nodes(root):
        yield from _walk_scope(child)
