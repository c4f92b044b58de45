"""timm imports torchvision for its data sets and for tracing, neither of which a model needs.

The torchvision of PyPI is built for a CUDA torch and does not import beside torch's CPU build, so the tests have none.
While timm is imported, every name that it asks of torchvision is given by an empty class; afterwards torchvision is as
absent as before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import nn

_NAME = "torchvision"


class _Member(type(nn.Module)):  # type: ignore[misc]
    """Members of an enumeration, such as InterpolationMode.BICUBIC, are asked for too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


class _Stub(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Member(name, (nn.Module,), {})


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == _NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        stub = _Stub(spec.name)
        stub.__path__ = []
        return stub

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def absent_torchvision() -> Iterator[None]:
    """A torchvision that is there is used."""
    if find_spec(_NAME) is not None:
        yield
        return
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [each for each in sys.modules if each.partition(".")[0] == _NAME]:
            del sys.modules[name]
