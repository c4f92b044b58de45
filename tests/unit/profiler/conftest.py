"""Times of layers are not looked at closely here, so they are taken in no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pipesvc.worker.profiler import layer_trial, link_trial
from tests.unit.profiler import profiled_code

TICK_S = 1e-5


class Clock:
    """In the place of `time`, for the profiler and for the code that it measures: only sleeping takes long."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def perf_counter(self) -> float:
        self.sleep(TICK_S)
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Clock()
    monkeypatch.setattr(layer_trial, "time", ours)
    monkeypatch.setattr(profiled_code, "time", ours)


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    num_threads = torch.get_num_threads()
    for name in ("PASSES_WINDOW_S", "UPDATES_WINDOW_S"):
        monkeypatch.setattr(layer_trial, name, 0.001)
    monkeypatch.setattr(link_trial, "WINDOW_S", 0.001)
    yield
    torch.set_num_threads(num_threads)
