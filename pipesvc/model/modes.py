"""What torch is told while a part of a model is built.

`Operators` sees every operator below autograd. One that involves a ghost runs on shapes alone; a random one makes its
draws in scratch (`scratch`), so the generator moves as in the plain build. A large factory call (`torch.empty`,
`randn`, `zeros` ...) whose result ends in parameters of other stages only is answered with a ghost from the start:
without that, the 200 GB table of another stage would have to be allocated before it is registered and dropped. Which
calls those are is learned in a first pass, where all large ones are ghosts and `Flow` follows them.

`Faces` makes a ghost look like what it stands for: torch.nn.init has shortcuts for meta tensors that skip draws, and
code that asks `weight.device` would go on to build its own tensors there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pipesvc.errors import PipesvcError
from pipesvc.model.ghosts import CPU, META, address_of, is_about_ghosts, is_ghost, shape_of, tensors_in, unreadable
from pipesvc.model.keyed import Keys
from pipesvc.model.scratch import Draw, advance, block_elements, undrawable
from pipesvc.model.zeros import shapes_by_zeros

LARGE_BYTES: Final = 1 << 20
_SMALL_DRAW_ELEMENTS: Final = 1 << 16
_aten: Any = torch.ops.aten
# As in `torch.randn(...) * 0.02`. torch's own answer on meta loads its compiler: 1 s and 70 MB.
_SCALINGS: Final = frozenset({_aten.mul.Tensor, _aten.div.Tensor, _aten.add.Tensor, _aten.sub.Tensor})


class Flow:
    """Which large factory calls a ghost is made of, followed from operator to operator by storage."""

    def __init__(self) -> None:
        # The storage is kept, so that its address stays its own.
        self._sources: dict[int, tuple[Any, set[int]]] = {}

    def begin(self, tensor: Tensor, factory: int) -> None:
        self._of(tensor).add(factory)

    def sources(self, tensors: Iterable[Tensor]) -> set[int]:
        found: set[int] = set()
        for tensor in tensors:
            if is_ghost(tensor) and (known := self._sources.get(address_of(tensor))) is not None:
                found |= known[1]
        return found

    def follow(self, inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        sources = self.sources(inputs)
        if sources:
            for tensor in outputs:
                if is_ghost(tensor):
                    self._of(tensor).update(sources)

    def _of(self, tensor: Tensor) -> set[int]:
        return self._sources.setdefault(address_of(tensor), (tensor.untyped_storage(), set()))[1]


class Operators(TorchDispatchMode):
    """`dropped` are the large factory calls that give ghosts, by number; None: all (first pass)."""

    def __init__(
        self,
        *,
        does_draw: bool,
        large_bytes: int | None = LARGE_BYTES,
        dropped: frozenset[int] | None = None,
        keys: Keys | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._does_draw = does_draw
        self._large_bytes = large_bytes
        self._dropped = dropped
        self._keys = keys
        self.num_large = 0
        self.flow = Flow()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not a matter here; torch's own answer imports its compiler at the first operator: 1 s and 100 MB."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = list(tensors_in((args, kwargs)))
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        is_keyed = is_random and self._keys is not None and self._keys.seed_draw(func._schema.name, args, kwargs)
        advances = self._does_draw and not is_keyed
        if any(is_ghost(each) for each in inputs):
            outputs = self._draw_ghost(func, args, kwargs, advances) if is_random else _on_shapes(func, args, kwargs)
            if self._dropped is None:
                self.flow.follow(inputs, [*tensors_in(outputs), *_written(func, args, kwargs)])
            return outputs
        if not inputs and (large := self._large_ghost(func, args, kwargs, is_random, advances)) is not None:
            return large
        if is_random and not self._does_draw:
            return _without_drawing(func, args, kwargs)
        return func(*args, **kwargs)

    def _draw_ghost(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], advances: bool) -> Any:
        """`normal_` and its kind, `rand_like` and its kind; what takes probabilities from a ghost is refused."""
        name = func._schema.name.removeprefix("aten::")
        tensors = list(tensors_in((args, kwargs)))
        is_in_place = name.endswith("_")
        if len(tensors) != 1 or not (is_in_place or name.endswith("_like")):
            raise undrawable(name)
        if advances:
            advance(_draw_on(func, name, tensors[0], args[1:], kwargs))
        return tensors[0] if is_in_place else func(*args, **_without_generator(kwargs))

    def _large_ghost(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_random: bool, advances: bool
    ) -> Tensor | None:
        names = [argument.name for argument in func._schema.arguments]
        is_plain = kwargs.get("device") in (None, CPU) and kwargs.get("layout") in (None, torch.strided)
        if self._large_bytes is None or "device" not in names or not is_plain or (is_random and "size" not in names):
            return None
        if is_random:
            shape = _random_shape(func, args, kwargs, names.index("size"))
        else:
            shape = func(*args, **{**kwargs, "device": META})
        if not isinstance(shape, Tensor) or shape.numel() * shape.element_size() < self._large_bytes:
            return None
        factory = self.num_large
        self.num_large += 1
        if self._dropped is None:
            self.flow.begin(shape, factory)
        elif factory not in self._dropped:
            return None
        if is_random and advances:
            advance(_draw_factory(func, names.index("size"), shape, args, kwargs))
        return shape


def _without_generator(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A meta kernel refuses a generator of the CPU."""
    return {key: None if key == "generator" else value for key, value in kwargs.items()}


def _draw_on(func: Any, name: str, ghost: Tensor, rest: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Draw:
    is_contiguous = ghost.is_contiguous()
    most = block_elements(ghost.element_size()) + 16
    if ghost.numel() < most and not is_contiguous:
        scratch = torch.empty_strided(ghost.size(), ghost.stride(), dtype=ghost.dtype)
    elif is_contiguous:
        scratch = torch.empty(min(most, max(ghost.numel(), 1)), dtype=ghost.dtype)
    else:
        scratch = torch.empty(most, 2, dtype=ghost.dtype)[:, 0]

    def run(num_elements: int) -> object:
        is_whole = num_elements == ghost.numel() and not is_contiguous and scratch.dim() == ghost.dim()
        return func(scratch if is_whole else scratch[:num_elements], *rest, **kwargs)

    return Draw(
        name=name,
        key=(func, ghost.dtype, is_contiguous, repr(rest), repr({k: v for k, v in kwargs.items() if k != "generator"})),
        num_elements=ghost.numel(),
        item_bytes=ghost.element_size(),
        generator=kwargs.get("generator") or torch.default_generator,
        run=run,
    )


def _random_shape(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], size_at: int) -> Tensor:
    """The result on meta. Asking the operator itself would load torch's Python decompositions: 0.5 s."""
    size = args[size_at] if size_at < len(args) else kwargs["size"]
    default = torch.int64 if func._schema.name.startswith("aten::randint") else torch.get_default_dtype()
    return torch.empty(size, dtype=kwargs.get("dtype") or default, device=META)


def _draw_factory(func: Any, size_at: int, shape: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Draw:
    def run(num_elements: int) -> object:
        if size_at < len(args):
            return func(*args[:size_at], [num_elements], *args[size_at + 1 :], **kwargs)
        return func(*args, **{**kwargs, "size": [num_elements]})

    rest = [each for index, each in enumerate(args) if index != size_at]
    return Draw(
        name=func._schema.name.removeprefix("aten::"),
        key=(func, shape.dtype, repr(rest)),
        num_elements=shape.numel(),
        item_bytes=shape.element_size(),
        generator=kwargs.get("generator") or torch.default_generator,
        run=run,
    )


def _without_drawing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In the first pass only shapes count: small draws come from a throwaway generator, large ones are left out."""
    if "generator" in kwargs:
        kwargs = {**kwargs, "generator": torch.Generator()}
    if func._schema.name.endswith("_") and isinstance(args[0], Tensor) and args[0].numel() > _SMALL_DRAW_ELEMENTS:
        return args[0]
    return func(*args, **kwargs)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that the operator writes into."""
    written: list[Tensor] = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tensors_in(args[index] if index < len(args) else kwargs.get(argument.name))
    return written


def _on_shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not all(is_ghost(each) for each in _written(func, args, kwargs)):
        raise unreadable(f"`{func._schema.name.removeprefix('aten::')}`")
    if func in _SCALINGS and is_ghost(args[0]) and args[0].is_floating_point() and isinstance(args[1], int | float):
        return shape_of(args[0])
    if kwargs.get("device") == CPU:
        kwargs = {**kwargs, "device": META}
    try:
        # Real operands first become ghosts; a boolean index must stay real, its count of elements is a shape.
        return func(*_ghostly(args), **_ghostly(kwargs))
    except RuntimeError as error:
        first = error
    for run in (_with_values, shapes_by_zeros):
        try:
            return run(func, args, kwargs)
        except RuntimeError:
            continue
    if not is_about_ghosts(first):
        raise first
    raise unreadable(f"`{func._schema.name.removeprefix('aten::')}`") from first


def _with_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As of a boolean index, whose count of elements is a shape."""
    return func(*args, **kwargs)


def _ghostly(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if is_ghost(value) else shape_of(value)
    if isinstance(value, list | tuple):
        return type(value)(_ghostly(each) for each in value)
    if isinstance(value, dict):
        return {key: _ghostly(each) for key, each in value.items()}
    return value


_tensor_class: Any = torch.Tensor  # its properties are annotated as their values
_ANSWERS: Final[dict[Any, object]] = {
    _tensor_class.device.__get__: CPU,
    _tensor_class.is_meta.__get__: False,
    _tensor_class.is_cpu.__get__: True,
}
_DATA_SETTER: Final = _tensor_class.data.__set__
_READERS: Final = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.item, torch.Tensor.data_ptr})


class Faces(TorchFunctionMode):
    """Answers for ghosts what the tensor they stand for would answer."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and is_ghost(args[0]):
            if func in _ANSWERS:
                return _ANSWERS[func]
            if func in _READERS:
                raise unreadable(f"`.{func.__name__}()`")
            if func == _DATA_SETTER:
                args = (args[0], _ghostly(args[1]))
        try:
            return func(*args, **kwargs)
        except PipesvcError:
            raise
        except (RuntimeError, TypeError) as error:
            if is_about_ghosts(error) and any(is_ghost(each) for each in tensors_in((args, kwargs))):
                raise unreadable(f"`{getattr(func, '__name__', str(func))}`") from error
            raise
