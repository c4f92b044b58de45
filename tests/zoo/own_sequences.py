"""Own models of sequences, each with a habit that cutting must take. More lie in tests/unit/model.

Letters: b rows, t positions, d width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.unit.model.replay_language import VOCABULARY, Block, D
from tests.zoo.case import ids


def vectors(b: int, t: int) -> dict[str, Tensor]:
    return {"src": torch.randn(b, t, D)}


def vector_pairs(b: int, t: int) -> dict[str, Tensor]:
    return {"src": torch.randn(b, t, D), "tgt": torch.randn(b, t + 2, D)}


def words(b: int, t: int) -> dict[str, Tensor]:
    return {"x": ids(b, t, VOCABULARY)}


def words_and_labels(b: int, t: int) -> dict[str, Tensor]:
    return {"x": ids(b, t, VOCABULARY), "labels": ids(b, t, VOCABULARY)}


def words_and_mask(b: int, t: int) -> dict[str, Any]:
    """The last position of every row is padding; the number is no tensor."""
    mask = torch.cat([torch.ones(b, t - 1), torch.zeros(b, 1)], 1).long()
    return {"input_ids": ids(b, t, VOCABULARY), "attention_mask": mask, "scale": 0.5}


def words_and_padding(b: int, t: int) -> dict[str, Tensor]:
    return {"ids": ids(b, t, VOCABULARY), "padding": torch.ones(b, t, dtype=torch.long)}


def source_and_target(b: int, t: int) -> dict[str, Tensor]:
    return {"source": ids(b, t, VOCABULARY), "target": ids(b, t + 1, VOCABULARY)}


def words_and_lengths(b: int, t: int) -> dict[str, Tensor]:
    return {"x": ids(b, t, VOCABULARY), "lengths": torch.randint(1, t, (b,))}


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(D, 2, 2 * D, 0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)


def transformer() -> nn.Module:
    return nn.Transformer(D, 2, 2, 2, 2 * D, 0.0, batch_first=True)


class LossInside(nn.Module):
    """Gives its loss beside other things, in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        h = self.wte(x)
        for block in self.h:
            h = block(h)
        logits = self.head(h)
        loss = None if labels is None else F.cross_entropy(logits.transpose(1, 2), labels)
        return {"loss": loss, "logits": logits, "hidden": (h,)}


class Gru(nn.Module):
    """Two directions, several layers in one module; the last state of the first is the first state of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.first = nn.GRU(D, D, num_layers=2, batch_first=True, bidirectional=True)
        self.second = nn.GRU(2 * D, D, num_layers=4, batch_first=True, dropout=0.1)
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h, state = self.first(self.wte(x))
        h, _ = self.second(h, state)
        result: Tensor = self.head(h)
        return result


class Cells(nn.Module):
    """A loop over positions calls the units again for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.lower, self.upper = nn.LSTMCell(D, D), nn.LSTMCell(D, D)
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x)
        one = two = (h.new_zeros(len(x), D), h.new_zeros(len(x), D))
        outputs = []
        for position in range(2):
            one = self.lower(h[:, position], one)
            two = self.upper(one[0], two)
            outputs.append(two[0])
        result: Tensor = self.head(torch.stack(outputs, 1))
        return result


class Experts(nn.Module):
    """Dense routing: every expert sees every position, and the router weighs them; a loss of balance is added."""

    def __init__(self, num_experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(D, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 2 * D), nn.SiLU(), nn.Linear(2 * D, D)) for _ in range(num_experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.router(x).softmax(-1)
        parts = torch.stack([expert(x) for expert in self.experts], -1)
        return x + (parts * weights.unsqueeze(-2)).sum(-1), weights.mean((0, 1)).square().sum()


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(Experts() for _ in range(4))
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, balance = self.wte(x), torch.zeros(())
        for block in self.h:
            h, part = block(h)
            balance = balance + part
        return self.head(h), balance


class Spectra(nn.Module):
    """Complex tensors between units (FNet mixes by a Fourier transform)."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.filters = nn.ModuleList(Filter() for _ in range(4))
        self.head = nn.Linear(D, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.wte(x), dim=-1)
        for each in self.filters:
            spectrum = each(spectrum)
        result: Tensor = self.head(torch.fft.irfft(spectrum, n=D, dim=-1))
        return result


class Filter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(D // 2 + 1))
        self.phase = nn.Linear(D // 2 + 1, D // 2 + 1)

    def forward(self, spectrum: Tensor) -> Tensor:
        return spectrum * torch.polar(self.gain, torch.tanh(self.phase(spectrum.abs())))


class Latents(nn.Module):
    """Learned queries at the root, which later blocks use again; pooled by the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.cross = nn.MultiheadAttention(D, 2, batch_first=True)
        self.h = nn.ModuleList(Block() for _ in range(3))
        self.queries = nn.Parameter(torch.randn(1, 5, D))
        self.head = nn.Linear(D, 4)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.wte(x)
        h = self.cross(self.queries.expand(len(x), -1, -1), memory, memory)[0]
        for block in self.h:
            h = block(h)
        result: Tensor = self.head(h[:, 0])
        return result


class Dilated(nn.Module):
    """WaveNet: channels first, and the sum of all blocks' skips at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, D)
        self.h = nn.ModuleList(nn.Conv1d(D, 2 * D, 3, padding=2**index, dilation=2**index) for index in range(4))
        self.head = nn.utils.parametrizations.weight_norm(nn.Conv1d(D, VOCABULARY, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x).transpose(1, 2)
        skips = []
        for convolution in self.h:
            gate, value = convolution(h).chunk(2, 1)
            skips.append(torch.sigmoid(gate) * torch.tanh(value))
            h = h + skips[-1]
        result: Tensor = self.head(torch.relu(sum(skips, torch.zeros(()))))
        return result
