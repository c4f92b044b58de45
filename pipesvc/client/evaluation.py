"""How good a run is on rows that it does not train on, asked while it goes on.

Loss and metrics are those of one process in eval() mode. Training does not notice: its numbers are the same with and
without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pipesvc.client import checks
from pipesvc.client.calls import Call, as_call
from pipesvc.client.checks import refuse
from pipesvc.client.sources import DataSource
from pipesvc.client.strategy import MAX_MICRO_BATCHES

_MAX_METRICS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """`run.evaluations()` gives what was found. There is always one after the last step."""

    data: DataSource
    """Read from its beginning, with the same seed, at each evaluation."""
    every: str = "epoch"
    """At the end of each epoch, unless `every_steps` is given."""
    every_steps: int | None = None
    micro_batches: int | None = None
    """Into how many a batch is cut; None: as in training. A batch of fewer rows is cut into as many."""
    metrics: Mapping[str, Callable[..., Any] | Call] = field(default_factory=dict)
    """name -> function(outputs, labels), or function(outputs) without labels: a number for a micro-batch. What is shown
    is the mean over all rows, or over `weight(labels)` of the job."""

    def __post_init__(self) -> None:
        fix = "Write data=pipesvc.DataSource(reader, batch_size=8)"
        checks.is_a("data", self.data, DataSource, "a pipesvc.DataSource, which can be read again", fix)
        if not isinstance(self.every, str) or self.every != "epoch":
            raise checks.refusal("every", self.every, '"epoch"', "For an evaluation after every N steps: every_steps=N")
        checks.whole_or_none("every_steps", self.every_steps, 1, checks.MAX_NUMBER)
        checks.whole_or_none("micro_batches", self.micro_batches, 1, MAX_MICRO_BATCHES)
        checks.is_a("metrics", self.metrics, Mapping, 'a dict such as {"accuracy": accuracy}')
        if len(self.metrics) > _MAX_METRICS:
            raise refuse(f"metrics has {len(self.metrics)} entries, at most {_MAX_METRICS} are possible")
        for name, function in self.metrics.items():
            checks.text("the name of one of the metrics", name)
            if isinstance(as_call(function, what=f"metrics[{name!r}]").function, type):
                raise refuse(
                    f"metrics[{name!r}] is a class, which would be called with the outputs",
                    "Pass a function of outputs and labels that gives a number",
                )
