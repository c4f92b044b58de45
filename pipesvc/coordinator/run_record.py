"""All that is known of one live run, without what follows from it.

The transitions (`run_machine`) and the text for people (`run_view`) both read this; it decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pipesvc.coordinator.step_ledger import StepLedger
from pipesvc.core.plan import LayerInfo, Plan
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, types_pb2

if TYPE_CHECKING:
    from pipesvc.coordinator.evaluation import Evaluation
    from pipesvc.coordinator.outputs import Outputs


class Phase(StrEnum):
    """Where a run is. What users see is the coarser RunState."""

    WANTING_INSPECTOR = "wanting a worker that can inspect"
    INSPECTING = "inspecting"
    ENDING_INSPECTION = "ending the inspection"
    QUEUED = "queued"
    WANTING_WORKERS = "wanting workers"
    BUILDING = "building"
    RUNNING = "running"
    SAVING = "saving"
    STOPPING = "stopping"
    CONCLUDING = "concluding"
    ENDED = "ended"


STATES: dict[Phase, run_pb2.RunState] = {
    Phase.WANTING_INSPECTOR: run_pb2.RUN_STATE_WAITING,
    Phase.INSPECTING: run_pb2.RUN_STATE_INSPECTING,
    Phase.ENDING_INSPECTION: run_pb2.RUN_STATE_INSPECTING,
    Phase.QUEUED: run_pb2.RUN_STATE_QUEUED,
    Phase.WANTING_WORKERS: run_pb2.RUN_STATE_WAITING,
    Phase.BUILDING: run_pb2.RUN_STATE_BUILDING,
    Phase.RUNNING: run_pb2.RUN_STATE_RUNNING,
    Phase.SAVING: run_pb2.RUN_STATE_SAVING,
}

ENDED_STATES = frozenset({run_pb2.RUN_STATE_COMPLETED, run_pb2.RUN_STATE_FAILED, run_pb2.RUN_STATE_CANCELLED})


@dataclass(kw_only=True, slots=True)
class Save:
    """A state of the model on its way from the stages to one file."""

    step: int
    is_final: bool
    moved_s: float
    tickets: list[int] = field(default_factory=list)
    whole: set[int] = field(default_factory=set)
    is_merging: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Child:
    """A child process of a run, by its worker and its role."""

    worker: str
    role: int


@dataclass(kw_only=True, slots=True)
class RunRecord:
    """One run from its submission to its end. Times are seconds on the machine's clock."""

    run_id: str
    job: job_pb2.JobSpec
    link_token: str
    term: int
    submitted_s: float
    # After which it goes on; step 0: it begins.
    start: types_pb2.Position = field(default_factory=types_pb2.Position)

    phase: Phase = Phase.WANTING_INSPECTOR
    # What users see while the run stops, and what it will be at its end.
    shown_state: run_pb2.RunState = run_pb2.RUN_STATE_WAITING
    outcome: run_pb2.RunState = run_pb2.RUN_STATE_UNSPECIFIED
    phase_since_s: float = 0.0
    deadline_s: float | None = None
    # True when what users see has changed since it was last published.
    is_changed: bool = True

    # The worker that inspects, and the workers of the plan: name -> incarnation.
    inspector: dict[str, str] = field(default_factory=dict)
    crew: dict[str, str] = field(default_factory=dict)
    num_inspections: int = 0
    # The worker whose inspector spoke last, and the one that is asked whether it finds the same; "": none yet.
    inspected_on: str = ""
    confirmer: str = ""
    layers: tuple[LayerInfo, ...] = ()
    misfit: local_pb2.DataMisfit = field(default_factory=local_pb2.DataMisfit)
    # Of a model that is no list: the flow of its forward, or why there is none.
    flow_json: str = ""
    no_flow: types_pb2.ErrorReport = field(default_factory=types_pb2.ErrorReport)
    # It has none and was planned as one stage, which it stays when more workers join.
    is_whole: bool = False
    missing_text: str = ""
    plan: Plan | None = None
    plan_json: str = ""
    planned_generation: int = -1

    unready: set[Child] = field(default_factory=set)
    unstopped: set[str] = field(default_factory=set)
    fingerprints: dict[str, str] = field(default_factory=dict)
    is_feeder_ready: bool = False

    ledger: StepLedger | None = None
    # The one that is under way, and the step of the newest that is done.
    evaluation: Evaluation | None = None
    evaluated_step: int = 0
    # Of a prediction.
    outputs: Outputs | None = None
    saves: dict[int, Save] = field(default_factory=dict)
    final_tickets: list[int] = field(default_factory=list)
    has_weights: bool = False

    is_cancelled: bool = False
    cancel_deadline_s: float | None = None
    echo: types_pb2.ErrorReport | None = None
    echo_since_s: float = 0.0
    error: types_pb2.ErrorReport | None = None

    plan_warnings: tuple[str, ...] = ()
    other_warnings: list[str] = field(default_factory=list)
    parameters: dict[str, run_pb2.WorkerParameters] = field(default_factory=dict)
    links: dict[tuple[str, bytes], run_pb2.LinkTotals] = field(default_factory=dict)
    # By worker, as its executor last said.
    times: dict[str, local_pb2.ExecutorTimes] = field(default_factory=dict)

    @property
    def step_limit_s(self) -> float:
        """The first step of modules that are compiled compiles them, which is building."""
        compiles = self.job.strategy.compiles and self.ledger is not None and self.ledger.committed == 0
        return self.job.step_timeout_s + (self.job.build_timeout_s if compiles else 0.0)

    def __str__(self) -> str:
        steps = f", step {self.ledger.committed}/{self.ledger.issued}" if self.ledger is not None else ""
        return f"run {self.run_id} ({self.phase.value}{steps})"


def without_first(job: job_pb2.JobSpec) -> job_pb2.JobSpec:
    """The job itself, or a copy without what its client has read ahead of a stream, which is for inspectors alone."""
    if not job.data.HasField("first"):
        return job
    bare = job_pb2.JobSpec()
    bare.CopyFrom(job)
    bare.data.ClearField("first")
    return bare
