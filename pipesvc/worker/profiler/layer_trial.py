"""One layer, run as a stage of its own: how long it computes, and what it keeps.

The layer goes through the very `Stage` that a run uses, so that seeding, boundaries and errors are those of a run.
Nothing that is measured may depend on what the measuring does to the numbers: the optimizer's learning rate is 0, so
that weights stay as they were built over hundreds of updates, and each forward gets a copy of its input, so that a
layer that works in place finds what it found before. A layer's own output serves as the gradient that comes back.

Seconds are medians over repeats after one rehearsal, on the device's own clock edge (a GPU is waited for).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from pipesvc.core.ties import Tie
from pipesvc.model.deferral import Deferral
from pipesvc.model.sequence import SharedBy
from pipesvc.worker.data_trial import parcel_of
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.optimizing import MakeUpdates, Updates
from pipesvc.worker.executor.parameter_groups import Named
from pipesvc.worker.executor.program import Parcels
from pipesvc.worker.executor.sequence_program import SequenceProgram, TiedLayers
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.profiler import kept_bytes

# Repeats go on for so long: a pause of the host, of some milliseconds, is then no median.
PASSES_WINDOW_S: Final = 0.1
UPDATES_WINDOW_S: Final = 0.02
NUM_REPEATS: Final = 5
STEP: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTrial:
    """What was found. `carried` are the output's storages that a layer before or this one has counted as kept."""

    forward_s: float
    backward_s: float
    input_backward_s: float
    weight_backward_s: float
    update_s: float
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    input_gradients: Mapping[str, int]  # bytes by type
    output: Parcel
    carried: frozenset[int]


class Stopwatch:
    """Of a forward: when what is timed of it has begun, which may be later than its start."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._skips_s: list[float] = []
        self.began_s = 0.0

    @property
    def skip_s(self) -> float:
        """The median of what came before."""
        return statistics.median(self._skips_s) if self._skips_s else 0.0

    def start(self) -> None:
        self.began_s = _now_s(self._device)

    def begin(self) -> None:
        started_s, self.began_s = self.began_s, _now_s(self._device)
        self._skips_s.append(self.began_s - started_s)


def copies_at(index: int, shared: Mapping[str, SharedBy]) -> TiedLayers:
    """What this layer holds that an earlier one owns. Nothing is sent while it is measured, as of a frozen one."""
    held = {name: each for name, each in shared.items() if index in each.layers[1:]}
    ties = [
        Tie(name=name, stages=(each.layers[0], index), num_bytes=0, is_trained=False) for name, each in held.items()
    ]
    return TiedLayers(ties=ties, shared=held)


def try_layer(
    spec: StageSpec,
    layer: tuple[str, nn.Module],
    copies: TiedLayers,
    make_updates: MakeUpdates,
    inputs: Parcel,
    labels: Parcel | None,
    *,
    carried: frozenset[int],
    num_micro_batches: int,
    budget_s: float,
) -> LayerTrial:
    """Measure within about `budget_s`, or with one repeat where that takes longer.

    `carried` is that of the layer before: a tensor between two layers that both keep it counts for the first one. What
    a stage receives from another host, and its output, are held too; their bytes are known and not counted here. Nor
    are gradient and state of what an earlier layer owns (`copies`).
    """

    def make(own: Named) -> Updates:
        return at_rest(make_updates(own))

    stage = Stage(spec, SequenceProgram(spec, (layer,), copies), make)
    before, after = spec.index - 1, spec.index + 1
    fresh = {before: copied(inputs)}
    with kept_bytes.watching_saves(layer[1]) as saved:
        output = _detached(stage.forward(STEP, 0, {before: inputs}, labels).get(after))
    gradients = {} if spec.is_last else {after: _as_gradients(output)}
    received = stage.backward(STEP, 0, gradients, 1.0).get(before, [])
    gradient_bytes = kept_bytes.gradient_bytes(stage.trainable, num_micro_batches)
    update_s = time_updates(stage, budget_s / 5)
    given = fresh, labels, gradients, num_micro_batches
    forward_s, backward_s, _ = time_passes(stage, *given, budget_s / 2)
    split = replace(spec, splits_backward=True)
    program = SequenceProgram(split, (layer,), copies)
    halves_s = time_halves(Stage(split, program, make), program.deferral, *given, budget_s / 2) or (backward_s, 0.0)
    kept = saved.keys() | carried
    return LayerTrial(
        forward_s=forward_s,
        backward_s=backward_s,
        input_backward_s=halves_s[0],
        weight_backward_s=halves_s[1],
        update_s=update_s,
        gradient_bytes=gradient_bytes,
        optimizer_bytes=kept_bytes.optimizer_bytes(stage.updates.optimizers.values()),
        activation_bytes=sum(size for storage, size in saved.items() if storage not in carried),
        input_gradients=kept_bytes.by_type(received),
        output=output,
        carried=frozenset(kept & {kept_bytes.storage_of(leaf) for leaf in output.leaves if leaf is not None}),
    )


def at_rest(updates: Updates) -> Updates:
    """The same, which now leave weights as they are."""
    for group in (group for optimizer in updates.optimizers.values() for group in optimizer.param_groups):
        if isinstance(group.get("lr"), float | int | Tensor):
            group["lr"] = group["lr"] * 0.0
    return updates


def time_updates(stage: Stage, budget_s: float) -> float:
    """With the gradients that are there, which are gone afterwards."""
    gradients = [each.grad for each in stage.trainable]

    def update() -> tuple[float]:
        for parameter, gradient in zip(stage.trainable, gradients, strict=True):
            parameter.grad = gradient
        begin_s = _now_s(stage.spec.device)
        stage.update(STEP, None)
        return (_now_s(stage.spec.device) - begin_s,)

    update()  # makes the optimizer's state
    return _medians(update, UPDATES_WINDOW_S, budget_s)[0]


def time_passes(
    stage: Stage,
    inputs: Parcels,
    labels: Parcel | None,
    gradients: Parcels,
    num_micro_batches: int,
    budget_s: float,
    watch: Stopwatch | None = None,
) -> list[float]:
    """Forward, backward (or I) and W; gradients add up over the micro-batches of a step, as they will.

    Forward is what comes after `watch` has begun: a program may do something before that does not count.
    """
    device, num_passes = stage.spec.device, 0
    watch = watch or Stopwatch(device)
    backward = stage.input_backward if stage.spec.splits_backward else stage.backward

    def all_passes() -> tuple[float, float, float]:
        nonlocal num_passes
        if num_passes % num_micro_batches == 0:
            for each in stage.trainable:
                each.grad = None
        num_passes += 1
        given = {sender: copied(parcel) for sender, parcel in inputs.items()}
        watch.start()
        stage.forward(STEP, 0, given, labels)
        middle_s = _now_s(device)
        backward(STEP, 0, gradients, 1.0)
        end_s = _now_s(device)
        if stage.spec.splits_backward:
            stage.weight_backward(0)
        return middle_s - watch.began_s, end_s - middle_s, _now_s(device) - end_s

    return _medians(all_passes, PASSES_WINDOW_S, budget_s)


def time_halves(
    stage: Stage,
    deferral: Deferral,
    inputs: Parcels,
    labels: Parcel | None,
    gradients: Parcels,
    num_micro_batches: int,
    budget_s: float,
    watch: Stopwatch | None = None,
) -> tuple[float, float] | None:
    """I and W of a stage that splits; None where nothing of it can wait for W. Its modules are changed for good."""
    given = inputs, labels, gradients, num_micro_batches
    time_passes(stage, *given, 0.0, watch)  # finds out what can
    deferral.settle()
    if not deferral.num_split:
        return None
    _, input_s, weight_s = time_passes(stage, *given, budget_s, watch)
    return input_s, weight_s


def _medians(measure: Callable[[], Sequence[float]], window_s: float, budget_s: float) -> list[float]:
    """Of each of the numbers that `measure` gives, over repeats for the window, or until the budget is spent."""
    begin_s, found = time.perf_counter(), []
    while True:
        found.append(measure())
        spent_s = time.perf_counter() - begin_s
        if spent_s >= budget_s or (spent_s >= window_s and len(found) >= NUM_REPEATS):
            return [statistics.median(column) for column in zip(*found, strict=True)]


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def copied(parcel: Parcel) -> Parcel:
    return replace(parcel, leaves=tuple(None if each is None else each.clone() for each in parcel.leaves))


def _detached(value: Any) -> Parcel:
    """What the next layer gets; the last one's value is None, a tree without tensors."""
    parcel = parcel_of(value)
    return replace(parcel, leaves=tuple(None if each is None else each.detach() for each in parcel.leaves))


def _as_gradients(output: Parcel) -> Parcel:
    pairs = zip(output.leaves, output.requires_grad, strict=True)
    return replace(output, leaves=tuple(leaf.clone() if leaf is not None and wants else None for leaf, wants in pairs))
