"""What stands at the path decides how a file of weights is written."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipesvc.client.weights_file import is_replaced, writing


def _write(path: Path, data: bytes = b"new") -> None:
    with writing(path) as write:
        write(data)


def test_a_regular_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"old and longer")
    path.chmod(0o640)
    inode = path.stat().st_ino
    _write(path)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_ino != inode


def test_a_broken_transfer_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"old")

    def torn() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"), writing(path) as write:
        collections.deque(map(write, torn()), maxlen=0)
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(target)
    _write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    _write(path)
    reader.join(10)
    assert read == [b"new"]
    assert path.is_fifo()


def test_a_device_and_a_descriptor_are_written_as_they_are(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    _write(link)
    assert Path("/dev/null").is_char_device()
    with (tmp_path / "out").open("wb") as file:
        path = Path(f"/dev/fd/{file.fileno()}")
        assert not is_replaced(path)
        _write(path)
        assert os.fstat(file.fileno()).st_size == 3
    assert (tmp_path / "out").read_bytes() == b"new"


def test_errors_name_the_path_as_it_was_given(tmp_path: Path) -> None:
    for path, kind in ((tmp_path / "no" / "w", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            _write(path)
        assert caught.value.filename == str(path)
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space") as caught_full:
        _write(full)
    assert caught_full.value.filename == "/dev/full"
