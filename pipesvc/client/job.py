"""What a user asks for, checked where it is written.

A job runs on other hosts, minutes later; a contradiction found there costs a cluster. So each value is a frozen,
keyword-only dataclass that refuses what cannot work as soon as it is made, and says the fix. What only a worker
can know (layers, devices, shapes) is checked at submit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesvc.client import checks, weights_source
from pipesvc.client.calls import Call, Optimizer, Scheduler, as_call, check_function
from pipesvc.client.checks import refuse
from pipesvc.client.codec import Codec
from pipesvc.client.evaluation import Evaluation
from pipesvc.client.precision import AUTOCAST_DTYPES, GradScaler
from pipesvc.client.schedule_file import ScheduleFile
from pipesvc.client.sources import DataSource, StreamSource
from pipesvc.client.strategy import MAX_MICRO_BATCHES, Strategy

if TYPE_CHECKING:
    from pipesvc.client.run import Run

__all__ = [
    "Call",
    "Codec",
    "DataSource",
    "Evaluation",
    "GradScaler",
    "Job",
    "Optimizer",
    "ScheduleFile",
    "Scheduler",
    "Strategy",
    "StreamSource",
]

_BATCH_NORMS = ("per_micro_batch", "deferred")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training run: what is trained, on what, and how it is spread."""

    model: Callable[..., Any] | Call | Sequence[Callable[..., Any] | Call]
    """A function that returns the model: an nn.Module, or its layers as an nn.Sequential or a list of modules.
    Or a list of functions, one for each stage, each of which returns the module of its stage."""
    optimizer: Optimizer | Mapping[str, Optimizer]
    """One for all parameters, or several by patterns (fnmatch) on their names: {"embed.*": ..., "*": ...}. Of these the
    first that matches takes a parameter, and each must be taken."""
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
    clip_value: float | None = None
    """Bound every single value of the gradients by this, as torch.nn.utils.clip_grad_value_ does."""
    accumulate: int = 1
    """Mini-batches of one optimizer step; `max_steps` and schedulers count steps. The last step of an epoch has what is
    left. Each mini-batch is cut into `micro_batches`, and the pipeline does not drain between them."""
    autocast: str | None = None
    """"bfloat16" or "float16": torch.autocast around forward and loss, on the device of each stage."""
    grad_scaler: GradScaler | bool = False
    """Scale losses so that small gradients survive float16, as torch.amp.GradScaler does; True: with its defaults."""
    check_finite: bool = False
    """End the run with NON_FINITE_LOSS instead of training on, also where a scaler would skip the step."""
    batch_norm: str = "per_micro_batch"
    """When BatchNorm updates its running statistics: for each micro-batch, as plain accumulation does, or "deferred":
    once per step, with the statistics of its whole mini-batch (of all that it accumulates)."""
    scheduler: Scheduler | None = None
    """Changes the optimizer's rates after steps or epochs."""
    weight: Callable[..., Any] | Call | None = None
    """weight(labels) gives one number per row; None: every row weighs the same."""
    evaluation: Evaluation | None = None
    """Loss and metrics of other data, as the run goes on."""
    init: Run | str | Path | None = None
    """Weights to begin with, by name: those of a run that has ended, or of a safetensors file on this host; None: the
    model as it is built. "by_name": as it is built, but each parameter draws from a stream of its own, keyed by its
    name, so that no worker draws for others; the numbers are not those of plain torch then."""
    resume: Run | str | Path | None = None
    """Go on from a checkpoint: from the end of another run, or from a folder that `run.save_checkpoint` wrote. Weights,
    optimizers, schedulers, scaler, step and place in the data are those of then, whatever the plan was and is; `epochs`
    and `max_steps` count from the beginning of the training. A `StreamSource` gives the batches that come after."""
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
    def scaler(self) -> GradScaler | None:
        """None: losses are not scaled."""
        if isinstance(self.grad_scaler, GradScaler):
            return self.grad_scaler
        return GradScaler() if self.grad_scaler else None

    @property
    def decides(self) -> bool:
        """Whether stages must agree on something before they update."""
        return self.clip_norm is not None or self.scaler is not None

    @property
    def num_epochs(self) -> int:
        """Passes over the data; 0: as many as max_steps needs."""
        if self.epochs is not None:
            return self.epochs
        return 0 if self.max_steps is not None and isinstance(self.data, DataSource) else 1

    def __post_init__(self) -> None:
        self._check_model()
        self._check_optimizer()
        if self.scheduler is not None:
            fix = "Write scheduler=pipesvc.Scheduler(torch.optim.lr_scheduler.StepLR, step_size=3)"
            checks.is_a("scheduler", self.scheduler, Scheduler, "a pipesvc.Scheduler", fix)
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
        if (num_builders := len(self.builders)) > 1:
            if not isinstance(self.optimizer, Optimizer) or self.optimizer.groups is not None:
                raise refuse(
                    "model has one builder for each stage, and the optimizer asks for the names of all parameters, "
                    "which no stage knows then",
                    "Use one optimizer without groups=, or let one function build the whole model",
                )
            object.__setattr__(self, "strategy", self.strategy.cut_between(num_builders))
        self._check_data()
        self._check_evaluation()
        if self.init is not None:
            weights_source.check("init", self.init)
        if self.resume is not None:
            weights_source.check_checkpoint("resume", self.resume)
            if self.init is not None:
                raise refuse("init and resume are both given", "A checkpoint has its weights: leave out init")

    @property
    def builders(self) -> list[Call]:
        """What builds the model: one function, or one for each of several stages."""
        if not isinstance(self.model, list | tuple):
            return [as_call(self.model, what="model")]  # type: ignore[arg-type]  # or no valid job comes of it
        return [as_call(each, what=f"model[{index}]") for index, each in enumerate(self.model)]

    def _check_model(self) -> None:
        if len(self.builders) < 2 and isinstance(self.model, list | tuple):
            raise refuse(
                f"model is a list of {len(self.model)}: a list has one builder for each of several stages",
                "For one function that builds the whole, write model=build_model",
            )

    def _check_optimizer(self) -> None:
        if isinstance(self.optimizer, Optimizer):
            return
        fix = "Write optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1)"
        if isinstance(self.optimizer, Mapping):
            _check_optimizers(self.optimizer)
            return
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
        if m * self.accumulate > MAX_MICRO_BATCHES:
            raise refuse(
                f"micro_batches is {m} and accumulate is {self.accumulate}",
                f"A step has at most {MAX_MICRO_BATCHES} micro-batches",
            )
        if self.accumulate > 1 and isinstance(self.strategy.schedule, ScheduleFile):
            raise refuse(
                f"accumulate is {self.accumulate}, and a schedule file orders the micro-batches of one mini-batch",
                "Choose a schedule by its name, or make batch_size and micro_batches larger",
            )
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
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        if self.clip_norm is not None and self.clip_value is not None:
            raise refuse("clip_norm and clip_value are both given", "Gradients are clipped in one way: leave one out")
        checks.whole("accumulate", self.accumulate, 1)
        if self.autocast is not None and self.autocast not in AUTOCAST_DTYPES:
            raise checks.refusal("autocast", self.autocast, " or ".join(AUTOCAST_DTYPES))
        fix = "Write grad_scaler=True, or pipesvc.GradScaler(init_scale=1024.0)"
        checks.is_a("grad_scaler", self.grad_scaler, (bool, GradScaler), "True, False or a pipesvc.GradScaler", fix)
        checks.flag("check_finite", self.check_finite)
        checks.one_of("batch_norm", self.batch_norm, _BATCH_NORMS)
        for name in ("worker_wait_s", "build_timeout_s", "step_timeout_s"):
            checks.duration(name, getattr(self, name))

    def _check_texts(self) -> None:
        if self.name is not None:
            checks.text("name", self.name)
        fix = f"Write include=[{checks.shown(self.include)}]" if isinstance(self.include, str) else ""
        checks.sequence("include", self.include, "a list of files or globs", fix)
        for pattern in self.include:
            checks.text("a pattern of include", pattern, most=checks.MAX_LONG_TEXT)


def _check_optimizers(optimizers: Mapping[str, Optimizer]) -> None:
    fix = 'Write optimizer={"embed.*": pipesvc.Optimizer(torch.optim.SparseAdam), "*": pipesvc.Optimizer(...)}'
    if not optimizers:
        raise refuse("optimizer is {}, which updates nothing", fix)
    for pattern, each in optimizers.items():
        checks.text("a pattern of optimizer", pattern, fix)
        checks.is_a(f"optimizer has {pattern!r}, whose value", each, Optimizer, "a pipesvc.Optimizer", fix)
