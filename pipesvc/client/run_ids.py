"""Ids of runs: chosen by the client, so that a submission can be repeated, and names of directories later."""

from __future__ import annotations

import re
import secrets
from typing import Final

from pipesvc.client import checks

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_run_id(run_id: object) -> None:
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        valid = "1 to 64 letters, digits, dots, dashes and underscores, with a letter or digit first"
        raise checks.refusal("the run id", run_id, valid)


def new_run_id(name: str) -> str:
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"
    return f"{readable}-{secrets.token_hex(4)}"
