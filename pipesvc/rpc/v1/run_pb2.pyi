from pipesvc.rpc.v1 import job_pb2 as _job_pb2
from pipesvc.rpc.v1 import local_pb2 as _local_pb2
from pipesvc.rpc.v1 import types_pb2 as _types_pb2
from pipesvc.rpc.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_QUEUED: _ClassVar[RunState]
    RUN_STATE_WAITING: _ClassVar[RunState]
    RUN_STATE_INSPECTING: _ClassVar[RunState]
    RUN_STATE_BUILDING: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_SAVING: _ClassVar[RunState]
    RUN_STATE_COMPLETED: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_QUEUED: RunState
RUN_STATE_WAITING: RunState
RUN_STATE_INSPECTING: RunState
RUN_STATE_BUILDING: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_SAVING: RunState
RUN_STATE_COMPLETED: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState

class Awaited(_message.Message):
    __slots__ = ("what", "from_whom", "since_unix_ns", "until_unix_ns", "then")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FROM_WHOM_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    what: str
    from_whom: str
    since_unix_ns: int
    until_unix_ns: int
    then: str
    def __init__(self, what: _Optional[str] = ..., from_whom: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., until_unix_ns: _Optional[int] = ..., then: _Optional[str] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("step", "epoch", "loss", "num_rows", "committed_unix_ns")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    loss: float
    num_rows: int
    committed_unix_ns: int
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., loss: _Optional[float] = ..., num_rows: _Optional[int] = ..., committed_unix_ns: _Optional[int] = ...) -> None: ...

class MetricValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class EvaluationRecord(_message.Message):
    __slots__ = ("step", "epoch", "loss", "metrics", "num_rows", "evaluated_unix_ns")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    loss: float
    metrics: _containers.RepeatedCompositeFieldContainer[MetricValue]
    num_rows: int
    evaluated_unix_ns: int
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., loss: _Optional[float] = ..., metrics: _Optional[_Iterable[_Union[MetricValue, _Mapping]]] = ..., num_rows: _Optional[int] = ..., evaluated_unix_ns: _Optional[int] = ...) -> None: ...

class LinkTotals(_message.Message):
    __slots__ = ("link", "tensor_bytes", "wire_bytes", "num_frames", "worker", "way", "coded_bytes", "relative_error")
    LINK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    CODED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    link: _types_pb2.LinkId
    tensor_bytes: int
    wire_bytes: int
    num_frames: int
    worker: str
    way: _types_pb2.LinkWay
    coded_bytes: int
    relative_error: float
    def __init__(self, link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., tensor_bytes: _Optional[int] = ..., wire_bytes: _Optional[int] = ..., num_frames: _Optional[int] = ..., worker: _Optional[str] = ..., way: _Optional[_Union[_types_pb2.LinkWay, str]] = ..., coded_bytes: _Optional[int] = ..., relative_error: _Optional[float] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "name", "state", "num_committed_steps", "num_steps", "error", "plan_json", "warnings", "awaited", "links", "parameters", "submitted_unix_ns", "ended_unix_ns", "stage_steps", "has_weights", "fingerprints", "evaluated_step", "is_prediction", "start", "times")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: WorkerParameters
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[WorkerParameters, _Mapping]] = ...) -> None: ...
    class FingerprintsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TimesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _local_pb2.ExecutorTimes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_local_pb2.ExecutorTimes, _Mapping]] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    STAGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    HAS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_STEP_FIELD_NUMBER: _ClassVar[int]
    IS_PREDICTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    state: RunState
    num_committed_steps: int
    num_steps: int
    error: _types_pb2.ErrorReport
    plan_json: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    awaited: _containers.RepeatedCompositeFieldContainer[Awaited]
    links: _containers.RepeatedCompositeFieldContainer[LinkTotals]
    parameters: _containers.MessageMap[str, WorkerParameters]
    submitted_unix_ns: int
    ended_unix_ns: int
    stage_steps: _containers.RepeatedScalarFieldContainer[int]
    has_weights: bool
    fingerprints: _containers.ScalarMap[str, str]
    evaluated_step: int
    is_prediction: bool
    start: _types_pb2.Position
    times: _containers.MessageMap[str, _local_pb2.ExecutorTimes]
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[_Union[RunState, str]] = ..., num_committed_steps: _Optional[int] = ..., num_steps: _Optional[int] = ..., error: _Optional[_Union[_types_pb2.ErrorReport, _Mapping]] = ..., plan_json: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., awaited: _Optional[_Iterable[_Union[Awaited, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkTotals, _Mapping]]] = ..., parameters: _Optional[_Mapping[str, WorkerParameters]] = ..., submitted_unix_ns: _Optional[int] = ..., ended_unix_ns: _Optional[int] = ..., stage_steps: _Optional[_Iterable[int]] = ..., has_weights: _Optional[bool] = ..., fingerprints: _Optional[_Mapping[str, str]] = ..., evaluated_step: _Optional[int] = ..., is_prediction: _Optional[bool] = ..., start: _Optional[_Union[_types_pb2.Position, _Mapping]] = ..., times: _Optional[_Mapping[str, _local_pb2.ExecutorTimes]] = ...) -> None: ...

class WorkerParameters(_message.Message):
    __slots__ = ("parameters",)
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedCompositeFieldContainer[_local_pb2.ParameterInfo]
    def __init__(self, parameters: _Optional[_Iterable[_Union[_local_pb2.ParameterInfo, _Mapping]]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("registration", "is_draining", "last_beat_age_s", "children")
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    LAST_BEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    registration: _worker_pb2.Register
    is_draining: bool
    last_beat_age_s: float
    children: _containers.RepeatedCompositeFieldContainer[_worker_pb2.ChildProgress]
    def __init__(self, registration: _Optional[_Union[_worker_pb2.Register, _Mapping]] = ..., is_draining: _Optional[bool] = ..., last_beat_age_s: _Optional[float] = ..., children: _Optional[_Iterable[_Union[_worker_pb2.ChildProgress, _Mapping]]] = ...) -> None: ...

class Unreached(_message.Message):
    __slots__ = ("worker", "peer", "data_address", "problem", "since_unix_ns", "num_probes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROBES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    peer: str
    data_address: str
    problem: str
    since_unix_ns: int
    num_probes: int
    def __init__(self, worker: _Optional[str] = ..., peer: _Optional[str] = ..., data_address: _Optional[str] = ..., problem: _Optional[str] = ..., since_unix_ns: _Optional[int] = ..., num_probes: _Optional[int] = ...) -> None: ...

class SubmitRunRequest(_message.Message):
    __slots__ = ("run_id", "job", "bundle")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    job: _job_pb2.JobSpec
    bundle: bytes
    def __init__(self, run_id: _Optional[str] = ..., job: _Optional[_Union[_job_pb2.JobSpec, _Mapping]] = ..., bundle: _Optional[bytes] = ...) -> None: ...

class SubmitRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "from_step")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    from_step: int
    def __init__(self, run_id: _Optional[str] = ..., from_step: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("run", "step", "evaluation")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    run: Run
    step: StepRecord
    evaluation: EvaluationRecord
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., step: _Optional[_Union[StepRecord, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationRecord, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class FetchWeightsRequest(_message.Message):
    __slots__ = ("run_id", "with_training")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_TRAINING_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    with_training: bool
    def __init__(self, run_id: _Optional[str] = ..., with_training: _Optional[bool] = ...) -> None: ...

class FetchWeightsResponse(_message.Message):
    __slots__ = ("step", "total_bytes", "data", "is_training")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_TRAINING_FIELD_NUMBER: _ClassVar[int]
    step: int
    total_bytes: int
    data: bytes
    is_training: bool
    def __init__(self, step: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., is_training: _Optional[bool] = ...) -> None: ...

class ReadOutputsRequest(_message.Message):
    __slots__ = ("run_id", "from_step")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    from_step: int
    def __init__(self, run_id: _Optional[str] = ..., from_step: _Optional[int] = ...) -> None: ...

class ReadOutputsResponse(_message.Message):
    __slots__ = ("part", "is_last")
    PART_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    part: _local_pb2.OutputPart
    is_last: bool
    def __init__(self, part: _Optional[_Union[_local_pb2.OutputPart, _Mapping]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class TakeOutputsRequest(_message.Message):
    __slots__ = ("run_id", "step")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    step: int
    def __init__(self, run_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class TakeOutputsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UploadWeightsRequest(_message.Message):
    __slots__ = ("sha256", "data")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    data: bytes
    def __init__(self, sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadWeightsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadLogsRequest(_message.Message):
    __slots__ = ("run_id", "follow")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    follow: bool
    def __init__(self, run_id: _Optional[str] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadLogsResponse(_message.Message):
    __slots__ = ("worker", "role", "is_stderr", "line")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    IS_STDERR_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    role: _types_pb2.Role
    is_stderr: bool
    line: str
    def __init__(self, worker: _Optional[str] = ..., role: _Optional[_Union[_types_pb2.Role, str]] = ..., is_stderr: _Optional[bool] = ..., line: _Optional[str] = ...) -> None: ...

class ReadTraceRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ReadTraceResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[_local_pb2.TraceEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[_local_pb2.TraceEvent, _Mapping]]] = ...) -> None: ...

class LocateFeederRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class LocateFeederResponse(_message.Message):
    __slots__ = ("data_address", "link_token", "term")
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LINK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    data_address: str
    link_token: str
    term: int
    def __init__(self, data_address: _Optional[str] = ..., link_token: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("workers", "runs", "term", "unreached")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    term: int
    unreached: _containers.RepeatedCompositeFieldContainer[Unreached]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., term: _Optional[int] = ..., unreached: _Optional[_Iterable[_Union[Unreached, _Mapping]]] = ...) -> None: ...

class ProfileJobRequest(_message.Message):
    __slots__ = ("job", "bundle", "is_fresh")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    IS_FRESH_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.JobSpec
    bundle: bytes
    is_fresh: bool
    def __init__(self, job: _Optional[_Union[_job_pb2.JobSpec, _Mapping]] = ..., bundle: _Optional[bytes] = ..., is_fresh: _Optional[bool] = ...) -> None: ...

class ProfileJobResponse(_message.Message):
    __slots__ = ("progress", "result")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    progress: ProfileProgress
    result: ProfileResult
    def __init__(self, progress: _Optional[_Union[ProfileProgress, _Mapping]] = ..., result: _Optional[_Union[ProfileResult, _Mapping]] = ...) -> None: ...

class ProfileProgress(_message.Message):
    __slots__ = ("awaited",)
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    awaited: _containers.RepeatedCompositeFieldContainer[Awaited]
    def __init__(self, awaited: _Optional[_Iterable[_Union[Awaited, _Mapping]]] = ...) -> None: ...

class ProfileResult(_message.Message):
    __slots__ = ("costs_json", "num_devices_measured", "num_links_measured")
    COSTS_JSON_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICES_MEASURED_FIELD_NUMBER: _ClassVar[int]
    NUM_LINKS_MEASURED_FIELD_NUMBER: _ClassVar[int]
    costs_json: str
    num_devices_measured: int
    num_links_measured: int
    def __init__(self, costs_json: _Optional[str] = ..., num_devices_measured: _Optional[int] = ..., num_links_measured: _Optional[int] = ...) -> None: ...
