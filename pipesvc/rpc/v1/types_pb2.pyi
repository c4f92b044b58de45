from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_EXECUTOR: _ClassVar[Role]
    ROLE_FEEDER: _ClassVar[Role]
    ROLE_INSPECTOR: _ClassVar[Role]
    ROLE_PROFILER: _ClassVar[Role]

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT64: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_BFLOAT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT8: _ClassVar[ElementType]
    ELEMENT_TYPE_INT16: _ClassVar[ElementType]
    ELEMENT_TYPE_INT32: _ClassVar[ElementType]
    ELEMENT_TYPE_INT64: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT8: _ClassVar[ElementType]
    ELEMENT_TYPE_BOOL: _ClassVar[ElementType]
    ELEMENT_TYPE_COMPLEX64: _ClassVar[ElementType]
    ELEMENT_TYPE_COMPLEX128: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT16: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT32: _ClassVar[ElementType]
    ELEMENT_TYPE_UINT64: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT8_E4M3FN: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT8_E5M2: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT8_E4M3FNUZ: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT8_E5M2FNUZ: _ClassVar[ElementType]
    ELEMENT_TYPE_COMPLEX32: _ClassVar[ElementType]
    ELEMENT_TYPE_FLOAT8_E8M0FNU: _ClassVar[ElementType]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_NONE: _ClassVar[Codec]
    CODEC_BF16: _ClassVar[Codec]
    CODEC_FP16: _ClassVar[Codec]
    CODEC_INT8: _ClassVar[Codec]

class LinkKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINK_KIND_UNSPECIFIED: _ClassVar[LinkKind]
    LINK_KIND_ACTIVATION: _ClassVar[LinkKind]
    LINK_KIND_GRADIENT: _ClassVar[LinkKind]
    LINK_KIND_INPUT: _ClassVar[LinkKind]
    LINK_KIND_LABEL: _ClassVar[LinkKind]
    LINK_KIND_NORM: _ClassVar[LinkKind]
    LINK_KIND_DECISION: _ClassVar[LinkKind]
    LINK_KIND_STREAM: _ClassVar[LinkKind]
    LINK_KIND_WEIGHT: _ClassVar[LinkKind]

class LinkWay(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINK_WAY_UNSPECIFIED: _ClassVar[LinkWay]
    LINK_WAY_GRPC: _ClassVar[LinkWay]
    LINK_WAY_SAME_HOST: _ClassVar[LinkWay]
ROLE_UNSPECIFIED: Role
ROLE_EXECUTOR: Role
ROLE_FEEDER: Role
ROLE_INSPECTOR: Role
ROLE_PROFILER: Role
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_FLOAT32: ElementType
ELEMENT_TYPE_FLOAT64: ElementType
ELEMENT_TYPE_FLOAT16: ElementType
ELEMENT_TYPE_BFLOAT16: ElementType
ELEMENT_TYPE_INT8: ElementType
ELEMENT_TYPE_INT16: ElementType
ELEMENT_TYPE_INT32: ElementType
ELEMENT_TYPE_INT64: ElementType
ELEMENT_TYPE_UINT8: ElementType
ELEMENT_TYPE_BOOL: ElementType
ELEMENT_TYPE_COMPLEX64: ElementType
ELEMENT_TYPE_COMPLEX128: ElementType
ELEMENT_TYPE_UINT16: ElementType
ELEMENT_TYPE_UINT32: ElementType
ELEMENT_TYPE_UINT64: ElementType
ELEMENT_TYPE_FLOAT8_E4M3FN: ElementType
ELEMENT_TYPE_FLOAT8_E5M2: ElementType
ELEMENT_TYPE_FLOAT8_E4M3FNUZ: ElementType
ELEMENT_TYPE_FLOAT8_E5M2FNUZ: ElementType
ELEMENT_TYPE_COMPLEX32: ElementType
ELEMENT_TYPE_FLOAT8_E8M0FNU: ElementType
CODEC_UNSPECIFIED: Codec
CODEC_NONE: Codec
CODEC_BF16: Codec
CODEC_FP16: Codec
CODEC_INT8: Codec
LINK_KIND_UNSPECIFIED: LinkKind
LINK_KIND_ACTIVATION: LinkKind
LINK_KIND_GRADIENT: LinkKind
LINK_KIND_INPUT: LinkKind
LINK_KIND_LABEL: LinkKind
LINK_KIND_NORM: LinkKind
LINK_KIND_DECISION: LinkKind
LINK_KIND_STREAM: LinkKind
LINK_KIND_WEIGHT: LinkKind
LINK_WAY_UNSPECIFIED: LinkWay
LINK_WAY_GRPC: LinkWay
LINK_WAY_SAME_HOST: LinkWay

class Position(_message.Message):
    __slots__ = ("step", "epoch", "steps_in_epoch", "batch_size", "accumulate", "run_id")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    steps_in_epoch: int
    batch_size: int
    accumulate: int
    run_id: str
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., steps_in_epoch: _Optional[int] = ..., batch_size: _Optional[int] = ..., accumulate: _Optional[int] = ..., run_id: _Optional[str] = ...) -> None: ...

class LinkId(_message.Message):
    __slots__ = ("producer", "consumer", "kind")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    producer: int
    consumer: int
    kind: LinkKind
    def __init__(self, producer: _Optional[int] = ..., consumer: _Optional[int] = ..., kind: _Optional[_Union[LinkKind, str]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("target", "arguments_json", "functions")
    class FunctionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    target: str
    arguments_json: str
    functions: _containers.ScalarMap[str, str]
    def __init__(self, target: _Optional[str] = ..., arguments_json: _Optional[str] = ..., functions: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ErrorReport(_message.Message):
    __slots__ = ("code", "message", "advice", "exception_type", "traceback", "run_id", "step", "stage", "micro_batch", "worker", "host", "last_words", "is_echo")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    LAST_WORDS_FIELD_NUMBER: _ClassVar[int]
    IS_ECHO_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    advice: str
    exception_type: str
    traceback: str
    run_id: str
    step: int
    stage: int
    micro_batch: int
    worker: str
    host: str
    last_words: str
    is_echo: bool
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., advice: _Optional[str] = ..., exception_type: _Optional[str] = ..., traceback: _Optional[str] = ..., run_id: _Optional[str] = ..., step: _Optional[int] = ..., stage: _Optional[int] = ..., micro_batch: _Optional[int] = ..., worker: _Optional[str] = ..., host: _Optional[str] = ..., last_words: _Optional[str] = ..., is_echo: _Optional[bool] = ...) -> None: ...
