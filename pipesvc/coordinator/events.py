"""What the coordinator's machine is told and what it answers: plain values in both directions.

The shell (`hub`) turns every message, timer and finished job of its own into one event, and performs the commands in
order; a recorded list of events therefore replays a whole life of the coordinator, without a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipesvc.coordinator.output_events import DropOutputs, FilesFailed, OutputsTaken, ReaderCame, ReaderWent
from pipesvc.core.costs import Costs
from pipesvc.rpc.v1 import job_pb2, run_pb2, types_pb2, worker_pb2

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSubmitted:
    """A valid job whose bundle is stored. The link token is the secret of the run's data links.

    `submitted_s` is 0 for now; after a restart it is when the job first came.
    """

    run_id: str
    job: job_pb2.JobSpec
    link_token: str
    submitted_s: float = 0.0
    start: types_pb2.Position | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCancelled:
    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileAsked:
    """A client wants the costs of a valid job whose bundle is stored; answered by one `EndProfile`.

    `known` are parts that need not be measured again, by their keys (`profile_parts`).
    """

    profile_id: str
    job: job_pb2.JobSpec
    link_token: str
    known: Mapping[str, Costs]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileAbandoned:
    """The client has gone."""

    profile_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsAsked:
    """A client wants the state of a run; answered by one `AnswerWeights` with the same ticket."""

    run_id: str
    ticket: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerAttached:
    """A worker registered on a new stream; `session` numbers the stream."""

    session: int
    registration: worker_pb2.Register


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerDetached:
    """A stream ended; the worker may come back on another."""

    session: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpoke:
    """A message of a registered worker. State chunks, traces and log lines are stored by the shell and come as less."""

    session: int
    message: worker_pb2.AttachRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """A worker has sent something that matters to nobody any more; still, it lives."""

    session: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardGrown:
    """Bytes of a stage's state were stored; with the last of them the shard is whole."""

    session: int
    run_id: str
    step: int
    stage: int
    is_whole: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsMerged:
    """The end of `MergeShards`; `problem` is empty if the file is there."""

    run_id: str
    step: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConcluded:
    """The journal holds the end of the run; `problem` says why it does not."""

    run_id: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarningRaised:
    """The shell has something to say about a run: that its log was truncated, for instance."""

    run_id: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    RunSubmitted
    | RunCancelled
    | ProfileAsked
    | ProfileAbandoned
    | WeightsAsked
    | WorkerAttached
    | WorkerDetached
    | WorkerSpoke
    | Heard
    | ShardGrown
    | WeightsMerged
    | RunConcluded
    | ReaderCame
    | ReaderWent
    | OutputsTaken
    | FilesFailed
    | WarningRaised
    | Ticked
)

# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Send:
    """Send to the worker process with this incarnation; the shell puts the bundle into a `start_child`."""

    incarnation: str
    message: worker_pb2.AttachResponse


@dataclass(frozen=True, kw_only=True, slots=True)
class Say:
    """Tell the person in front of the coordinator's terminal."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EndSession:
    """Close a worker's stream with this error."""

    session: int
    error: types_pb2.ErrorReport


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishRun:
    """The run has changed: journal it and wake those who watch."""

    run: run_pb2.Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordPlan:
    run_id: str
    digest: str
    plan_json: str
    made_unix_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordApplied:
    run_id: str
    stage: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordStep:
    """A step is committed: journal it and show it."""

    run_id: str
    record: run_pb2.StepRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordEvaluation:
    """An evaluation is done: journal it and show it."""

    run_id: str
    record: run_pb2.EvaluationRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeShards:
    """Make one file of the shards of a step; answered by `WeightsMerged`."""

    run_id: str
    step: int
    num_stages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepWeights:
    """The merged file of this step is the final one."""

    run_id: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerWeights:
    """Open the weights for the client that asked, or refuse."""

    ticket: int
    run_id: str
    step: int = 0
    is_final: bool = True
    error: types_pb2.ErrorReport | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DropWeights:
    """Remove the files of a live state; whoever reads them keeps them open."""

    run_id: str
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcludeRun:
    """Journal the end of the run durably, then answer with `RunConcluded`; only then the run is said to have ended."""

    run: run_pb2.Run


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportProfile:
    """Tell who asked what is awaited now."""

    profile_id: str
    awaited: Sequence[run_pb2.Awaited]


@dataclass(frozen=True, kw_only=True, slots=True)
class EndProfile:
    """Answer who asked: with the costs, of which the parts `measured` are new, or with the error."""

    profile_id: str
    costs: Costs | None = None
    measured: Mapping[str, Costs] = field(default_factory=dict)
    error: types_pb2.ErrorReport | None = None


Command = (
    Send
    | Say
    | EndSession
    | PublishRun
    | RecordPlan
    | RecordApplied
    | RecordStep
    | RecordEvaluation
    | MergeShards
    | KeepWeights
    | AnswerWeights
    | DropWeights
    | DropOutputs
    | ConcludeRun
    | ReportProfile
    | EndProfile
)
