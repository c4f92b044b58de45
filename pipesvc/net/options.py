"""Every channel and server option, with its unit and its reason.

gRPC reads its options by name and ignores names that it does not know, and several of its defaults are wrong for long
streams between hosts of one cluster. A wrong option therefore shows only as a rare failure much later: so they stand in
one place.
"""

from __future__ import annotations

import os
from typing import Final

from pipesvc.wire.frames import CHUNK_BYTES, MAX_HEADER_BYTES

Options = tuple[tuple[str, int], ...]

# gRPC tells the user's terminal of every connection that a peer closed. It reads this when its first channel or server
# is made; a user who debugs gRPC sets it to INFO beforehand.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# The largest message of the data plane. The receiver's cap bounds what a peer can make it allocate.
DATA_MESSAGE_BYTES: Final = CHUNK_BYTES + MAX_HEADER_BYTES

# The largest message of the control plane: a source bundle (capped at 16 MiB by the client), the job around it, and
# what the client has read ahead of a stream (capped at 9 MiB).
CONTROL_MESSAGE_BYTES: Final = 26 << 20

# Bytes of response metadata that carry an error report with its traceback; gRPC's own 8 KiB would drop the whole
# answer.
METADATA_BYTES: Final = 64 << 10

# Bytes of one serialized error report: as base64 in the metadata it is a third longer, and the status text stands
# beside it.
ERROR_REPORT_BYTES: Final = 24 << 10

_COMMON: Final[Options] = (
    ("grpc.max_metadata_size", METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES),
)

_CHANNEL: Final[Options] = (
    *_COMMON,
    # Addresses inside the cluster are dialled directly, whatever http_proxy and https_proxy say.
    ("grpc.enable_http_proxy", 0),
    # Milliseconds. The defaults (1 s, growing to 2 min) leave a restarted peer "down" long after it is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Milliseconds. A peer that vanished without closing its socket is found after time + timeout, not after hours.
    ("grpc.keepalive_time_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    # Milliseconds. Where the peer's kernel still takes bytes, a ping counts as unanswered by this one (default: 1 min).
    ("grpc.http2.ping_timeout_ms", 4_000),
    # Count; 0: an idle but open stream is pinged for as long as it is open.
    ("grpc.http2.max_pings_without_data", 0),
    # One connection per channel; else all channels to one target share a socket, and one tensor delays another's beat.
    ("grpc.use_local_subchannel_pool", 1),
)

_SERVER: Final[Options] = (
    *_COMMON,
    # A second server on the port must fail to bind; the default lets the kernel share the port between the two.
    ("grpc.so_reuseport", 0),
    # Milliseconds between pings that a client may send while no data flows; the default (5 min) answers keepalive by
    # hanging up. The spelling with "min_recv_ping" is ignored silently.
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
)


def _sized(options: Options, max_message_bytes: int) -> Options:
    return (
        *options,
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    )


CONTROL_CHANNEL: Final[Options] = _sized(_CHANNEL, CONTROL_MESSAGE_BYTES)
CONTROL_SERVER: Final[Options] = _sized(_SERVER, CONTROL_MESSAGE_BYTES)
DATA_CHANNEL: Final[Options] = _sized(_CHANNEL, DATA_MESSAGE_BYTES)
DATA_SERVER: Final[Options] = _sized(_SERVER, DATA_MESSAGE_BYTES)
