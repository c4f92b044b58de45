"""The files under the state directory: bundles by their hash, and each run's weights, log and trace.

    STATE/bundles/SHA256.zip
    STATE/runs/RUN/weights.safetensors     the final state
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
from typing import BinaryIO, Final

from pipesvc.coordinator.limits import LOG_BYTES, TRACE_BYTES
from pipesvc.coordinator.message_file import MessageFile, framed, read_messages
from pipesvc.coordinator.source_files import SourceFiles
from pipesvc.coordinator.trash import Trash
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import job_pb2, local_pb2, run_pb2, worker_pb2
from pipesvc.wire.safetensors_stream import merge


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

    def source_path(self, source: job_pb2.WeightsSource) -> Path | None:
        """None for what cannot be one."""
        return self._dir(source.run_id) / "weights.safetensors" if source.run_id else self.sources.path(source.sha256)

    def has_source(self, source: job_pb2.WeightsSource) -> bool:
        path = self.source_path(source)
        return path is not None and path.is_file()

    def read_source(self, source: job_pb2.WeightsSource, offset: int, num_bytes: int) -> tuple[bytes, int]:
        """A piece of the file, and the size of all of it."""
        path = self.source_path(source)
        assert path is not None
        with path.open("rb") as file:
            total_bytes = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return file.read(num_bytes), total_bytes

    # --- weights ----------------------------------------------------------------------------------------------------

    def write_shard(self, run_id: str, chunk: local_pb2.StateChunk) -> None:
        """Append a piece of a stage's state; pieces come in order, and a first piece begins anew."""
        path = self._shard(run_id, chunk.step, chunk.stage)
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
        """One file of all shards, on the disk when this returns."""
        shards = [self._shard(run_id, step, stage) for stage in range(num_stages)]
        merge(shards, self._merged(run_id, step))
        for shard in shards:
            shard.unlink()

    def keep_weights(self, run_id: str, step: int) -> None:
        """The merged state of this step is the run's result."""
        folder = self._dir(run_id)
        self._merged(run_id, step).replace(folder / "weights.safetensors")
        self._trash.put(self._merged(run_id, step).parent)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def drop_weights(self, run_id: str, step: int) -> None:
        self._trash.put(self._merged(run_id, step).parent)

    def open_weights(self, run_id: str, step: int | None) -> BinaryIO:
        """The final weights, or with a step the merged state of that step."""
        path = self._dir(run_id) / "weights.safetensors" if step is None else self._merged(run_id, step)
        return path.open("rb")

    def has_weights(self, run_id: str) -> bool:
        return (self._dir(run_id) / "weights.safetensors").is_file()

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

    def _merged(self, run_id: str, step: int) -> Path:
        return self._dir(run_id) / f"state-{step}" / "merged.safetensors"

    def _shard(self, run_id: str, step: int, stage: int) -> Path:
        return self._dir(run_id) / f"state-{step}" / f"stage-{stage}.safetensors"


def read_lines(worker: str, lines: worker_pb2.LogLines) -> list[run_pb2.ReadLogsResponse]:
    """Lines of a child, as readers of the log will get them."""
    return [
        run_pb2.ReadLogsResponse(worker=worker, role=lines.role, is_stderr=lines.is_stderr, line=line)
        for line in lines.lines
    ]
