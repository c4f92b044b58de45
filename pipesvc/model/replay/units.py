"""Which modules of a model stay whole.

A unit is run or skipped as one, so units should be small enough to balance stages and few enough to be cheap. Models
repeat a block, and a list of equal blocks is where people cut: without names from the user, the outermost such lists
are opened and everything beside them is a unit. With names, only what encloses a named module is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches

from torch import nn

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.marks import mark_of
from pipesvc.model.sequence import has_forward

Units = dict[str, nn.Module]

_MOST_SHOWN = 3


def units_of(model: nn.Module, cuts: Sequence[str] = (), opened: Collection[str] = ()) -> Units:
    """Path -> module, in the order of registration. `cuts` begin a unit each; `opened` are no units, whatever else."""
    _refuse_unknown(model, cuts)
    enclosing = {*opened}
    for cut in cuts:
        parts = cut.split(".")
        enclosing.update(".".join(parts[:length]) for length in range(1, len(parts)))
    units = dict(_walk(model, "", enclosing, is_repeat_opened=not cuts))
    while len(units) == 1 and not cuts:  # a model that wraps another
        path, module = next(iter(units.items()))
        inner = dict(_walk(module, path, enclosing, is_repeat_opened=True))
        if not inner:
            break
        units = inner
    return units


def _walk(
    parent: nn.Module, prefix: str, enclosing: Collection[str], *, is_repeat_opened: bool
) -> Iterator[tuple[str, nn.Module]]:
    seen: set[int] = set()

    def below(module: nn.Module, at: str, is_in_repeat: bool) -> Iterator[tuple[str, nn.Module]]:
        for name, child in module.named_children():
            path = f"{at}.{name}" if at else name
            if id(child) in seen:
                continue
            holds_repeat = is_repeat_opened and not is_in_repeat and any(map(_is_repeat, child.modules()))
            if path in enclosing or not has_forward(child) or holds_repeat or _has_several_marks(child):
                yield from below(child, path, is_in_repeat or _is_repeat(child))
            else:
                seen.add(id(child))
                yield path, child

    return below(parent, prefix, False)


def _is_repeat(module: nn.Module) -> bool:
    if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
        return False
    return len({type(each) for each in module}) == 1 and any(True for _ in module.parameters())


def _has_several_marks(module: nn.Module) -> bool:
    try:
        mark_of(module)
    except PipesvcError:
        return True
    return False


def _refuse_unknown(model: nn.Module, cuts: Sequence[str]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for cut in cuts:
        if (
            cut
            and cut in modules
            and not has_forward(modules[cut])
            and (inside := next(modules[cut].named_children(), None))
        ):
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"cut {cut!r} is a {type(modules[cut]).__name__}, which is never called",
                advice=f"Name an entry of it, such as {f'{cut}.{inside[0]}'!r}.",
            )
        if cut and cut in modules:
            continue
        within = [name for name in modules if name.endswith(f".{cut}")]
        nearest = list(dict.fromkeys([*within, *get_close_matches(cut, modules, n=_MOST_SHOWN, cutoff=0.5)]))
        advice = f"Nearest: {', '.join(map(repr, nearest[:_MOST_SHOWN]))}." if nearest else "See model.named_modules()."
        raise PipesvcError(ErrorCode.INVALID_PLAN, f"cut {cut!r} does not exist", advice=advice)
