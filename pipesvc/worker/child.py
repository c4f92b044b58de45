"""The life of a process that runs user code, from its birth in the nursery on.

User code runs in processes of their own, so that a segfault or an endless loop ends one run and not the worker.
Whatever ends a child in Python becomes a `failed` report first.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.model.source_paths import shown_traceback
from pipesvc.rpc.v1 import local_pb2, types_pb2
from pipesvc.worker.local_socket import ChildEnd, PeerGoneError
from pipesvc.worker.user_errors import user_error

ASSIGNMENT_WAIT_S: Final = 30.0

# Module whose `run(port, assignment)` is the child's work; code of an unexpected exception before and after `ready`.
ROLES: Final = {
    types_pb2.ROLE_EXECUTOR: ("pipesvc.worker.executor.main", ErrorCode.BUILD_FAILED, ErrorCode.STAGE_FAILED),
    types_pb2.ROLE_FEEDER: ("pipesvc.worker.feeder.main", ErrorCode.BUILD_FAILED, ErrorCode.DATA_SOURCE_FAILED),
    types_pb2.ROLE_INSPECTOR: ("pipesvc.worker.inspector", ErrorCode.BUILD_FAILED, ErrorCode.BUILD_FAILED),
    types_pb2.ROLE_PROFILER: ("pipesvc.worker.profiler.main", ErrorCode.BUILD_FAILED, ErrorCode.INTERNAL),
}


class _Formatter(logging.Formatter):
    """Of the run's log, which is read by the person who wrote the code."""

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the name that logging calls
        return shown_traceback(super().formatException(ei))


class _Entry(Protocol):
    def run(self, port: object, assignment: local_pb2.Assignment) -> None: ...


def read_assignment(end: ChildEnd) -> local_pb2.Assignment:
    packet = end.receive(ASSIGNMENT_WAIT_S)
    if packet is None:
        raise SystemExit(f"no assignment came within {ASSIGNMENT_WAIT_S:g} s")
    message = local_pb2.ToChild.FromString(packet.message)
    if message.WhichOneof("message") != "assignment_path":
        raise SystemExit(f"{message.WhichOneof('message')} came where the assignment was due")
    return local_pb2.Assignment.FromString(Path(message.assignment_path).read_bytes())


def work(end: ChildEnd, assignment: local_pb2.Assignment) -> int:
    """Run the child's role to its end; gives the exit code."""
    where = Where(run_id=assignment.run_id, worker=assignment.worker, host=assignment.host)
    module_name, code, code_when_ready = ROLES[assignment.role]
    port = None
    try:
        from pipesvc.worker.port import Port  # late: it imports torch, whose absence must be reported

        port = Port(end)
        cast(_Entry, import_module(module_name)).run(port, assignment)
        port.report_counts()
    except PipesvcError as error:
        failed = error.at(where)
        _tell(end, failed, error)
        return 1
    except (Exception, KeyboardInterrupt) as error:
        is_ready = port is not None and port.has_reported_ready
        if is_ready:
            code = code_when_ready
        elif isinstance(error, ImportError):
            code = ErrorCode.IMPORT_FAILED
        doing = f"in the {types_pb2.Role.Name(assignment.role).removeprefix('ROLE_').lower()}"
        _tell(end, user_error(code, doing, error, where=where), error)
        return 1
    return 0


def _tell(end: ChildEnd, failed: PipesvcError, cause: BaseException) -> None:
    from pipesvc.net import reports  # late: a healthy child needs no gRPC

    logging.getLogger("pipesvc.child").error("%s", failed.details, exc_info=cause)
    end.send(local_pb2.FromChild(failed=reports.to_message(failed.details)).SerializeToString())


def main(own_socket: socket.socket) -> int:
    """Work for the agent at the other end of the socket; gives the exit code."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    end = ChildEnd(own_socket)
    try:
        assignment = read_assignment(end)
        if assignment.bundle_dir:
            sys.path.insert(0, assignment.bundle_dir)
        return work(end, assignment)
    except PeerGoneError:
        return 1
    finally:
        end.close()
