"""The first thing in which two runs of a job differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """`size` is the largest absolute difference; `is_close` whether torch.testing.assert_close would take it."""

    name: str
    size: float
    text: str
    is_close: bool


def first_difference(
    split_losses: Sequence[float],
    plain_losses: Sequence[float],
    split_state: Mapping[str, Tensor],
    plain_state: Mapping[str, Tensor],
) -> Difference | None:
    """Losses by step, then state by name in the model's order; None: the same bits."""
    if len(split_losses) != len(plain_losses):
        text = f"the pipeline trained {len(split_losses)} steps, one process {len(plain_losses)}"
        return Difference(name="steps", size=math.inf, text=text, is_close=False)
    found = [_of_losses(step, *pair) for step, pair in enumerate(zip(split_losses, plain_losses, strict=True), 1)]
    names = dict.fromkeys([*plain_state, *split_state])
    found += [_of_tensors(name, split_state.get(name), plain_state.get(name)) for name in names]
    differences = [each for each in found if each is not None]
    # One that is not even close is told before those that are.
    return min(differences, key=lambda each: each.is_close, default=None)


def _of_losses(step: int, split: float, plain: float) -> Difference | None:
    if split == plain or (math.isnan(split) and math.isnan(plain)):
        return None
    return Difference(
        name=f"the loss of step {step}",
        size=abs(split - plain),
        text=f"the loss of step {step} is {split!r} in the pipeline and {plain!r} in one process",
        is_close=_is_close(torch.tensor(split), torch.tensor(plain)),
    )


def _of_tensors(name: str, split: Tensor | None, plain: Tensor | None) -> Difference | None:
    if split is None or plain is None:
        where = "one process" if split is None else "the pipeline"
        return Difference(name=name, size=math.inf, text=f"{name} is there in {where} only", is_close=False)
    if split.shape != plain.shape or split.dtype != plain.dtype:
        text = f"{name} is {_kind(split)} in the pipeline and {_kind(plain)} in one process"
        return Difference(name=name, size=math.inf, text=text, is_close=False)
    is_same = (split == plain) | ((split != split) & (plain != plain))  # NaN in both is the same
    if bool(is_same.all()):
        return None
    size = (split.double() - plain.double())[~is_same].abs().max().item()
    num = int((~is_same).sum())
    text = f"{name} differs in {num} of {split.numel()} elements, by {size:.3g} at most"
    return Difference(name=name, size=size, text=text, is_close=_is_close(split, plain))


def _is_close(split: Tensor, plain: Tensor) -> bool:
    try:
        torch.testing.assert_close(split, plain, equal_nan=True)
    except AssertionError:
        return False
    return True


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
