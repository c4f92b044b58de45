"""Models of sound code that works in one thread or on one worker only."""

from __future__ import annotations

import os
import signal
import threading

import psutil
from torch import Tensor, nn

from tests.integration.jobs import NUM_CLASSES, WIDTH

_of_the_main_thread = threading.local()
_of_the_main_thread.scale = 0.5


class NeedsTheMainThread(nn.Module):
    """State of the thread that imported this, as some libraries keep it."""

    def forward(self, x: Tensor) -> Tensor:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        scaled: Tensor = x * _of_the_main_thread.scale
        return scaled


def bound_to_its_thread() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), NeedsTheMainThread(), nn.Linear(WIDTH, NUM_CLASSES))


class OnlyOn(nn.Module):
    """What works on one worker only: another lacks a variable, or dies of an instruction that its CPU lacks."""

    def __init__(self, worker: str, lacks: str) -> None:
        super().__init__()
        self.worker = worker
        self.lacks = lacks

    def forward(self, x: Tensor) -> Tensor:
        if not any(self.worker in agent.cmdline() for agent in psutil.Process().parents()):
            if self.lacks == "instruction":
                os.kill(os.getpid(), signal.SIGILL)
            raise KeyError("A_VARIABLE")
        return x


def only_on(worker: str, lacks: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), OnlyOn(worker, lacks), nn.Linear(WIDTH, NUM_CLASSES))
