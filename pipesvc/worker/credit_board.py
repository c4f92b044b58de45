"""What an agent tells a child of the credit that its links wait for: on the page of its progress, when that changes.

The child hands its tensors to the agent and sees no more of them. A message for each change would wake it up to be told
what it asks only after a wait of its own.
"""

from __future__ import annotations

import time

from pipesvc.wire.credit_waits import CreditWaits
from pipesvc.wire.links import Link
from pipesvc.worker.progress_page import ProgressView


class CreditBoard:
    """Of one child."""

    def __init__(self) -> None:
        self._waits = CreditWaits()
        self._view: ProgressView | None = None

    def hang(self, view: ProgressView) -> None:
        """The child's page is there."""
        self._view = view
        self._show()

    def change(self, link: Link, is_waiting: bool) -> None:
        """From now on this link has a tensor that waits for credit, or none."""
        self._waits.change(link, time.monotonic_ns(), is_waiting=is_waiting)
        self._show()

    def _show(self) -> None:
        if self._view is not None:
            self._view.write_credit_waits(self._waits.parts)
