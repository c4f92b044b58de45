from pipesvc.rpc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("run_id", "term", "step", "micro_batch", "value", "num_values", "sequence", "chunk_offset", "total_bytes", "dtype", "shape", "requires_grad", "is_no_gradient", "codec", "structure", "payload", "crc32c")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    IS_NO_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    STRUCTURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    term: int
    step: int
    micro_batch: int
    value: int
    num_values: int
    sequence: int
    chunk_offset: int
    total_bytes: int
    dtype: _types_pb2.ElementType
    shape: _containers.RepeatedScalarFieldContainer[int]
    requires_grad: bool
    is_no_gradient: bool
    codec: _types_pb2.Codec
    structure: str
    payload: bytes
    crc32c: int
    def __init__(self, run_id: _Optional[str] = ..., term: _Optional[int] = ..., step: _Optional[int] = ..., micro_batch: _Optional[int] = ..., value: _Optional[int] = ..., num_values: _Optional[int] = ..., sequence: _Optional[int] = ..., chunk_offset: _Optional[int] = ..., total_bytes: _Optional[int] = ..., dtype: _Optional[_Union[_types_pb2.ElementType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., requires_grad: _Optional[bool] = ..., is_no_gradient: _Optional[bool] = ..., codec: _Optional[_Union[_types_pb2.Codec, str]] = ..., structure: _Optional[str] = ..., payload: _Optional[bytes] = ..., crc32c: _Optional[int] = ...) -> None: ...

class LinkReply(_message.Message):
    __slots__ = ("acknowledged_sequence", "credit_parcels", "door")
    ACKNOWLEDGED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_PARCELS_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    acknowledged_sequence: int
    credit_parcels: int
    door: str
    def __init__(self, acknowledged_sequence: _Optional[int] = ..., credit_parcels: _Optional[int] = ..., door: _Optional[str] = ...) -> None: ...
