"""First weights whose random numbers are keyed by name (`Job(init="by_name")`), so that nobody draws for others.

The plain build draws one stream, and each worker must draw all of it to get its own part: minutes for a table of
hundreds of gigabytes, on every worker. Here each draw has a generator of its own, seeded by the job's seed and the name
of the parameter that is filled; what belongs to other stages is not drawn. The same for every partition and for one
process, but not what plain torch draws.

What is kept is the user's own initialisation. To run `reset_parameters` once more with a keyed generator would be
simpler and lose it: what the model function fills in itself afterwards (`apply`, `nn.init` on a part, a scaled last
layer), and modules with parameters of their own have none. So the model function runs as it is, twice as in an exact
build: the first pass learns which parameter ends under which name, and in the second one each draw into a parameter is
keyed by that name and by how often it was drawn into before. Numbers that are drawn before they belong to a parameter
(`nn.Parameter(torch.randn(n) * 0.02)`, buffers) are keyed by their place among such draws of the model function.
A generator that the model function passes itself is used and moved as ever.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.model.ghosts import address_of


class KeyedBuild:
    """A model function whose draws are keyed. Called, it is that function."""

    def __init__(self, build: Callable[[], object]) -> None:
        self._build = build

    def __call__(self) -> object:
        return self._build()


class Keys:
    """Seeds the default generator for each draw; `names` are those of the parameters by number (see `registry`)."""

    def __init__(self, seed: int, names: Mapping[int, str]) -> None:
        self._seed = seed
        self._names = names
        self._numbers: dict[int, tuple[weakref.ref[nn.Parameter], int]] = {}  # by the address of the storage
        self._num_draws: Counter[str] = Counter()
        self._is_inside = False  # of a function whose draws are one

    def know(self, parameter: nn.Parameter, number: int) -> None:
        """Not kept alive: one that is replaced by a ghost may be large."""
        self._numbers[address_of(parameter)] = (weakref.ref(parameter), number)

    def seed_draw(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Before the random operator of that name; False if it draws from a generator of the user's."""
        given = [each for each in [*args, *kwargs.values()] if isinstance(each, torch.Generator)]
        if any(each is not torch.default_generator for each in given):
            return False
        if not self._is_inside:
            self._begin(args[0] if name.endswith("_") and isinstance(args[0], Tensor) else None)
        return True

    @contextmanager
    def as_one_draw(self, target: Tensor) -> Iterator[None]:
        """For a function that draws as often as the values demand, which only the owner of `target` knows."""
        self._begin(target)
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def _begin(self, target: Tensor | None) -> None:
        name = self._name_of(target)
        torch.default_generator.manual_seed(seeds.derive(self._seed, "init", name, self._num_draws[name]))
        self._num_draws[name] += 1

    def _name_of(self, target: Tensor | None) -> str:
        """Empty for what is no parameter; by number for one that the finished model does not have (a prototype)."""
        if target is None:
            return ""
        ref, number = self._numbers.get(address_of(target), (None, 0))
        parameter = None if ref is None else ref()
        if parameter is None or address_of(parameter) != address_of(target):  # another one's by now
            return ""
        return self._names.get(number, f"#{number}")
