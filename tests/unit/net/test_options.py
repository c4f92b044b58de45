"""Options of gRPC are known to it, and stand with their reasons: a name that it does not know is ignored silently."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from pipesvc.net import options
from pipesvc.net.options import Option

# Strings of the library that begin as an option does and are none: its Python modules, what its parts tell each other,
# what its own tests use, and metrics.
NO_OPTION = re.compile(
    r"grpc\.(_|internal\.|testing\.|fake_|lb\.|subchannel\.|xds_client\.|tls\.|client\.|server\.|resource_quota\.)"
)
TESTS = Path(__file__).parents[2]
ALL = [option for table in options.TABLES.values() for option in table]


@pytest.fixture(scope="module")
def known() -> set[str]:
    """The names by which gRPC looks options up: whole strings of the library that runs here, not parts of texts.

    A whole string ends with a zero. Before it is another's zero or, for the first of a section, a byte of a table.
    """
    (library,) = (Path(grpc.__file__).parent / "_cython").glob("cygrpc*.so")
    found = re.findall(rb"(?<![A-Za-z_. /:='\"%-])(grpc\.[a-z0-9_.]+)(?=\0)", library.read_bytes())
    return {name for name in map(bytes.decode, found) if not NO_OPTION.match(name)}


@pytest.mark.parametrize(
    "name", sorted({name for each in (options.DATA_CHANNEL, options.DATA_SERVER) for name, _ in each})
)
def test_an_option_has_a_name_that_grpc_knows(known: set[str], name: str) -> None:
    assert name in known


@pytest.mark.parametrize(
    "name",
    [
        "grpc.http2.min_recv_ping_interval_without_data_ms",  # the name of the macro in gRPC's header
        "grpc.keepalive_time",
        "grpc.keepalive_timeout_s",
        "grpc.https_proxy",
        "grpc.enable_http_prox",
        "grpc.max_recieve_message_length",
        "grpc.max_pings_without_data",
        "grpc.internal.transport",
        "grpc.resource_quota.calls_dropped",
        "grpc.lb.rls.cache_size",
        "grpc._cython.cygrpc",
    ],
)
def test_a_slip_and_a_name_of_something_else_are_caught(known: set[str], name: str) -> None:
    assert name not in known


def test_both_planes_have_all_options_of_their_table() -> None:
    for name, made in (
        ("channel", (options.CONTROL_CHANNEL, options.DATA_CHANNEL)),
        ("server", (options.CONTROL_SERVER, options.DATA_SERVER)),
    ):
        table = options.TABLES[name]
        assert len({option.name for option in table}) == len(table)
        for each in made:
            assert [(option.name, option.value) for option in table] == list(each)[: len(table)]


@pytest.mark.parametrize("option", ALL, ids=lambda option: option.name)
def test_an_option_has_a_unit_a_reason_and_a_test_that_stands(option: Option) -> None:
    assert option.unit
    assert option.reason
    assert len(option.measured) > 20
    assert re.fullmatch(r"test_\w+", option.shown_by)
    files = [path for path in TESTS.rglob("test_*.py") if f"def {option.shown_by}(" in path.read_text()]
    assert len(files) == 1, f"{option.shown_by} stands in {files}"
