"""Times of layers are not looked at closely here, so they are taken in no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pipesvc.worker.profiler import layer_trial, link_trial


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    num_threads = torch.get_num_threads()
    for name in ("PASSES_WINDOW_S", "UPDATES_WINDOW_S"):
        monkeypatch.setattr(layer_trial, name, 0.001)
    monkeypatch.setattr(link_trial, "WINDOW_S", 0.001)
    yield
    torch.set_num_threads(num_threads)
