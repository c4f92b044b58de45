"""How long links have waited for credit, all together."""

from __future__ import annotations

from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.credit_waits import CreditWaits, total_ns
from pipesvc.wire.links import Link

ONE = Link(0, 1, types_pb2.LINK_KIND_ACTIVATION)
OTHER = Link(0, 2, types_pb2.LINK_KIND_ACTIVATION)


def test_what_two_links_wait_at_once_counts_once() -> None:
    waits = CreditWaits()
    waits.change(ONE, 10, is_waiting=True)
    waits.change(OTHER, 15, is_waiting=True)
    waits.change(ONE, 20, is_waiting=False)
    assert ONE not in waits
    assert OTHER in waits
    assert total_ns(waits.parts, 22) == 12
    waits.change(OTHER, 30, is_waiting=False)
    assert waits.parts == (20, 0)
    assert total_ns(waits.parts, 99) == 20


def test_the_same_again_changes_nothing() -> None:
    waits = CreditWaits()
    waits.change(ONE, 5, is_waiting=False)
    waits.change(ONE, 10, is_waiting=True)
    waits.change(ONE, 12, is_waiting=True)
    assert waits.parts == (0, 10)
    waits.change(ONE, 14, is_waiting=False)
    waits.change(ONE, 18, is_waiting=False)
    waits.change(ONE, 20, is_waiting=True)
    assert total_ns(waits.parts, 21) == 5
