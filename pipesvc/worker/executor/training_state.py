"""What a stage needs besides its weights to go on: its optimizers and schedulers, and the scale of the loss.

Everything is by the names of parameters and by the places of optimizers and groups in the job, which are the same on
every stage; so a stage of another cut finds its part in what several stages have written. Random numbers need no state:
they are keyed by step. Options of groups, rates among them, are those of the file, as `Optimizer.load_state_dict` has
it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire import safetensors_stream, tensors, training_file
from pipesvc.wire.safetensors_stream import Entry, Layout
from pipesvc.worker.executor import plain_values
from pipesvc.worker.executor.scaling import LossScale
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.user_errors import user_error
from pipesvc.worker.weights_reader import WeightsReader

_log = logging.getLogger("pipesvc.executor")
_ADVICE: Final = "To go on with the weights alone, write init= instead of resume="


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A file as it will be written."""

    layout: Layout
    tensors: Mapping[str, Tensor]


def saved(stage: Stage, position: types_pb2.Position, scale: LossScale | None) -> Saved:
    """Of this stage after `position`. State of a kind that cannot be saved leaves a file that says so: an end without
    weights would be worse."""
    texts = {training_file.POSITION: training_file.position_text(position)}
    try:
        collected = _Collected(stage=stage.spec.index)
        text = json.dumps(
            {
                "scale": None if scale is None else asdict(scale),
                "optimizers": {str(at): _optimizer(stage, at, collected) for at in stage.updates.optimizers},
            }
        )
        described = {name: (tensors.element_type_of(each), tuple(each.shape)) for name, each in collected.found.items()}
        metadata = texts | {f"{training_file.STAGE}{stage.spec.index}": text}
        return Saved(layout=safetensors_stream.make_layout(described, metadata), tensors=collected.found)
    except Exception as error:  # also of a scheduler's own state_dict()
        reason = error.details.message if isinstance(error, PipesvcError) else f"{type(error).__name__}: {error}"
        reason = f"on stage {stage.spec.index}, {reason}"
        _log.warning("nothing can go on from this checkpoint but with its weights alone: %s", reason)
        metadata = texts | {f"{training_file.UNSAVABLE}{stage.spec.index}": reason}
        return Saved(layout=safetensors_stream.make_layout({}, metadata), tensors={})


@dataclass(kw_only=True, slots=True)
class _Collected:
    """Tensors for the file, by their names in it."""

    stage: int
    found: dict[str, Tensor] = field(default_factory=dict)
    _num_loose: int = 0

    def keep(self, tensor: Tensor) -> int:
        """One that belongs to no parameter."""
        number, self._num_loose = self._num_loose, self._num_loose + 1
        self.add(_loose(self.stage, number), tensor)
        return number

    def add(self, name: str, tensor: Tensor) -> None:
        if name in self.found:
            raise PipesvcError(ErrorCode.INVALID_JOB, f"two tensors of the optimizer would be saved as {name!r}")
        self.found[name] = tensor.detach()


def _optimizer(stage: Stage, at: int, collected: _Collected) -> dict[str, Any]:
    optimizer, scheduler = stage.updates.optimizers[at], stage.updates.schedulers.get(at)
    kind = type(optimizer).__name__
    groups = [{key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups]
    own = _own(stage, optimizer)
    if len(optimizer.state.keys() - own.values()):
        raise PipesvcError(ErrorCode.INVALID_JOB, f"{kind} keeps state that belongs to no parameter of its own")
    values: dict[str, dict[str, Any]] = {}
    for name, parameter in own.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(key, str) or "/" in key:
                raise PipesvcError(ErrorCode.INVALID_JOB, f"{kind} keeps {key!r} of {name}, which cannot be saved")
            if isinstance(value, Tensor):
                collected.add(f"{name}/{key}", value)
            else:
                values.setdefault(name, {})[key] = value
    schedule = None
    if scheduler is not None:
        if not callable(getattr(scheduler, "state_dict", None)):
            message = f"the scheduler {type(scheduler).__name__} has no state_dict()"
            raise PipesvcError(ErrorCode.INVALID_JOB, message)
        schedule = scheduler.state_dict()
    return {
        "kind": kind,
        "scheduler_kind": "" if scheduler is None else type(scheduler).__name__,
        "names": {name: _tensor_keys(optimizer, parameter) for name, parameter in own.items()},
        "groups": plain_values.to_text(groups, f"the groups of {kind}", collected.keep),
        "values": plain_values.to_text(values, f"the state of {kind}", collected.keep),
        "scheduler": plain_values.to_text(schedule, "the state of the scheduler", collected.keep),
    }


def _tensor_keys(optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> list[str]:
    return [key for key, value in optimizer.state.get(parameter, {}).items() if isinstance(value, Tensor)]


def _own(stage: Stage, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
    """What this stage updates with it, in the order of the optimizer."""
    names = {id(each): name for name, each in stage.named_parameters().items()}
    return {names[id(each)]: each for group in optimizer.param_groups for each in group["params"]}


def _loose(stage: int, number: int) -> str:
    return f":{stage}:{number}"


class Checkpoint:
    """The training state in a file that stages of any cut have written."""

    def __init__(self, reader: WeightsReader) -> None:
        self._reader = reader
        self._layout = reader.layout()
        self._entries = {entry.name: entry for entry in self._layout.entries}
        self._of_parameter: dict[str, dict[str, Entry]] = {}
        for name, entry in self._entries.items():
            parameter, _, key = name.rpartition("/")
            self._of_parameter.setdefault(parameter, {})[key] = entry
        self._position = training_file.position_of(self._layout)
        self._values: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, str] = {}
        self._keys: dict[str, list[str]] = {}
        try:
            self._stages = [json.loads(text) for text in training_file.stage_texts(self._layout)]
            for index, document in enumerate(self._stages):
                for at, said in document["optimizers"].items():
                    self._values |= plain_values.from_text(said["values"], self._finder(index))
                    self._owners |= dict.fromkeys(said["names"], at)
                    self._keys |= said["names"]
            found = next((each["scale"] for each in self._stages if each["scale"] is not None), None)
            self.scale: Final = None if found is None else LossScale(**found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"the training state is not as it was written: {type(error).__name__}: {error}"
            raise _refused(message, Where()) from error

    def restore(self, stage: Stage, where: Where) -> None:
        """Into the optimizers and schedulers of a stage that has taken no step."""
        stage.updates.go_on_in(self._position.epoch)
        for at, optimizer in stage.updates.optimizers.items():
            own = list(_own(stage, optimizer))
            if moved := [name for name in own if self._owners.get(name) != str(at)]:
                then = f"with optimizer {self._owners[moved[0]]}" if moved[0] in self._owners else "not trained"
                raise _refused(f"{moved[0]} was {then} in the checkpoint and is with {at} now", where)
            scheduler = stage.updates.schedulers.get(at)
            groups, schedule = self._agreed(at, optimizer, type(scheduler).__name__ if scheduler else "", where)
            state = {number: found for number, name in enumerate(own) if (found := self._state_of(name))}
            numbers = iter(range(len(own)))
            for group, held in zip(groups, optimizer.param_groups, strict=True):
                group["params"] = [next(numbers) for _ in held["params"]]
            doing = f"loading the state of {type(optimizer).__name__}"
            try:
                optimizer.load_state_dict({"state": state, "param_groups": groups})
                _restore_types(optimizer, state)
                if scheduler is not None:
                    doing = f"loading the state of the scheduler {type(scheduler).__name__}"
                    scheduler.load_state_dict(schedule)
            except Exception as cause:
                raise user_error(ErrorCode.BUILD_FAILED, doing, cause, where=where) from cause

    def _agreed(
        self, at: int, optimizer: torch.optim.Optimizer, scheduler: str, where: Where
    ) -> tuple[list[dict[str, Any]], Any]:
        """Groups and scheduler of one optimizer, which are the same on all stages; refused where it is another one."""
        kind, number = type(optimizer).__name__, len(optimizer.param_groups)
        found: tuple[list[dict[str, Any]], Any] | None = None
        first = ""
        for index, document in enumerate(self._stages):
            said = document["optimizers"].get(str(at))
            if said is None:
                continue
            if said["kind"] != kind:
                raise _refused(f"the checkpoint is of {said['kind']}, and the job has {kind}", where)
            if said["scheduler_kind"] != scheduler:
                then, now = (each or "no scheduler" for each in (said["scheduler_kind"], scheduler))
                raise _refused(f"the checkpoint has {then}, and the job has {now}", where)
            if found is None:
                find = self._finder(index)
                found = plain_values.from_text(said["groups"], find), plain_values.from_text(said["scheduler"], find)
                first = said["groups"] + said["scheduler"]
            elif said["groups"] + said["scheduler"] != first:
                message = f"the options of {kind} differ between the stages of the checkpoint: it changes them itself"
                raise _refused(message, where)
        if found is None:  # of parameters that were frozen then
            raise _refused(f"the checkpoint has nothing of optimizer {at} ({kind})", where)
        if len(found[0]) != number:
            raise _refused(f"{kind} has {len(found[0])} groups in the checkpoint and {number} in the job", where)
        return found

    def _state_of(self, name: str) -> dict[str, Any]:
        """What its optimizer keeps of one parameter."""
        entries = self._of_parameter.get(name, {})
        if entries.keys() != set(self._keys[name]):
            raise _refused(f"the checkpoint has lost what the optimizer kept of {name}", Where())
        found: dict[str, Any] = {key: self._read(entry) for key, entry in entries.items()}
        return found | self._values.get(name, {})

    def _finder(self, stage: int) -> plain_values.Find:
        return lambda number: self._read(self._entries[_loose(stage, number)])

    def _read(self, entry: Entry) -> Tensor:
        made = torch.empty(entry.shape, dtype=tensors.torch_dtype(entry.element_type))
        view = tensors.writable_bytes(made)
        self._reader.read_into(len(self._layout.header) + entry.begin, view[: entry.end - entry.begin])
        return made


def _restore_types(optimizer: torch.optim.Optimizer, state: Mapping[int, Mapping[str, Any]]) -> None:
    """`load_state_dict` makes all state as its parameter is, which rounds what is kept in another type on purpose."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, kept in state.items():
        held = optimizer.state[parameters[number]]
        for key, value in kept.items():
            if not isinstance(value, Tensor):
                held[key] = value
            elif held[key].dtype != value.dtype:
                held[key] = value.to(held[key].device)


def _refused(message: str, where: Where) -> PipesvcError:
    return PipesvcError(ErrorCode.INVALID_JOB, message, advice=_ADVICE, where=where)
