"""Calls to the coordinator, with one rule for time and one for errors.

A gRPC call without a deadline waits for ever, and its exceptions name channels instead of what to do. So every
call of the client goes through here: bounded, repeated for a few seconds when a coordinator that answered before
is away (every call of RunService may be repeated), and failing with the error that the coordinator reported.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import grpc

from pipesvc.client import interrupts
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net import addresses, channels, reports, tokens
from pipesvc.rpc.v1 import run_pb2_grpc

# Seconds. An answer of the coordinator takes milliseconds; a bundle of 16 MiB may take some on a slow line.
ANSWER_S: Final = 30.0
# Seconds until a coordinator that answered before and does not now is given up.
RETRY_S: Final = 5.0
RETRY_PAUSE_S: Final = 0.2


class Transport:
    """A channel to one coordinator. Threads may share it."""

    def __init__(self, address: str, token_file: Path | None = None) -> None:
        self.address: Final = addresses.parse(address)
        self.metadata: Final = channels.auth_metadata(tokens.find_token(self.address, token_file))
        self._channel = channels.sync_channel(self.address)
        self.stub: Final[Any] = run_pb2_grpc.RunServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self.was_connected = False
        self._is_closed = False

    def call(self, method: Any, request: object, *, timeout_s: float = ANSWER_S) -> Any:
        """The answer to `request`, or the PipesvcError behind its failure."""
        self._check_open()
        give_up = Retries()
        while True:
            try:
                answer = method(request, timeout=timeout_s, metadata=self.metadata)
            except grpc.RpcError as error:
                if not self.is_away(error) or not give_up.pause():
                    raise self.error_of(error) from None
            else:
                self.was_connected = True
                return answer

    def open_stream(self, method: Any, request: object, *, limit_s: float | None = None) -> Any:
        """The stream of answers, which is also the call that can be cancelled."""
        self._check_open()
        return method(request, timeout=limit_s, metadata=self.metadata)

    def stream(self, method: Any, request: object) -> Generator[Any, None, None]:
        """All answers of a stream, which is not taken up again when it breaks."""
        call = self.open_stream(method, request)
        try:
            for message in call:
                self.was_connected = True
                yield message
        except grpc.RpcError as error:
            raise self.error_of(error) from None
        finally:
            with interrupts.deferred():
                call.cancel()

    def is_away(self, error: grpc.RpcError) -> bool:
        """True when a coordinator that answered before cannot be reached: it may come back."""
        if self._is_closed or not self.was_connected or reports.report_of(error) is not None:
            return False
        return reports.status_and_text(error)[0] is grpc.StatusCode.UNAVAILABLE

    def error_of(self, error: grpc.RpcError) -> PipesvcError:
        if self._is_closed:
            return _closed()
        return reports.from_rpc_error(error, address=self.address, was_connected=self.was_connected)

    def ended_early(self, what: str) -> PipesvcError:
        """For a stream that ended in good order, but without its last word."""
        message = f"the coordinator at {self.address} ended {what} early"
        return PipesvcError(ErrorCode.COORDINATOR_LOST, message, advice="Look at its log")

    def close(self) -> None:
        self._is_closed = True
        with interrupts.deferred():
            self._channel.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()


class Retries:
    """Bounds the repeats since the last sign of life."""

    def __init__(self) -> None:
        self._since: float | None = None

    def pause(self) -> bool:
        """Wait a moment before the next try; False: enough was tried."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= RETRY_S:
            return False
        time.sleep(RETRY_PAUSE_S)
        return True

    def reset(self) -> None:
        self._since = None


def _closed() -> PipesvcError:
    return PipesvcError(
        ErrorCode.COORDINATOR_LOST, "this client is closed", advice="Connect again and use client.attach(run_id)"
    )
