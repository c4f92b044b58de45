"""Proves that the lists of a plan can run, before anything runs.

A schedule with a mistake does not crash, it waits for ever, on several hosts. So every set of lists is checked: each
action is there exactly once and on one worker, the order within a stage makes sense, a dry-run over the links comes
to its end, and no stage ever holds more micro-batches than its bound. The dry-run takes each list strictly in order;
what passes here cannot get stuck under `choice.choose` either (see there).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pipesvc.core.actions import Action, ActionKind, awaited, backward, forward
from pipesvc.errors import ErrorCode, PipesvcError, Where


def check(
    per_worker_actions: Mapping[str, Sequence[Action]],
    *,
    num_stages: int,
    num_micro_batches: int,
    bounds: Mapping[int, int],
    clips: bool = False,
) -> dict[int, int]:
    """Refuses lists that cannot run; gives the most micro-batches that were alive at once on each stage."""
    _check_indices(per_worker_actions, num_stages, num_micro_batches)
    _check_counts(per_worker_actions, num_stages, num_micro_batches, clips)
    for worker, actions in per_worker_actions.items():
        _check_order(worker, actions)
    return _dry_run(
        per_worker_actions, num_stages=num_stages, num_micro_batches=num_micro_batches, bounds=bounds, clips=clips
    )


def _refusal(message: str, advice: str = "", *, worker: str = "", action: Action | None = None) -> PipesvcError:
    where = Where(
        worker=worker,
        stage=None if action is None else action.stage,
        micro_batch=None if action is None else action.micro_batch,
    )
    return PipesvcError(ErrorCode.INVALID_PLAN, message, advice=advice, where=where)


def _check_indices(per_worker: Mapping[str, Sequence[Action]], num_stages: int, num_micro_batches: int) -> None:
    home: dict[int, str] = {}
    for worker, actions in per_worker.items():
        for action in actions:
            if action.stage >= num_stages:
                raise _refusal(f"{action} is of a stage that is not among {num_stages} stages", worker=worker)
            if action.micro_batch is not None and action.micro_batch >= num_micro_batches:
                raise _refusal(
                    f"{action} is of a micro-batch that is not among {num_micro_batches} micro-batches", worker=worker
                )
            if home.setdefault(action.stage, worker) != worker:
                raise _refusal(
                    f"{action} is on worker {worker!r}, but stage {action.stage} is also on {home[action.stage]!r}",
                    "All actions of a stage belong on one worker.",
                )


def _check_counts(
    per_worker: Mapping[str, Sequence[Action]], num_stages: int, num_micro_batches: int, clips: bool
) -> None:
    expected = Counter(_all_actions(num_stages, num_micro_batches, clips))
    found = Counter(action for actions in per_worker.values() for action in actions)
    missing, surplus = sorted((expected - found).elements(), key=_key), sorted((found - expected).elements(), key=_key)
    if missing or surplus:
        parts = [
            f"{what} {', '.join(map(str, actions[:8]))}{' and more' if len(actions) > 8 else ''}"
            for what, actions in (("misses", missing), ("has too many of", surplus))
            if actions
        ]
        raise _refusal(f"the plan {' and '.join(parts)}", "Each action of a step is there exactly once.")


def _key(action: Action) -> tuple[int, str, int]:
    return action.stage, action.kind.value, action.micro_batch or 0


def _all_actions(num_stages: int, num_micro_batches: int, clips: bool) -> list[Action]:
    actions = [
        kind(stage, micro_batch)
        for stage in range(num_stages)
        for micro_batch in range(num_micro_batches)
        for kind in (forward, backward)
    ]
    if clips:
        actions += [Action(stage, ActionKind.NORM) for stage in range(num_stages)]
        actions.append(Action(0, ActionKind.DECIDE))
    return actions + [Action(stage, ActionKind.UPDATE) for stage in range(num_stages)]


def _check_order(worker: str, actions: Sequence[Action]) -> None:
    """Links are first in, first out and gradients are added in ascending order, so each kind of a stage must ascend."""
    newest: dict[tuple[int, ActionKind], Action] = {}
    for action in actions:
        before = newest.get((action.stage, action.kind))
        if before is not None and (action.micro_batch or 0) < (before.micro_batch or 0):
            raise _refusal(
                f"{action} comes after {before}", "Micro-batches of a stage ascend.", worker=worker, action=action
            )
        if action.kind is not ActionKind.UPDATE and (action.stage, ActionKind.UPDATE) in newest:
            raise _refusal(
                f"{action} comes after {action.stage}U", "The update is a stage's last.", worker=worker, action=action
            )
        newest[action.stage, action.kind] = action


def _dry_run(
    per_worker: Mapping[str, Sequence[Action]],
    *,
    num_stages: int,
    num_micro_batches: int,
    bounds: Mapping[int, int],
    clips: bool,
) -> dict[int, int]:
    positions = dict.fromkeys(per_worker, 0)
    done: set[Action] = set()
    live = dict.fromkeys(range(num_stages), 0)
    peaks = dict(live)

    def missing(action: Action) -> list[Action]:
        needed = awaited(action, num_stages=num_stages, num_micro_batches=num_micro_batches, clips=clips)
        return [other for other in needed if other not in done]

    has_moved = True
    while has_moved:
        has_moved = False
        for worker, actions in per_worker.items():
            while positions[worker] < len(actions) and not missing(action := actions[positions[worker]]):
                _count(action, live, peaks, bounds, worker)
                done.add(action)
                positions[worker] += 1
                has_moved = True
    blocked = {
        worker: actions[positions[worker]] for worker, actions in per_worker.items() if positions[worker] < len(actions)
    }
    if blocked:
        stories = [
            f"worker {worker!r} is blocked at {action}, which waits for {', '.join(map(str, missing(action)))}"
            for worker, action in blocked.items()
        ]
        raise _refusal(f"the lists lock each other up: {'; '.join(stories)}")
    return peaks


def _count(action: Action, live: dict[int, int], peaks: dict[int, int], bounds: Mapping[int, int], worker: str) -> None:
    stage = action.stage
    if action.kind is ActionKind.BACKWARD:
        live[stage] -= 1
    elif action.kind is ActionKind.FORWARD:
        live[stage] += 1
        peaks[stage] = max(peaks[stage], live[stage])
        if live[stage] > bounds.get(stage, live[stage]):
            raise _refusal(
                f"{action} would be number {live[stage]} in flight on stage {stage}, which may hold {bounds[stage]}",
                worker=worker,
                action=action,
            )
