"""The life of a profiler: its worker's devices one after the other, then the links as the coordinator asks.

One process for all devices of a worker, as an executor is one. Layers are built exactly as a run builds them, in
groups that a small host can hold: building draws the whole model's numbers each time, so layer by layer it would take
hours for a large model, and all at once it would need the memory of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from pipesvc.core.flow import Flow
from pipesvc.core.plan import LayerInfo
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model import malloc, sequence, skeleton
from pipesvc.rpc.v1 import job_pb2, local_pb2
from pipesvc.worker import calls
from pipesvc.worker.data_trial import first_batch, parcel_of
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.main import device_of
from pipesvc.worker.executor.optimizing import make_updates
from pipesvc.worker.executor.parameter_groups import allot
from pipesvc.worker.executor.precision import autocast_dtype
from pipesvc.worker.executor.sequence_program import TiedLayers
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.feeder.batches import CutStep
from pipesvc.worker.forward_inspection import followed, skeleton_of
from pipesvc.worker.inspector import is_one_stage, layer_message
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.profiler import kept_bytes
from pipesvc.worker.profiler.groups import Group, groups
from pipesvc.worker.profiler.layer_trial import LayerTrial, copies_at, try_layer
from pipesvc.worker.profiler.link_trial import LinkTrials
from pipesvc.worker.profiler.module_trial import PieceTrial, PieceTrials, info_of, pieces_of
from pipesvc.worker.profiler.unit_profiles import add_units
from pipesvc.worker.progress import ProgressReporter
from pipesvc.worker.user_errors import user_error

# Timed repeats of one layer, and of all layers together; the last allows each layer one repeat at least.
LAYER_BUDGET_S: Final = 0.5
DEVICE_BUDGET_S: Final = 30.0


def run(port: PortLike, assignment: local_pb2.Assignment) -> None:
    """Until the agent ends it. Errors carry their place and are reported by `pipesvc.worker.child`."""
    where = calls.place_of(assignment)
    progress = ProgressReporter(port)
    torch.set_num_threads(max(1, assignment.num_threads))
    try:
        if assignment.devices:
            measuring = _Measuring(assignment.job, where, progress)
            for name in assignment.devices:
                port.report(local_pb2.FromChild(device_profile=measuring.device(name)))
        port.report(local_pb2.FromChild(ready=local_pb2.Ready()))
        progress.waiting("its turn to measure links")
        LinkTrials(port, assignment.endpoint).serve()
    except PipesvcError as error:
        raise error.at(where) from error.__cause__


class _Measuring:
    """The job's functions, its layers without values, and its first batch, for every device of this worker."""

    def __init__(self, job: job_pb2.JobSpec, where: Where, progress: ProgressReporter) -> None:
        self._job, self._where, self._progress = job, where, progress
        progress.busy("inspecting the model")
        self._build = calls.bind_model(job, where)
        self._loss = calls.bind_loss(job, where)
        optimizers = calls.bind_optimizers(job, where)
        parts = self._told(lambda: skeleton.inspect_parts(self._build, is_whole=is_one_stage(job)))
        self._layers = skeleton.layer_infos(parts)
        self._allotments = allot(optimizers, sequence.named_parameters(parts), where)
        progress.busy("reading the first batch")
        self._batch = _batch(job, where)
        self._flow = None if self._layers[0].name else self._followed()

    def device(self, name: str) -> local_pb2.DeviceProfile:
        """Every layer on this device, each given what the one before gave."""
        device = device_of(name, self._where)
        memory_bytes = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        found = local_pb2.DeviceProfile(device=name, memory_bytes=memory_bytes, micro_batch_rows=self._batch.rows[0])
        value = _moved(parcel_of(self._batch.inputs[0]), device)
        labels = None if self._batch.labels is None else _moved(parcel_of(self._batch.labels[0]), device)
        if self._flow is not None:
            self._measure_units(found, self._flow, value, labels, device)
            return found
        carried: frozenset[int] = frozenset()
        for index, (layer_name, layer), copies in self._built():
            self._progress.busy(f"measuring layer {index + 1} of {len(self._layers)} on {name}")
            is_last = index + 1 == len(self._layers)
            trial = self._try(
                index, (layer_name, layer.to(device)), copies, value, labels if is_last else None, carried, device
            )
            if found.layers:
                found.layers[-1].output_gradient_bytes = sum(trial.input_gradients.values())
                found.layers[-1].output_gradients.extend(_typed(trial.input_gradients))
            found.layers.append(_message(self._layers[index], trial))
            value, carried = trial.output, trial.carried
            del layer
        return found

    def _try(
        self,
        index: int,
        layer: tuple[str, nn.Module],
        copies: TiedLayers,
        value: Parcel,
        labels: Parcel | None,
        carried: frozenset[int],
        device: torch.device,
    ) -> LayerTrial:
        try:
            return try_layer(
                self._spec(index, len(self._layers), device),
                layer,
                copies,
                partial(make_updates, self._allotments, None, where=self._where),
                value,
                labels,
                carried=carried,
                num_micro_batches=self._job.strategy.micro_batches * max(1, self._job.accumulate),
                budget_s=min(LAYER_BUDGET_S, DEVICE_BUDGET_S / len(self._layers)),
            )
        except PipesvcError as error:
            raise self._failed(error, f"layer {layer[0]!r} ({type(layer[1]).__name__})", device) from error.__cause__

    def _spec(self, index: int, num_stages: int, device: torch.device) -> StageSpec:
        return StageSpec(
            index=index,
            num_stages=num_stages,
            first_layer=index,
            device=device,
            seed=self._job.seed,
            loss=self._loss,
            check_finite=False,
            autocast=autocast_dtype(self._job.autocast),
        )

    def _failed(self, error: PipesvcError, what: str, device: torch.device) -> PipesvcError:
        """What a stage is to a run is a layer here, and there are no steps."""
        details = error.at(self._where).details
        place = replace(details.where, step=None, stage=None, micro_batch=None)
        message = f"measuring {what} on {device}: {details.message}"
        return PipesvcError.of(replace(details, message=message, where=place))

    def _followed(self) -> Flow:
        """The units of a module, and what crosses each cut."""
        self._progress.busy("following the forward of the model")
        shapes = skeleton_of(self._build, self._job.seed, self._where)
        return followed(shapes, self._batch.inputs[0], (), self._where)

    def _measure_units(
        self, found: local_pb2.DeviceProfile, flow: Flow, inputs: Parcel, labels: Parcel | None, device: torch.device
    ) -> None:
        pieces = pieces_of(flow)
        trials = PieceTrials(
            flow,
            inputs,
            labels,
            partial(make_updates, self._allotments, None, where=self._where),
            spec=self._spec(0, len(pieces), device),
            num_micro_batches=self._job.strategy.micro_batches * max(1, self._job.accumulate),
            budget_s=min(LAYER_BUDGET_S, DEVICE_BUDGET_S / len(pieces)),
        )
        measured: list[PieceTrial] = []
        for group in groups([info_of(flow, piece) for piece in pieces], whole=False):
            held = pieces[group.first : group.end]
            self._progress.busy(f"building units {held[0].first + 1} to {held[-1].end} of {len(flow.units)}")
            names = trials.names_in(held)
            with malloc.while_building():
                model = self._told(partial(skeleton.build_module, self._build, self._job.seed, names))
            for piece in held:
                self._progress.busy(f"measuring unit {piece.first + 1} of {len(flow.units)} on {device}")
                try:
                    measured.append(trials.measure(piece, model))
                except PipesvcError as error:
                    unit = flow.units[piece.first]
                    raise self._failed(error, f"unit {unit.name!r} ({unit.type})", device) from error.__cause__
            del model
        add_units(found, flow, pieces, measured)

    def _built(self) -> Iterator[tuple[int, tuple[str, nn.Module], TiedLayers]]:
        """Each layer with its index, as a run builds it, and what it holds of earlier layers' parameters; the generator
        holds no layer that it has given."""
        for group in groups(self._layers, whole=is_one_stage(self._job)):
            self._progress.busy(f"building layers {group.first + 1} to {group.end} of {len(self._layers)}")
            with malloc.while_building():
                built = self._told(partial(self._group, group))
            for index in range(group.first, group.end):
                yield index, *built.pop(0)

    def _group(self, group: Group) -> list[tuple[sequence.NamedLayer, TiedLayers]]:
        if is_one_stage(self._job):
            layers = skeleton.whole(self._build, self._job.seed)
        else:
            layers = skeleton.build_layers(self._build, self._job.seed, range(group.first, group.end))
        shared = sequence.shared_parameters(layers)
        return [(layers[index], copies_at(index, shared)) for index in range(group.first, group.end)]

    def _told(self, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except PipesvcError:
            raise
        except Exception as cause:
            raise user_error(ErrorCode.BUILD_FAILED, "building the model", cause, where=self._where) from cause


def _batch(job: job_pb2.JobSpec, where: Where) -> CutStep:
    try:
        return first_batch(job, where)
    except PipesvcError as error:
        details = error.at(where).details
        raise PipesvcError.of(
            replace(
                details,
                message=f"a profile reads a first batch on every worker, and {where.worker} cannot: {details.message}",
                advice=details.advice or "Put the data where this worker finds it too, or stop the worker meanwhile",
            )
        ) from error.__cause__


def _moved(parcel: Parcel, device: torch.device) -> Parcel:
    """A copy, without the rest of the mini-batch of which a micro-batch is a view."""
    return replace(parcel, leaves=tuple(None if each is None else each.clone().to(device) for each in parcel.leaves))


def _typed(found: Mapping[str, int]) -> list[local_pb2.TypedBytes]:
    return [local_pb2.TypedBytes(dtype=dtype, num_bytes=num_bytes) for dtype, num_bytes in found.items()]


def _message(layer: LayerInfo, trial: LayerTrial) -> local_pb2.LayerProfile:
    return local_pb2.LayerProfile(
        layer=layer_message(layer),
        gradient_bytes=trial.gradient_bytes,
        optimizer_bytes=trial.optimizer_bytes,
        activation_bytes=trial.activation_bytes,
        output_bytes=kept_bytes.num_bytes(trial.output.leaves),
        outputs=_typed(kept_bytes.by_type(trial.output.leaves)),
        forward_s=trial.forward_s,
        backward_s=trial.backward_s,
        input_backward_s=trial.input_backward_s,
        weight_backward_s=trial.weight_backward_s,
        update_s=trial.update_s,
    )
