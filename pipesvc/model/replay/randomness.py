"""Random numbers that do not depend on which process runs which module.

A generator that is simply used on gives a module other numbers as soon as another process ran the modules before it.
So each call of a module gets a stream of its own, whose seed is a hash of one number drawn from the caller's stream
and of the module's path. A stage that skips a unit makes that one draw too. The root stream comes from the seed, the
step and the micro-batch.

This is the splitting of Claessen and Palka ("Splittable pseudorandom number generators using cryptographic hashing",
2013) with torch's generator as the state. It holds under recomputation, where a counter of calls would not:
`torch.utils.checkpoint` restores the caller's generator, so the same number is drawn again. For that the hooks stay on
the modules also during backward.

On a GPU the draws of a skipped operation between units are not made up for: its seeds come from the CPU's generator,
so modules are exact, and only what is drawn directly in the forward of a container depends on the partition.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from pipesvc.core import seeds

_HOOKED: Final = "_pipesvc_stream"


class Streams:
    """Hooks on the modules with these paths, in whose call random numbers may be drawn. Once for each module."""

    def __init__(self, model: nn.Module, paths: Collection[str], device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._generators.append(torch.cuda.default_generators[device.index or 0])
        for path in paths:
            module = model.get_submodule(path)
            if _HOOKED not in module.__dict__:
                module.__dict__[_HOOKED] = True
                self._hook(path, module)

    @contextmanager
    def root(self, *, seed: int, step: int, micro_batch: int) -> Iterator[None]:
        """The stream of one micro-batch; afterwards the generators are as they were."""
        before, depth = self._states(), len(_open_streams())
        try:
            self._seed(seeds.derive(seed, "forward", step, micro_batch))
            yield
        finally:
            self._restore(before)
            del _open_streams()[depth:]  # of calls that the end of a stage broke off

    def _hook(self, path: str, module: nn.Module) -> None:
        number = torch.zeros((), dtype=torch.int64)

        def opened(module: nn.Module, args: Any) -> None:
            with torch._C.DisableTorchFunction():
                drawn = int(number.random_(generator=torch.default_generator))
            _open_streams().append(self._states())
            self._seed(seeds.derive(drawn, path))

        def closed(module: nn.Module, args: Any, output: Any) -> None:
            self._restore(_open_streams().pop())

        module.register_forward_pre_hook(opened, prepend=True)
        module.register_forward_hook(closed, always_call=True)

    def _states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _restore(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def _seed(self, seed: int) -> None:
        for generator in self._generators:
            generator.manual_seed(seed)


class _Local(threading.local):
    """Backward may run a module again on a thread of autograd."""

    def __init__(self) -> None:
        self.streams: list[list[torch.Tensor]] = []


_local = _Local()


def _open_streams() -> list[list[torch.Tensor]]:
    return _local.streams
