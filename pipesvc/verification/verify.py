"""`pipesvc verify`: a job's first steps in a pipeline and in one process, and the first difference between them.

Whoever cuts a model wants to know that it is still the same model. A run of the service is compared with a plain
PyTorch loop here, bit for bit where both promise the same bits (the CPU, with the same torch, instructions and
threads), else within the tolerances of `torch.testing.assert_close`; the verdict says which of the two it was.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pipesvc.client import checks
from pipesvc.client.checks import refuse
from pipesvc.client.connection import Client
from pipesvc.client.job import DataSource, Job
from pipesvc.client.spec import check_is_job
from pipesvc.client.weights_source import is_given, state_of
from pipesvc.core.ties import Tie
from pipesvc.errors import ErrorCode, Where
from pipesvc.model.fingerprint import threads_in
from pipesvc.verification.difference import Difference, first_difference
from pipesvc.verification.plain_loop import plain_run
from pipesvc.worker.user_errors import user_error

NUM_STEPS: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """`difference` is None where every loss and every tensor has the same bits.

    `reason` says why the same bits were not promised; it is empty where they were.
    """

    run_id: str
    num_steps: int
    num_stages: int
    num_tensors: int
    difference: Difference | None
    reason: str

    @property
    def is_green(self) -> bool:
        return self.difference is None or (bool(self.reason) and self.difference.is_close)

    def __str__(self) -> str:
        steps = f"{self.num_steps} step{'s' if self.num_steps != 1 else ''}"
        what = f"{steps} on {self.num_stages} stage{'s' if self.num_stages != 1 else ''} and in one process"
        if self.difference is None:
            return f"the same: {what}: every loss and all {self.num_tensors} tensors, bit for bit"
        if self.is_green:
            return f"close: {what}: {self.difference.text}; equal bits are not promised: {self.reason}"
        promised = f"; equal bits are not promised ({self.reason}), but it is more than rounding" if self.reason else ""
        return f"DIFFERENT: {what}: {self.difference.text}{promised}"


def verify(client: Client, job: Job, *, num_steps: int = NUM_STEPS) -> Verdict:
    """Train the first steps of the job both ways. What `client.submit` raises comes through."""
    check_is_job(job)
    checks.whole("num_steps", num_steps, 1)
    if not isinstance(job.data, DataSource):
        raise refuse("a streamed source can be read once only, and verify reads twice", "Give a DataSource")
    if job.resume is not None:
        raise refuse("verify begins with the first step, and the job has resume", "Verify it without resume")
    if not job.strategy.codec.is_none:
        text = "verify compares bits, and the job has a codec, which rounds what stages send each other"
        raise refuse(text, "Verify it without codec, and compare its losses with those of a run that has none")
    run = client.submit(replace(job, max_steps=num_steps, evaluation=None))
    run.wait()
    losses, state, plan = run.losses(), run.state_dict(), run.plan()
    theirs = set(run.info().fingerprints.values())
    try:
        plain = plain_run(
            job,
            num_steps=num_steps,
            num_threads=min(filter(None, map(threads_in, theirs)), default=1),
            random_modules=plan.flow.random_modules if plan.flow is not None else (),
            first_state=state_of(job.init) if is_given(job.init) else None,
        )
    except Exception as cause:
        raise user_error(ErrorCode.STAGE_FAILED, "the job in one process here", cause, where=Where()) from cause
    return Verdict(
        run_id=run.run_id,
        num_steps=len(losses),
        num_stages=plan.num_stages,
        num_tensors=len(state),
        difference=first_difference(losses, plain.losses, state, plain.state),
        reason=not_promised(job, plan.ties, theirs, plain.fingerprint),
    )


def not_promised(job: Job, ties: Sequence[Tie], theirs: Collection[str], ours: str) -> str:
    """Why a run need not have the bits of one process; "" where it must. `ours` and `theirs` are fingerprints."""
    found = []
    if set(theirs) != {ours}:
        found.append(f"here {ours}; there {'; '.join(sorted(theirs))}")
    if job.strategy.compile:
        found.append("compiled modules add in another order and draw from the compiler's generator")
    if job.autocast is not None:
        found += [
            f"{tie.name!r} is cast by each of the stages {', '.join(map(str, tie.stages))}, and once in one process"
            for tie in ties
            if tie.is_trained
        ]
    return "; ".join(found)
