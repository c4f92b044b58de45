"""A small convolutional net on scikit-learn's handwritten digits, cut by explicit boundaries into three stages.

python examples/digits.py                                  # three workers of this machine
python examples/digits.py --coordinator 127.0.0.1:7700     # three workers that are already there
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pipesvc
from pipesvc.client.progress import follow

NUM_TRAINED = 1500


def digits() -> tuple[Tensor, Tensor]:
    """Images (n, 1, 8, 8) with values in 0..1, and their labels (n,)."""
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


def build_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def shuffled_digits() -> Iterator[tuple[Tensor, Tensor]]:
    images, labels = digits()
    for i in torch.randperm(NUM_TRAINED).tolist():
        yield images[i], labels[i]


def make_job(epochs: int) -> pipesvc.Job:
    return pipesvc.Job(
        name="digits",
        model=build_model,
        loss=cross_entropy,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1, momentum=0.9),
        data=pipesvc.DataSource(shuffled_digits, batch_size=32),
        strategy=pipesvc.Strategy(micro_batches=4, schedule="GPipe", boundaries=(2, 4)),
        epochs=epochs,
        seed=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--coordinator", help="HOST:PORT; without it a cluster of this machine is started")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    address = arguments.coordinator
    with pipesvc.connect(address) if address else pipesvc.LocalCluster(num_workers=3) as client:
        run = client.submit(make_job(arguments.epochs))
        follow(run)
        weights = run.state_dict()
    model = build_model()
    model.load_state_dict(weights, strict=True)
    model.eval()
    images, labels = digits()
    num_right = int((model(images[NUM_TRAINED:]).argmax(dim=1) == labels[NUM_TRAINED:]).sum())
    print(f"{num_right} of {len(labels) - NUM_TRAINED} digits that it has not seen are read right")


if __name__ == "__main__":
    try:
        main()
    except pipesvc.PipesvcError as error:
        raise SystemExit(str(error)) from None
