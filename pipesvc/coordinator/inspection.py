"""Which worker looks at a job before it starts, and what is made of its findings.

What a trial meets on one worker may be of that worker's making: a variable, a file, a CPU that lacks an instruction. So
it counts only where it is met by the worker that the plan gives the layer to, or the source; else that worker looks at
the job once more. What even kills the inspector while it tries is left to the run, which names it with its place.
"""

from __future__ import annotations

from pipesvc.coordinator import planning
from pipesvc.coordinator.failures import failure
from pipesvc.coordinator.fleet import Fleet, Member
from pipesvc.coordinator.planning import layers_of, unfit
from pipesvc.coordinator.run_record import RunRecord
from pipesvc.core.placement import MissingWorkers
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2


def next_inspector(record: RunRecord, fleet: Fleet, inspecting: frozenset[str]) -> Member | None:
    """The worker that is asked to confirm, if it is here, else the least busy one; None: those have no time now."""
    asked = [member for member in fleet.available if member.name == record.confirmer]
    free = [member for member in asked or fleet.available if member.name not in inspecting]
    return min(free, key=lambda member: len(member.children), default=None)


def reported(record: RunRecord, worker: str, inspected: local_pb2.Inspected) -> bool:
    """Take in what an inspector says; True once that was its last word."""
    record.layers, record.misfit, record.inspected_on = layers_of(inspected), inspected.misfit, worker
    record.flow_json, record.no_flow = inspected.flow_json, inspected.no_flow
    return not inspected.is_trying


def uncut(record: RunRecord, fleet: Fleet) -> types_pb2.ErrorReport | None:
    """Why the model cannot be cut as the job asks for. One that was planned as one stage stays so when workers join."""
    reason = planning.uncut(record.job, record.layers, fleet.available, record.no_flow)
    if reason is not None and not record.is_whole:
        return reason
    record.is_whole = bool(record.no_flow.code)
    return None


def refusal(record: RunRecord, plan: Plan | MissingWorkers) -> types_pb2.ErrorReport | None:
    """Why this plan cannot work with the job's data, if that is certain."""
    found = unfit(record.misfit, plan)
    return found.error if found is not None and found.worker == record.inspected_on else None


def needs_confirmation(record: RunRecord, plan: Plan | MissingWorkers) -> bool:
    """True once: another worker has to look, and is noted as `confirmer`."""
    found = unfit(record.misfit, plan)
    if found is None or found.worker == record.inspected_on or record.confirmer:
        return False
    record.confirmer = found.worker
    return True


def nobody_came(record: RunRecord) -> types_pb2.ErrorReport:
    message = f"no worker registered within {record.job.worker_wait_s:g} s"
    return failure(ErrorCode.MISSING_WORKER, message, advice="Start workers with `pipesvc worker`")
