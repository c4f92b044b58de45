from pipesvc.rpc.v1 import local_pb2 as _local_pb2
from pipesvc.rpc.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Versions(_message.Message):
    __slots__ = ("pipesvc", "python", "torch", "wire")
    PIPESVC_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    pipesvc: str
    python: str
    torch: str
    wire: int
    def __init__(self, pipesvc: _Optional[str] = ..., python: _Optional[str] = ..., torch: _Optional[str] = ..., wire: _Optional[int] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("name", "incarnation", "host", "boot_id", "devices", "memory_bytes", "num_cores", "num_threads", "versions", "data_address", "fingerprint", "memory_limit_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_CORES_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    host: str
    boot_id: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    memory_bytes: int
    num_cores: int
    num_threads: int
    versions: Versions
    data_address: str
    fingerprint: str
    memory_limit_bytes: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., boot_id: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., memory_bytes: _Optional[int] = ..., num_cores: _Optional[int] = ..., num_threads: _Optional[int] = ..., versions: _Optional[_Union[Versions, _Mapping]] = ..., data_address: _Optional[str] = ..., fingerprint: _Optional[str] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...

class ChildProgress(_message.Message):
    __slots__ = ("run_id", "role", "progress", "times")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    role: _types_pb2.Role
    progress: _local_pb2.Progress
    times: _local_pb2.ExecutorTimes
    def __init__(self, run_id: _Optional[str] = ..., role: _Optional[_Union[_types_pb2.Role, str]] = ..., progress: _Optional[_Union[_local_pb2.Progress, _Mapping]] = ..., times: _Optional[_Union[_local_pb2.ExecutorTimes, _Mapping]] = ...) -> None: ...

class LinkCount(_message.Message):
    __slots__ = ("run_id", "link", "tensor_bytes", "wire_bytes", "num_frames", "way", "coded_bytes", "relative_error")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    WAY_FIELD_NUMBER: _ClassVar[int]
    CODED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    link: _types_pb2.LinkId
    tensor_bytes: int
    wire_bytes: int
    num_frames: int
    way: _types_pb2.LinkWay
    coded_bytes: int
    relative_error: float
    def __init__(self, run_id: _Optional[str] = ..., link: _Optional[_Union[_types_pb2.LinkId, _Mapping]] = ..., tensor_bytes: _Optional[int] = ..., wire_bytes: _Optional[int] = ..., num_frames: _Optional[int] = ..., way: _Optional[_Union[_types_pb2.LinkWay, str]] = ..., coded_bytes: _Optional[int] = ..., relative_error: _Optional[float] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("sent_unix_ns", "children", "links")
    SENT_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    sent_unix_ns: int
    children: _containers.RepeatedCompositeFieldContainer[ChildProgress]
    links: _containers.RepeatedCompositeFieldContainer[LinkCount]
    def __init__(self, sent_unix_ns: _Optional[int] = ..., children: _Optional[_Iterable[_Union[ChildProgress, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkCount, _Mapping]]] = ...) -> None: ...

class ChildReport(_message.Message):
    __slots__ = ("run_id", "role", "report")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    role: _types_pb2.Role
    report: _local_pb2.FromChild
    def __init__(self, run_id: _Optional[str] = ..., role: _Optional[_Union[_types_pb2.Role, str]] = ..., report: _Optional[_Union[_local_pb2.FromChild, _Mapping]] = ...) -> None: ...

class RunStopped(_message.Message):
    __slots__ = ("run_id", "links", "times")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    links: _containers.RepeatedCompositeFieldContainer[LinkCount]
    times: _local_pb2.ExecutorTimes
    def __init__(self, run_id: _Optional[str] = ..., links: _Optional[_Iterable[_Union[LinkCount, _Mapping]]] = ..., times: _Optional[_Union[_local_pb2.ExecutorTimes, _Mapping]] = ...) -> None: ...

class LogLines(_message.Message):
    __slots__ = ("run_id", "role", "lines", "is_stderr")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    IS_STDERR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    role: _types_pb2.Role
    lines: _containers.RepeatedScalarFieldContainer[str]
    is_stderr: bool
    def __init__(self, run_id: _Optional[str] = ..., role: _Optional[_Union[_types_pb2.Role, str]] = ..., lines: _Optional[_Iterable[str]] = ..., is_stderr: _Optional[bool] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("name", "incarnation", "data_address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    data_address: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., data_address: _Optional[str] = ...) -> None: ...

class PeerProbe(_message.Message):
    __slots__ = ("peer", "problem")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    problem: str
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class PeersProbed(_message.Message):
    __slots__ = ("probes",)
    PROBES_FIELD_NUMBER: _ClassVar[int]
    probes: _containers.RepeatedCompositeFieldContainer[PeerProbe]
    def __init__(self, probes: _Optional[_Iterable[_Union[PeerProbe, _Mapping]]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("register", "beat", "child_report", "run_stopped", "log_lines", "draining", "peers_probed")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    CHILD_REPORT_FIELD_NUMBER: _ClassVar[int]
    RUN_STOPPED_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PEERS_PROBED_FIELD_NUMBER: _ClassVar[int]
    register: Register
    beat: Beat
    child_report: ChildReport
    run_stopped: RunStopped
    log_lines: LogLines
    draining: bool
    peers_probed: PeersProbed
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., child_report: _Optional[_Union[ChildReport, _Mapping]] = ..., run_stopped: _Optional[_Union[RunStopped, _Mapping]] = ..., log_lines: _Optional[_Union[LogLines, _Mapping]] = ..., draining: _Optional[bool] = ..., peers_probed: _Optional[_Union[PeersProbed, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "beat_interval_ms", "beat_timeout_ms")
    TERM_FIELD_NUMBER: _ClassVar[int]
    BEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    BEAT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    term: int
    beat_interval_ms: int
    beat_timeout_ms: int
    def __init__(self, term: _Optional[int] = ..., beat_interval_ms: _Optional[int] = ..., beat_timeout_ms: _Optional[int] = ...) -> None: ...

class StartChild(_message.Message):
    __slots__ = ("assignment", "bundle", "addresses", "link_token", "window_parcels")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    LINK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_PARCELS_FIELD_NUMBER: _ClassVar[int]
    assignment: _local_pb2.Assignment
    bundle: bytes
    addresses: _containers.ScalarMap[int, str]
    link_token: str
    window_parcels: int
    def __init__(self, assignment: _Optional[_Union[_local_pb2.Assignment, _Mapping]] = ..., bundle: _Optional[bytes] = ..., addresses: _Optional[_Mapping[int, str]] = ..., link_token: _Optional[str] = ..., window_parcels: _Optional[int] = ...) -> None: ...

class ToRun(_message.Message):
    __slots__ = ("run_id", "role", "message")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    role: _types_pb2.Role
    message: _local_pb2.ToChild
    def __init__(self, run_id: _Optional[str] = ..., role: _Optional[_Union[_types_pb2.Role, str]] = ..., message: _Optional[_Union[_local_pb2.ToChild, _Mapping]] = ...) -> None: ...

class StopRun(_message.Message):
    __slots__ = ("run_id", "grace_s", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    grace_s: float
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., grace_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ProbePeers(_message.Message):
    __slots__ = ("peers", "timeout_ms")
    PEERS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    timeout_ms: int
    def __init__(self, peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "start_child", "to_run", "stop_run", "probe_peers", "notice")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    START_CHILD_FIELD_NUMBER: _ClassVar[int]
    TO_RUN_FIELD_NUMBER: _ClassVar[int]
    STOP_RUN_FIELD_NUMBER: _ClassVar[int]
    PROBE_PEERS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    start_child: StartChild
    to_run: ToRun
    stop_run: StopRun
    probe_peers: ProbePeers
    notice: Notice
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., start_child: _Optional[_Union[StartChild, _Mapping]] = ..., to_run: _Optional[_Union[ToRun, _Mapping]] = ..., stop_run: _Optional[_Union[StopRun, _Mapping]] = ..., probe_peers: _Optional[_Union[ProbePeers, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...
