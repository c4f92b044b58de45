"""Tests of the zoo compare bits."""

from __future__ import annotations

from tests.threads import one_thread

__all__ = ["one_thread"]
