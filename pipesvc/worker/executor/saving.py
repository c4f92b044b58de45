"""The states that the coordinator asks for, each taken between two steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.worker.executor import state
from pipesvc.worker.executor.scaling import LossScale
from pipesvc.worker.executor.stage import Stage
from pipesvc.worker.port_like import PortLike
from pipesvc.worker.progress import ProgressReporter


class Saver:
    """Knows how far the training has come; `start` is where it begins."""

    def __init__(
        self, port: PortLike, stages: Mapping[int, Stage], progress: ProgressReporter, start: types_pb2.Position
    ) -> None:
        self._port = port
        self._stages = stages
        self._progress = progress
        self._position = start
        self._asked: Counter[int] = Counter()

    @property
    def num_applied(self) -> int:
        return self._position.step

    def applied(self, issue: local_pb2.IssueStep) -> None:
        is_same_epoch = issue.epoch == self._position.epoch
        steps_in_epoch = self._position.steps_in_epoch + 1 if is_same_epoch else 1
        position = types_pb2.Position()
        position.CopyFrom(self._position)
        position.step, position.epoch, position.steps_in_epoch = issue.step, issue.epoch, steps_in_epoch
        self._position = position

    def ask(self, step: int) -> None:
        self._asked[step] += 1

    @property
    def is_due(self) -> bool:
        """A request for a later step waits, one for an earlier step is a fault."""
        step = min(self._asked, default=None)
        if step is not None and step < self.num_applied:
            message = f"the state of step {step} was asked for after step {self.num_applied} was applied"
            raise PipesvcError(ErrorCode.INTERNAL, message)
        return step == self.num_applied

    def save(self, scale: LossScale | None) -> None:
        """`scale` is that of the next loss, if stage 0 is here and decides."""
        for _ in range(self._asked.pop(self.num_applied)):
            for index, stage in self._stages.items():
                self._progress.busy("saving", step=self.num_applied, stage=index)
                for chunk in state.chunks(stage, self._position, None if index else scale):
                    self._port.report(local_pb2.FromChild(state_chunk=chunk))
