"""Watchers who keep up, who come late, and who are slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipesvc.coordinator import events, feed
from pipesvc.coordinator.feed import Feed
from pipesvc.coordinator.journal import Journal
from pipesvc.rpc.v1 import local_pb2, run_pb2, types_pb2
from tests.unit.coordinator.coordinator_world import World, two_workers


class Watched:
    """A world whose commands go to a feed and a journal, as the hub does it."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.journal = Journal(path)
        self.journal.open()
        self.feed = Feed(world.machine, self.journal)
        self._num_done = 0

    def perform(self) -> None:
        for command in self.world.commands[self._num_done :]:
            if isinstance(command, events.PublishRun):
                self.feed.run_changed(command.run)
            elif isinstance(command, events.RecordStep):
                self.journal.add_step(command.run_id, command.record)
                self.feed.step_committed(command.run_id, command.record)
            elif isinstance(command, events.RecordEvaluation):
                self.journal.add_evaluation(command.run_id, command.record)
        self._num_done = len(self.world.commands)

    def apply(self, *steps: int) -> None:
        for step in steps:
            applied = local_pb2.StepApplied(step=step, stage=1, loss=1.0)
            self.world.say("b", types_pb2.ROLE_EXECUTOR, local_pb2.FromChild(step_applied=applied))
        self.perform()


def said(response: run_pb2.WatchRunResponse) -> int | str:
    if response.HasField("step"):
        return response.step.step
    if response.HasField("evaluation"):
        return f"evaluation {response.evaluation.step}"
    return run_pb2.RunState.Name(response.run.state).removeprefix("RUN_STATE_")


async def taken(responses: AsyncIterator[run_pb2.WatchRunResponse], count: int) -> list[int | str]:
    return [said(await asyncio.wait_for(anext(responses), 5)) for _ in range(count)]


@pytest.mark.asyncio
async def test_a_watcher_sees_the_run_the_past_and_then_what_comes(tmp_path: Path) -> None:
    world = two_workers(num_steps=4)
    world.workers["b"].mute.add("applied")
    world.submit()
    watched = Watched(world, tmp_path / "journal.sqlite3")
    watched.apply(1, 2)
    responses = watched.feed.events("r", 2)
    assert await taken(responses, 2) == ["RUNNING", 2]
    waiting = asyncio.create_task(taken(responses, 3))
    await asyncio.sleep(0)
    assert not waiting.done()
    watched.apply(3, 4)
    assert await waiting == [3, 4, "COMPLETED"]
    with pytest.raises(StopAsyncIteration):
        await anext(responses)
    watched.journal.close()


@pytest.mark.asyncio
async def test_a_slow_watcher_reads_from_the_journal_what_memory_has_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "TAIL_STEPS", 4)
    world = two_workers(num_steps=40)
    world.workers["b"].mute.add("applied")
    world.submit()
    watched = Watched(world, tmp_path / "journal.sqlite3")
    responses = watched.feed.events("r", 0)
    assert await taken(responses, 1) == ["RUNNING"]
    watched.apply(*range(1, 41))
    assert await taken(responses, 41) == [*range(1, 41), "COMPLETED"]
    watched.journal.close()


@pytest.mark.asyncio
async def test_evaluations_come_behind_their_steps_and_that_of_the_step_before_too(tmp_path: Path) -> None:
    world = two_workers(num_steps=4)
    world.workers["b"].mute.add("applied")
    world.submit()
    watched = Watched(world, tmp_path / "journal.sqlite3")
    watched.apply(1, 2, 3)
    for step in (1, 3):
        watched.journal.add_evaluation("r", run_pb2.EvaluationRecord(step=step, loss=1.0))
    record = world.machine.record("r")
    assert record is not None
    record.evaluated_step = 3
    late = watched.feed.events("r", 4)
    assert await taken(late, 2) == ["RUNNING", "evaluation 3"]
    await late.aclose()  # type: ignore[attr-defined]
    responses = watched.feed.events("r", 0)
    assert await taken(responses, 6) == ["RUNNING", 1, "evaluation 1", 2, 3, "evaluation 3"]
    watched.apply(4)
    assert await taken(responses, 2) == [4, "COMPLETED"]
    watched.journal.close()
