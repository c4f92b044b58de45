"""One run, from wherever it is looked at.

A run belongs to the coordinator and outlives the process that submitted it; so this object holds no truth but the
run's id, and every question asks the coordinator. Two processes may hold the same run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipesvc.client import checks, weights_file
from pipesvc.client.times import cause_of, times_of
from pipesvc.client.transport import Transport
from pipesvc.client.watching import ENDED, NO_STEP, Evaluated, PipesvcWarning, Step, failure_of, state_name, watch
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2
from pipesvc.wire.links import Link
from pipesvc.wire.roles import role_name
from pipesvc.wire.safetensors_stream import names_in
from pipesvc.wire.training_file import TRAINING_FILE, WEIGHTS_FILE

if TYPE_CHECKING:
    import torch

    from pipesvc.client.stream import BatchStream

__all__ = ["Evaluated", "LogLine", "Run", "Step"]

Write = Callable[[bytes], object]

_WAYS: Final = {types_pb2.LINK_WAY_GRPC: "gRPC", types_pb2.LINK_WAY_SAME_HOST: "same host"}

# Seconds. A cancelled run still commits what was issued and stores its weights; the coordinator bounds that at 30.
_CANCEL_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line that user code or a child process wrote."""

    worker: str
    role: str
    """ "executor", "feeder" or "inspector"."""
    is_stderr: bool
    line: str


class Run:
    """A run by its id. Made by `client.submit` and `client.attach`."""

    def __init__(self, transport: Transport, run_id: str, stream: BatchStream | None = None) -> None:
        self._transport = transport
        self._stream = stream
        self.run_id: Final = run_id

    def __repr__(self) -> str:
        return f"<Run {self.run_id} at {self._transport.address}>"

    def info(self) -> run_pb2.Run:
        """Everything that the coordinator tells about the run now."""
        request = run_pb2.GetRunRequest(run_id=self.run_id)
        response: run_pb2.GetRunResponse = self._transport.call(self._transport.stub.GetRun, request)
        return response.run

    @property
    def state(self) -> str:
        """QUEUED, WAITING, INSPECTING, BUILDING, RUNNING, SAVING, COMPLETED, FAILED or CANCELLED."""
        return state_name(self.info().state)

    @property
    def has_ended(self) -> bool:
        return self.info().state in ENDED

    def events(self, from_step: int = 1) -> Generator[run_pb2.Run | Step | Evaluated, None, None]:
        """Steps, evaluations behind their step, and the run whenever its state changes, until the end.

        Raises what failed the run.
        """
        last: run_pb2.Run | None = None
        told: set[str] = set()  # what was known before is told at submission
        with closing(watch(self._transport, self.run_id, from_step)) as events:
            for event in events:
                if isinstance(event, run_pb2.Run):
                    for text in event.warnings:
                        if last is not None and text not in told:
                            warnings.warn(text, PipesvcWarning, stacklevel=3)
                        told.add(text)
                    last = event
                yield event
        if self._stream is not None:
            self._stream.raise_failure()
        failure = failure_of(last) if last is not None else None
        if failure is not None:
            raise failure

    def steps(self, from_step: int = 1) -> Generator[Step, None, None]:
        """Each committed step, live, from the first or from `from_step`; ends with the run, raises what failed it."""
        with closing(self.events(from_step)) as events:
            yield from (event for event in events if isinstance(event, Step))

    def wait(self) -> None:
        """Block until the run is completed; raises what failed it, and RUN_CANCELLED if it was cancelled."""
        state = run_pb2.RUN_STATE_UNSPECIFIED
        with closing(self.events(from_step=NO_STEP)) as events:
            for event in events:
                state = event.state if isinstance(event, run_pb2.Run) else state
        if state == run_pb2.RUN_STATE_CANCELLED:
            raise cancelled(self.run_id)

    def losses(self) -> list[float]:
        """The losses of the steps committed so far, first to last."""
        info = self.info()
        losses: list[float] = []
        if info.num_committed_steps > info.start.step:
            with closing(watch(self._transport, self.run_id)) as events:
                for event in events:
                    if isinstance(event, Step):
                        losses.append(event.loss)
                        if event.index >= info.num_committed_steps:
                            break
        return losses

    def evaluations(self) -> list[Evaluated]:
        """The evaluations so far, first to last."""
        last = self.info().evaluated_step
        found: list[Evaluated] = []
        if last:
            with closing(watch(self._transport, self.run_id)) as events:
                for event in events:
                    if isinstance(event, Evaluated):
                        found.append(event)
                        if event.step >= last:
                            break
        return found

    def save_weights(self, path: str | Path) -> int:
        """Write the whole model's state as one safetensors file; returns the step after which it was taken.

        Raises OSError as `open` does, with the path, where the file cannot be written; the weights stay with the run.
        """
        checks.path("path", path)
        with weights_file.writing(Path(path)) as write:
            return self._fetch(write)

    def save_checkpoint(self, folder: str | Path) -> int:
        """Write what `Job.resume` goes on from into a folder, which is made; returns the step after which it was taken.

        `weights.safetensors` in it is what `save_weights` writes, `training.safetensors` all else. Raises as
        `save_weights` does.
        """
        checks.path("folder", folder)
        Path(folder).mkdir(parents=True, exist_ok=True)
        weights, training = Path(folder) / WEIGHTS_FILE, Path(folder) / TRAINING_FILE
        with weights_file.writing(training) as write_training, weights_file.writing(weights) as write:
            return self._fetch(write, write_training)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model's state in the model's order, for `model.load_state_dict`; of a live run, after its next
        step."""
        from safetensors.torch import load

        data = bytearray()
        self._fetch(data.extend)
        state = load(bytes(data))  # in any order
        return {name: state[name] for name in names_in(bytes(data))}

    def _fetch(self, write: Write, training: Write | None = None) -> int:
        """The step after which the state was taken; each function gets the bytes of one file."""
        request = run_pb2.FetchWeightsRequest(run_id=self.run_id, with_training=training is not None)
        missing: dict[bool, int] = {False: -1} | ({} if training is None else {True: -1})
        step = 0
        with closing(self._transport.stream(self._transport.stub.FetchWeights, request)) as parts:
            for part in parts:
                if missing[part.is_training] < 0:
                    missing[part.is_training] = part.total_bytes
                missing[part.is_training] -= len(part.data)
                step = part.step
                (training if training is not None and part.is_training else write)(part.data)
        if any(missing.values()):
            raise self._transport.ended_early(f"the weights of run {self.run_id}")
        return step

    def logs(self, follow: bool = False) -> Generator[LogLine, None, None]:
        """What user code printed on all workers so far; with `follow`, until the run ends."""
        request = run_pb2.ReadLogsRequest(run_id=self.run_id, follow=follow)
        with closing(self._transport.stream(self._transport.stub.ReadLogs, request)) as lines:
            for line in lines:
                role = role_name(line.role)
                yield LogLine(worker=line.worker, role=role, is_stderr=line.is_stderr, line=line.line)

    def trace(self) -> list[dict[str, Any]]:
        """What each stage did when, and what it waited for: one dict per action, times in nanoseconds since 1970.

        `cause` of what was awaited before is "no input", or "no credit" where a parcel of the worker's own waited for
        its receiver's credit for most of the time. `no_core_ns`, with the last action of a step, is how long in this
        step the worker's process could run and had no core; None elsewhere, and where the system does not say.
        """
        request = run_pb2.ReadTraceRequest(run_id=self.run_id)
        with closing(self._transport.stream(self._transport.stub.ReadTrace, request)) as parts:
            return [_trace_dict(event) for part in parts for event in part.events]

    def links(self) -> list[dict[str, Any]]:
        """What each link ("0>1/activation") has carried since the run began, counted by its sender, and its way:
        "gRPC", or "same host" for memory that both ends share, which the network does not see.

        `coded_bytes` are those of the tensors as they travelled, and `relative_error` is the largest that was measured,
        of one in 31 coded tensors: root mean square of the error by that of the tensor.
        """
        return [
            {
                "link": str(Link.from_message(total.link)),
                "worker": total.worker,
                "tensor_bytes": total.tensor_bytes,
                "wire_bytes": total.wire_bytes,
                "num_frames": total.num_frames,
                "way": _WAYS.get(total.way, ""),
                "coded_bytes": total.coded_bytes,
                "relative_error": total.relative_error,
            }
            for total in self.info().links
        ]

    def times(self) -> dict[str, dict[str, float | None]]:
        """What each worker's executor has done with its time since its first step began, in seconds that add up.

        `computing_s` is all that is no wait. `no_input_s`: it waited, and nothing was held back on its way out;
        `no_credit_s`: it waited, and a parcel of its own waited for its receiver's credit; `no_core_s`: it could run
        and had no core (None where the worker's system does not say). They are as of its last step, or a little later.
        """
        return times_of(self.info())

    def stage_steps(self) -> list[int]:
        """Steps that each stage has applied, in stage order."""
        return list(self.info().stage_steps)

    def parameters(self) -> dict[str, dict[str, int]]:
        """Parameters that each worker holds, with their bytes, as its executor reported them."""
        held = self.info().parameters
        return {worker: {p.name: p.num_bytes for p in held[worker].parameters} for worker in held}

    def plan(self) -> Plan:
        """Which layers are on which worker."""
        text = self.info().plan_json
        if not text:
            raise PipesvcError(
                ErrorCode.INVALID_PLAN,
                f"the run is {self.state} and has no plan yet",
                advice="Ask again when the workers that it waits for are there",
                where=Where(run_id=self.run_id),
            )
        return Plan.from_json(text)

    def cancel(self, *, wait_s: float = _CANCEL_S) -> str:
        """End the run after the steps already issued, its weights stored; returns the state that it ended in."""
        request = run_pb2.CancelRunRequest(run_id=self.run_id)
        self._transport.call(self._transport.stub.CancelRun, request)
        deadline = time.monotonic() + wait_s
        while (info := self.info()).state not in ENDED:
            if time.monotonic() >= deadline:
                raise PipesvcError(
                    ErrorCode.TIMED_OUT,
                    f"the cancelled run is still {state_name(info.state)} after {wait_s:g} s",
                    where=Where(run_id=self.run_id),
                )
            time.sleep(0.1)
        return state_name(info.state)


def cancelled(run_id: str) -> PipesvcError:
    """What a run that was cancelled raises where its completion was expected."""
    return PipesvcError(ErrorCode.RUN_CANCELLED, "the run was cancelled", where=Where(run_id=run_id))


def _trace_dict(event: local_pb2.TraceEvent) -> dict[str, Any]:
    return {
        "step": event.step,
        "stage": event.stage,
        "micro_batch": event.micro_batch,
        "action": event.action,
        "start_unix_ns": event.start_unix_ns,
        "end_unix_ns": event.end_unix_ns,
        "awaited": event.awaited,
        "awaited_ns": event.awaited_ns,
        "worker": event.worker,
        "cause": cause_of(event),
        "awaited_credit_ns": event.awaited_credit_ns,
        "no_core_ns": event.no_core_ns if event.HasField("no_core_ns") else None,
    }
