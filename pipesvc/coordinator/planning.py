"""From a job and the fleet to a plan, with what the planner cannot know: versions and numeric fingerprints.

The planner is pure mathematics over its own values; this is the one place where messages become those values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipesvc.coordinator.failures import failure
from pipesvc.coordinator.fleet import Fleet, Member
from pipesvc.coordinator.reach import Unreached
from pipesvc.core.fingerprints import fingerprint_warnings
from pipesvc.core.layer_info import SharedParameter
from pipesvc.core.placement import reachable_first
from pipesvc.core.plan import LayerInfo, Plan, StrategySettings
from pipesvc.core.planner import MissingWorkers, make_plan
from pipesvc.core.schedules import num_stages_by_default
from pipesvc.core.stages import is_uncut
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2, types_pb2
from pipesvc.wire.job_edges import edges_of_job
from pipesvc.wire.link_codecs import unknown_pairs
from pipesvc.wire.registrations import worker_info


def plan_for(
    job: job_pb2.JobSpec, layers: Sequence[LayerInfo], fleet: Fleet, flow_json: str, *, is_whole: bool = False
) -> Plan | MissingWorkers:
    """The plan of this job on the workers that are here; raises what the planner refuses.

    `flow_json` is "" for a list of layers. `is_whole` says that a number of stages which is open is 1, however many
    workers there are.
    """
    settings = _settings(job)
    if is_whole and not any(layer.mark for layer in layers):
        settings = replace(settings, num_stages=1)
    workers = [worker_info(member.registration) for member in fleet.available]
    broken = [(finding.worker, finding.peer) for finding in fleet.reach.unreached]
    plan = make_plan(settings, layers, reachable_first(workers, broken), flow_json)
    if isinstance(plan, Plan):
        _check_codecs(job, plan)
    return plan


def _check_codecs(job: job_pb2.JobSpec, plan: Plan) -> None:
    """Refuse codecs of links that this plan does not have: whoever asked would believe them at work."""
    edges = edges_of_job(plan, job)
    sending = (*edges.forwards, *edges.backwards)
    for earlier, later in unknown_pairs(job.strategy, sending):
        pairs = ", ".join(f"{min(pair)}>{max(pair)}" for pair in edges.forwards)
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"codec has the link {earlier}>{later}, and no activation goes that way: the stages have {pairs or 'none'}",
            advice="Name links of the plan, or give one Codec for all",
        )


def uncut(
    job: job_pb2.JobSpec, layers: Sequence[LayerInfo], members: Sequence[Member], no_flow: types_pb2.ErrorReport
) -> types_pb2.ErrorReport | None:
    """Why a model has no flow, where it would need one to have the stages that the job asks for."""
    if not no_flow.code:
        return None
    settings = _settings(job)
    default = num_stages_by_default(settings.schedule, len(members), settings.schedule_text)
    if is_uncut(settings, layers, default):
        return None
    reason = types_pb2.ErrorReport()
    reason.CopyFrom(no_flow)
    return reason


def layers_of(inspected: local_pb2.Inspected) -> tuple[LayerInfo, ...]:
    return tuple(
        LayerInfo(
            name=layer.name,
            type=layer.type,
            mark=layer.mark,
            parameter_bytes=layer.parameter_bytes,
            buffer_bytes=layer.buffer_bytes,
            gradient_bytes=layer.gradient_bytes,
            optimizer_bytes=int(layer.gradient_bytes * inspected.state_per_gradient),
            shared=shared_of(layer),
        )
        for layer in inspected.layers
    )


def shared_of(layer: local_pb2.LayerInfo) -> tuple[SharedParameter, ...]:
    return tuple(
        SharedParameter(name=each.name, num_bytes=each.num_bytes, is_trained=each.is_trained) for each in layer.shared
    )


def plan_warnings(job: job_pb2.JobSpec, plan: Plan, fleet: Fleet) -> tuple[str, ...]:
    """What the user should know about this plan: the planner's own warnings, versions, fingerprints, broken ways."""
    names = {*plan.workers, plan.feeder_worker}
    crew = [member for member in fleet.available if member.name in names]
    executors = {member.name: member.registration.fingerprint for member in crew if member.name in plan.workers}
    unreached = tuple(str(finding) for finding in _unreached_in(job, plan, fleet))
    # A prediction has several batches under way, and no schedule of its own.
    of_schedule = () if job.is_prediction else plan.warnings
    return (*of_schedule, *_version_warnings(job, crew), *fingerprint_warnings(executors), *unreached)


def unreachable(job: job_pb2.JobSpec, plan: Plan, fleet: Fleet, now_s: float) -> types_pb2.ErrorReport | None:
    """The refusal of a plan that needs a way between two workers which has been tried and tried again in vain."""
    for finding in _unreached_in(job, plan, fleet):
        if finding.is_firm(now_s):
            message = f"{finding} (tried {finding.num_probes} times in {now_s - finding.since_s:.0f} s)"
            return failure(ErrorCode.LINK_LOST, message, advice=finding.advice, worker=finding.peer)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfit:
    """What the data met, and the worker that would meet it in a run."""

    worker: str
    error: types_pb2.ErrorReport


def unfit(misfit: local_pb2.DataMisfit, plan: Plan | MissingWorkers) -> Unfit | None:
    """What a trial says of this plan. It was made on a CPU, so a layer that a GPU will hold is left alone."""
    if isinstance(plan, MissingWorkers) or not misfit.HasField("error"):
        return None
    error = types_pb2.ErrorReport()
    error.CopyFrom(misfit.error)
    if not misfit.HasField("layer"):
        return Unfit(worker=plan.feeder_worker, error=error)
    stage = next(stage for stage in plan.stages if stage.first_layer <= misfit.layer < stage.end_layer)
    error.stage = stage.index
    return Unfit(worker=stage.worker, error=error) if stage.device == "cpu" else None


def _unreached_in(job: job_pb2.JobSpec, plan: Plan, fleet: Fleet) -> list[Unreached]:
    """Where a worker of this plan could not dial another one to which it will send."""
    edges = edges_of_job(plan, job)
    stages = [stage.worker for stage in plan.stages]
    pairs = [(plan.feeder_worker, stages[reader]) for reader in (*edges.input_readers, *edges.label_readers)]
    pairs += [(stages[sender], stages[receiver]) for sender, receiver in edges.pairs]
    # Stages on one worker hand tensors over without a link; only the feeder, another process, dials its own worker.
    needed = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1] or pair[0] == plan.feeder_worker]
    return fleet.reach.among(needed)


def _version_warnings(job: job_pb2.JobSpec, crew: Sequence[Member]) -> tuple[str, ...]:
    warnings = []
    for what, asked in (("Python", job.python_version), ("torch", job.torch_version)):
        for member in crew:
            versions = member.registration.versions
            has = versions.python if what == "Python" else versions.torch
            if asked and has and _minor(asked) != _minor(has):
                warnings.append(f"the job was made with {what} {asked}, worker {member.name} has {what} {has}")
    return tuple(warnings)


def _minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split("+")[0].split(".")[:2])


def _settings(job: job_pb2.JobSpec) -> StrategySettings:
    """A step of the plan has the micro-batches of all its mini-batches."""
    strategy = job.strategy
    return StrategySettings(
        is_pipelined=strategy.is_pipelined,
        micro_batches=strategy.micro_batches * max(1, job.accumulate),
        schedule=strategy.schedule,
        num_stages=strategy.num_stages,
        boundaries=tuple(strategy.boundary_names) or tuple(strategy.boundaries),
        placement=dict(strategy.placement),
        allow_cpu_for_gpu=strategy.allow_cpu_for_gpu,
        in_flight=strategy.in_flight,
        schedule_text=strategy.schedule_text,
    )
