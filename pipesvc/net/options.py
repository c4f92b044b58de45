"""Every channel and server option, with its unit, its reason and what shows that it is needed.

gRPC reads its options by name and ignores names that it does not know, and several of its defaults are wrong for long
streams between hosts of one cluster. A wrong option therefore shows only as a rare failure much later: so they stand in
one place, each with a test that fails without it, and all names are looked up in gRPC itself
(tests/unit/net/test_options.py).

Left at their defaults, for they moved nothing outside the noise (a stream of 8 MiB tensors on loopback, 0.69 to
0.93 GB/s and 1.8 to 2.0 CPU seconds per GB with and without): http2.max_frame_size 256 KiB to 16 MiB,
http2.lookahead_bytes 64 MiB, http2.write_buffer_size 64 MiB, http2.bdp_probe 0, optimization_target,
tcp_read_chunk_size 64 KiB to 4 MiB, tcp_tx_zerocopy_enabled. Two or four connections for one link gave nothing either.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from pipesvc.wire.frames import CHUNK_BYTES, MAX_HEADER_BYTES

Options = tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option of gRPC's."""

    name: str
    value: int
    unit: str
    reason: str
    """What the default does, and why that is wrong here."""
    shown_by: str
    """The test that fails without it."""
    measured: str
    """What was seen with it and without it."""


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

_COMMON: Final = (
    *(
        Option(
            name=name,
            value=METADATA_BYTES,
            unit="bytes",
            reason="above 8 KiB (16 KiB) gRPC drops the answer that bears an error report; an error that it makes "
            "itself names no stage",
            shown_by="test_error_arrives_with_its_place_and_the_end_of_its_traceback",
            measured="a report of a traceback of 200 KB is cut to 24 KiB and takes 32 KiB as base64",
        )
        for name in ("grpc.max_metadata_size", "grpc.absolute_max_metadata_size")
    ),
)

_CHANNEL: Final = (
    *_COMMON,
    Option(
        name="grpc.enable_http_proxy",
        value=0,
        unit="flag",
        reason="addresses inside the cluster are dialled directly, whatever http_proxy and https_proxy say",
        shown_by="test_w02_proxy_variables_are_ignored",
        measured="with the default nothing is reached where the variables name a dead proxy",
    ),
    *(
        Option(
            name=name,
            value=value,
            unit="milliseconds",
            reason='the defaults (1 s, growing to 2 min) leave a restarted peer "down" long after it is back',
            shown_by="test_a_peer_that_was_away_is_reached_soon_after_it_is_back",
            measured="eight channels to a server that came back after 25 s were connected 0.3 to 1.5 s later, with "
            "the defaults 1.7 to 16.7 s",
        )
        for name, value in (
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        )
    ),
    *(
        Option(
            name=name,
            value=4_000,
            unit="milliseconds",
            reason=reason,
            shown_by="test_f18_peer_that_falls_silent_while_its_kernel_takes_bytes_is_lost_by_name",
            measured="a silent peer is noticed after 4 + 4 s; without these three, not within the 30 s of the test",
        )
        for name, reason in (
            ("grpc.keepalive_time_ms", "without it a peer that vanished without closing is found after hours"),
            ("grpc.keepalive_timeout_ms", "so long a ping may go unanswered (default: 20 s)"),
            (
                "grpc.http2.ping_timeout_ms",
                "the same where the peer's kernel still takes bytes (default: 1 min)",
            ),
        )
    ),
    Option(
        name="grpc.http2.max_pings_without_data",
        value=0,
        unit="pings, 0: no limit",
        reason="an idle but open stream is pinged for as long as it is open; the default stops after two",
        shown_by="test_f21_an_idle_stream_is_pinged_as_long_as_it_is_open_and_sees_no_goaway",
        measured="with the default pings cease after two in the 18 s of the test",
    ),
    Option(
        name="grpc.use_local_subchannel_pool",
        value=1,
        unit="flag",
        reason="else all channels to one target share a connection, and one tensor delays another's beat",
        shown_by="test_every_channel_has_a_connection_of_its_own",
        measured="with the default two channels to one target have one connection",
    ),
)

_SERVER: Final = (
    *_COMMON,
    Option(
        name="grpc.so_reuseport",
        value=0,
        unit="flag",
        reason="a second server on the port must fail to bind; the default lets the kernel share the port",
        shown_by="test_w03_a_port_is_not_shared_with_a_server_that_would_share_it",
        measured="with the default the second bind succeeds, and connections go to either server",
    ),
    Option(
        name="grpc.http2.min_ping_interval_without_data_ms",
        value=2_000,
        unit="milliseconds",
        reason="the default (5 min) answers keepalive on a stream without data by hanging up with too_many_pings; the "
        'spelling with "min_recv_ping" is ignored silently',
        shown_by="test_f21_an_idle_stream_is_pinged_as_long_as_it_is_open_and_sees_no_goaway",
        measured="with the default an idle stream is ended with too_many_pings within the 18 s of the test",
    ),
)

TABLES: Final = {"channel": _CHANNEL, "server": _SERVER}
"""For the test that looks up every name, unit, reason and measurement."""


def _sized(table: tuple[Option, ...], max_message_bytes: int) -> Options:
    """gRPC's 4 MiB cap what may arrive, and nothing caps what is sent: here both ends refuse the same."""
    return (
        *((option.name, option.value) for option in table),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    )


CONTROL_CHANNEL: Final[Options] = _sized(_CHANNEL, CONTROL_MESSAGE_BYTES)
CONTROL_SERVER: Final[Options] = _sized(_SERVER, CONTROL_MESSAGE_BYTES)
DATA_CHANNEL: Final[Options] = _sized(_CHANNEL, DATA_MESSAGE_BYTES)
DATA_SERVER: Final[Options] = _sized(_SERVER, DATA_MESSAGE_BYTES)
