"""What one process of the plain PyTorch contenders does; `torch_turn` starts it and tells it when to run a turn.

It says that it is ready. Each line that it reads then is a turn, from the same weights; it answers with the times and
losses of its steps as JSON, and waits on its standard input otherwise. There is no barrier around a step: like our
stages, a process goes on to its next step as soon as it has what it needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import pipelining

from benchmarks.gpt import random_batch
from benchmarks.sizes import LEARNING_RATE, MODEL_SEED
from benchmarks.torch_turn import TorchLoop, homes
from benchmarks.workloads import WORKLOADS

# Runs one step; gives the losses of its micro-batches, or none in a process without the last stage.
StepFunction = Callable[[], list[Tensor]]


def main() -> None:
    loop = TorchLoop.from_json(sys.argv[1])
    workload = WORKLOADS[loop.workload]
    torch.set_num_threads(1)
    torch.manual_seed(MODEL_SEED)
    model = workload.build(**workload.arguments)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    ids, targets = random_batch(**workload.batch)
    step = _pipelined(loop, model, ids, targets) if loop.schedule else _whole(loop, model, ids, targets)
    print("ready", flush=True)
    for _ in sys.stdin:
        model.load_state_dict(first)
        step_ends_ns, losses = [], []
        for _ in range(workload.num_steps):
            own = step()
            step_ends_ns.append(time.time_ns())
            losses += [sum(each.item() for each in own) / len(own)] if own else []
        print(json.dumps({"step_ends_ns": step_ends_ns, "losses": losses}), flush=True)
    if loop.schedule:
        dist.destroy_process_group()


def _whole(loop: TorchLoop, model: nn.Sequential, ids: Tensor, targets: Tensor) -> StepFunction:
    workload = WORKLOADS[loop.workload]
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    m = workload.num_micro_batches

    def step() -> list[Tensor]:
        losses = []
        for ids_of_one, targets_of_one in zip(ids.chunk(m), targets.chunk(m), strict=True):
            loss = workload.loss(model(ids_of_one), targets_of_one)
            losses.append(loss.detach())
            (loss / m).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return losses

    return step


def _pipelined(loop: TorchLoop, model: nn.Sequential, ids: Tensor, targets: Tensor) -> StepFunction:
    workload = WORKLOADS[loop.workload]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{loop.store_path}", rank=loop.index, world_size=loop.num_processes
    )
    bounds = [0, *loop.boundaries, len(model)]
    num_stages = len(bounds) - 1
    own = [stage for stage, home in enumerate(homes(loop.schedule, loop.num_processes)) if home == loop.index]
    parts = [model[bounds[stage] : bounds[stage + 1]] for stage in own]
    optimizer = torch.optim.SGD([value for part in parts for value in part.parameters()], lr=LEARNING_RATE)
    stages = [
        pipelining.PipelineStage(part, stage, num_stages, torch.device("cpu"))
        for part, stage in zip(parts, own, strict=True)
    ]
    schedule = _schedule(loop.schedule, stages, workload.num_micro_batches, workload.loss)
    arguments = (ids,) if 0 in own else ()
    is_last = num_stages - 1 in own

    def step() -> list[Tensor]:
        losses: list[Tensor] = []
        if is_last:
            schedule.step(*arguments, target=targets, losses=losses)
        else:
            schedule.step(*arguments)
        optimizer.step()
        optimizer.zero_grad()
        return [each.detach() for each in losses]

    return step


def _schedule(
    name: str,
    stages: Sequence[pipelining.PipelineStage],
    num_micro_batches: int,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> pipelining.schedules._PipelineSchedule:
    kind = getattr(pipelining, f"Schedule{name}")
    made: pipelining.schedules._PipelineSchedule = kind(
        stages[0] if len(stages) == 1 else list(stages), num_micro_batches, loss_fn=loss
    )
    return made


if __name__ == "__main__":
    main()
