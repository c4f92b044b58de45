"""From a model, a strategy and the registered workers to a plan, or to the workers that must come first.

A pure function of what is known now: the coordinator asks again whenever a worker comes or goes. Anything that no
further worker can cure is refused, with the valid names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipesvc.core.checker import check
from pipesvc.core.flow import check_ends
from pipesvc.core.flow_json import from_json as flow_of
from pipesvc.core.memory import check_memory, device_memory
from pipesvc.core.placement import MissingWorkers, place
from pipesvc.core.plan import LayerInfo, Plan, StagePlan, StrategySettings, WorkerInfo
from pipesvc.core.schedules import (
    check_counts,
    check_placement,
    homes,
    num_stages_by_default,
    schedule_name,
    worker_actions,
)
from pipesvc.core.stage_costs import StageCost
from pipesvc.core.stages import StageCut, cut
from pipesvc.core.ties import Tie, copy_bytes, copy_gradient_bytes, ties_of_flow, ties_of_layers

__all__ = ["MissingWorkers", "dry_run", "make_plan"]


def make_plan(
    settings: StrategySettings, layers: Sequence[LayerInfo], workers: Sequence[WorkerInfo], flow_json: str = ""
) -> Plan | MissingWorkers:
    """The plan of a run on these workers, given in the order of their registration.

    Of memory it knows weights, gradients, optimizer state and buffers alone: a plan for which even those are too large
    is refused.
    With the flow of a module, whose units are the layers, a cut that it does not allow is refused.
    """
    check_counts(
        settings.schedule,
        num_micro_batches=settings.micro_batches,
        in_flight=settings.in_flight,
        text=settings.schedule_text,
    )
    if not settings.is_pipelined:
        # The switch must not need a second edit, also where the schedule is for several stages.
        settings = replace(settings, schedule="1F1B", in_flight=0, schedule_text="")
    schedule, text = settings.schedule, settings.schedule_text
    cuts = cut(settings, layers, num_stages_by_default(schedule, len(workers), text, num_layers=len(layers)))
    labels = [stage.label for stage in cuts]
    # Nor may a placement: for the stages that are gone it is left aside.
    placement = {label: wish for label, wish in settings.placement.items() if settings.is_pipelined or label in labels}
    is_marked = any(layer.mark for layer in layers) and settings.is_pipelined
    known = {worker.name for worker in workers} | {wish.partition("/")[0] for wish in placement.values()}
    shared = () if is_marked else homes(schedule, num_stages=len(cuts), num_workers=len(known), text=text)
    places = place(labels, placement, workers, allows_cpu_for_gpu=settings.allow_cpu_for_gpu, homes=shared)
    if isinstance(places, MissingWorkers):
        return places
    ties = _ties(layers, flow_json, [stage.end_layer for stage in cuts])
    stages = tuple(
        _stage_plan(index, stage, layers, places[stage.label].worker, places[stage.label].device, ties)
        for index, stage in enumerate(cuts)
    )
    plan = Plan(
        stages=stages,
        schedule=schedule_name(schedule),
        schedule_text=text,
        flow_json=flow_json,
        ties=ties,
        micro_batches=settings.micro_batches,
        in_flight=settings.in_flight,
        feeder_worker=stages[0].worker,
        threads=shared_threads([worker for worker in workers if any(stage.worker == worker.name for stage in stages)]),
        warnings=_warnings(settings, len(stages)),
    )
    dry_run(plan)
    _check_memory(plan, layers, workers)
    return plan


def dry_run(plan: Plan) -> dict[int, int]:
    """Refuses a plan whose lists would get stuck; gives the most micro-batches alive at once on each stage.

    With the gradient norms, which are the most that any step contains; a step without them has less to wait for.
    """
    held = {worker: [stage.index for stage in plan.stages_of(worker)] for worker in plan.workers}
    check_placement(plan.schedule, list(held.values()), text=plan.schedule_text)
    lists = {
        worker: worker_actions(
            plan.schedule,
            stages=stages,
            num_stages=plan.num_stages,
            num_micro_batches=plan.micro_batches,
            in_flight=plan.in_flight,
            decides=True,
            text=plan.schedule_text,
        )
        for worker, stages in held.items()
    }
    return check(lists, num_stages=plan.num_stages, num_micro_batches=plan.micro_batches, bounds={}, decides=True)


def _check_memory(plan: Plan, layers: Sequence[LayerInfo], workers: Sequence[WorkerInfo]) -> None:
    """By the one rule of memory, with what is known of layers that nobody has measured."""
    known = {worker.name: worker for worker in workers}
    costs = []
    for stage in plan.stages:
        held = layers[stage.first_layer : stage.end_layer]
        costs.append(
            StageCost(
                worker=stage.worker,
                device=stage.device,
                memory_bytes=known[stage.worker].device_memory_bytes(stage.device),
                forward_s=0.0,
                backward_s=0.0,
                weight_bytes=stage.parameter_bytes,
                gradient_bytes=sum(layer.gradient_bytes for layer in held)
                + copy_gradient_bytes(plan.ties, stage.index),
                optimizer_bytes=sum(layer.optimizer_bytes for layer in held),
                buffer_bytes=sum(layer.buffer_bytes for layer in held),
            )
        )
    check_memory(costs, device_memory(costs, dict.fromkeys(range(len(costs)), 0)))


def _ties(layers: Sequence[LayerInfo], flow_json: str, ends: Sequence[int]) -> tuple[Tie, ...]:
    if not flow_json:
        return ties_of_layers([layer.shared for layer in layers], ends)
    flow = flow_of(flow_json)
    check_ends(flow, ends)
    return ties_of_flow(flow, ends)


def _stage_plan(
    index: int, stage: StageCut, layers: Sequence[LayerInfo], worker: str, device: str, ties: Sequence[Tie]
) -> StagePlan:
    held = layers[stage.first_layer : stage.end_layer]
    return StagePlan(
        index=index,
        label=stage.label,
        worker=worker,
        device=device,
        first_layer=stage.first_layer,
        end_layer=stage.end_layer,
        layer_names=tuple(layer.name for layer in held),
        parameter_bytes=sum(layer.parameter_bytes for layer in held) + copy_bytes(ties, index),
    )


def shared_threads(workers: Sequence[WorkerInfo]) -> dict[str, int]:
    """A worker's own number, else an equal share of the machine's cores among these workers on that machine."""
    num_on_machine: dict[str, int] = {}
    for worker in workers:
        num_on_machine[worker.boot_id] = num_on_machine.get(worker.boot_id, 0) + 1
    return {
        worker.name: worker.num_threads or max(1, worker.num_cores // num_on_machine[worker.boot_id])
        for worker in workers
    }


def _warnings(settings: StrategySettings, num_stages: int) -> tuple[str, ...]:
    if settings.is_pipelined and settings.micro_batches == 1 and num_stages >= 2:
        return (
            f"micro_batches is 1 with {num_stages} stages: nothing overlaps, one stage works while the others wait. "
            f"Set micro_batches to {2 * num_stages} or more.",
        )
    return ()
