from pipesvc.rpc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Yields(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    YIELDS_UNSPECIFIED: _ClassVar[Yields]
    YIELDS_SAMPLE: _ClassVar[Yields]
    YIELDS_SAMPLE_LIST: _ClassVar[Yields]
    YIELDS_BATCH: _ClassVar[Yields]

class SchedulerPeriod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEDULER_PERIOD_UNSPECIFIED: _ClassVar[SchedulerPeriod]
    SCHEDULER_PERIOD_STEP: _ClassVar[SchedulerPeriod]
    SCHEDULER_PERIOD_EPOCH: _ClassVar[SchedulerPeriod]

class Autocast(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUTOCAST_UNSPECIFIED: _ClassVar[Autocast]
    AUTOCAST_BFLOAT16: _ClassVar[Autocast]
    AUTOCAST_FLOAT16: _ClassVar[Autocast]
YIELDS_UNSPECIFIED: Yields
YIELDS_SAMPLE: Yields
YIELDS_SAMPLE_LIST: Yields
YIELDS_BATCH: Yields
SCHEDULER_PERIOD_UNSPECIFIED: SchedulerPeriod
SCHEDULER_PERIOD_STEP: SchedulerPeriod
SCHEDULER_PERIOD_EPOCH: SchedulerPeriod
AUTOCAST_UNSPECIFIED: Autocast
AUTOCAST_BFLOAT16: Autocast
AUTOCAST_FLOAT16: Autocast

class Sample(_message.Message):
    __slots__ = ("structure", "tensors", "absent")
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    structure: str
    tensors: _containers.RepeatedCompositeFieldContainer[SampleTensor]
    absent: str
    def __init__(self, structure: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[SampleTensor, _Mapping]]] = ..., absent: _Optional[str] = ...) -> None: ...

class SampleTensor(_message.Message):
    __slots__ = ("element_type", "shape", "data")
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    element_type: _types_pb2.ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, element_type: _Optional[_Union[_types_pb2.ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class DataSpec(_message.Message):
    __slots__ = ("source", "is_streamed", "yields", "batch_size", "capacity", "double_buffer", "drop_last", "has_labels", "timeout_s", "first")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IS_STREAMED_FIELD_NUMBER: _ClassVar[int]
    YIELDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_BUFFER_FIELD_NUMBER: _ClassVar[int]
    DROP_LAST_FIELD_NUMBER: _ClassVar[int]
    HAS_LABELS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    source: _types_pb2.Call
    is_streamed: bool
    yields: Yields
    batch_size: int
    capacity: int
    double_buffer: bool
    drop_last: bool
    has_labels: bool
    timeout_s: float
    first: Sample
    def __init__(self, source: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., is_streamed: _Optional[bool] = ..., yields: _Optional[_Union[Yields, str]] = ..., batch_size: _Optional[int] = ..., capacity: _Optional[int] = ..., double_buffer: _Optional[bool] = ..., drop_last: _Optional[bool] = ..., has_labels: _Optional[bool] = ..., timeout_s: _Optional[float] = ..., first: _Optional[_Union[Sample, _Mapping]] = ...) -> None: ...

class LinkCodec(_message.Message):
    __slots__ = ("earlier_stage", "later_stage", "activations", "gradients")
    EARLIER_STAGE_FIELD_NUMBER: _ClassVar[int]
    LATER_STAGE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    earlier_stage: int
    later_stage: int
    activations: _types_pb2.Codec
    gradients: _types_pb2.Codec
    def __init__(self, earlier_stage: _Optional[int] = ..., later_stage: _Optional[int] = ..., activations: _Optional[_Union[_types_pb2.Codec, str]] = ..., gradients: _Optional[_Union[_types_pb2.Codec, str]] = ...) -> None: ...

class StrategySpec(_message.Message):
    __slots__ = ("is_pipelined", "micro_batches", "schedule", "num_stages", "boundaries", "placement", "allow_cpu_for_gpu", "in_flight", "boundary_names", "schedule_text", "recomputes_all", "recompute_patterns", "compiles", "forces_grpc", "codecs")
    class PlacementEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IS_PIPELINED_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_CPU_FOR_GPU_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_NAMES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_TEXT_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTES_ALL_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_PATTERNS_FIELD_NUMBER: _ClassVar[int]
    COMPILES_FIELD_NUMBER: _ClassVar[int]
    FORCES_GRPC_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    is_pipelined: bool
    micro_batches: int
    schedule: str
    num_stages: int
    boundaries: _containers.RepeatedScalarFieldContainer[int]
    placement: _containers.ScalarMap[str, str]
    allow_cpu_for_gpu: bool
    in_flight: int
    boundary_names: _containers.RepeatedScalarFieldContainer[str]
    schedule_text: str
    recomputes_all: bool
    recompute_patterns: _containers.RepeatedScalarFieldContainer[str]
    compiles: bool
    forces_grpc: bool
    codecs: _containers.RepeatedCompositeFieldContainer[LinkCodec]
    def __init__(self, is_pipelined: _Optional[bool] = ..., micro_batches: _Optional[int] = ..., schedule: _Optional[str] = ..., num_stages: _Optional[int] = ..., boundaries: _Optional[_Iterable[int]] = ..., placement: _Optional[_Mapping[str, str]] = ..., allow_cpu_for_gpu: _Optional[bool] = ..., in_flight: _Optional[int] = ..., boundary_names: _Optional[_Iterable[str]] = ..., schedule_text: _Optional[str] = ..., recomputes_all: _Optional[bool] = ..., recompute_patterns: _Optional[_Iterable[str]] = ..., compiles: _Optional[bool] = ..., forces_grpc: _Optional[bool] = ..., codecs: _Optional[_Iterable[_Union[LinkCodec, _Mapping]]] = ...) -> None: ...

class MetricSpec(_message.Message):
    __slots__ = ("name", "call")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    name: str
    call: _types_pb2.Call
    def __init__(self, name: _Optional[str] = ..., call: _Optional[_Union[_types_pb2.Call, _Mapping]] = ...) -> None: ...

class EvaluationSpec(_message.Message):
    __slots__ = ("data", "every_steps", "micro_batches", "metrics")
    DATA_FIELD_NUMBER: _ClassVar[int]
    EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    data: DataSpec
    every_steps: int
    micro_batches: int
    metrics: _containers.RepeatedCompositeFieldContainer[MetricSpec]
    def __init__(self, data: _Optional[_Union[DataSpec, _Mapping]] = ..., every_steps: _Optional[int] = ..., micro_batches: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[MetricSpec, _Mapping]]] = ...) -> None: ...

class WeightsSource(_message.Message):
    __slots__ = ("run_id", "sha256", "path")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    sha256: str
    path: str
    def __init__(self, run_id: _Optional[str] = ..., sha256: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class ParameterGroup(_message.Message):
    __slots__ = ("pattern", "options_json")
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    options_json: str
    def __init__(self, pattern: _Optional[str] = ..., options_json: _Optional[str] = ...) -> None: ...

class OptimizerSpec(_message.Message):
    __slots__ = ("make", "groups", "group_rule", "pattern")
    MAKE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_RULE_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    make: _types_pb2.Call
    groups: _containers.RepeatedCompositeFieldContainer[ParameterGroup]
    group_rule: _types_pb2.Call
    pattern: str
    def __init__(self, make: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[ParameterGroup, _Mapping]]] = ..., group_rule: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., pattern: _Optional[str] = ...) -> None: ...

class SchedulerSpec(_message.Message):
    __slots__ = ("make", "every")
    MAKE_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    make: _types_pb2.Call
    every: SchedulerPeriod
    def __init__(self, make: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., every: _Optional[_Union[SchedulerPeriod, str]] = ...) -> None: ...

class GradScalerSpec(_message.Message):
    __slots__ = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    INIT_SCALE_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FACTOR_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FACTOR_FIELD_NUMBER: _ClassVar[int]
    GROWTH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    def __init__(self, init_scale: _Optional[float] = ..., growth_factor: _Optional[float] = ..., backoff_factor: _Optional[float] = ..., growth_interval: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("name", "model", "loss", "optimizer", "weight", "data", "strategy", "epochs", "max_steps", "seed", "clip_norm", "check_finite", "worker_wait_s", "build_timeout_s", "step_timeout_s", "python_version", "torch_version", "bundle_sha256", "optimizers", "scheduler", "clip_value", "accumulate", "autocast", "grad_scaler", "evaluation", "is_prediction", "weights", "defers_batch_norm", "keys_init_by_name", "stage_models", "training")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    CHECK_FINITE_FIELD_NUMBER: _ClassVar[int]
    WORKER_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    BUILD_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    CLIP_VALUE_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    AUTOCAST_FIELD_NUMBER: _ClassVar[int]
    GRAD_SCALER_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    IS_PREDICTION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DEFERS_BATCH_NORM_FIELD_NUMBER: _ClassVar[int]
    KEYS_INIT_BY_NAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_MODELS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: _types_pb2.Call
    loss: _types_pb2.Call
    optimizer: _types_pb2.Call
    weight: _types_pb2.Call
    data: DataSpec
    strategy: StrategySpec
    epochs: int
    max_steps: int
    seed: int
    clip_norm: float
    check_finite: bool
    worker_wait_s: float
    build_timeout_s: float
    step_timeout_s: float
    python_version: str
    torch_version: str
    bundle_sha256: str
    optimizers: _containers.RepeatedCompositeFieldContainer[OptimizerSpec]
    scheduler: SchedulerSpec
    clip_value: float
    accumulate: int
    autocast: Autocast
    grad_scaler: GradScalerSpec
    evaluation: EvaluationSpec
    is_prediction: bool
    weights: WeightsSource
    defers_batch_norm: bool
    keys_init_by_name: bool
    stage_models: _containers.RepeatedCompositeFieldContainer[_types_pb2.Call]
    training: WeightsSource
    def __init__(self, name: _Optional[str] = ..., model: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., loss: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., optimizer: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., weight: _Optional[_Union[_types_pb2.Call, _Mapping]] = ..., data: _Optional[_Union[DataSpec, _Mapping]] = ..., strategy: _Optional[_Union[StrategySpec, _Mapping]] = ..., epochs: _Optional[int] = ..., max_steps: _Optional[int] = ..., seed: _Optional[int] = ..., clip_norm: _Optional[float] = ..., check_finite: _Optional[bool] = ..., worker_wait_s: _Optional[float] = ..., build_timeout_s: _Optional[float] = ..., step_timeout_s: _Optional[float] = ..., python_version: _Optional[str] = ..., torch_version: _Optional[str] = ..., bundle_sha256: _Optional[str] = ..., optimizers: _Optional[_Iterable[_Union[OptimizerSpec, _Mapping]]] = ..., scheduler: _Optional[_Union[SchedulerSpec, _Mapping]] = ..., clip_value: _Optional[float] = ..., accumulate: _Optional[int] = ..., autocast: _Optional[_Union[Autocast, str]] = ..., grad_scaler: _Optional[_Union[GradScalerSpec, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationSpec, _Mapping]] = ..., is_prediction: _Optional[bool] = ..., weights: _Optional[_Union[WeightsSource, _Mapping]] = ..., defers_batch_norm: _Optional[bool] = ..., keys_init_by_name: _Optional[bool] = ..., stage_models: _Optional[_Iterable[_Union[_types_pb2.Call, _Mapping]]] = ..., training: _Optional[_Union[WeightsSource, _Mapping]] = ...) -> None: ...
