"""States of the model on their way to a file: live ones that clients ask for, and the final one.

A live state is of the next step that is not issued yet: every executor hears of it before it hears of that step, so
all shards are of the same step, and no step waits for it. When the run ends before that step comes, those who asked
get the final state.
"""

from __future__ import annotations

from pipesvc.coordinator.events import AnswerWeights, DropWeights, KeepWeights, MergeShards
from pipesvc.coordinator.failures import failure
from pipesvc.coordinator.limits import MERGE_BOUND_S, SAVE_IDLE_S
from pipesvc.coordinator.run_record import Phase, RunRecord, Save
from pipesvc.coordinator.turn import Turn
from pipesvc.errors import ErrorCode
from pipesvc.rpc.v1 import local_pb2, types_pb2


def ask(record: RunRecord, turn: Turn, ticket: int) -> None:
    """A client asks for the state of this run."""
    ledger = record.ledger
    if record.outputs is not None:
        message = f"run {record.run_id} is a prediction and has no weights of its own"
        _refuse(record, turn, [ticket], failure(ErrorCode.WEIGHTS_NOT_READY, message))
    elif record.phase is Phase.RUNNING and ledger is not None:
        step = ledger.issued + 1
        if record.is_cancelled or (ledger.num_steps is not None and step > ledger.num_steps):
            record.final_tickets.append(ticket)
            return
        save = record.saves.get(step)
        if save is None:
            save = _begin(record, turn, step, is_final=False)
        save.tickets.append(ticket)
    elif record.has_weights and ledger is not None:
        turn.commands.append(AnswerWeights(ticket=ticket, run_id=record.run_id, step=ledger.committed))
    elif record.phase is Phase.SAVING:
        record.final_tickets.append(ticket)
    else:
        message = f"run {record.run_id} has no weights: it is {record.phase.value}"
        _refuse(record, turn, [ticket], failure(ErrorCode.WEIGHTS_NOT_READY, message, advice="Ask once it runs"))


def begin_final(record: RunRecord, turn: Turn) -> None:
    """The last step is committed: what was asked of steps that never come is answered by the final state."""
    assert record.ledger is not None
    last = record.ledger.committed
    for step in [step for step in record.saves if step > last]:
        record.final_tickets.extend(record.saves.pop(step).tickets)
    save = record.saves.get(last)
    if save is None:
        save = _begin(record, turn, last, is_final=True)
    save.is_final = True
    save.tickets.extend(record.final_tickets)
    record.final_tickets.clear()


def shard_grown(record: RunRecord, turn: Turn, *, step: int, stage: int, is_whole: bool) -> None:
    save = record.saves.get(step)
    if save is None or record.plan is None or save.is_merging:
        return
    save.moved_s = turn.now_s
    if not is_whole:
        return
    save.whole.add(stage)
    if len(save.whole) == record.plan.num_stages:
        save.is_merging = True
        turn.commands.append(MergeShards(run_id=record.run_id, step=step, num_stages=record.plan.num_stages))


def merged(record: RunRecord, turn: Turn, *, step: int, problem: str) -> types_pb2.ErrorReport | None:
    """The file is there, or is not. Returns the failure of the run, if the final state could not be stored."""
    save = record.saves.pop(step, None)
    if save is None:
        return None
    if problem:
        error = failure(
            ErrorCode.INTERNAL, f"the weights of step {step} could not be stored: {problem}",
            advice="Look at the coordinator's disk", step=step,
        )  # fmt: skip
        _refuse(record, turn, save.tickets, error)
        return error if save.is_final else None
    if save.is_final:
        record.has_weights = True
        turn.commands.append(KeepWeights(run_id=record.run_id, step=step))
    for ticket in save.tickets:
        answer = AnswerWeights(ticket=ticket, run_id=record.run_id, step=step, is_final=save.is_final)
        turn.commands.append(answer)
    if not save.is_final:
        turn.commands.append(DropWeights(run_id=record.run_id, step=step))
    return None


def overdue(record: RunRecord, turn: Turn) -> types_pb2.ErrorReport | None:
    """Give up states that do not move. Returns the failure of the run, if the final one is among them."""
    for save in list(record.saves.values()):
        # A live state has nothing to move before its step is committed, and steps have limits of their own.
        if record.ledger is not None and save.step > record.ledger.committed:
            save.moved_s = turn.now_s
        limit_s = MERGE_BOUND_S if save.is_merging else SAVE_IDLE_S
        if turn.now_s - save.moved_s < limit_s:
            continue
        del record.saves[save.step]
        error = _overdue_error(record, save, limit_s)
        _refuse(record, turn, save.tickets, error)
        if save.is_final:
            return error
        turn.commands.append(DropWeights(run_id=record.run_id, step=save.step))
    return None


def is_final_whole(record: RunRecord) -> bool:
    """True once the stages are not needed any more for the final state."""
    return record.has_weights or any(save.is_final and save.is_merging for save in record.saves.values())


def abandon(record: RunRecord, turn: Turn) -> None:
    """The run ends without these states; who still waits gets the final state, if that is stored."""
    tickets = [*record.final_tickets, *(ticket for save in record.saves.values() for ticket in save.tickets)]
    turn.commands.extend(DropWeights(run_id=record.run_id, step=step) for step in record.saves)
    record.final_tickets.clear()
    record.saves.clear()
    if record.has_weights and record.ledger is not None:
        step = record.ledger.committed
        turn.commands.extend(AnswerWeights(ticket=ticket, run_id=record.run_id, step=step) for ticket in tickets)
    else:
        message = f"run {record.run_id} ended before its weights were stored"
        _refuse(record, turn, tickets, record.error or failure(ErrorCode.WEIGHTS_NOT_READY, message))


def _begin(record: RunRecord, turn: Turn, step: int, *, is_final: bool) -> Save:
    save = Save(step=step, is_final=is_final, moved_s=turn.now_s)
    record.saves[step] = save
    turn.to_executors(record, local_pb2.ToChild(save_state=local_pb2.SaveState(step=step)))
    return save


def _refuse(record: RunRecord, turn: Turn, tickets: list[int], error: types_pb2.ErrorReport) -> None:
    turn.commands.extend(AnswerWeights(ticket=ticket, run_id=record.run_id, error=error) for ticket in tickets)


def _overdue_error(record: RunRecord, save: Save, limit_s: float) -> types_pb2.ErrorReport:
    stages = record.plan.stages if record.plan is not None else ()
    late = [f"stage {stage.index} on {stage.worker}" for stage in stages if stage.index not in save.whole]
    return failure(
        ErrorCode.TIMED_OUT,
        f"the weights of step {save.step} did not move for {limit_s:g} s: waiting for {', '.join(late) or 'the disk'}",
        step=save.step,
    )
