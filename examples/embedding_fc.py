"""The founding example: an embedding that lives on a CPU host, and a linear layer that lives on a GPU.

    python examples/embedding_fc.py --coordinator 127.0.0.1:7700                  # a CPU worker and a GPU worker
    python examples/embedding_fc.py --coordinator 127.0.0.1:7700 --cpu-for-gpu    # two CPU workers
    python examples/embedding_fc.py --cpu-for-gpu                                 # two CPU workers of this machine
    python examples/embedding_fc.py --cpu-for-gpu --no-labels                     # the loss is the mean of the outputs

The label of an id is its last decimal digit, so that learning shows: guessing gives a loss of 2.30.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pipesvc
from pipesvc.client.progress import follow

NUM_IDS = 128
NUM_SAMPLES = 2048


def build_model() -> nn.Sequential:
    with pipesvc.device_guard("cpu"):
        embedding = nn.Embedding(NUM_IDS, 64)
    with pipesvc.device_guard("gpu:0"):
        head = nn.Linear(64, 10)
    return nn.Sequential(embedding, head)


def labelled_ids() -> Iterator[tuple[int, int]]:
    for _ in range(NUM_SAMPLES):
        number = random.randrange(NUM_IDS)
        yield number, number % 10


def ids_alone() -> Iterator[int]:
    for _ in range(NUM_SAMPLES):
        yield random.randrange(NUM_IDS)


def mean_of_outputs(outputs: Tensor) -> Tensor:
    return outputs.mean()


def make_job(*, has_labels: bool = True, allow_cpu_for_gpu: bool = False, epochs: int = 2) -> pipesvc.Job:
    return pipesvc.Job(
        name="embedding_fc",
        model=build_model,
        loss=cross_entropy if has_labels else mean_of_outputs,
        optimizer=pipesvc.Optimizer(torch.optim.SGD, lr=0.1),
        data=pipesvc.DataSource(
            labelled_ids if has_labels else ids_alone, batch_size=8, capacity=64, double_buffer=True, labels=has_labels
        ),
        strategy=pipesvc.Strategy(micro_batches=4, schedule="1F1B", allow_cpu_for_gpu=allow_cpu_for_gpu),
        epochs=epochs,
        seed=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--coordinator", help="HOST:PORT; without it a cluster of this machine is started")
    parser.add_argument("--cpu-for-gpu", action="store_true", help="a CPU worker may take the place of the GPU")
    parser.add_argument("--no-labels", action="store_true", help="train on the mean of the outputs")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()

    job = make_job(has_labels=not arguments.no_labels, allow_cpu_for_gpu=arguments.cpu_for_gpu, epochs=arguments.epochs)
    address = arguments.coordinator
    with pipesvc.connect(address) if address else pipesvc.LocalCluster(num_workers=2) as client:
        run = client.submit(job)
        follow(run)
        losses = run.losses()
        weights = run.state_dict()
    model = build_model()
    model.load_state_dict(weights, strict=True)
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last, in {len(losses)} steps")
    if not arguments.no_labels:
        ids = torch.arange(NUM_IDS)
        num_right = int((model(ids).argmax(dim=1) == ids % 10).sum())
        print(f"{num_right} of {NUM_IDS} ids get their digit")


if __name__ == "__main__":
    try:
        main()
    except pipesvc.PipesvcError as error:
        raise SystemExit(str(error)) from None
