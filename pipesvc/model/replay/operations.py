"""What the functions of torch are to a replay: questions about a tensor, or operations on it.

A question (`x.shape`) must not be counted as an operation: user code asks it of a tensor here and of its stand-in
there, and the numbers of all later operations would part. Where a stand-in lives is asked often, to make a mask beside
it: the answer is the device of the stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.model.ghosts import META, shape_of, tensors_in
from pipesvc.model.modes import Faces, Operators

# (call of a unit, operation since that call, leaf of its result; -1 - i for argument i, written in place)
Key = tuple[int, int, int]

_tensor: Any = Tensor  # its properties are annotated as their values


def _getters(names: str) -> set[Any]:
    return {getattr(_tensor, name).__get__ for name in names.split() if hasattr(_tensor, name)}


def _functions(names: str) -> set[Any]:
    homes: tuple[Any, ...] = (_tensor, torch)
    return {getattr(home, name) for name in names.split() for home in homes if hasattr(home, name)}


_device_questions: Any = {
    _tensor.device.__get__: lambda device: device,
    _tensor.is_meta.__get__: lambda device: device.type == "meta",
    _tensor.is_cpu.__get__: lambda device: device.type == "cpu",
    _tensor.is_cuda.__get__: lambda device: device.type == "cuda",
    Tensor.get_device: lambda device: -1 if device.index is None else device.index,
}
DEVICE_QUESTIONS: Final[dict[Any, Any]] = _device_questions
GRADIENT_QUESTION: Final = _tensor.requires_grad.__get__
FORMAT: Final = _tensor.__format__
QUESTIONS: Final = frozenset(
    {
        *DEVICE_QUESTIONS,
        *_getters(
            "shape ndim dtype layout requires_grad grad_fn is_leaf is_sparse is_sparse_csr is_quantized is_mkldnn "
            "is_nested names itemsize nbytes name output_nr retains_grad _version _backward_hooks is_xpu is_mps is_xla"
        ),
        *_functions(
            "size dim numel nelement ndimension stride storage_offset is_contiguous element_size is_floating_point "
            "is_complex is_signed is_inference is_shared is_pinned is_same_size is_conj is_neg result_type can_cast "
            "retain_grad __len__ __repr__ __format__ __hash__ __dir__ is_tensor data_ptr untyped_storage"
        ),
    }
)

_MOVES: Final = frozenset({Tensor.cpu, Tensor.cuda})


def on_shapes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result on meta; arguments with values are looked at for their shapes only."""
    args, kwargs = _moved(func, args, kwargs)
    return args[0] if func in _MOVES else func(*shapes(args), **shapes(kwargs))


def on_shapes_with_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same, where the size of the result depends on values that are there: `h[mask]`, `h.view(count, -1)`.

    Also of an operation that torch does not know on meta. UnreadableError where values decide that are not there.
    """
    args, kwargs = _moved(func, args, kwargs)
    try:
        return func(*args, **kwargs)
    except (RuntimeError, TypeError):
        with Operators(does_draw=False, large_bytes=None), Faces():
            return func(*args, **kwargs)


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor on meta stays there, wherever user code moves it."""
    if func is Tensor.to:
        args = tuple(META if isinstance(each, str) else each for each in args)
    return args, {**kwargs, "device": META} if "device" in kwargs else kwargs


def shapes(value: Any) -> Any:
    """Arguments of an operation with every tensor on meta; one that is there already stays itself."""
    if isinstance(value, Tensor):
        return value if value.device == META else shape_of(value)
    if isinstance(value, torch.device):
        return META
    if type(value) in (list, tuple):
        return type(value)(shapes(each) for each in value)
    if type(value) is dict:
        return {key: shapes(each) for key, each in value.items()}
    return value


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """Each grows when its tensor is written in place."""
    return [_version(tensor) for tensor in tensors]


def _version(tensor: Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # a wrapper of vmap has none
        return -1


def bounds_of(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors in slices (`h[:, :length]`), whose values an index reads."""
    indices = [each for argument in args for each in (argument if isinstance(argument, tuple) else (argument,))]
    bounds = [bound for each in indices if isinstance(each, slice) for bound in (each.start, each.stop, each.step)]
    return [bound for bound in bounds if isinstance(bound, Tensor)]


def operands_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return list(tensors_in((args, kwargs)))
