from __future__ import annotations

import grpc
import grpc.aio
import pytest

from pipesvc.errors import ErrorCode, ErrorDetails, PipesvcError, Where
from pipesvc.net import reports
from pipesvc.net.options import ERROR_REPORT_BYTES
from pipesvc.rpc.v1 import types_pb2

FULL = ErrorDetails(
    code=ErrorCode.STAGE_FAILED,
    message="ValueError: no",
    advice="look at layer 3",
    where=Where(run_id="r1", step=0, stage=0, micro_batch=0, worker="w1", host="h1"),
    exception_type="ValueError",
    traceback="Traceback ...\n",
    last_words="bye\n",
    is_echo=True,
)


def rpc_error(code: grpc.StatusCode, *trailing: tuple[str, str | bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), "some\n text", "")


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_survives_the_message(code: ErrorCode) -> None:
    details = ErrorDetails(code=code, message="m")
    assert reports.from_message(reports.to_message(details)) == details
    assert isinstance(reports.status_of(code), grpc.StatusCode)


def test_every_field_survives_the_message() -> None:
    report = types_pb2.ErrorReport.FromString(reports.to_message(FULL).SerializeToString())
    assert reports.from_message(report) == FULL
    assert report.HasField("step")


def test_unknown_place_stays_unknown() -> None:
    details = ErrorDetails(code=ErrorCode.INTERNAL, message="m")
    report = reports.to_message(details)
    assert not any(report.HasField(name) for name in ("step", "stage", "micro_batch"))
    assert reports.from_message(report) == details


def test_code_of_a_newer_version_keeps_its_name() -> None:
    details = reports.from_message(types_pb2.ErrorReport(code="MOON_PHASE", message="full"))
    assert details.code is ErrorCode.INTERNAL
    assert details.message == "MOON_PHASE: full"


def test_report_in_the_metadata_wins_over_the_status() -> None:
    packed = reports.to_message(FULL).SerializeToString()
    error = reports.from_rpc_error(rpc_error(grpc.StatusCode.ABORTED, ("pipesvc-error-bin", packed)), address="a:1")
    assert error.details == FULL
    assert "Traceback ..." in error.__notes__[0]


@pytest.mark.parametrize(
    ("status", "was_connected", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, False, ErrorCode.COORDINATOR_ABSENT),
        (grpc.StatusCode.UNAVAILABLE, True, ErrorCode.COORDINATOR_LOST),
        (grpc.StatusCode.CANCELLED, True, ErrorCode.COORDINATOR_LOST),
        (grpc.StatusCode.UNAUTHENTICATED, True, ErrorCode.UNAUTHENTICATED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, True, ErrorCode.TIMED_OUT),
        (grpc.StatusCode.UNIMPLEMENTED, False, ErrorCode.WIRE_MISMATCH),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False, ErrorCode.INTERNAL),
    ],
)
def test_status_without_a_report(status: grpc.StatusCode, was_connected: bool, expected: ErrorCode) -> None:
    error = reports.from_rpc_error(rpc_error(status), address="box:7700", was_connected=was_connected)
    assert error.code is expected
    assert "box:7700" in str(error)
    assert "some text" in str(error)
    assert "\n" not in str(error)


def test_error_that_is_no_call() -> None:
    error = reports.from_rpc_error(grpc.RpcError("odd"), address="box:7700")
    assert error.code is ErrorCode.INTERNAL
    assert "odd" in str(error)


def test_long_texts_are_cut_so_that_metadata_can_carry_them() -> None:
    details = ErrorDetails(
        code=ErrorCode.STAGE_FAILED,
        message="m" * 50_000,
        traceback="first line\n" + "ß" * 100_000 + "\nlast line",
        last_words="w" * 100_000 + "end",
    )
    packed = reports.packed(details)
    assert len(packed) <= ERROR_REPORT_BYTES
    report = types_pb2.ErrorReport.FromString(packed)
    assert report.traceback.endswith("last line")
    assert report.last_words.endswith("end")
    assert report.message.startswith("mmm")
    assert reports.packed(FULL) == reports.to_message(FULL).SerializeToString()


def test_packed_error_keeps_its_type() -> None:
    error = PipesvcError.of(FULL)
    assert reports.from_message(types_pb2.ErrorReport.FromString(reports.packed(error.details))).code is error.code
