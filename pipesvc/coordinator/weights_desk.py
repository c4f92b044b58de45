"""Weights on their way to the disk, as the machine has them written.

A full disk at the end of a training must not cost the training. The stages hold their state for as long as nothing
takes it, so a write that finds no space is tried again until there is some, or nobody wants it any more.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from pipesvc.coordinator import events
from pipesvc.coordinator.backlog import ADVICE, RETRY_S
from pipesvc.coordinator.limits import MERGE_BOUND_S
from pipesvc.coordinator.machine import Machine
from pipesvc.coordinator.store import Store
from pipesvc.errors import PipesvcError
from pipesvc.rpc.v1 import local_pb2

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class WeightsDesk:
    """For the event loop's thread; writes on others. `warn` takes a run's id and a text."""

    def __init__(
        self,
        machine: Machine,
        store: Store,
        tell: Callable[[events.Event], None],
        warn: Callable[[str, str], None],
    ) -> None:
        self._machine = machine
        self._store = store
        self._tell = tell
        self._warn = warn

    async def store_chunk(self, session: int, run_id: str, chunk: local_pb2.StateChunk) -> None:
        if not self._is_wanted(run_id, chunk.step):
            self._tell(events.Heard(session=session))
            return
        grown = events.ShardGrown(session=session, run_id=run_id, step=chunk.step, stage=chunk.stage, is_whole=False)
        try:
            # While the disk is full the worker cannot be heard: it is, and its state moves, by waiting.
            write = partial(self._store.write_shard, run_id, chunk)
            await self._with_space(write, run_id, chunk.step, lambda: self._tell(grown))
        except (OSError, PipesvcError) as error:
            self._tell(events.WeightsMerged(run_id=run_id, step=chunk.step, problem=str(error)))
            return
        if not self._is_wanted(run_id, chunk.step):
            self._store.drop_weights(run_id, chunk.step)
        self._tell(replace(grown, is_whole=chunk.is_last))

    async def merge(self, command: events.MergeShards) -> None:
        problem = ""
        try:
            work = partial(self._store.merge_shards, command.run_id, command.step, command.num_stages)
            await self._with_space(work, command.run_id, command.step, lambda: None)
        except (OSError, PipesvcError) as error:
            problem = str(error)
        self._tell(events.WeightsMerged(run_id=command.run_id, step=command.step, problem=problem))

    def keep(self, command: events.KeepWeights) -> None:
        try:
            self._store.keep_weights(command.run_id, command.step)
        except OSError as error:
            warning = events.WarningRaised(run_id=command.run_id, text=f"the weights could not be kept: {error}")
            asyncio.get_running_loop().call_soon(self._tell, warning)

    def _is_wanted(self, run_id: str, step: int) -> bool:
        record = self._machine.record(run_id)
        return record is not None and step in record.saves

    def _can_wait(self, run_id: str, step: int) -> bool:
        """Who cancels wants an end."""
        record = self._machine.record(run_id)
        return record is not None and not record.is_cancelled and step in record.saves

    async def _with_space(self, work: Callable[[], None], run_id: str, step: int, waits: Callable[[], None]) -> None:
        """Do `work`, which can be done again after it failed; `waits` is called at each try that finds no space."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + MERGE_BOUND_S
        is_told = False
        while True:
            try:
                await asyncio.to_thread(work)
                return
            except OSError as error:
                if error.errno not in _FULL or loop.time() > until_s or not self._can_wait(run_id, step):
                    raise
                if not is_told:
                    self._warn(run_id, f"the weights of step {step} wait for space on the disk ({error}). {ADVICE}")
                is_told = True
                waits()
            await asyncio.sleep(RETRY_S)
