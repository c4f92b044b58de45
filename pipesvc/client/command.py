"""A client for the length of one command, and how that ends when the command is interrupted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pipesvc.client import interrupts
from pipesvc.client.connection import Client, connect
from pipesvc.errors import PipesvcError

# Seconds that an interrupted command may take to cancel the run that ends with it.
_CANCEL_S: Final = 5.0


@contextmanager
def connected(address: str, token_file: Path | None) -> Iterator[Client]:
    """Ctrl-C within ends the process without the destructors of gRPC, which might wait for ever."""
    interrupts.only_first()
    try:
        # Not `with`: an interrupted client is not closed either.
        client = connect(address, token_file=token_file)
        try:
            yield client
        except Exception:
            client.close()
            raise
        client.close()
    except KeyboardInterrupt:
        interrupts.leave()


def cancel_streamed(run_id: str, address: str, token_file: Path | None) -> None:
    """Cancel on a connection of its own, in bounded time: the interrupt may have hit the other one anywhere."""

    def cancel() -> None:
        with suppress(PipesvcError), connect(address, token_file=token_file) as client:
            ended.append(client.attach(run_id).cancel(wait_s=_CANCEL_S))

    ended: list[str] = []
    print(f"\nThe run {run_id} ends with its stream from this process: cancelling it", file=sys.stderr, flush=True)
    thread = threading.Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(_CANCEL_S)
    text = f"{run_id}: {ended[0]}" if ended else f"{run_id} has not ended yet; see: pipesvc status"
    print(text, file=sys.stderr, flush=True)
