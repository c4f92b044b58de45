"""Who may speak to a coordinator: whoever can read a file.

A loopback port is open to every user and every browser page of the machine, so the coordinator asks for a token even
there. The token lies in its state directory, readable by its owner only, and a pointer per address lies in the home of
that user, so that the CLI and `connect` find it without being told. On other hosts the file is copied by hand and named
by an option or variable.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.addresses import Address

TOKEN_VARIABLE: Final = "PIPESVC_TOKEN"
TOKEN_FILE_VARIABLE: Final = "PIPESVC_TOKEN_FILE"
HOME_VARIABLE: Final = "PIPESVC_HOME"

_NUM_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")
_ADVICE: Final = f"Give --token-file, or set {TOKEN_FILE_VARIABLE}, to a copy of STATE_DIR/token of the coordinator"


def new_token() -> str:
    """A fresh secret that fits into a metadata value."""
    return secrets.token_urlsafe(_NUM_BYTES)


def ensure_token(state_dir: Path) -> tuple[str, Path]:
    """The token of this state directory and its file. Made on first use, and made anew if others could read it."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir.resolve() / "token"
    if path.is_file() and path.stat().st_mode & 0o077 == 0:
        return _read(path), path
    token = new_token()
    _write_private(path, token)
    return token, path


def write_pointers(
    addresses: Iterable[Address], token_path: Path, *, environ: Mapping[str, str] | None = None
) -> tuple[Path, ...]:
    """Note for each address where its token lies; returns the files, for `remove_pointers` when the server ends."""
    folder = _pointer_folder(os.environ if environ is None else environ)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    paths = tuple(folder / _file_name(address) for address in addresses)
    for path in paths:
        _write_private(path, str(token_path.resolve()))
    return paths


def remove_pointers(paths: Iterable[Path], token_path: Path) -> None:
    """Remove the pointers that still lead to this token; a later server's at the same address stay."""
    for path in paths:
        try:
            if path.read_text().strip() == str(token_path.resolve()):
                path.unlink()
        except OSError:
            continue


def find_token(address: Address, token_file: Path | None = None, *, environ: Mapping[str, str] | None = None) -> str:
    """The token for `address`: of the file named, PIPESVC_TOKEN, PIPESVC_TOKEN_FILE or the pointer; "" if none.

    A file that was named by the user must be good. Nothing found is no error yet: the address may be the wrong one, and
    then "nothing answers there" is the better news; the server refuses an empty token with advice of its own.
    """
    env = os.environ if environ is None else environ
    if token_file is not None:
        return _read(token_file)
    if token := env.get(TOKEN_VARIABLE, "").strip():
        return token
    if named := env.get(TOKEN_FILE_VARIABLE, ""):
        return _read(Path(named))
    try:
        return _read(Path((_pointer_folder(env) / _file_name(address)).read_text().strip()))
    except (OSError, PipesvcError):
        return ""


def _pointer_folder(environ: Mapping[str, str]) -> Path:
    home = environ.get(HOME_VARIABLE, "")
    return (Path(home) if home else Path.home() / ".pipesvc") / "tokens"


def _file_name(address: Address) -> str:
    return f"{re.sub(r'[^a-z0-9.-]', '-', address.host.lower())}_{address.port}"


def _read(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"the token file {path} cannot be read: {error}"
        raise PipesvcError(ErrorCode.UNAUTHENTICATED, message, advice=_ADVICE) from error
    if _TOKEN.fullmatch(token) is None:
        raise PipesvcError(ErrorCode.UNAUTHENTICATED, f"the file {path} holds no token", advice=_ADVICE)
    return token


def _write_private(path: Path, text: str) -> None:
    """Replace `path` at once by a file that only its owner reads; readers see the old or the new text, never half."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
