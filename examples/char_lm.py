"""Trains a small GPT on the text of Python's own help topics, in pipeline stages, and prints what it learned to write.

    python examples/char_lm.py                                   # a coordinator and two workers on this machine
    python examples/char_lm.py --coordinator 127.0.0.1:7700      # workers that are already there

Character bigrams alone reach a loss of 2.46 on this text, so only less than that shows that the model works.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import pipesvc
from pipesvc.client.progress import follow

# b rows, t characters of context, d width
CONTEXT = 64
WIDTH = 128


@functools.cache
def text() -> str:
    return "\n\n".join(topics[name] for name in sorted(topics))


@functools.cache
def alphabet() -> str:
    return "".join(sorted(set(text())))


class Embed(nn.Module):
    """Character ids (b, t) to vectors (b, t, d)."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.characters(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return embedded


class Block(nn.Module):
    """Causal self-attention and a feed-forward net, each added to its input."""

    def __init__(self, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        packed = self.query_key_value(self.norm_attention(x)).view(b, t, 3, self.num_heads, d // self.num_heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(b, t, d))
        fed: Tensor = x + self.feed(self.norm_feed(x))
        return fed


def build_model(num_blocks: int = 4) -> nn.Sequential:
    num_characters = len(alphabet())
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_characters))
    return nn.Sequential(Embed(num_characters), *[Block() for _ in range(num_blocks)], head)


def character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def snippets() -> Iterator[tuple[Tensor, Tensor]]:
    """Random places in the text: the characters there, and the characters one further on."""
    index = {character: i for i, character in enumerate(alphabet())}
    ids = torch.tensor([index[character] for character in text()])
    while True:
        start = int(torch.randint(len(ids) - CONTEXT - 1, ()))
        yield ids[start : start + CONTEXT], ids[start + 1 : start + CONTEXT + 1]


def make_job(num_steps: int) -> pipesvc.Job:
    return pipesvc.Job(
        name="char_lm",
        model=build_model,
        loss=character_loss,
        optimizer=pipesvc.Optimizer(torch.optim.AdamW, lr=3e-3, betas=(0.9, 0.99), weight_decay=0.01),
        data=pipesvc.DataSource(snippets, batch_size=32),
        strategy=pipesvc.Strategy(micro_batches=4, schedule="1F1B"),
        max_steps=num_steps,
        clip_norm=1.0,
        seed=0,
    )


job = make_job(num_steps=500)  # for `pipesvc submit examples/char_lm.py:job`


@torch.no_grad()
def write(model: nn.Module, prompt: str, num_characters: int) -> str:
    """Continue the prompt, one character at a time: too little work at once for more than one thread."""
    torch.set_num_threads(1)
    model.eval()
    generator = torch.Generator().manual_seed(0)
    ids = [alphabet().index(character) for character in prompt]
    for _ in range(num_characters):
        logits = model(torch.tensor([ids[-CONTEXT:]]))[0, -1]
        ids.append(int(torch.multinomial(torch.softmax(logits / 0.7, dim=0), 1, generator=generator)))
    return "".join(alphabet()[i] for i in ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--coordinator", help="HOST:PORT; without it a cluster of this machine is started")
    parser.add_argument("--workers", type=int, default=2, help="workers of the started cluster")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("char_lm"), help="folder for the weights")
    arguments = parser.parse_args()

    address = arguments.coordinator
    with pipesvc.connect(address) if address else pipesvc.LocalCluster(num_workers=arguments.workers) as client:
        run = client.submit(make_job(arguments.steps))
        follow(run)
        losses = run.losses()
        arguments.out.mkdir(parents=True, exist_ok=True)
        weights_path = arguments.out / "char_lm.safetensors"
        run.save_weights(weights_path)
        weights = run.state_dict()

    model = build_model()
    model.load_state_dict(weights, strict=True)
    last = losses[-50:]
    print(f"\nfinal loss {sum(last) / len(last):.3f} (mean of the last {len(last)} of {len(losses)} steps)")
    print(f"a sample:\n{write(model, 'The ', 300)}\n")
    print(f"weights: {weights_path}")


if __name__ == "__main__":
    try:
        main()
    except pipesvc.PipesvcError as error:
        raise SystemExit(str(error)) from None
