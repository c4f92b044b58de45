from pipesvc.rpc.v1 import job_pb2 as _job_pb2
from pipesvc.rpc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PassKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PASS_KIND_UNSPECIFIED: _ClassVar[PassKind]
    PASS_KIND_EVALUATION: _ClassVar[PassKind]
    PASS_KIND_PREDICTION: _ClassVar[PassKind]
PASS_KIND_UNSPECIFIED: PassKind
PASS_KIND_EVALUATION: PassKind
PASS_KIND_PREDICTION: PassKind

class Assignment(_message.Message):
    __slots__ = ("run_id", "term", "role", "job", "plan_json", "worker", "host", "num_threads", "bundle_dir", "devices", "endpoint", "start")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_DIR_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    role: _types_pb2.Role
    job: _job_pb2.JobSpec
    plan_json: str
    worker: str
    host: str
    num_threads: int
    bundle_dir: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    endpoint: int
    start: _types_pb2.Position
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., role: _Optional[_Union[_types_pb2.Role, str]] = ..., job: _Optional[_Union[_job_pb2.JobSpec, _Mapping]] = ..., plan_json: _Optional[str] = ..., worker: _Optional[str] = ..., host: _Optional[str] = ..., num_threads: _Optional[int] = ..., bundle_dir: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., endpoint: _Optional[int] = ..., start: _Optional[_Union[_types_pb2.Position, _Mapping]] = ...) -> None: ...

class LocalTensor(_message.Message):
    __slots__ = ("link", "step", "micro_batch", "value", "num_values", "structure", "dtype", "shape", "requires_grad", "is_no_gradient", "total_bytes", "segment_id", "new_segment_bytes", "inline_payload", "codec", "relative_error")
    LINK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    IS_NO_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    link: _types_pb2.LinkId
    step: int
    micro_batch: int
    value: int
    num_values: int
    structure: str
    dtype: _types_pb2.ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    requires_grad: bool
    is_no_gradient: bool
    total_bytes: int
    segment_id: int
    new_segment_bytes: int
    inline_payload: bytes
    codec: _types_pb2.Codec
    relative_error: float
    def __init__(self, link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., step: _Optional[int] = ..., micro_batch: _Optional[int] = ..., value: _Optional[int] = ..., num_values: _Optional[int] = ..., structure: _Optional[str] = ..., dtype: _Optional[_Union[_types_pb2.ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., requires_grad: _Optional[bool] = ..., is_no_gradient: _Optional[bool] = ..., total_bytes: _Optional[int] = ..., segment_id: _Optional[int] = ..., new_segment_bytes: _Optional[int] = ..., inline_payload: _Optional[bytes] = ..., codec: _Optional[_Union[_types_pb2.Codec, str]] = ..., relative_error: _Optional[float] = ...) -> None: ...

class ReleaseSegment(_message.Message):
    __slots__ = ("segment_id",)
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    def __init__(self, segment_id: _Optional[int] = ...) -> None: ...

class ParcelsConsumed(_message.Message):
    __slots__ = ("link", "num_parcels")
    LINK_FIELD_NUMBER: _ClassVar[int]
    NUM_PARCELS_FIELD_NUMBER: _ClassVar[int]
    link: _types_pb2.LinkId
    num_parcels: int
    def __init__(self, link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., num_parcels: _Optional[int] = ...) -> None: ...

class IssueStep(_message.Message):
    __slots__ = ("step", "epoch", "shares", "rows", "kind", "after_step")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    shares: _containers.RepeatedScalarFieldContainer[float]
    rows: _containers.RepeatedScalarFieldContainer[int]
    kind: PassKind
    after_step: int
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., shares: _Optional[_Iterable[float]] = ..., rows: _Optional[_Iterable[int]] = ..., kind: _Optional[_Union[PassKind, str]] = ..., after_step: _Optional[int] = ...) -> None: ...

class BeginEvaluation(_message.Message):
    __slots__ = ("after_step",)
    AFTER_STEP_FIELD_NUMBER: _ClassVar[int]
    after_step: int
    def __init__(self, after_step: _Optional[int] = ...) -> None: ...

class StepCommitted(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class SaveState(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class MeasureLink(_message.Message):
    __slots__ = ("endpoint", "worker")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    endpoint: int
    worker: str
    def __init__(self, endpoint: _Optional[int] = ..., worker: _Optional[str] = ...) -> None: ...

class PeerLink(_message.Message):
    __slots__ = ("link", "is_sender", "window_parcels")
    LINK_FIELD_NUMBER: _ClassVar[int]
    IS_SENDER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_PARCELS_FIELD_NUMBER: _ClassVar[int]
    link: _types_pb2.LinkId
    is_sender: bool
    window_parcels: int
    def __init__(self, link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., is_sender: _Optional[bool] = ..., window_parcels: _Optional[int] = ...) -> None: ...

class PeerMessage(_message.Message):
    __slots__ = ("tensor", "release_segment", "parcels_consumed", "begins_after")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    PARCELS_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    BEGINS_AFTER_FIELD_NUMBER: _ClassVar[int]
    tensor: LocalTensor
    release_segment: ReleaseSegment
    parcels_consumed: ParcelsConsumed
    begins_after: int
    def __init__(self, tensor: _Optional[_Union[LocalTensor, _Mapping]] = ..., release_segment: _Optional[_Union[ReleaseSegment, _Mapping]] = ..., parcels_consumed: _Optional[_Union[ParcelsConsumed, _Mapping]] = ..., begins_after: _Optional[int] = ...) -> None: ...

class Knock(_message.Message):
    __slots__ = ("run_id", "term", "link", "token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    link: _types_pb2.LinkId
    token: str
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class Knocked(_message.Message):
    __slots__ = ("refusal", "is_admitted")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    IS_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    refusal: str
    is_admitted: bool
    def __init__(self, refusal: _Optional[str] = ..., is_admitted: _Optional[bool] = ...) -> None: ...

class PeerCount(_message.Message):
    __slots__ = ("link", "tensor_bytes", "num_tensors", "coded_bytes", "relative_error")
    LINK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_TENSORS_FIELD_NUMBER: _ClassVar[int]
    CODED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    link: _types_pb2.LinkId
    tensor_bytes: int
    num_tensors: int
    coded_bytes: int
    relative_error: float
    def __init__(self, link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., tensor_bytes: _Optional[int] = ..., num_tensors: _Optional[int] = ..., coded_bytes: _Optional[int] = ..., relative_error: _Optional[float] = ...) -> None: ...

class PeerCounts(_message.Message):
    __slots__ = ("counts",)
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[PeerCount]
    def __init__(self, counts: _Optional[_Iterable[_Union[PeerCount, _Mapping]]] = ...) -> None: ...

class ToChild(_message.Message):
    __slots__ = ("assignment_path", "issue_step", "step_committed", "save_state", "stop", "tensor", "release_segment", "measure_link", "begin_evaluation", "weights_piece", "peer_link")
    ASSIGNMENT_PATH_FIELD_NUMBER: _ClassVar[int]
    ISSUE_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SAVE_STATE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    MEASURE_LINK_FIELD_NUMBER: _ClassVar[int]
    BEGIN_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_PIECE_FIELD_NUMBER: _ClassVar[int]
    PEER_LINK_FIELD_NUMBER: _ClassVar[int]
    assignment_path: str
    issue_step: IssueStep
    step_committed: StepCommitted
    save_state: SaveState
    stop: Stop
    tensor: LocalTensor
    release_segment: ReleaseSegment
    measure_link: MeasureLink
    begin_evaluation: BeginEvaluation
    weights_piece: WeightsPiece
    peer_link: PeerLink
    def __init__(self, assignment_path: _Optional[str] = ..., issue_step: _Optional[_Union[IssueStep, _Mapping]] = ..., step_committed: _Optional[_Union[StepCommitted, _Mapping]] = ..., save_state: _Optional[_Union[SaveState, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., tensor: _Optional[_Union[LocalTensor, _Mapping]] = ..., release_segment: _Optional[_Union[ReleaseSegment, _Mapping]] = ..., measure_link: _Optional[_Union[MeasureLink, _Mapping]] = ..., begin_evaluation: _Optional[_Union[BeginEvaluation, _Mapping]] = ..., weights_piece: _Optional[_Union[WeightsPiece, _Mapping]] = ..., peer_link: _Optional[_Union[PeerLink, _Mapping]] = ...) -> None: ...

class ParameterInfo(_message.Message):
    __slots__ = ("name", "num_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("parameters", "fingerprint")
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    parameters: _containers.RepeatedCompositeFieldContainer[ParameterInfo]
    fingerprint: str
    def __init__(self, parameters: _Optional[_Iterable[_Union[ParameterInfo, _Mapping]]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class SharedParameter(_message.Message):
    __slots__ = ("name", "num_bytes", "is_trained")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_bytes: int
    is_trained: bool
    def __init__(self, name: _Optional[str] = ..., num_bytes: _Optional[int] = ..., is_trained: _Optional[bool] = ...) -> None: ...

class LayerInfo(_message.Message):
    __slots__ = ("name", "type", "mark", "parameter_bytes", "buffer_bytes", "gradient_bytes", "shared")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    mark: str
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    shared: _containers.RepeatedCompositeFieldContainer[SharedParameter]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., mark: _Optional[str] = ..., parameter_bytes: _Optional[int] = ..., buffer_bytes: _Optional[int] = ..., gradient_bytes: _Optional[int] = ..., shared: _Optional[_Iterable[_Union[SharedParameter, _Mapping]]] = ...) -> None: ...

class DataMisfit(_message.Message):
    __slots__ = ("error", "layer")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    error: _types_pb2.ErrorReport
    layer: int
    def __init__(self, error: _Optional[_Union[_types_pb2.ErrorReport, _Mapping]] = ..., layer: _Optional[int] = ...) -> None: ...

class Inspected(_message.Message):
    __slots__ = ("layers", "misfit", "is_trying", "flow_json", "no_flow", "state_per_gradient")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    MISFIT_FIELD_NUMBER: _ClassVar[int]
    IS_TRYING_FIELD_NUMBER: _ClassVar[int]
    FLOW_JSON_FIELD_NUMBER: _ClassVar[int]
    NO_FLOW_FIELD_NUMBER: _ClassVar[int]
    STATE_PER_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedCompositeFieldContainer[LayerInfo]
    misfit: DataMisfit
    is_trying: bool
    flow_json: str
    no_flow: _types_pb2.ErrorReport
    state_per_gradient: float
    def __init__(self, layers: _Optional[_Iterable[_Union[LayerInfo, _Mapping]]] = ..., misfit: _Optional[_Union[DataMisfit, _Mapping]] = ..., is_trying: _Optional[bool] = ..., flow_json: _Optional[str] = ..., no_flow: _Optional[_Union[_types_pb2.ErrorReport, _Mapping]] = ..., state_per_gradient: _Optional[float] = ...) -> None: ...

class BatchAnnounced(_message.Message):
    __slots__ = ("step", "epoch", "shares", "rows", "kind", "weight")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    shares: _containers.RepeatedScalarFieldContainer[float]
    rows: _containers.RepeatedScalarFieldContainer[int]
    kind: PassKind
    weight: float
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., shares: _Optional[_Iterable[float]] = ..., rows: _Optional[_Iterable[int]] = ..., kind: _Optional[_Union[PassKind, str]] = ..., weight: _Optional[float] = ...) -> None: ...

class DataEnded(_message.Message):
    __slots__ = ("num_steps", "kind")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    kind: PassKind
    def __init__(self, num_steps: _Optional[int] = ..., kind: _Optional[_Union[PassKind, str]] = ...) -> None: ...

class StepApplied(_message.Message):
    __slots__ = ("step", "stage", "loss", "kind", "metrics", "metric_warnings")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    METRIC_WARNINGS_FIELD_NUMBER: _ClassVar[int]
    step: int
    stage: int
    loss: float
    kind: PassKind
    metrics: _containers.RepeatedScalarFieldContainer[float]
    metric_warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, step: _Optional[int] = ..., stage: _Optional[int] = ..., loss: _Optional[float] = ..., kind: _Optional[_Union[PassKind, str]] = ..., metrics: _Optional[_Iterable[float]] = ..., metric_warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "step", "stage", "micro_batch", "awaiting", "since_unix_ns")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    AWAITING_FIELD_NUMBER: _ClassVar[int]
    SINCE_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    step: int
    stage: int
    micro_batch: int
    awaiting: str
    since_unix_ns: int
    def __init__(self, phase: _Optional[str] = ..., step: _Optional[int] = ..., stage: _Optional[int] = ..., micro_batch: _Optional[int] = ..., awaiting: _Optional[str] = ..., since_unix_ns: _Optional[int] = ...) -> None: ...

class ExecutorTimes(_message.Message):
    __slots__ = ("computing_ns", "no_input_ns", "no_credit_ns", "no_core_ns")
    COMPUTING_NS_FIELD_NUMBER: _ClassVar[int]
    NO_INPUT_NS_FIELD_NUMBER: _ClassVar[int]
    NO_CREDIT_NS_FIELD_NUMBER: _ClassVar[int]
    NO_CORE_NS_FIELD_NUMBER: _ClassVar[int]
    computing_ns: int
    no_input_ns: int
    no_credit_ns: int
    no_core_ns: int
    def __init__(self, computing_ns: _Optional[int] = ..., no_input_ns: _Optional[int] = ..., no_credit_ns: _Optional[int] = ..., no_core_ns: _Optional[int] = ...) -> None: ...

class StateChunk(_message.Message):
    __slots__ = ("step", "stage", "offset", "data", "is_last", "is_training")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    IS_TRAINING_FIELD_NUMBER: _ClassVar[int]
    step: int
    stage: int
    offset: int
    data: bytes
    is_last: bool
    is_training: bool
    def __init__(self, step: _Optional[int] = ..., stage: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., is_last: _Optional[bool] = ..., is_training: _Optional[bool] = ...) -> None: ...

class OutputPart(_message.Message):
    __slots__ = ("step", "micro_batch", "num_micro_batches", "rows", "value", "num_values", "structure", "dtype", "shape", "total_bytes", "offset", "data")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    NUM_MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    step: int
    micro_batch: int
    num_micro_batches: int
    rows: int
    value: int
    num_values: int
    structure: str
    dtype: _types_pb2.ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    total_bytes: int
    offset: int
    data: bytes
    def __init__(self, step: _Optional[int] = ..., micro_batch: _Optional[int] = ..., num_micro_batches: _Optional[int] = ..., rows: _Optional[int] = ..., value: _Optional[int] = ..., num_values: _Optional[int] = ..., structure: _Optional[str] = ..., dtype: _Optional[_Union[_types_pb2.ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., total_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadWeights(_message.Message):
    __slots__ = ("offset", "num_bytes", "is_training")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_TRAINING_FIELD_NUMBER: _ClassVar[int]
    offset: int
    num_bytes: int
    is_training: bool
    def __init__(self, offset: _Optional[int] = ..., num_bytes: _Optional[int] = ..., is_training: _Optional[bool] = ...) -> None: ...

class WeightsPiece(_message.Message):
    __slots__ = ("offset", "data", "total_bytes")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    total_bytes: int
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("step", "stage", "micro_batch", "action", "start_unix_ns", "end_unix_ns", "awaited", "awaited_ns", "worker", "awaited_credit_ns", "no_core_ns")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    END_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_NS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AWAITED_CREDIT_NS_FIELD_NUMBER: _ClassVar[int]
    NO_CORE_NS_FIELD_NUMBER: _ClassVar[int]
    step: int
    stage: int
    micro_batch: int
    action: str
    start_unix_ns: int
    end_unix_ns: int
    awaited: str
    awaited_ns: int
    worker: str
    awaited_credit_ns: int
    no_core_ns: int
    def __init__(self, step: _Optional[int] = ..., stage: _Optional[int] = ..., micro_batch: _Optional[int] = ..., action: _Optional[str] = ..., start_unix_ns: _Optional[int] = ..., end_unix_ns: _Optional[int] = ..., awaited: _Optional[str] = ..., awaited_ns: _Optional[int] = ..., worker: _Optional[str] = ..., awaited_credit_ns: _Optional[int] = ..., no_core_ns: _Optional[int] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ...) -> None: ...

class TypedBytes(_message.Message):
    __slots__ = ("dtype", "num_bytes")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    num_bytes: int
    def __init__(self, dtype: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class LayerProfile(_message.Message):
    __slots__ = ("layer", "gradient_bytes", "optimizer_bytes", "activation_bytes", "output_bytes", "output_gradient_bytes", "forward_s", "backward_s", "update_s", "input_backward_s", "weight_backward_s", "skip_s", "outputs", "output_gradients")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORWARD_S_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_S_FIELD_NUMBER: _ClassVar[int]
    UPDATE_S_FIELD_NUMBER: _ClassVar[int]
    INPUT_BACKWARD_S_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BACKWARD_S_FIELD_NUMBER: _ClassVar[int]
    SKIP_S_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    layer: LayerInfo
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    output_bytes: int
    output_gradient_bytes: int
    forward_s: float
    backward_s: float
    update_s: float
    input_backward_s: float
    weight_backward_s: float
    skip_s: float
    outputs: _containers.RepeatedCompositeFieldContainer[TypedBytes]
    output_gradients: _containers.RepeatedCompositeFieldContainer[TypedBytes]
    def __init__(self, layer: _Optional[_Union[LayerInfo, _Mapping]] = ..., gradient_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., output_gradient_bytes: _Optional[int] = ..., forward_s: _Optional[float] = ..., backward_s: _Optional[float] = ..., update_s: _Optional[float] = ..., input_backward_s: _Optional[float] = ..., weight_backward_s: _Optional[float] = ..., skip_s: _Optional[float] = ..., outputs: _Optional[_Iterable[_Union[TypedBytes, _Mapping]]] = ..., output_gradients: _Optional[_Iterable[_Union[TypedBytes, _Mapping]]] = ...) -> None: ...

class DeviceProfile(_message.Message):
    __slots__ = ("device", "memory_bytes", "micro_batch_rows", "layers", "flow_json")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_ROWS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    FLOW_JSON_FIELD_NUMBER: _ClassVar[int]
    device: str
    memory_bytes: int
    micro_batch_rows: int
    layers: _containers.RepeatedCompositeFieldContainer[LayerProfile]
    flow_json: str
    def __init__(self, device: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., micro_batch_rows: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[LayerProfile, _Mapping]]] = ..., flow_json: _Optional[str] = ...) -> None: ...

class LinkProfile(_message.Message):
    __slots__ = ("endpoint", "latency_s", "bytes_per_s", "problem", "way")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    endpoint: int
    latency_s: float
    bytes_per_s: float
    problem: str
    way: _types_pb2.LinkWay
    def __init__(self, endpoint: _Optional[int] = ..., latency_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ..., problem: _Optional[str] = ..., way: _Optional[_Union[_types_pb2.LinkWay, str]] = ...) -> None: ...

class ProgressPage(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FromChild(_message.Message):
    __slots__ = ("ready", "inspected", "batch_announced", "data_ended", "step_applied", "failed", "progress", "state_chunk", "trace", "tensor", "release_segment", "parcels_consumed", "device_profile", "link_profile", "output_part", "read_weights", "peer_counts", "progress_page", "executor_times")
    READY_FIELD_NUMBER: _ClassVar[int]
    INSPECTED_FIELD_NUMBER: _ClassVar[int]
    BATCH_ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    DATA_ENDED_FIELD_NUMBER: _ClassVar[int]
    STEP_APPLIED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_CHUNK_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    PARCELS_CONSUMED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PROFILE_FIELD_NUMBER: _ClassVar[int]
    LINK_PROFILE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_PART_FIELD_NUMBER: _ClassVar[int]
    READ_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PEER_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_PAGE_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_TIMES_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    inspected: Inspected
    batch_announced: BatchAnnounced
    data_ended: DataEnded
    step_applied: StepApplied
    failed: _types_pb2.ErrorReport
    progress: Progress
    state_chunk: StateChunk
    trace: Trace
    tensor: LocalTensor
    release_segment: ReleaseSegment
    parcels_consumed: ParcelsConsumed
    device_profile: DeviceProfile
    link_profile: LinkProfile
    output_part: OutputPart
    read_weights: ReadWeights
    peer_counts: PeerCounts
    progress_page: ProgressPage
    executor_times: ExecutorTimes
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., inspected: _Optional[_Union[Inspected, _Mapping]] = ..., batch_announced: _Optional[_Union[BatchAnnounced, _Mapping]] = ..., data_ended: _Optional[_Union[DataEnded, _Mapping]] = ..., step_applied: _Optional[_Union[StepApplied, _Mapping]] = ..., failed: _Optional[_Union[_types_pb2.ErrorReport, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., state_chunk: _Optional[_Union[StateChunk, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ..., tensor: _Optional[_Union[LocalTensor, _Mapping]] = ..., release_segment: _Optional[_Union[ReleaseSegment, _Mapping]] = ..., parcels_consumed: _Optional[_Union[ParcelsConsumed, _Mapping]] = ..., device_profile: _Optional[_Union[DeviceProfile, _Mapping]] = ..., link_profile: _Optional[_Union[LinkProfile, _Mapping]] = ..., output_part: _Optional[_Union[OutputPart, _Mapping]] = ..., read_weights: _Optional[_Union[ReadWeights, _Mapping]] = ..., peer_counts: _Optional[_Union[PeerCounts, _Mapping]] = ..., progress_page: _Optional[_Union[ProgressPage, _Mapping]] = ..., executor_times: _Optional[_Union[ExecutorTimes, _Mapping]] = ...) -> None: ...

class ForkChild(_message.Message):
    __slots__ = ("child_number", "environment")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHILD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    child_number: int
    environment: _containers.ScalarMap[str, str]
    def __init__(self, child_number: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ...) -> None: ...

class NurseryReady(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChildForked(_message.Message):
    __slots__ = ("child_number", "pid")
    CHILD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    child_number: int
    pid: int
    def __init__(self, child_number: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class ChildEnded(_message.Message):
    __slots__ = ("child_number", "returncode")
    CHILD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RETURNCODE_FIELD_NUMBER: _ClassVar[int]
    child_number: int
    returncode: int
    def __init__(self, child_number: _Optional[int] = ..., returncode: _Optional[int] = ...) -> None: ...

class ForkFailed(_message.Message):
    __slots__ = ("child_number", "reason")
    CHILD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    child_number: int
    reason: str
    def __init__(self, child_number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class FromNursery(_message.Message):
    __slots__ = ("ready", "forked", "ended", "failed")
    READY_FIELD_NUMBER: _ClassVar[int]
    FORKED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ready: NurseryReady
    forked: ChildForked
    ended: ChildEnded
    failed: ForkFailed
    def __init__(self, ready: _Optional[_Union[NurseryReady, _Mapping]] = ..., forked: _Optional[_Union[ChildForked, _Mapping]] = ..., ended: _Optional[_Union[ChildEnded, _Mapping]] = ..., failed: _Optional[_Union[ForkFailed, _Mapping]] = ...) -> None: ...
