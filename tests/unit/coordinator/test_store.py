"""Files of runs: bounded, in order, and gone when they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipesvc.coordinator import store as store_module
from pipesvc.coordinator.message_file import MessageFile, read_messages
from pipesvc.coordinator.store import Store
from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2
from pipesvc.wire.safetensors_stream import make_layout, read_layout


def shard_bytes(name: str) -> bytes:
    return make_layout({name: (types_pb2.ELEMENT_TYPE_UINT8, (3,))}).header + name[:1].encode() * 3


def test_messages_are_read_from_where_the_reader_stopped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert read_messages(path, 0) == ([], 0)
    file = MessageFile(path, 1000)
    file.append([b"one", b""])
    first, offset = read_messages(path, 0)
    file.append([b"three"])
    second, end = read_messages(path, offset)
    assert (first, second) == ([b"one", b""], [b"three"])
    assert read_messages(path, end) == ([], end)
    file.close()


def test_a_half_written_message_waits_for_its_rest_and_a_large_one_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    large = bytes(3 << 20)
    path.write_bytes(len(large).to_bytes(4, "little") + large + b"\x05\x00")
    assert read_messages(path, 0) == ([large], 4 + len(large))
    assert read_messages(path, 4 + len(large)) == ([], 4 + len(large))


def test_a_full_file_says_so_once_and_takes_nothing_more(tmp_path: Path) -> None:
    file = MessageFile(tmp_path / "log", 20)
    assert not file.append([b"12345678"], b"full")
    assert file.append([b"12345678", b"x"], b"full")
    assert not file.append([b"x"], b"full")
    file.close()
    assert read_messages(tmp_path / "log", 0)[0] == [b"12345678", b"full"]


def test_the_log_of_a_run_ends_with_a_word_at_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOG_BYTES", 200)
    store = Store(tmp_path)
    store.begin_run("r")
    warnings = [store.add_log_lines("r", [run_pb2.ReadLogsResponse(line="y" * 50)]) for _ in range(9)]
    store.close()
    assert [text for text in warnings if text] == ["the log has reached its bound and ends there"]
    messages, _ = read_messages(store.log_path("r"), 0)
    assert "the rest is dropped" in run_pb2.ReadLogsResponse.FromString(messages[-1]).line


def test_shards_become_one_file_that_is_kept_as_the_result(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    for stage, name in enumerate(("a.weight", "b.weight")):
        data = shard_bytes(name)
        for offset in range(0, len(data), 20):
            piece = data[offset : offset + 20]
            store.write_shard("r", local_pb2.StateChunk(step=4, stage=stage, offset=offset, data=piece))
        kept = shard_bytes(f"{name}/momentum")
        store.write_shard("r", local_pb2.StateChunk(step=4, stage=stage, data=kept, is_training=True))
    store.merge_shards("r", 4, 2)
    assert not store.has_weights("r")
    store.keep_weights("r", 4)
    files = store.open_state("r", None)
    assert files.training is not None
    with files.weights, files.training:
        assert files.weights.read().endswith(b"aaabbb")
        assert files.training.read().endswith(b"aaabbb")
    layout = read_layout(tmp_path / "runs/r/weights.safetensors")
    assert [entry.name for entry in layout.entries] == ["a.weight", "b.weight"]
    layout = read_layout(tmp_path / "runs/r/training.safetensors")
    assert [entry.name for entry in layout.entries] == ["a.weight/momentum", "b.weight/momentum"]
    names = sorted(path.name for path in (tmp_path / "runs/r").iterdir())
    assert names == ["training.safetensors", "weights.safetensors"]


def test_a_run_of_an_earlier_version_has_weights_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    (tmp_path / "runs/r/weights.safetensors").write_bytes(shard_bytes("a"))
    files = store.open_state("r", None)
    files.weights.close()
    assert files.training is None


def test_a_live_state_can_be_read_after_it_was_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    store.write_shard("r", local_pb2.StateChunk(step=1, data=shard_bytes("a")))
    store.write_shard("r", local_pb2.StateChunk(step=1, data=shard_bytes("a/sum"), is_training=True))
    store.merge_shards("r", 1, 1)
    files = store.open_state("r", 1)
    assert files.training is not None
    with files.weights, files.training:
        store.drop_weights("r", 1)
        assert files.weights.read().endswith(b"aaa")
        assert files.training.read().endswith(b"aaa")
    assert not list((tmp_path / "runs/r").iterdir())


def test_a_shard_with_a_gap_is_refused_and_a_first_piece_begins_anew(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    store.write_shard("r", local_pb2.StateChunk(step=1, data=b"old"))
    store.write_shard("r", local_pb2.StateChunk(step=1, data=b"ne"))
    store.write_shard("r", local_pb2.StateChunk(step=1, offset=2, data=b"w"))
    assert (tmp_path / "runs/r/state-1/stage-0-weights.safetensors").read_bytes() == b"new"
    # Once more, after a try that found the disk full and left a part.
    store.write_shard("r", local_pb2.StateChunk(step=1, offset=2, data=b"wer"))
    store.write_shard("r", local_pb2.StateChunk(step=1, offset=2, data=b"w"))
    assert (tmp_path / "runs/r/state-1/stage-0-weights.safetensors").read_bytes() == b"new"
    with pytest.raises(PipesvcError, match="goes on at byte 9 and 3 have come"):
        store.write_shard("r", local_pb2.StateChunk(step=1, offset=9, data=b"x"))
    store.end_run("r")
    assert not list((tmp_path / "runs/r").iterdir())


def test_bundles_are_kept_by_their_hash(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add_bundle("f" * 64, b"zip")
    store.add_bundle("f" * 64, b"zip")
    assert store.bundle("f" * 64) == b"zip"
    assert store.bundle("") == b""
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["f" * 64 + ".zip"]


def test_weights_are_kept_last_for_where_they_are_the_run_has_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.begin_run("r")
    store.write_shard("r", local_pb2.StateChunk(step=1, data=shard_bytes("a")))
    store.write_shard("r", local_pb2.StateChunk(step=1, data=shard_bytes("a/sum"), is_training=True))
    store.merge_shards("r", 1, 1)
    moves: list[str] = []
    replace = Path.replace

    def fails_at_the_second(source: Path, target: Path) -> Path:
        moves.append(target.name)
        if len(moves) == 2:
            raise OSError("no more")
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", fails_at_the_second)
    with pytest.raises(OSError, match="no more"):
        store.keep_weights("r", 1)
    assert moves == ["training.safetensors", "weights.safetensors"]
    assert not store.has_weights("r")
