"""What codecs cost in loss, what they save in bytes, and how fast they are.

    python -m benchmarks.codecs    # about 4 minutes; writes benchmarks/results/codecs.json and codecs_curve.csv

The example char_lm trains 300 steps on two workers, without a codec and with int8 activations and bfloat16 gradients,
from the same weights over the same batches; another seed is another round. Coding is timed on one thread, to
and from memory that is there already, as an executor's segments are.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import torch

import pipesvc
from benchmarks import results, rounds
from benchmarks.report import lines
from benchmarks.results import Result
from examples.char_lm import make_job
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire import codecs
from pipesvc.wire.elements import codec_name, payload_bytes

NUM_STEPS: Final = 300
LAST_STEPS: Final = 50  # whose mean is the final loss
LOSS_AIM: Final = "ratio <= 1.01"
CODEC: Final = pipesvc.Codec(activations="int8", gradients="bf16")
MIB: Final = 1 << 20
TENSOR_BYTES: Final = 4 * MIB
NUM_CALLS: Final = 10  # that are timed at once
CODECS: Final = (types_pb2.CODEC_BF16, types_pb2.CODEC_FP16, types_pb2.CODEC_INT8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """One run; `links` are those between the stages."""

    losses: list[float]
    links: list[dict[str, Any]]

    @property
    def final_loss(self) -> float:
        return fmean(self.losses[-LAST_STEPS:])

    def num_bytes(self, kind: str) -> int:
        return sum(link[kind] for link in self.links)


def train(client: pipesvc.Client, codec: pipesvc.Codec, seed: int) -> Trained:
    job = make_job(NUM_STEPS)
    run = client.submit(replace(job, seed=seed, strategy=replace(job.strategy, num_stages=2, codec=codec)))
    run.wait()
    links = [link for link in run.links() if link["link"].endswith(("/activation", "/gradient"))]
    return Trained(losses=run.losses(), links=links)


def training_figures(pairs: Sequence[tuple[Trained, Trained]], command: str) -> Iterator[Result]:
    """Of pairs (without a codec, with it)."""
    common: dict[str, Any] = {"command": command, "num_rounds": len(pairs)}
    yield results.result(
        f"char_lm, {NUM_STEPS} steps, int8 activations and bf16 gradients: mean loss of the last {LAST_STEPS} steps",
        rounds.spread([coded.final_loss for _, coded in pairs]),
        unit="nats",
        against="the same without a codec",
        ratio=rounds.spread([coded.final_loss / exact.final_loss for exact, coded in pairs]),
        aim=LOSS_AIM,
        **common,
    )
    sent = [(coded.num_bytes("coded_bytes"), coded.num_bytes("tensor_bytes")) for _, coded in pairs]
    yield results.result(
        "the same: bytes between the stages",
        rounds.spread([coded_bytes / MIB for coded_bytes, _ in sent]),
        unit="MiB",
        against="the same without a codec",
        ratio=rounds.spread([coded_bytes / tensor_bytes for coded_bytes, tensor_bytes in sent]),
        **common,
    )
    for name in ("0>1/activation", "1>0/gradient"):
        errors = [link["relative_error"] for _, coded in pairs for link in coded.links if link["link"] == name]
        yield results.result(f"the same: largest relative error of {name}", rounds.spread(errors), unit="", **common)


def coding_figures(num_rounds: int, command: str) -> Iterator[Result]:
    tensor = torch.randn(TENSOR_BYTES // 4)
    element_type = types_pb2.ELEMENT_TYPE_FLOAT32
    for codec in CODECS:
        view = memoryview(bytearray(payload_bytes(codec, element_type, tensor.shape)))
        taken = [
            (
                seconds_of(codecs.encode, tensor, codec, view),
                seconds_of(codecs.decode, view, codec, element_type, tensor.shape),
            )
            for _ in range(num_rounds + 1)
        ][1:]  # the first round warms up
        for what, found in (
            ("encoding", [encode_s for encode_s, _ in taken]),
            ("decoding", [decode_s for _, decode_s in taken]),
            ("encoding and decoding", [sum(each) for each in taken]),
        ):
            yield results.result(
                f"{codec_name(codec)}, {what} {TENSOR_BYTES // MIB} MiB of float32 on one thread",
                rounds.spread([TENSOR_BYTES / 1e9 / each_s for each_s in found]),
                unit="GB/s",
                command=command,
                num_rounds=num_rounds,
            )


def seconds_of(call: Callable[..., object], *arguments: object) -> float:
    started_s = time.perf_counter()
    for _ in range(NUM_CALLS):
        call(*arguments)
    return (time.perf_counter() - started_s) / NUM_CALLS


def write_curve(exact: Trained, coded: Trained) -> None:
    with (results.FOLDER / "codecs_curve.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss_without_codec", "loss_with_int8_and_bf16"])
        for step, losses in enumerate(zip(exact.losses, coded.losses, strict=True), 1):
            writer.writerow([step, *(f"{loss:.6f}" for loss in losses)])


def main() -> None:
    parser = argparse.ArgumentParser(description="What codecs cost in loss and save in bytes, and how fast they are.")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.codecs --seeds {arguments.seeds} --rounds {arguments.rounds}"
    found = list(coding_figures(arguments.rounds, command))
    with pipesvc.LocalCluster(num_workers=2, num_threads=1) as client:
        pairs = [(train(client, pipesvc.Codec(), seed), train(client, CODEC, seed)) for seed in range(arguments.seeds)]
    found = [*training_figures(pairs, command), *found]
    print("\n".join(lines(found)))
    results.write(results.FOLDER / "codecs.json", found)
    write_curve(*pairs[0])


if __name__ == "__main__":
    main()
