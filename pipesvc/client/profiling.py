"""Asking for a profile: what a job's layers, the workers' devices and the links between them cost.

The call lives as long as the measurement, so its events say what is awaited, and ending the call ends the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import IO

from pipesvc.client.job import Job
from pipesvc.client.progress import awaited_text
from pipesvc.client.spec import make_submission, measurable
from pipesvc.client.transport import Transport
from pipesvc.core.costs import Costs
from pipesvc.core.costs_json import from_json
from pipesvc.core.schedules import SCHEDULE_NAMES
from pipesvc.rpc.v1 import job_pb2, run_pb2

OnEvent = Callable[[Sequence[run_pb2.Awaited]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Measured costs, and how many of them this call has measured; the others were known."""

    costs: Costs
    num_devices_measured: int
    num_links_measured: int

    @property
    def are_kept(self) -> bool:
        """True where costs of layers were measured by an earlier call."""
        return self.num_devices_measured < len(self.costs.devices)


def profile(transport: Transport, job: Job, *, is_fresh: bool, on_event: OnEvent | None) -> Profile:
    """Blocks until all is measured; raises what failed it."""
    submission = make_submission(measurable(job))
    # How layers are cut and scheduled does not change what each of them costs, and may still be open. The way of
    # links does.
    strategy = job_pb2.StrategySpec(
        is_pipelined=job.strategy.pipeline,
        micro_batches=job.strategy.micro_batches,
        num_stages=job.strategy.num_stages or 0,
        schedule=SCHEDULE_NAMES[0],
        forces_grpc=not job.strategy.same_host,
    )
    submission.spec.strategy.CopyFrom(strategy)
    request = run_pb2.ProfileJobRequest(job=submission.spec, bundle=submission.bundle.data, is_fresh=is_fresh)
    with closing(transport.stream(transport.stub.ProfileJob, request)) as responses:
        for response in responses:
            if response.HasField("result"):
                result = response.result
                return Profile(
                    costs=from_json(result.costs_json),
                    num_devices_measured=result.num_devices_measured,
                    num_links_measured=result.num_links_measured,
                )
            if on_event is not None:
                on_event(response.progress.awaited)
    raise transport.ended_early("the profile")


class ProfileLines:
    """What a profile waits for, on a line of its own whenever that changes."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._shown = ""

    def __call__(self, awaited: Sequence[run_pb2.Awaited]) -> None:
        text = awaited_text(awaited)
        if text != self._shown:
            self._shown = text
            print(f"profile: waits for {text}", file=self._file, flush=True)
