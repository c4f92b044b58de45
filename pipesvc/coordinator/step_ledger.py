"""The steps of one run: which are announced, issued, applied on each stage, and committed.

A step is committed when every stage has applied it; it is issued at most a window ahead of the last committed one,
so that no stage ever runs further ahead than the records can tell. The ledger refuses reports that would contradict
these counts, because a run whose stages disagree about the step must end and not train on.
"""

from __future__ import annotations

from pipesvc.coordinator.limits import WINDOW_STEPS
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2


class StepLedger:
    """Counts the steps after `start`. `num_steps` is None until the source has ended, then that of all of them."""

    def __init__(self, num_stages: int, start: types_pb2.Position | None = None) -> None:
        self.start = start or types_pb2.Position()
        self.issued = self.start.step
        self.committed = self.start.step
        # Of the last issued step.
        self.epoch = self.start.epoch
        self.applied = [self.start.step] * num_stages
        self.num_steps: int | None = None
        self._epoch_steps = (self.start.step - self.start.steps_in_epoch) // (self.start.epoch or 1)
        self._announced: dict[int, local_pb2.BatchAnnounced] = {}
        self._losses: dict[int, float] = {}
        self._issued_s: dict[int, float] = {}
        self._moved_s = 0.0

    def begin(self, now_s: float) -> None:
        """From here on steps and batches are awaited; batches may have been announced before."""
        self._moved_s = now_s

    @property
    def is_drained(self) -> bool:
        """True when every issued step is committed."""
        return self.committed == self.issued

    @property
    def is_complete(self) -> bool:
        return self.num_steps is not None and self.committed >= self.num_steps

    @property
    def is_hungry(self) -> bool:
        """True while nothing runs because the next batch has not been announced."""
        return self.is_drained and self.num_steps is None and self.issued + 1 not in self._announced

    @property
    def is_epoch_over(self) -> bool:
        """True when the next step, as far as it is announced, belongs to another epoch than the last issued one."""
        batch = self._announced.get(self.issued + 1)
        return batch is not None and batch.epoch != self.epoch

    @property
    def since_s(self) -> float:
        """Since when the oldest uncommitted step, or the next batch, is awaited."""
        return max(self._moved_s, self._issued_s.get(self.committed + 1, self._moved_s))

    @property
    def lagging_stages(self) -> list[int]:
        """The stages that hold up the oldest issued step."""
        return [stage for stage, step in enumerate(self.applied) if step == self.committed < self.issued]

    def announce(self, batch: local_pb2.BatchAnnounced) -> None:
        last = max(self._announced, default=self.issued)
        if batch.step != last + 1:
            raise _contradiction(f"the feeder announces step {batch.step} after step {last}", batch.step)
        if self.num_steps is not None:
            raise _contradiction(f"the feeder announces step {batch.step} after the end of its data", batch.step)
        if not batch.shares or len(batch.shares) != len(batch.rows):
            raise _contradiction("the feeder announces a batch whose shares and rows differ in number", batch.step)
        if batch.epoch and not self._epoch_steps:
            self._epoch_steps = batch.step - 1
        self._announced[batch.step] = batch

    def expected_steps(self, num_epochs: int, max_steps: int) -> int:
        """How many steps the run will have, for people: known at the source's end, guessed before; 0: no idea.

        Without an end in sight `max_steps` is the guess, and after a first epoch its length times the epochs.
        """
        if self.num_steps is not None:
            return self.num_steps
        guess = self._epoch_steps * num_epochs
        return min(guess, max_steps) if guess and max_steps else guess or (max_steps if not num_epochs else 0)

    def end(self, num_steps: int) -> None:
        last = max(self._announced, default=self.issued)
        if num_steps != last:
            raise _contradiction(f"the feeder ends after {num_steps} steps and has announced {last}", num_steps)
        self.num_steps = num_steps

    def issue(self, now_s: float) -> local_pb2.BatchAnnounced | None:
        """The next step that may be issued now, from here on counted as issued."""
        batch = self._announced.get(self.issued + 1)
        if batch is None or batch.step > self.committed + WINDOW_STEPS:
            return None
        self.issued, self.epoch = batch.step, batch.epoch
        self._issued_s[batch.step] = now_s
        return batch

    def apply(self, report: local_pb2.StepApplied, now_s: float) -> run_pb2.StepRecord | None:
        """Count a stage's update; the record is there when it was the last one of its step."""
        stage, step = report.stage, report.step
        if not 0 <= stage < len(self.applied) or step != self.applied[stage] + 1 or step > self.issued:
            known = self.applied[stage] if 0 <= stage < len(self.applied) else "no such stage"
            raise _contradiction(
                f"stage {stage} reports step {step} as applied after {known}, issued {self.issued}", step
            )
        self.applied[stage] = step
        if stage == len(self.applied) - 1:
            if not report.HasField("loss"):
                raise _contradiction("the last stage reports a step without its loss", step)
            self._losses[step] = report.loss
        if min(self.applied) < step:
            return None
        batch = self._announced.pop(step)
        del self._issued_s[step]
        self.committed, self._moved_s = step, now_s
        return run_pb2.StepRecord(
            step=step,
            epoch=batch.epoch,
            loss=self._losses.pop(step),
            num_rows=sum(batch.rows),
            committed_unix_ns=int(now_s * 1e9),
        )


def _contradiction(message: str, step: int) -> PipesvcError:
    return PipesvcError(ErrorCode.INTERNAL, message, advice="This is a fault of pipesvc", where=Where(step=step))
