"""Modules whose activations are not kept but computed again in backward, for less memory.

torch's own checkpoint does it, without its reentrant way, and keeps the random numbers. Three things would still make
the second run of a module another one. Buffers that it changes (BatchNorm, spectral norm) would change twice and may
decide its numbers, so the second run has copies of them as they were before the first one. A module that works in place
on its input would find its own output there, so what it writes to is copied first; whether it does so shows in its
first call. And a forward under `no_grad` has nothing to recompute.

Which modules: *units*, the parts of a stage that are called one after the other (layers of a list, or units of a
module that is cut by replay), or modules inside them by patterns on names. Of nested modules the outermost counts. A
pattern that names what holds units names all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipesvc.core.flow import Flow, Joined
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.ghosts import user_line
from pipesvc.model.replay import nest
from pipesvc.model.replay.boundary import admit

_MOST_SHOWN: Final = 3

_Place = tuple[nn.Module, str]  # of a buffer


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """What a strategy asks for: every unit, or modules by patterns as of `fnmatch`; by default nothing."""

    is_all: bool = False
    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.is_all or bool(self.patterns)

    def names(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.patterns)


def apply(units: Mapping[str, nn.Module], asked: Recompute) -> None:
    """Changes the modules that `asked` names."""
    if asked:
        for module in {id(module): module for module in _chosen(units, asked)}.values():
            module.__dict__["forward"] = _Recomputed(module)


def refuse_unmatched(paths: Iterable[str], asked: Recompute) -> None:
    """INVALID_JOB for a pattern that is the name of none of a model's modules."""
    known = [path for path in paths if path]
    for pattern in asked.patterns:
        if not any(fnmatchcase(path, pattern) for path in known):
            nearest = get_close_matches(pattern, known, n=_MOST_SHOWN, cutoff=0.4) or known[:_MOST_SHOWN]
            raise PipesvcError(
                ErrorCode.INVALID_JOB,
                f"recompute has {pattern!r}, which is the name of no module",
                advice=f"Names are those of model.named_modules(), such as {', '.join(map(repr, nearest))}.",
            )


def joined(model: nn.Module, flow: Flow, asked: Recompute) -> list[Joined]:
    """What no cut may part: the units within a module that is recomputed by its name."""
    found = []
    for path, module in model.named_modules():
        inside = [index for index, unit in enumerate(flow.units) if unit.name.startswith(f"{path}.")]
        if path and len(inside) > 1 and asked.names(path) and type(module).forward is not nn.Module.forward:
            found.append(
                Joined(
                    first=inside[0],
                    last=inside[-1],
                    reason=f"both are inside {path!r}, which recompute names",
                    advice=f"Name the modules inside it, such as {f'{path}.*'!r}, or do not cut inside it.",
                )
            )
    return found


def _chosen(units: Mapping[str, nn.Module], asked: Recompute) -> Iterator[nn.Module]:
    for name, unit in units.items():
        parts = name.split(".")
        if asked.is_all or any(asked.names(".".join(parts[:length])) for length in range(1, len(parts) + 1)):
            yield unit
        else:
            yield from _chosen_within(name, unit, asked)


def _chosen_within(path: str, module: nn.Module, asked: Recompute) -> Iterator[nn.Module]:
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if asked.names(inner) and type(child).forward is not nn.Module.forward:
            yield child
        else:
            yield from _chosen_within(inner, child, asked)


class _Recomputed:
    """A module's forward, run again in backward."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._forward: Callable[..., Any] = module.forward
        self._is_known = False  # what it writes in place: the places of these tensors among those of its arguments
        self._written: set[int] = set()
        self._changing: frozenset[_Place] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        given = nest.tensors((args, kwargs))
        copied = {place for place in range(len(given)) if not self._is_known or place in self._written}
        run = _Run(self._forward, {place: (given[place].detach().clone(), given[place]) for place in copied})
        before = [each._version for each in given]
        result = checkpoint(run, args, kwargs, use_reentrant=False, context_fn=self._contexts)
        self._learn({place for place, each in enumerate(given) if each._version != before[place]}, run)
        return result

    def _learn(self, written: set[int], run: _Run) -> None:
        if not self._is_known:
            self._is_known, self._written = True, written
        elif not written <= self._written:
            raise PipesvcError(
                ErrorCode.STAGE_FAILED,
                f"{type(self._module).__name__} wrote to its input in place ({user_line()}), and did not in its first "
                "call: it cannot be recomputed",
                advice="Leave this module out of recompute, or let it work out of place.",
            )
        run.keep_only(self._written)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        state = _State(self._module, self._changing)
        return self._noting(state), state.as_before()

    @contextmanager
    def _noting(self, state: _State) -> Iterator[None]:
        yield
        self._changing = state.changed(self._changing)


class _Run:
    """One call. The first time it gets the arguments as they are, later the copies of what it wrote to."""

    def __init__(self, forward: Callable[..., Any], copies: dict[int, tuple[Tensor, Tensor]]) -> None:
        self._forward = forward
        self._copies = {id(given): (copy, given) for copy, given in copies.values()}
        self._places = {place: id(given) for place, (_, given) in copies.items()}
        self._has_run = False

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._has_run:
            args, kwargs = nest.transform((args, kwargs), self._fresh)
        self._has_run = True
        return self._forward(*args, **kwargs)

    def keep_only(self, places: set[int]) -> None:
        kept = {self._places[place] for place in places}
        self._copies = {key: each for key, each in self._copies.items() if key in kept}

    def _fresh(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) not in self._copies:
            return leaf
        copy, given = self._copies[id(leaf)]
        return admit(copy.clone().requires_grad_(given.requires_grad), copy.device).entry


class _State:
    """What a call begins with and changes: buffers, and the tensors that a hook of the module itself leaves in it.

    `changing` are the buffers that earlier calls changed; None: it is the first one. Of these a copy is kept, of others
    none: tables of constants may be large.
    """

    def __init__(self, module: nn.Module, changing: frozenset[_Place] | None) -> None:
        self._module = module
        self._made = {name: value for name, value in module.__dict__.items() if isinstance(value, Tensor)}
        self._buffers = {
            (each, name): buffer
            for each in module.modules()
            for name, buffer in each._buffers.items()
            if buffer is not None
        }
        self._versions = {place: buffer._version for place, buffer in self._buffers.items()}
        self._before = {
            place: buffer.detach().clone()
            for place, buffer in self._buffers.items()
            if changing is None or place in changing or _has_statistics(place[0])
        }

    def changed(self, changing: frozenset[_Place] | None) -> frozenset[_Place]:
        """After the first run: what is known to change by now."""
        found = set()
        for place, buffer in self._buffers.items():
            module, name = place
            # torch's kernels update running statistics without counting a write.
            is_written = buffer._version != self._versions[place] or _has_statistics(module)
            if is_written and place not in self._before:
                raise PipesvcError(
                    ErrorCode.STAGE_FAILED,
                    f"{type(module).__name__} wrote to its buffer {name!r} in place, and did not in its first call: "
                    "it cannot be recomputed",
                    advice="Leave this module out of recompute, or replace the buffer (self.name = ...).",
                )
            if is_written or module._buffers.get(name) is not buffer:
                found.add(place)
                self._before.setdefault(place, buffer)
        self._before = {place: self._before[place] for place in found}
        self._buffers = {}
        return (changing or frozenset()) | found

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Around the second run."""
        held = self._module.__dict__
        made = {name: held[name] for name in self._made if name in held}
        buffers = {place: place[0]._buffers[place[1]] for place in self._before}
        held.update(self._made)
        for (module, name), before in self._before.items():
            module._buffers[name] = before.clone()
        try:
            yield
        finally:
            held.update(made)
            for (module, name), buffer in buffers.items():
                module._buffers[name] = buffer


def _has_statistics(module: nn.Module) -> bool:
    return module.training and getattr(module, "running_mean", None) is not None
