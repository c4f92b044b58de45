"""Tests of executors compare bits with the plain loop."""

from __future__ import annotations

from tests.threads import one_thread

__all__ = ["one_thread"]
