"""Unit tests are judged by what they find, not by how fast a loaded machine finds it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
