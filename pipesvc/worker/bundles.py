"""The user's source files on a worker: a zip that is what its hash says, unpacked where it can do no harm.

A bundle is code and will be executed, but unpacking it must not write outside its directory, fill the disk or make
links. It is unpacked, not imported from the zip, because extension modules and data files cannot be loaded from
one.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError

MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024
MAX_FILES: Final = 10_000
_FILE_TYPE_MASK: Final = 0o170000
_ALLOWED_TYPES: Final = (0, 0o100000, 0o040000)  # none stated, regular file, directory


def unpack(bundle: bytes, sha256: str, target: Path) -> None:
    """Unpack into `target`, which is made; BUNDLE_REFUSED when the zip is not what it should be."""
    found = hashlib.sha256(bundle).hexdigest()
    if found != sha256:
        raise _refused(f"its SHA-256 is {found[:16]}... instead of {sha256[:16]}...")
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            _unpack(archive, target)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise _refused(f"it is no readable zip file: {error}") from error


def _unpack(archive: zipfile.ZipFile, target: Path) -> None:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise _refused(f"it has {len(entries)} files; the limit is {MAX_FILES}")
    if sum(entry.file_size for entry in entries) > MAX_UNPACKED_BYTES:
        raise _refused(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
    target.mkdir(parents=True)
    for entry in entries:
        place = target.joinpath(*_safe_parts(entry))
        if entry.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, place.open("xb") as out:
            # The stated size is only a claim: zipfile stops there and checks the CRC, so no more than it is ever read.
            out.write(source.read(entry.file_size))


def _safe_parts(entry: zipfile.ZipInfo) -> tuple[str, ...]:
    name = entry.filename
    path = PurePosixPath(name)
    is_plain = (entry.external_attr >> 16) & _FILE_TYPE_MASK in _ALLOWED_TYPES
    if not is_plain or path.is_absolute() or not path.parts or ".." in path.parts or "\\" in name or "\0" in name:
        raise _refused(f"the entry {name!r} is no plain relative file")
    return path.parts


def _refused(why: str) -> PipesvcError:
    return PipesvcError(ErrorCode.BUNDLE_REFUSED, f"source bundle refused: {why}", advice="Submit the job again")
