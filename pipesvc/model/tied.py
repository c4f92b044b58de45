"""The gradients of parameters that several stages use, on one stage, for one micro-batch.

One process adds the uses of a parameter one after the other, the latest first, and only their sum to what earlier
micro-batches left. So a later stage takes off what this micro-batch gave and hands it down, and an earlier one begins
its own sum with it (`replay.boundary.run_backward`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from pipesvc.core.flow import PARAMETER
from pipesvc.errors import ErrorCode, PipesvcError

Given = dict[int, dict[str, Tensor | None]]  # receiver stage -> key -> gradient; None: it got none


class TiedGradients:
    """`users` are the stages of each tied parameter that is trained, ascending, by its name.

    No gradient of these may be put off: what the stage before adds follows in the same micro-batch.
    """

    def __init__(
        self, stage: int, users: Mapping[str, Sequence[int]], parameter_of: Callable[[str], nn.Parameter]
    ) -> None:
        self.parameters = {name: parameter_of(name) for name, stages in users.items() if stage in stages}
        self.gathered: dict[str, nn.Parameter] = {}  # key -> one of which a later stage sends a gradient
        self._passed_on: dict[str, tuple[nn.Parameter, int]] = {}
        for name, parameter in self.parameters.items():
            _refuse_hooks(name, parameter)
            stages = users[name]
            place = stages.index(stage)
            if place + 1 < len(stages):
                self.gathered[PARAMETER + name] = parameter
            if place > 0:
                self._passed_on[PARAMETER + name] = parameter, stages[place - 1]

    def taken(self, run: Callable[[], None]) -> Given:
        """What `run`, a backward, gives to parameters that an earlier stage owns.

        A stage of this worker may own them, so what it has summed up is set aside meanwhile.
        """
        sums = [(parameter, parameter.grad) for parameter, _ in self._passed_on.values()]
        for parameter, _ in sums:
            parameter.grad = None
        run()
        found: Given = {}
        for key, (parameter, receiver) in self._passed_on.items():
            found.setdefault(receiver, {})[key] = _sendable(key, parameter.grad)
        for parameter, total in sums:
            parameter.grad = total
        return found


def _refuse_hooks(name: str, parameter: nn.Parameter) -> None:
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise PipesvcError(
            ErrorCode.INVALID_JOB,
            f"the parameter {name!r}, which several stages use, has a hook, which each of them would call with the "
            "gradient of its own uses",
            advice="Leave the hook out, or put all uses of the parameter into one stage",
        )


def _sendable(key: str, gradient: Tensor | None) -> Tensor | None:
    if gradient is not None and gradient.layout is not torch.strided:
        raise PipesvcError(
            ErrorCode.STAGE_FAILED,
            f"the gradient of {key.removeprefix(PARAMETER)!r}, which an earlier stage uses too, is sparse, and only "
            "dense ones are sent",
            advice="Use sparse=False, or put all uses of the parameter into one stage",
        )
    return gradient
