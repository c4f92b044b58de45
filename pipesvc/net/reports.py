"""Errors on their way between processes.

A gRPC status has a code of sixteen and a text; where a run failed, and how to go on, would be lost. So the whole
`ErrorDetails` travels as an `ErrorReport`, beside the status in the trailing metadata, and becomes the same exception
again at the other end.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from pipesvc.errors import CATALOGUE, ErrorCode, ErrorDetails, PipesvcError, Where
from pipesvc.net.options import ERROR_REPORT_BYTES
from pipesvc.rpc.v1 import types_pb2

REPORT_KEY: Final = "pipesvc-error-bin"
_STATUS_TEXT_CHARS: Final = 1_000
_ABSENT_ADVICE: Final = "Check the address, and that `pipesvc coordinator` runs there"
_LOST_ADVICE: Final = "Look at its terminal or log, and start it again"
# The longest texts of a report are shortened to these sizes, one after the other, until it fits.
_CUTS_CHARS: Final = (8_000, 4_000, 2_000, 1_000, 500)


def to_message(details: ErrorDetails) -> types_pb2.ErrorReport:
    """The message form; nothing is lost."""
    where = details.where
    return types_pb2.ErrorReport(
        code=details.code.value,
        message=details.message,
        advice=details.advice,
        exception_type=details.exception_type,
        traceback=details.traceback,
        run_id=where.run_id,
        step=where.step,
        stage=where.stage,
        micro_batch=where.micro_batch,
        worker=where.worker,
        host=where.host,
        last_words=details.last_words,
        is_echo=details.is_echo,
    )


def from_message(report: types_pb2.ErrorReport) -> ErrorDetails:
    """The value form. A code of a newer version becomes INTERNAL with its name in the text."""
    try:
        code, message = ErrorCode(report.code), report.message
    except ValueError:
        code, message = ErrorCode.INTERNAL, f"{report.code or 'an error without a code'}: {report.message}"
    return ErrorDetails(
        code=code,
        message=message,
        advice=report.advice,
        where=Where(
            run_id=report.run_id,
            step=report.step if report.HasField("step") else None,
            stage=report.stage if report.HasField("stage") else None,
            micro_batch=report.micro_batch if report.HasField("micro_batch") else None,
            worker=report.worker,
            host=report.host,
        ),
        exception_type=report.exception_type,
        traceback=report.traceback,
        last_words=report.last_words,
        is_echo=report.is_echo,
    )


def status_of(code: ErrorCode) -> grpc.StatusCode:
    """The gRPC status under which an error travels."""
    return grpc.StatusCode[CATALOGUE[code][0]]


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: PipesvcError) -> NoReturn:
    """End the call with this error; call it from a handler, outside of `except Exception`."""
    metadata = ((REPORT_KEY, packed(error.details)),)
    await context.abort(status_of(error.code), str(error.details)[:_STATUS_TEXT_CHARS], metadata)
    raise AssertionError("abort returned")


def from_rpc_error(
    error: grpc.RpcError, *, address: object, peer: str = "coordinator", was_connected: bool = False
) -> PipesvcError:
    """The exception behind a failed call, asyncio or plain. `was_connected`: the peer answered before."""
    report = report_of(error)
    if report is not None:
        return PipesvcError.of(report)
    code, text = status_and_text(error)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        if was_connected:
            message = f"the {peer} at {address} answered before and does not now: {text}"
            return PipesvcError(ErrorCode.COORDINATOR_LOST, message, advice=_LOST_ADVICE)
        message = f"nothing answers as {peer} at {address}: {text}"
        return PipesvcError(ErrorCode.COORDINATOR_ABSENT, message, advice=_ABSENT_ADVICE)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return PipesvcError(ErrorCode.UNAUTHENTICATED, f"the {peer} at {address} refused the token: {text}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PipesvcError(ErrorCode.TIMED_OUT, f"the {peer} at {address} did not answer in time: {text}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        message = f"the server at {address} does not offer this call: {text}"
        return PipesvcError(ErrorCode.WIRE_MISMATCH, message, advice=f"Is it a pipesvc {peer}, and of this version?")
    return PipesvcError(ErrorCode.INTERNAL, f"the {peer} at {address} failed: {code.name}: {text}")


def report_of(error: grpc.RpcError) -> ErrorDetails | None:
    """The report that came with a failed call, if pipesvc sent it."""
    trailing: Any = error.trailing_metadata() if isinstance(error, (grpc.Call, grpc.aio.AioRpcError)) else None
    for key, value in trailing or ():
        if key == REPORT_KEY and isinstance(value, bytes):
            return from_message(types_pb2.ErrorReport.FromString(value))
    return None


def status_and_text(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """Status and one line of text of a failed call."""
    if isinstance(error, (grpc.Call, grpc.aio.AioRpcError)):
        return error.code() or grpc.StatusCode.UNKNOWN, " ".join((error.details() or "no text").split())
    return grpc.StatusCode.UNKNOWN, " ".join(str(error).split())


def packed(details: ErrorDetails) -> bytes:
    """The report in bytes, its longest texts shortened so that metadata can carry it; tracebacks keep their ends."""
    report = to_message(details)
    for limit in _CUTS_CHARS:
        data = report.SerializeToString()
        if len(data) <= ERROR_REPORT_BYTES:
            return data
        report.traceback, report.last_words = _tail(report.traceback, limit), _tail(report.last_words, limit)
        report.message, report.advice = report.message[:limit], report.advice[:limit]
    return report.SerializeToString()


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[...]{text[-limit:]}"
