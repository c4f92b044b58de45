"""A source bundle unpacks to what was packed, and to nothing else."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from pathlib import Path

import pytest

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.worker import bundles


def _zip(files: dict[str, bytes], *, mode: int = 0o100644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def _unpack(bundle: bytes, target: Path) -> None:
    bundles.unpack(bundle, hashlib.sha256(bundle).hexdigest(), target)


def test_files_and_packages_are_unpacked(tmp_path: Path) -> None:
    _unpack(_zip({"train.py": b"x = 1", "lib/__init__.py": b"", "lib/deep/data.bin": b"\0" * 1000}), tmp_path / "b")
    assert (tmp_path / "b/train.py").read_bytes() == b"x = 1"
    assert (tmp_path / "b/lib/__init__.py").read_bytes() == b""
    assert (tmp_path / "b/lib/deep/data.bin").read_bytes() == b"\0" * 1000


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "a/../../evil", "a\\b.py"])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PipesvcError, match="no plain relative file") as caught:
        _unpack(_zip({name: b"x"}), tmp_path / "inner" / "b")
    assert caught.value.code is ErrorCode.BUNDLE_REFUSED
    assert not list(tmp_path.rglob("*evil*"))


def test_a_link_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipesvcError, match="no plain relative file"):
        _unpack(_zip({"link": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777), tmp_path / "b")


def test_another_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipesvcError, match="SHA-256"):
        bundles.unpack(_zip({"a.py": b"x"}), "0" * 64, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipesvcError, match="no readable zip"):
        _unpack(b"not a zip", tmp_path / "b")


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(PipesvcError, match="unpacks to more"):
        _unpack(_zip({"a": b"\0" * 1001}), tmp_path / "b")
    monkeypatch.setattr(bundles, "MAX_FILES", 1)
    with pytest.raises(PipesvcError, match="2 files"):
        _unpack(_zip({"a": b"", "b": b""}), tmp_path / "b")
