"""What one process of the plain PyTorch contenders does; started by `torch_turn`, prints its times and losses as JSON.

There is no barrier around a step: like our stages, a process goes on to its next step as soon as it has what it needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import pipelining

from benchmarks.gpt import build_model, random_batch, token_loss
from benchmarks.sizes import DATA_SEED, LEARNING_RATE, MODEL_SEED
from benchmarks.torch_turn import TorchLoop

# Runs one step; gives the losses of its micro-batches, or none on a stage before the last.
StepFunction = Callable[[], list[Tensor]]
_SCHEDULES = {"GPipe": pipelining.ScheduleGPipe, "1F1B": pipelining.Schedule1F1B}


def main() -> None:
    loop = TorchLoop.from_json(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(MODEL_SEED)
    model = build_model(**asdict(loop.sizes.model))
    ids, targets = random_batch(loop.sizes.num_rows, loop.sizes.model.context, loop.sizes.model.vocabulary, DATA_SEED)
    step = _pipelined(loop, model, ids, targets) if loop.schedule else _whole(loop, model, ids, targets)
    step_ends_ns, losses = [], []
    for _ in range(loop.num_steps):
        own = step()
        step_ends_ns.append(time.time_ns())
        losses += [sum(each.item() for each in own) / len(own)] if own else []
    print(json.dumps({"step_ends_ns": step_ends_ns, "losses": losses}), flush=True)
    if loop.schedule:
        dist.barrier()
        dist.destroy_process_group()


def _whole(loop: TorchLoop, model: nn.Sequential, ids: Tensor, targets: Tensor) -> StepFunction:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    m = loop.sizes.num_micro_batches

    def step() -> list[Tensor]:
        losses = []
        for ids_of_one, targets_of_one in zip(ids.chunk(m), targets.chunk(m), strict=True):
            loss = token_loss(model(ids_of_one), targets_of_one)
            losses.append(loss.detach())
            (loss / m).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return losses

    return step


def _pipelined(loop: TorchLoop, model: nn.Sequential, ids: Tensor, targets: Tensor) -> StepFunction:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{loop.store_path}", rank=loop.index, world_size=loop.num_processes
    )
    bounds = [0, *loop.sizes.boundaries(loop.num_processes), len(model)]
    own = model[bounds[loop.index] : bounds[loop.index + 1]]
    optimizer = torch.optim.SGD(own.parameters(), lr=LEARNING_RATE)
    stage = pipelining.PipelineStage(own, loop.index, loop.num_processes, torch.device("cpu"))
    schedule = _SCHEDULES[loop.schedule](stage, loop.sizes.num_micro_batches, loss_fn=token_loss)
    is_first, is_last = loop.index == 0, loop.index == loop.num_processes - 1

    def step() -> list[Tensor]:
        losses: list[Tensor] = []
        arguments = (ids,) if is_first else ()
        if is_last:
            schedule.step(*arguments, target=targets, losses=losses, return_outputs=loop.keeps_outputs)
        else:
            schedule.step(*arguments, return_outputs=loop.keeps_outputs)
        optimizer.step()
        optimizer.zero_grad()
        return [each.detach() for each in losses]

    return step


if __name__ == "__main__":
    main()
