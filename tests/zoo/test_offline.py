"""Whoever imports a model of the hub has its library offline, and no variable of the environment stays."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from tests.zoo.offline import CONSTANTS, VARIABLE, offline
from tests.zoo.table import HUB


def test_models_of_the_hub_are_imported_offline() -> None:
    assert {case.build.__module__.partition("_")[0] for case in HUB.values()} == {"tests.zoo.hub"}
    assert import_module(CONSTANTS).HF_HUB_OFFLINE


@pytest.mark.parametrize("before", [None, "0"])
def test_the_environment_is_as_before(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    with offline():
        assert os.environ[VARIABLE] == "1"
    assert os.environ.get(VARIABLE) == before


def test_a_library_that_was_imported_before_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{CONSTANTS}.HF_HUB_OFFLINE", False)
    with pytest.raises(ImportError, match="was imported before"), offline():
        pass
