"""What a stage computes: the seam between the life of a stage and the ways in which a model is cut.

A list of layers is run one after the other, any other module by replaying its forward; optimizer, loss, norms and
state know nothing of it. Parcels are told apart by the endpoint that sent them, results by the stage that gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from pipesvc.core import seeds
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.deferral import Deferral
from pipesvc.worker.executor.inbox import Parcel
from pipesvc.worker.executor.spec import StageSpec
from pipesvc.worker.user_errors import user_error

# How torch's BatchNorm begins to say that it got one row.
_ONE_ROW: Final = "Expected more than 1 value per channel"
Parcels = Mapping[int, Parcel]  # sender -> what it sent
Gradients = dict[int, list[Tensor | None]]  # receiver -> one for each tensor that came from it; None: it got none


@dataclass(frozen=True, kw_only=True, slots=True)
class Forwarded:
    """A micro-batch after its forward.

    `backward` is called once, with the gradients of the senders; on the last stage it begins with the loss, where
    there is one that counts.
    """

    outputs: Mapping[int, Any]  # consumer -> what it gets
    result: Any  # what the model gives, on the last stage
    backward: Callable[[Parcels, Tensor | None], Gradients]


class StageProgram(Protocol):
    """A stage's part of the model. Names are those of the unsplit model."""

    @property
    def deferral(self) -> Deferral:
        """What of a backward may wait for W."""

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Each parameter once, under its first name, in the model's order; not what an earlier stage owns."""

    def tied_parameter(self, name: str) -> nn.Parameter:
        """One that several stages hold (`core.ties`), by its first name."""

    def place_of(self, name: str) -> int:
        """By which the parameters of all stages can be put into the model's order."""

    def roots(self) -> dict[str, nn.Module]:
        """The modules that hold all others, by name; "" is the whole model."""

    def shared_names(self) -> dict[str, nn.Parameter]:
        """All names of the parameters that modules beyond `roots` hold too, in the model's order."""

    def own_modules(self) -> dict[str, nn.Module]:
        """By path, those that hold the buffers of this stage."""

    def state_dict(self) -> dict[str, Any]:
        """With all names of what this stage owns, also those in modules of other stages."""

    def forward(self, step: int, micro_batch: int, inputs: Parcels) -> Forwarded: ...


def seed_generators(device: torch.device, seed: int) -> None:
    """The draws of `torch.manual_seed`, which takes 1 ms where CUDA is not in use: it formats a stack trace and keeps
    it, for a later seeding of GPUs."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def seed_for_loss(spec: StageSpec, step: int, micro_batch: int) -> None:
    """Where modules have streams of their own, which have ended: the loss function may draw as well."""
    seed_generators(spec.device, seeds.derive(spec.seed, "loss", step, micro_batch))


def failed(doing: str, cause: BaseException, where: Where, *, advice: str = "") -> PipesvcError:
    """What user code raised, for which the catcher says what it did."""
    if type(cause) is ValueError and str(cause).startswith(_ONE_ROW):
        advice = "Use fewer micro_batches; drop_last=True leaves out a last batch that is short"
    return user_error(ErrorCode.STAGE_FAILED, doing, cause, advice=advice, where=where)
