"""What a user asks for, checked where it is written.

A job runs on other hosts, minutes later; a contradiction found there costs a cluster. So each value is a frozen,
keyword-only dataclass that refuses what cannot work as soon as it is made, and says the fix. What only a worker
can know (layers, devices, shapes) is checked at submit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesvc.client import checks, weights_source
from pipesvc.client.calls import Call, Optimizer, as_call, check_function
from pipesvc.client.checks import refuse
from pipesvc.client.evaluation import Evaluation
from pipesvc.client.schedule_file import ScheduleFile
from pipesvc.client.sources import DataSource, StreamSource
from pipesvc.client.strategy import Strategy

if TYPE_CHECKING:
    from pipesvc.client.run import Run

__all__ = ["Call", "DataSource", "Evaluation", "Job", "Optimizer", "ScheduleFile", "Strategy", "StreamSource"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training run: what is trained, on what, and how it is spread."""

    model: Callable[..., Any] | Call
    """A function that returns the model: an nn.Module, or its layers as an nn.Sequential or a list of modules."""
    optimizer: Optimizer
    data: DataSource | StreamSource
    loss: Callable[..., Any] | Call | None = None
    """loss(output, label), or loss(output) without labels; None: the model's last layer returns the loss."""
    strategy: Strategy = field(default_factory=Strategy)
    epochs: int | None = None
    """Passes over the data; None: one, or as many as max_steps needs."""
    max_steps: int | None = None
    """End after this many steps, also within an epoch."""
    seed: int = 0
    clip_norm: float | None = None
    """Scale gradients so that their global norm over all stages is at most this."""
    check_finite: bool = False
    """End the run with NON_FINITE_LOSS instead of training on."""
    weight: Callable[..., Any] | Call | None = None
    """weight(labels) gives one number per row; None: every row weighs the same."""
    evaluation: Evaluation | None = None
    """Loss and metrics of other data, as the run goes on."""
    init: Run | str | Path | None = None
    """Weights to begin with, by name: those of a run that has ended, or of a safetensors file on this host; None: the
    model as it is built."""
    name: str | None = None
    """For people; None: the name of the model function."""
    include: Sequence[str] = ()
    """Files or globs that user code needs beside its imports, relative to where the model's module is imported from."""
    worker_wait_s: float = 60.0
    """How long the run may wait for the workers that it needs."""
    build_timeout_s: float = 600.0
    """How long building the model, the optimizer and the source may take."""
    step_timeout_s: float = 600.0
    """How long one step may take."""

    @property
    def num_epochs(self) -> int:
        """Passes over the data; 0: as many as max_steps needs."""
        if self.epochs is not None:
            return self.epochs
        return 0 if self.max_steps is not None and isinstance(self.data, DataSource) else 1

    def __post_init__(self) -> None:
        as_call(self.model, what="model")
        self._check_optimizer()
        for what in ("loss", "weight"):
            value = getattr(self, what)
            if value is not None:
                function = as_call(value, what=what).function
                if isinstance(function, type):
                    raise refuse(
                        f"{what} is the class {function.__qualname__}, which would be called with the output",
                        "Pass a function, such as torch.nn.functional.cross_entropy",
                    )
        self._check_numbers()
        self._check_texts()
        checks.is_a("strategy", self.strategy, Strategy, "a pipesvc.Strategy", "Write strategy=pipesvc.Strategy(...)")
        self._check_data()
        self._check_evaluation()
        if self.init is not None:
            weights_source.check("init", self.init)

    def _check_optimizer(self) -> None:
        if isinstance(self.optimizer, Optimizer):
            return
        fix = "Write optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1)"
        if isinstance(self.optimizer, Call):
            raise refuse("optimizer is a Call", fix)
        given = f"an instance of {type(self.optimizer).__name__}"
        if callable(self.optimizer):
            check_function(self.optimizer, what="optimizer")
            given = f"{self.optimizer.__qualname__} itself"
        raise refuse(f"optimizer is {given}; each stage makes its own over its own parameters", fix)

    def _check_data(self) -> None:
        data = self.data
        if not isinstance(data, DataSource | StreamSource):
            fix = "Write data=pipesvc.DataSource(reader, batch_size=8)"
            raise checks.refusal("data", data, "a pipesvc.DataSource or a pipesvc.StreamSource", fix)
        m = self.strategy.micro_batches
        if data.batch_size is not None and data.batch_size < m:
            raise refuse(
                f"batch_size is {data.batch_size} and micro_batches is {m}: a micro-batch would have no row",
                f"Use micro_batches={data.batch_size} at most, or a batch_size of {m} or more",
            )
        if self.weight is not None and not data.labels:
            raise refuse(
                "weight is given, but labels=False leaves nothing to weigh", "Leave weight out, or give labels"
            )
        if isinstance(data, StreamSource) and self.epochs not in (None, 1):
            raise refuse(
                f"epochs is {self.epochs}, but a streamed source is read once",
                "Leave epochs out and repeat the data in the iterable",
            )

    def _check_evaluation(self) -> None:
        if self.evaluation is None:
            return
        fix = "Write evaluation=pipesvc.Evaluation(data=pipesvc.DataSource(reader, batch_size=8))"
        checks.is_a("evaluation", self.evaluation, Evaluation, "a pipesvc.Evaluation", fix)
        if self.evaluation.data.labels != self.data.labels:
            given = [f"labels={each.labels}" for each in (self.data, self.evaluation.data)]
            raise refuse(
                f"data has {given[0]} and the data of evaluation has {given[1]}; one loss reads both",
                "Give labels in both, or in neither",
            )

    def _check_numbers(self) -> None:
        checks.whole_or_none("epochs", self.epochs, 1)
        checks.whole_or_none("max_steps", self.max_steps, 1, checks.MAX_NUMBER)
        checks.whole("seed", self.seed, 0, checks.MAX_NUMBER)
        if self.clip_norm is not None:
            checks.positive("clip_norm", self.clip_norm)
        checks.flag("check_finite", self.check_finite)
        for name in ("worker_wait_s", "build_timeout_s", "step_timeout_s"):
            checks.duration(name, getattr(self, name))

    def _check_texts(self) -> None:
        if self.name is not None:
            checks.text("name", self.name)
        fix = f"Write include=[{checks.shown(self.include)}]" if isinstance(self.include, str) else ""
        checks.sequence("include", self.include, "a list of files or globs", fix)
        for pattern in self.include:
            checks.text("a pattern of include", pattern, most=checks.MAX_LONG_TEXT)
