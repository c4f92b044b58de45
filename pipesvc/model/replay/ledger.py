"""The book that a recording keeps: units reached, tensors made and used, and what must stay together.

Three kinds of tensor are told apart. What comes from a unit, a parameter or a floating-point input is *computed*: it
is on meta while recording, belongs to the position that made it, and crosses cuts. What comes from integer inputs and
constants alone is *plain*: it has values, and every stage that uses it makes it again, which costs less than sending
it and lets control flow depend on it. So of a plain tensor the book knows which inputs it is made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType

from torch import Tensor, nn

from pipesvc.core.flow import Flow, Joined, Value
from pipesvc.core.layer_info import LayerInfo
from pipesvc.model.ghosts import META, shape_of, user_line
from pipesvc.model.layer_infos import shared_parameter
from pipesvc.model.replay import frames, refusals
from pipesvc.model.replay.operations import Key, versions
from pipesvc.model.replay.state_sizes import StateSizes

_TRACE = "_pipesvc_trace"


@dataclass(kw_only=True, slots=True)
class _Trace:
    """What is known of one tensor."""

    key: Key | None = None  # of a computed one
    version: int = 0
    path: str = ""  # of a floating-point input
    sources: frozenset[str] = frozenset()  # of a plain one
    is_random: bool = False  # made from drawn numbers


@dataclass(kw_only=True, slots=True)
class _Made:
    producer: int
    tensor: Tensor
    users: set[int] = field(default_factory=set)


class Ledger:
    def __init__(self, model: nn.Module) -> None:
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        self._sizes = StateSizes(model)
        self._names = {id(tensor): name for name, tensor in [*parameters.items(), *buffers.items()]}
        self._held = parameters
        self._parameters: dict[str, set[int]] = {name: set() for name in parameters}
        self._buffers: dict[str, set[int]] = {name: set() for name in buffers}
        self._infos: list[LayerInfo] = []
        self.indices: dict[str, int] = {}
        self._made: dict[Key, _Made] = {}
        self._written_at: dict[int, int] = {}  # storage -> position of the last write
        self._input_users: dict[str, set[int]] = {}
        self._read_by_all: set[str] = set()
        self._changed: set[str] = set()  # parameters and buffers that forward writes
        self._joined: dict[tuple[int, int], Joined] = {}
        self._checkpoints: dict[int, tuple[FrameType, int]] = {}

    @property
    def position(self) -> int:
        return len(self._infos) - 1

    def reach(self, info: LayerInfo) -> None:
        self.indices[info.name] = len(self._infos)
        self._infos.append(info)

    def begin_input(self, path: str, leaf: Tensor) -> Tensor:
        """The tensor that forward gets for an input."""
        self._input_users[path] = set()
        if leaf.is_floating_point() or leaf.is_complex():
            tensor, trace = shape_of(leaf), _Trace(path=path)
        else:
            tensor, trace = leaf.detach().clone(), _Trace(sources=frozenset([path]))
        tensor.__dict__[_TRACE] = trace
        return tensor

    def is_computed(self, tensor: Tensor) -> bool:
        return tensor.device == META or isinstance(tensor, nn.Parameter) or id(tensor) in self._names

    def make(self, key: Key, tensor: Tensor) -> None:
        tensor.__dict__[_TRACE] = _Trace(key=key, version=versions([tensor])[0])
        self._made[key] = _Made(producer=self.position, tensor=tensor)

    def make_plain(self, tensors: Iterable[Tensor], sources: frozenset[str], *, is_random: bool) -> None:
        for tensor in tensors:
            tensor.__dict__[_TRACE] = _Trace(sources=sources, is_random=is_random)

    def is_random(self, tensors: Iterable[Tensor]) -> bool:
        return any(trace.is_random for each in tensors if (trace := _trace_of(each)) is not None)

    def sources(self, tensors: Iterable[Tensor]) -> frozenset[str]:
        traces = [trace for each in tensors if (trace := _trace_of(each)) is not None]
        return frozenset(path for trace in traces for path in trace.sources)

    def read_by_all(self, sources: frozenset[str]) -> None:
        """Control flow, or a size, depends on their values: no stage can go on without them."""
        self._read_by_all |= sources

    def use(self, tensor: Tensor) -> None:
        name = self._names.get(id(tensor))
        if name is not None:
            self.use_state(name)
            return
        trace = _trace_of(tensor)
        if trace is None:
            if tensor.device == META:
                raise refusals.kept_from_elsewhere(user_line())
            return
        for path in {*trace.sources, trace.path} - {""}:
            self._input_users[path].add(self.position)
        if trace.key is None:
            return
        made = self._made[trace.key]
        if self.position > made.producer:
            made.users.add(self.position)
        if versions([tensor])[0] != trace.version and self._written_at.get(_storage(tensor), -1) > made.producer:
            raise refusals.written_by_view(user_line())

    def use_state(self, name: str) -> None:
        table = self._parameters if name in self._parameters else self._buffers
        table[name].add(self.position)

    def names_in(self, unit: nn.Module) -> list[str]:
        """The parameters and buffers of a unit, by the names that the model has for them."""
        held: list[Tensor] = [*unit.parameters(), *unit.buffers()]
        return [self._names[id(each)] for each in held if id(each) in self._names]

    def change(self, state: Iterable[Tensor]) -> None:
        """What a unit wrote of its parameters and buffers."""
        self._changed.update(self._names[id(each)] for each in state if id(each) in self._names)

    def note_results(
        self, step: tuple[int, int], outputs: list[Tensor], operands: list[Tensor], old: list[int]
    ) -> None:
        """Gives keys to the results of a step, and to arguments that it wrote in place."""
        for leaf, tensor in enumerate(outputs):
            self.make((*step, leaf), tensor)
        given = {id(tensor) for tensor in outputs}
        for index, (tensor, before, after) in enumerate(zip(operands, old, versions(operands), strict=True)):
            if before == after:
                continue
            if id(tensor) in self._names:
                self._changed.add(self._names[id(tensor)])
                continue
            self._written_at[_storage(tensor)] = self.position
            if id(tensor) not in given:
                self.make((*step, -1 - index), tensor)

    def note_checkpoint(self) -> None:
        frame = frames.checkpoint_frame()
        if frame is None:
            return
        if frames.is_in_reentrant_checkpoint():
            raise refusals.reentrant_checkpoint(user_line())
        _, first = self._checkpoints.setdefault(id(frame), (frame, self.position))
        self.join(first, refusals.in_one_checkpoint(user_line(frame)))

    def join(self, first: int, reason: tuple[str, str]) -> None:
        """Units from `first` to this position; `reason` with its advice."""
        self._join(first, self.position, reason)

    def _join(self, first: int, last: int, reason: tuple[str, str]) -> None:
        if last > first:
            sentence, advice = reason
            self._joined.setdefault((first, last), Joined(first=first, last=last, reason=sentence, advice=advice))

    def maker_of(self, operands: Iterable[Tensor]) -> str:
        for tensor in operands:
            trace = _trace_of(tensor)
            if trace is not None and trace.key is not None and self._made[trace.key].producer >= 0:
                return f"unit {self._infos[self._made[trace.key].producer].name!r}, or code after it,"
        return "the first stage"

    def flow(self, random_modules: Iterable[str], random_operations: Iterable[str]) -> Flow:
        for name in self._changed:
            users = self._parameters.get(name) or self._buffers[name]
            self._join(min(users), max(users), refusals.changed_in_several(name))
        everywhere = set(range(-1, len(self._infos)))
        input_users = {
            path: everywhere if path in self._read_by_all else users for path, users in self._input_users.items()
        }
        parameters, buffers = _frozen(self._parameters), _frozen(self._buffers)
        return Flow(
            units=self._sizes.with_sizes(self._infos, parameters, buffers),
            values=tuple(_value(key, made) for key, made in self._made.items() if made.users),
            input_users=_frozen(input_users),
            parameters=parameters,
            buffers=buffers,
            shared=tuple(
                shared_parameter(name, self._held[name]) for name, users in parameters.items() if len(users) > 1
            ),
            joined=tuple(self._joined.values()),
            random_modules=tuple(random_modules),
            random_operations=tuple(random_operations),
        )


def _value(key: Key, made: _Made) -> Value:
    return Value(
        key=".".join(map(str, key)),
        producer=made.producer,
        users=tuple(sorted(made.users)),
        shape=tuple(made.tensor.shape),
        dtype=str(made.tensor.dtype).removeprefix("torch."),
        num_bytes=made.tensor.numel() * made.tensor.element_size(),
        is_differentiable=made.tensor.requires_grad,
    )


def _frozen(table: dict[str, set[int]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(sorted(users)) for name, users in table.items()}


def _trace_of(tensor: Tensor) -> _Trace | None:
    trace: _Trace | None = tensor.__dict__.get(_TRACE)
    return trace


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
