"""What must be on the disk before a run exists: its bundle, its directory, its job in the journal.

A run that began and could not be stored would train without a trace of itself, and its client would have been told
that it was refused. So all of it is stored first, or nothing of it stays.
"""

from __future__ import annotations

import asyncio

from pipesvc.coordinator.journal import Journal
from pipesvc.coordinator.store import Store
from pipesvc.errors import ErrorCode, PipesvcError, Where
from pipesvc.rpc.v1 import job_pb2, run_pb2


async def admit(journal: Journal, store: Store, run: run_pb2.Run, job: job_pb2.JobSpec, bundle: bytes) -> None:
    """Store a new run; one at a time. Raises the refusal, and then nothing of the run is left."""
    is_new_bundle = False
    try:
        if bundle:
            is_new_bundle = await asyncio.to_thread(store.add_bundle, job.bundle_sha256, bundle)
        store.begin_run(run.run_id)
        await journal.add_run(run, job)
    except (OSError, PipesvcError) as error:
        store.forget_run(run.run_id)
        if is_new_bundle:
            store.drop_bundle(job.bundle_sha256)
        reason = error.details.message if isinstance(error, PipesvcError) else error.strerror or str(error)
        raise PipesvcError(
            ErrorCode.INTERNAL,
            f"the run is refused: the coordinator cannot store it in its state directory {store.state_dir}: {reason}",
            advice="Free space in that directory or make it writable, and submit the job again",
            where=Where(run_id=run.run_id),
        ) from error
