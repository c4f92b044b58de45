"""What an agent tells its child of credit: the newest, also of what began before there was a page."""

from __future__ import annotations

import os
import time

import pytest
import torch

from pipesvc.rpc.v1 import local_pb2
from pipesvc.worker.credit_board import CreditBoard
from pipesvc.worker.local_socket import receive_now
from pipesvc.worker.progress_page import ProgressPage, ProgressView
from tests.unit.worker.test_peer_links import BACK, LINK, WINDOW, Child, children, join, send

__all__ = ["children"]


def test_the_child_sees_what_its_agent_knows() -> None:
    page, board = ProgressPage(), CreditBoard()
    board.change(LINK, True)
    view = ProgressView(os.dup(page.descriptor))
    board.hang(view)
    ended_ns, since_ns = page.credit_waits
    assert ended_ns == 0
    assert 0 < since_ns <= time.monotonic_ns()
    board.change(BACK, True)
    board.change(LINK, False)
    assert page.credit_waits == (0, since_ns)
    board.change(BACK, False)
    ended_ns, since_ns = page.credit_waits
    assert ended_ns > 0
    assert since_ns == 0
    # The child has ended, and its links have not yet.
    view.close()
    board.change(LINK, True)
    assert page.credit_waits == (ended_ns, 0)
    os.close(page.descriptor)


def test_a_port_adds_what_waits_at_its_agent(children: tuple[Child, Child]) -> None:
    child = children[0]
    child.port.report(local_pb2.FromChild(progress=local_pb2.Progress(phase="F")))
    view = ProgressView(receive_now(child.agent).descriptors[0])
    assert child.port.credit_ns() == 0
    view.write_credit_waits((40, 0))
    assert child.port.credit_ns() == 40
    now_ns = time.monotonic_ns()
    view.write_credit_waits((40, now_ns - 10**9))
    assert child.port.credit_ns() >= 40 + 10**9


def test_a_parcel_beyond_the_window_waits_until_credit_comes(children: tuple[Child, Child]) -> None:
    sender, receiver = children
    join(sender, receiver)
    for micro_batch in range(WINDOW):
        send(sender, micro_batch, None)
    assert sender.port.credit_ns() == 0
    send(sender, WINDOW, None)
    time.sleep(0.01)
    before_ns = sender.port.credit_ns()
    assert before_ns >= 10**7
    assert len(receiver.parcels()) == WINDOW
    receiver.port.consumed(LINK)
    sender.port.poll(0.0)
    after_ns = sender.port.credit_ns()
    assert after_ns >= before_ns
    time.sleep(0.01)
    assert sender.port.credit_ns() == after_ns
    assert receiver.port.credit_ns() == 0


def test_who_waits_for_room_on_a_link_waits_for_credit(
    children: tuple[Child, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all that was sent has gone: parcels may be so large that fewer than a window are ahead."""
    monkeypatch.setattr("pipesvc.wire.ahead.AHEAD_BYTES", 100_000)
    sender, receiver = children
    join(sender, receiver)
    send(sender, 0, torch.ones(40_000))
    assert sender.port.credit_ns() == 0
    assert not sender.port.has_room(LINK)
    time.sleep(0.01)
    assert not sender.port.has_room(LINK)
    assert sender.port.credit_ns() >= 10**7
    assert len(receiver.parcels()) == 1
    receiver.port.consumed(LINK)
    sender.port.poll(1.0)
    ended_ns = sender.port.credit_ns()
    assert sender.port.has_room(LINK)
    assert sender.port.credit_ns() == ended_ns


def test_what_waited_for_an_end_that_is_gone_waits_no_more(children: tuple[Child, Child]) -> None:
    sender, receiver = children
    join(sender, receiver)
    for micro_batch in range(WINDOW + 1):
        send(sender, micro_batch, None)
    receiver.port.close()
    sender.port.poll(0.0)
    ended_ns = sender.port.credit_ns()
    assert ended_ns > 0
    assert sender.port.credit_ns() == ended_ns
