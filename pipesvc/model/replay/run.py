"""One stage's run of a model's forward, for one micro-batch.

Every stage runs the whole forward. Before its first unit, units are skipped and operations on what they would have
given run on shapes alone; from there on, a stand-in that reaches an operation is replaced by the tensor that was
received for it; at the first unit of the next stage the run is over. So Python values of any kind, branches on sizes
and the user's own line numbers are what they are in one process, and nothing but tensors need cross.

All of a run's state is in one object, so several micro-batches may be alive, and several stages in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipesvc.core.flow import Flow, check_ends
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.model.replay.boundary import Arrival, admit, run_backward
from pipesvc.model.replay.inputs import Inputs
from pipesvc.model.replay.part import Part, key_of, text_of
from pipesvc.model.replay.randomness import Streams
from pipesvc.model.replay.shapes import Memo
from pipesvc.model.replay.stage_run import StageEnd, StageRun

Gradients = Mapping[str, Tensor | None]


class StageReplay:
    """A stage of `model`, in which the parameters and buffers of the stage (`parameters_of`) have values."""

    def __init__(
        self, model: nn.Module, flow: Flow, ends: Sequence[int], stage: int, device: torch.device, *, seed: int = 0
    ) -> None:
        check_ends(flow, ends)
        self.part = Part(model, flow, ends, stage)
        self._model = model
        self._device = device
        self._seed = seed
        self._memo = Memo()
        self._streams = Streams(model, flow.random_modules, device)
        self.on_begin: Callable[[], object] | None = None
        """Called when forward comes to the stage's first unit, where that is not the first of all."""

    def forward(self, inputs: Inputs, received: Mapping[str, Tensor], *, step: int = 0, micro_batch: int = 0) -> Pass:
        """`inputs` are all arguments of the model; a tensor that this stage does not read may be on meta.

        `received` has the tensors of `part.receives` by key, with `requires_grad` as their maker had it.
        """
        arrivals = {key_of(key): admit(tensor, self._device) for key, tensor in received.items()}
        entries = {key: arrival.entry for key, arrival in arrivals.items()}
        run = StageRun(self.part, self._device, self._memo, entries)
        run.on_begin = self.on_begin
        args, kwargs = inputs.transform(run.begin)
        result: Any = None
        is_over = False
        with self._streams.root(seed=self._seed, step=step, micro_batch=micro_batch):
            try:
                with run.active():
                    result = self._model(*args, **kwargs)
                    is_over = True
            except StageEnd:
                pass
        is_last = self.part.stage == self.part.num_stages - 1
        if is_over != is_last:
            raise PipesvcError(
                ErrorCode.STAGE_FAILED,
                f"forward ended in stage {self.part.stage} without calling a unit of a later stage",
                advice="The plan was made for a forward that does: see whether it depends on sizes or values, or "
                "catches BaseException.",
            )
        if is_last:
            result = run.real(result)
        return Pass(self.part, arrivals, self._sent(run), result)

    def _sent(self, run: StageRun) -> dict[int, dict[str, Tensor]]:
        sent: dict[int, dict[str, Tensor]] = {}
        for consumer, keys in self.part.sends.items():
            missing = [key for key in keys if key_of(key) not in run.kept]
            if missing:
                raise PipesvcError(
                    ErrorCode.STAGE_FAILED,
                    f"forward took another way than was planned: value {missing[0]} of stage {self.part.stage} was "
                    f"not made, which stage {consumer} needs",
                    advice="The steps of forward must not depend on sizes that planning did not see, or on values.",
                )
            sent[consumer] = {key: run.kept[key_of(key)] for key in keys}
        return sent


class Pass:
    """A micro-batch between its forward and its backward on one stage.

    `values`: consumer stage -> key -> tensor, as they are at the end of the stage. `result`: what the model returned,
    on the last stage.
    """

    def __init__(
        self, part: Part, arrivals: dict[Any, Arrival], values: dict[int, dict[str, Tensor]], result: Any
    ) -> None:
        self.values = values
        self.result = result
        self._part = part
        self._arrivals = {text_of(key): arrival for key, arrival in arrivals.items()}

    def backward(self, gradients: Gradients, loss: Tensor | None = None) -> dict[int, dict[str, Tensor | None]]:
        """Receiver stage -> key -> gradient, None where there is none.

        `gradients` are those that later stages sent, by key; `loss` begins the backward of the last stage. To be called
        once, in ascending order of micro-batches.
        """
        part = self._part
        places = {key: arrival.entry for key, arrival in self._arrivals.items()}
        for sent in self.values.values():
            places.update(sent)
        places.update(part.tied.gathered)
        found = part.tied.taken(partial(run_backward, loss, places, gradients))
        for key, receiver in part.gradient_targets.items():
            found.setdefault(receiver, {})[key] = self._arrivals[key].gradient if key in self._arrivals else None
        return found
