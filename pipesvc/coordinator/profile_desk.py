"""The shell's part of a profile: what is known comes from the disk, the answer goes to the caller and back to the disk.

A profile lives as long as the call that asked for it. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final

from pipesvc.coordinator import events
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.profile_parts import wanted_parts
from pipesvc.coordinator.profile_store import ProfileStore
from pipesvc.coordinator.store import Store
from pipesvc.coordinator.validation import check_submission
from pipesvc.core.costs import Costs
from pipesvc.core.costs_json import to_json
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.net.reports import from_message
from pipesvc.rpc.v1 import run_pb2

Command = events.ReportProfile | events.EndProfile


class ProfileDesk:
    """For the event loop's thread."""

    def __init__(self, machine: Machine, store: Store, tell: Callable[[events.Event], None]) -> None:
        self._machine = machine
        self._store = store
        self._parts: Final = ProfileStore(store.state_dir / "profiles")
        self._tell = tell
        self._asked: dict[str, asyncio.Queue[Command]] = {}

    async def measure(self, request: run_pb2.ProfileJobRequest) -> AsyncIterator[run_pb2.ProfileJobResponse]:
        """What is awaited, whenever that changes, and then the costs; raises the refusal or the failure."""
        job, profile_id = request.job, f"profile-{secrets.token_hex(4)}"
        check_submission(profile_id, job, request.bundle)
        if job.data.is_streamed:
            message = "the data is streamed by the client, and a profile reads the first batch on every worker"
            advice = "Give a DataSource for the profile, with batches of the same sizes"
            raise PipesvcError(ErrorCode.INVALID_JOB, message, advice=advice)
        if request.bundle:
            await asyncio.to_thread(self._store.add_bundle, job.bundle_sha256, request.bundle)
        known = {} if request.is_fresh else await self._known(request)
        queue = self._asked[profile_id] = asyncio.Queue()
        token = secrets.token_urlsafe(32)
        try:
            self._tell(events.ProfileAsked(profile_id=profile_id, job=job, link_token=token, known=known))
            while isinstance(command := await queue.get(), events.ReportProfile):
                yield run_pb2.ProfileJobResponse(progress=run_pb2.ProfileProgress(awaited=command.awaited))
            yield run_pb2.ProfileJobResponse(result=await self._result(command))
        finally:
            del self._asked[profile_id]
            self._tell(events.ProfileAbandoned(profile_id=profile_id))

    def perform(self, command: Command) -> None:
        if (queue := self._asked.get(command.profile_id)) is not None:
            queue.put_nowait(command)

    async def _known(self, request: run_pb2.ProfileJobRequest) -> dict[str, Costs]:
        registrations = [member.registration for member in self._machine.fleet.available]
        wanted = wanted_parts(request.job, registrations)
        return await asyncio.to_thread(self._parts.load, wanted)

    async def _result(self, ended: events.EndProfile) -> run_pb2.ProfileResult:
        if ended.costs is None:
            assert ended.error is not None
            raise PipesvcError.of(from_message(ended.error))
        try:
            await asyncio.to_thread(self._parts.save, ended.measured)
        except OSError as error:
            # It was measured all the same.
            text = f"the profile cannot be kept in {self._parts.folder}: {error}"
            print(f"pipesvc coordinator: {text}", file=sys.stderr, flush=True)
        num_devices = sum(len(part.devices) for part in ended.measured.values())
        num_links = sum(len(part.links) for part in ended.measured.values())
        return run_pb2.ProfileResult(
            costs_json=to_json(ended.costs), num_devices_measured=num_devices, num_links_measured=num_links
        )
