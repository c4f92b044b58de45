"""From a job, its costs and the workers to a plan with its report: all that `pipesvc plan` shows and `submit` needs.

What comes out is a strategy that could have been written by hand, and its plan is made by the coordinator's own
function, so what is shown is what will run. What the strategy leaves open is searched for, and the simulator has the
last word. No I/O, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipesvc.client.codec import Codec, coding_of
from pipesvc.client.gantt import Row
from pipesvc.client.job import Job, Strategy
from pipesvc.client.plan_cuts import cuts_of, settings_of, shared_cuts_of
from pipesvc.core.coded_ways import with_codecs
from pipesvc.core.costs import Costs
from pipesvc.core.edges import edges_of
from pipesvc.core.memory import check_memory
from pipesvc.core.partition_methods import layer_infos
from pipesvc.core.placement import MissingWorkers, reachable_first
from pipesvc.core.plan import Plan, WorkerInfo
from pipesvc.core.plan_report import PlanReport, make_report
from pipesvc.core.planner import make_plan
from pipesvc.core.schedule_search import SHARED, WORTH, Candidate, choose_schedule, evaluate, praise, seconds_text
from pipesvc.core.stage_costs import StageCost, stage_costs
from pipesvc.core.ties import copy_bytes
from pipesvc.errors import ErrorCode, LayersError, PipesvcError
from pipesvc.rpc.v1 import run_pb2
from pipesvc.wire.registrations import worker_info


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """The workers that a plan may use."""

    workers: tuple[WorkerInfo, ...]
    fingerprints: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A plan, the strategy that gives it, and what it is expected to cost."""

    plan: Plan
    strategy: Strategy
    report: PlanReport
    evaluated: Candidate

    @property
    def rows(self) -> tuple[Row, ...]:
        """The workers in the order of their first stage, to draw the simulation."""
        return tuple(
            Row(name=worker, stages=tuple(stage.index for stage in self.plan.stages_of(worker)))
            for worker in self.plan.workers
        )


def crew_of(status: run_pb2.GetStatusResponse) -> Crew:
    """The registered workers that take new work, in the coordinator's order."""
    found = [worker.registration for worker in status.workers if not worker.is_draining]
    broken = [(unreached.worker, unreached.peer) for unreached in status.unreached]
    return Crew(
        workers=tuple(reachable_first(map(worker_info, found), broken)),
        fingerprints={each.name: each.fingerprint for each in found},
    )


def plan_job(job: Job, costs: Costs, crew: Crew) -> Planned:
    """The plan that the job's strategy asks for; what it leaves open is found by simulation with these costs.

    Raises what partitioner and planner refuse, MISSING_WORKER where the workers do not suffice, and INVALID_PLAN with
    the sum where a device would have to hold more than it may.
    """
    workers = [worker for worker in crew.workers if any(device.worker == worker.name for device in costs.devices)]
    names = {worker.name for worker in workers}
    usable = replace(costs, devices=tuple(device for device in costs.devices if device.worker in names))
    tried, refusals = [], []
    asked = job.strategy, job.accumulate, usable
    for strategy in (*cuts_of(*asked), *shared_cuts_of(*asked)):
        try:
            tried.append(_planned(replace(job, strategy=strategy), usable, workers, crew.fingerprints))
        except PipesvcError as error:
            refusals.append(error)
    if not tried:
        raise refusals[0]
    best, *others = sorted(tried, key=_rank)
    others = [each for each in others if _shape(each) != _shape(best)]
    if not isinstance(job.strategy.boundaries, str) and not others:
        return best
    reasons = best.report.reasons
    if isinstance(job.strategy.boundaries, str):
        reasons = (*reasons, f"Layers by {job.strategy.boundaries!r}: {_layers_text(best.report)}.")
    lost = [_lost_text(other.report, best.report) for other in others]
    runner_up = " ".join(filter(None, [best.report.runner_up, *lost]))
    return replace(best, report=replace(best.report, reasons=reasons, runner_up=runner_up))


def _rank(planned: Planned) -> float:
    """Several stages on each worker hold more and send more, so they must be faster by more than times wander."""
    return planned.report.step_s * (1 + WORTH if planned.plan.schedule in SHARED else 1)


def _shape(planned: Planned) -> tuple[object, str]:
    return planned.plan.stages, planned.plan.schedule


def predict(
    plan: Plan, costs: Costs, fingerprints: Mapping[str, str], *, decides: bool, codec: Codec
) -> tuple[PlanReport, Candidate]:
    """What these costs let expect of a plan, whoever made it and whether it fits or not; links have this codec."""
    stages = _stages(plan, costs, codec)
    evaluated = evaluate(
        plan.schedule,
        stages,
        num_micro_batches=plan.micro_batches,
        in_flight=plan.in_flight,
        decides=decides,
        text=plan.schedule_text,
        link=costs.link,
    )
    return make_report(plan, costs, stages, evaluated, fingerprints=fingerprints), evaluated


def strategy_of(plan: Plan, asked: Strategy) -> Strategy:
    """The strategy that gives exactly this plan again; `asked` is the one it was made for."""
    is_marked = any(stage.label != f"stage:{stage.index}" for stage in plan.stages)
    is_cut = asked.pipeline and not is_marked
    return Strategy(
        pipeline=asked.pipeline,
        micro_batches=asked.micro_batches,
        schedule=plan.schedule if asked.has_open_schedule else asked.schedule,
        num_stages=1 if is_cut and plan.num_stages == 1 else None,
        boundaries=tuple(stage.layer_names[0] for stage in plan.stages[1:]) if is_cut else (),
        placement={stage.label: f"{stage.worker}/{stage.device}" for stage in plan.stages},
        allow_cpu_for_gpu=asked.allow_cpu_for_gpu,
        in_flight=plan.in_flight or None,
        recompute=asked.recompute,
        compile=asked.compile,
        same_host=asked.same_host,
        codec=asked.codec,
    )


def _planned(job: Job, costs: Costs, workers: Sequence[WorkerInfo], fingerprints: Mapping[str, str]) -> Planned:
    """The plan of a strategy whose cut is given; refuses one that does not fit."""
    asked = job.strategy
    reasons: tuple[str, ...] = ()
    runner_up = ""
    if asked.has_open_schedule:
        stages = _stages(_plan(replace(asked, schedule="1F1B"), job.accumulate, costs, workers), costs, asked.codec)
        choice = choose_schedule(
            stages,
            num_micro_batches=asked.micro_batches * job.accumulate,
            decides=job.decides,
            may_split=not asked.compile,
            link=costs.link,
        )
        asked = replace(asked, schedule=choice.best.schedule, in_flight=choice.best.in_flight or None)
        chosen, runner_up = choice.reason
        reasons = (chosen,)
    plan = _plan(asked, job.accumulate, costs, workers)
    report, evaluated = predict(plan, costs, fingerprints, decides=job.decides, codec=asked.codec)
    stages = _stages(plan, costs, asked.codec)
    check_memory(stages, evaluated.memory)
    if job.strategy.schedule in SHARED and not reasons:
        found = praise(evaluated, stages, num_micro_batches=plan.micro_batches, decides=job.decides, link=costs.link)
        reasons = (found,)
    return Planned(
        plan=plan,
        strategy=strategy_of(plan, job.strategy),
        report=replace(report, reasons=reasons, runner_up=runner_up),
        evaluated=evaluated,
    )


def _plan(strategy: Strategy, accumulate: int, costs: Costs, workers: Sequence[WorkerInfo]) -> Plan:
    """As the coordinator would make it, but for memory: of that these costs know more, and it is checked once."""
    boundless = [replace(worker, memory_bytes=0, memory_limit_bytes=0) for worker in workers]
    plan = make_plan(settings_of(strategy, accumulate), layer_infos(costs.layers), boundless, costs.flow_json)
    if isinstance(plan, MissingWorkers):
        raise PipesvcError(ErrorCode.MISSING_WORKER, f"the plan has {plan.text}", advice="Start them, then plan again.")
    return plan


def _stages(plan: Plan, costs: Costs, codec: Codec) -> tuple[StageCost, ...]:
    """What the plan's stages cost; a plan of other layers, or of a device that was not measured, is refused."""
    held = [name for stage in plan.stages for name in stage.layer_names]
    held_bytes = sum(stage.parameter_bytes - copy_bytes(plan.ties, stage.index) for stage in plan.stages)
    costed_bytes = sum(layer.parameter_bytes for layer in costs.layers)
    if held != [layer.name for layer in costs.layers] or held_bytes != costed_bytes:
        raise LayersError(
            ErrorCode.INVALID_PLAN,
            f"the plan has {len(held)} layers with {held_bytes} bytes of parameters, which are not the job's "
            f"{len(costs.layers)} with {costed_bytes}",
            advice="Name the job that the plan was made for.",
        )
    indices = {(device.worker, device.device): index for index, device in enumerate(costs.devices)}
    unknown = [stage for stage in plan.stages if (stage.worker, stage.device) not in indices]
    if unknown:
        measured = ", ".join(f"{worker}/{device}" for worker, device in indices)
        raise PipesvcError(
            ErrorCode.INVALID_PLAN,
            f"stage {unknown[0].index} is placed on {unknown[0].worker}/{unknown[0].device}, which was not measured",
            advice=f"There are costs for {measured or 'no device'}.",
        )
    _check_ways(plan, costs)
    boundaries = [stage.first_layer for stage in plan.stages[1:]]
    devices = [indices[stage.worker, stage.device] for stage in plan.stages]
    found = stage_costs(costs, boundaries=boundaries, devices=devices)
    return with_codecs(found, costs, boundaries, coding_of(codec))


def _check_ways(plan: Plan, costs: Costs) -> None:
    for sender, receiver in edges_of(plan, has_labels=False, decides=False).pairs:
        workers = plan.stages[sender].worker, plan.stages[receiver].worker
        if not costs.link(*workers).is_open:
            raise PipesvcError(
                ErrorCode.LINK_LOST,
                f"stage {sender} on {workers[0]} sends to stage {receiver} on {workers[1]}, and no way between these "
                "two workers was found when links were measured",
                advice="Place the stages on other workers, or see `pipesvc status`, open the way, and profile again.",
            )


def _lost_text(report: PlanReport, best: PlanReport) -> str:
    more = f", {100 * (report.step_s / best.step_s - 1):.0f} % more" if best.step_s else ""
    schedule = "" if report.schedule == best.schedule else f"{report.schedule} with "
    layers = f"{_layers_text(report)} would take {seconds_text(report.step_s)}{more}."
    return f"{schedule}{'l' if schedule else 'L'}ayers {layers}"


def _layers_text(report: PlanReport) -> str:
    return ", ".join(f"{stage.num_layers} on {stage.place}" for stage in report.stages)
