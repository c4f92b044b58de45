"""The files under the state directory: bundles by their hash, and each run's weights, log and trace.

    STATE/bundles/SHA256.zip
    STATE/runs/RUN/weights.safetensors     the final state: the weights
    STATE/runs/RUN/training.safetensors    and what else training goes on from
    STATE/runs/RUN/state-STEP/             shards of a state on its way, and the file made of them
    STATE/runs/RUN/log, STATE/runs/RUN/trace
    STATE/trash/                           what is being removed

Callers check run ids before they come here: an id is a directory's name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from pipesvc.coordinator.limits import LOG_BYTES, TRACE_BYTES
from pipesvc.coordinator.message_file import MessageFile, framed, read_messages
from pipesvc.coordinator.source_files import SourceFiles
from pipesvc.coordinator.trash import Trash
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, types_pb2, worker_pb2
from pipesvc.wire.safetensors_stream import merge, read_layout
from pipesvc.wire.training_file import TRAINING_FILE, WEIGHTS_FILE, check_pair, position_of

# The weights last: where they are, the run has an end.
_FILES: Final = (TRAINING_FILE, WEIGHTS_FILE)


class OpenState(NamedTuple):
    """Both files of a state. A run of an earlier version has no training state."""

    weights: BinaryIO
    training: BinaryIO | None


class Store:
    """Plain blocking calls; those that move many bytes (`write_shard`, `merge_shards`) are for other threads."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir: Final = state_dir
        self._bundles = state_dir / "bundles"
        self._runs = state_dir / "runs"
        self._bundles.mkdir(parents=True, exist_ok=True)
        self._runs.mkdir(exist_ok=True)
        self._trash: Final = Trash(state_dir / "trash")
        self.sources: Final = SourceFiles(state_dir / "weights", self._trash)
        self._open: dict[Path, MessageFile] = {}
        # Log lines and trace events that the disk did not take.
        self._num_dropped: dict[Path, int] = {}

    def close(self) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        self._open.clear()

    # --- bundles ----------------------------------------------------------------------------------------------------

    def add_bundle(self, sha256: str, data: bytes) -> bool:
        """False: it was there already. An OSError leaves nothing behind."""
        path = self._bundles / f"{sha256}.zip"
        if path.exists():
            return False
        draft = path.with_suffix(".partial")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        return True

    def drop_bundle(self, sha256: str) -> None:
        self._trash.put(self._bundles / f"{sha256}.zip")

    def bundle(self, sha256: str) -> bytes:
        """Nothing if it cannot be read: without its bundle the child fails by name, which is what should be told."""
        with contextlib.suppress(OSError):
            return (self._bundles / f"{sha256}.zip").read_bytes() if sha256 else b""
        return b""

    # --- runs -------------------------------------------------------------------------------------------------------

    def begin_run(self, run_id: str) -> None:
        """Make the run's directory; states half saved under an earlier coordinator go."""
        self._dir(run_id).mkdir(exist_ok=True)
        self._drop_left_over(run_id)

    def forget_run(self, run_id: str) -> None:
        """Undo `begin_run` of a run that came to nothing."""
        with contextlib.suppress(OSError):
            self._dir(run_id).rmdir()

    def end_run(self, run_id: str) -> None:
        """Never raises: the end of a run is told whatever the disk says."""
        for path in (self.log_path(run_id), self.trace_path(run_id)):
            self._num_dropped.pop(path, None)
            if (file := self._open.pop(path, None)) is not None:
                with contextlib.suppress(OSError):
                    file.close()
        with contextlib.suppress(OSError):
            self._drop_left_over(run_id)

    def dropped_text(self, run_id: str) -> str:
        """How much of a live run's log and trace the disk did not take; "" if nothing."""
        counts = (
            (self._num_dropped.get(self.log_path(run_id), 0), "lines of the log"),
            (self._num_dropped.get(self.trace_path(run_id), 0), "events of the trace"),
        )
        return " and ".join(f"{count} {what}" for count, what in counts if count)

    def log_path(self, run_id: str) -> Path:
        return self._dir(run_id) / "log"

    def trace_path(self, run_id: str) -> Path:
        return self._dir(run_id) / "trace"

    def add_log_lines(self, run_id: str, lines: Iterable[run_pb2.ReadLogsResponse]) -> str:
        """What the run should be warned of, each only once: the log is full, or the disk takes nothing."""
        said = run_pb2.ReadLogsResponse(
            line=f"[pipesvc keeps {LOG_BYTES >> 20} MiB of a run's log; the rest is dropped]"
        )
        messages = [line.SerializeToString() for line in lines]
        return self._append(self.log_path(run_id), LOG_BYTES, messages, said.SerializeToString(), len(messages))

    def add_trace(self, run_id: str, events: Sequence[local_pb2.TraceEvent]) -> str:
        """As for the log."""
        messages = [run_pb2.ReadTraceResponse(events=events).SerializeToString()]
        return self._append(self.trace_path(run_id), TRACE_BYTES, messages, b"", len(events))

    # --- outputs of predictions ------------------------------------------------------------------------------------

    def add_output(self, run_id: str, part: local_pb2.OutputPart) -> None:
        path = self._output(run_id, part.step)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(framed(part.SerializeToString()))

    def output(self, run_id: str, step: int, offset: int) -> tuple[list[bytes], int]:
        """Some parts of a batch from there on, and where to go on."""
        return read_messages(self._output(run_id, step), offset)

    def drop_output(self, run_id: str, step: int) -> None:
        self._trash.put(self._output(run_id, step))

    # --- files with weights that jobs name -------------------------------------------------------------------------

    def source_path(self, job: job_pb2.JobSpec, *, is_training: bool) -> Path | None:
        """None for what cannot be one."""
        source, name = (job.training, TRAINING_FILE) if is_training else (job.weights, WEIGHTS_FILE)
        return self._dir(source.run_id) / name if source.run_id else self.sources.path(source.sha256)

    def has_source(self, job: job_pb2.JobSpec, *, is_training: bool) -> bool:
        path = self.source_path(job, is_training=is_training)
        return path is not None and path.is_file()

    def read_source(self, job: job_pb2.JobSpec, ask: local_pb2.ReadWeights, max_bytes: int) -> tuple[bytes, int]:
        """A piece of the file, and the size of all of it."""
        path = self.source_path(job, is_training=ask.is_training)
        assert path is not None
        with path.open("rb") as file:
            total_bytes = os.fstat(file.fileno()).st_size
            file.seek(ask.offset)
            return file.read(min(ask.num_bytes, max_bytes)), total_bytes

    def source_position(self, job: job_pb2.JobSpec) -> types_pb2.Position:
        """Where the checkpoint that the job names stands. Raises for what is none."""
        weights, training = (self.source_path(job, is_training=is_training) for is_training in (False, True))
        assert weights is not None
        assert training is not None
        position = position_of(read_layout(training))
        check_pair(read_layout(weights), position)
        return position

    # --- weights ----------------------------------------------------------------------------------------------------

    def write_shard(self, run_id: str, chunk: local_pb2.StateChunk) -> None:
        """Append a piece of a stage's state; pieces come in order, and a first piece begins anew."""
        path = self._shard(run_id, chunk.step, chunk.stage, TRAINING_FILE if chunk.is_training else WEIGHTS_FILE)
        path.parent.mkdir(exist_ok=True)
        with path.open("r+b" if chunk.offset else "wb") as file:
            num_bytes = file.seek(0, os.SEEK_END)
            if num_bytes < chunk.offset:
                raise PipesvcError(
                    ErrorCode.INTERNAL,
                    f"the state of stage {chunk.stage} goes on at byte {chunk.offset} and {num_bytes} have come",
                )
            # A try that found the disk full may have left a part.
            file.truncate(chunk.offset)
            file.seek(chunk.offset)
            file.write(chunk.data)

    def merge_shards(self, run_id: str, step: int, num_stages: int) -> None:
        """One file of all shards with weights, one of those with training state, on the disk when this returns."""
        for name in _FILES:
            merged = self._state(run_id, step) / name
            shards = [self._shard(run_id, step, stage, name) for stage in range(num_stages)]
            if not merged.exists():  # in a try that found the disk full
                merge(shards, merged)
            for shard in shards:
                shard.unlink(missing_ok=True)

    def keep_weights(self, run_id: str, step: int) -> None:
        """The merged state of this step is the run's result."""
        folder = self._dir(run_id)
        for name in _FILES:
            (self._state(run_id, step) / name).replace(folder / name)
        self._trash.put(self._state(run_id, step))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def drop_weights(self, run_id: str, step: int) -> None:
        self._trash.put(self._state(run_id, step))

    def open_state(self, run_id: str, step: int | None) -> OpenState:
        """The final state, or with a step that merged of that step."""
        folder = self._dir(run_id) if step is None else self._state(run_id, step)
        weights = (folder / WEIGHTS_FILE).open("rb")
        try:
            return OpenState(weights=weights, training=(folder / TRAINING_FILE).open("rb"))
        except FileNotFoundError:
            return OpenState(weights=weights, training=None)

    def has_weights(self, run_id: str) -> bool:
        return (self._dir(run_id) / WEIGHTS_FILE).is_file()

    def _drop_left_over(self, run_id: str) -> None:
        for pattern in ("state-*", "outputs"):
            for left_over in self._dir(run_id).glob(pattern):
                self._trash.put(left_over)

    def _append(self, path: Path, max_bytes: int, messages: list[bytes], last_message: bytes, num_items: int) -> str:
        """A log is worth less than its run: what the disk does not take is counted and dropped."""
        try:
            is_bound_reached = self._file(path, max_bytes).append(messages, last_message)
        except OSError as error:
            is_first = path not in self._num_dropped
            self._num_dropped[path] = self._num_dropped.get(path, 0) + num_items
            said = f"the {path.name} cannot be written ({error.strerror or error}), what comes meanwhile is dropped"
            return f"{said}: free space in the coordinator's state directory {self.state_dir}" if is_first else ""
        return f"the {path.name} has reached its bound and ends there" if is_bound_reached else ""

    def _file(self, path: Path, max_bytes: int) -> MessageFile:
        if path not in self._open:
            self._open[path] = MessageFile(path, max_bytes)
        return self._open[path]

    def _dir(self, run_id: str) -> Path:
        return self._runs / run_id

    def _output(self, run_id: str, step: int) -> Path:
        return self._dir(run_id) / "outputs" / str(step)

    def _state(self, run_id: str, step: int) -> Path:
        return self._dir(run_id) / f"state-{step}"

    def _shard(self, run_id: str, step: int, stage: int, name: str) -> Path:
        return self._state(run_id, step) / f"stage-{stage}-{name}"


def read_lines(worker: str, lines: worker_pb2.LogLines) -> list[run_pb2.ReadLogsResponse]:
    """Lines of a child, as readers of the log will get them."""
    return [
        run_pb2.ReadLogsResponse(worker=worker, role=lines.role, is_stderr=lines.is_stderr, line=line)
        for line in lines.lines
    ]
