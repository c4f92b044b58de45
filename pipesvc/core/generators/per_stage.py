"""Schedules that are an order for each stage, wherever the stage lies.

Written as loops, GPipe and 1F1B exist twice as soon as something must check, simulate or draw them, and the copies
drift. Here such a schedule is one number per stage: how many micro-batches may be alive there at once. The order
follows from it: that many forwards, then backward and forward in turn, then the rest of the backwards.

Legend: p stages, m micro-batches, s the index of a stage.

| schedule | alive on stage s at most                                                                    |
|----------|---------------------------------------------------------------------------------------------|
| naive    | 1                                                                                           |
| GPipe    | m                                                                                           |
| 1F1B     | min(m, p - s), or sloping down from `in_flight` on stage 0 to 1 on the last stage           |
| ZBH1     | min(m, p): as many forwards ahead as 1F1B, and s micro-batches whose W is still to be done  |

More in flight than p on stage 0 hides the time of a hop between workers, at the price of memory.
"""

from __future__ import annotations

from pipesvc.core.actions import Action, backward, forward, input_backward, weight_backward


def inference(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> list[Action]:
    """Forwards alone: nothing is kept for a backward and nothing is updated."""
    return [forward(stage, index) for index in range(num_micro_batches)]


def naive(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> list[Action]:
    return _alternating(stage, num_micro_batches, 1)


def gpipe(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> list[Action]:
    return _alternating(stage, num_micro_batches, num_micro_batches)


def one_f_one_b(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> list[Action]:
    """Source: Narayanan et al. 2021, arXiv:2104.04473; with `in_flight` more warm-up forwards than there."""
    stages_after = num_stages - 1 - stage
    if not in_flight or num_stages == 1:
        return _alternating(stage, num_micro_batches, in_flight or stages_after + 1)
    # Rounded up; `in_flight == num_stages` gives plain 1F1B.
    return _alternating(stage, num_micro_batches, 1 - (-(in_flight - 1) * stages_after // (num_stages - 1)))


def _alternating(stage: int, num_micro_batches: int, num_ahead: int) -> list[Action]:
    num_ahead = min(num_ahead, num_micro_batches)
    actions = [forward(stage, index) for index in range(num_ahead)]
    for index in range(num_micro_batches):
        actions.append(backward(stage, index))
        if index + num_ahead < num_micro_batches:
            actions.append(forward(stage, index + num_ahead))
    return actions


def zero_bubble_h1(stage: int, num_stages: int, num_micro_batches: int, in_flight: int) -> list[Action]:
    """1F1B whose backwards are split: an I is not held up by the W of later stages, and W fills the end of the step.

    Stage s does its W s micro-batches late, so every stage holds what stage 0 of 1F1B does.
    Source: ZB-H1 of Qi et al. 2023, arXiv:2401.10241.
    """
    num_ahead = min(num_stages - stage, num_micro_batches)
    actions = [forward(stage, index) for index in range(num_ahead)]
    for index in range(num_micro_batches):
        actions.append(input_backward(stage, index))
        if index >= stage:
            actions.append(weight_backward(stage, index - stage))
        if index + num_ahead < num_micro_batches:
            actions.append(forward(stage, index + num_ahead))
    first_late = max(0, num_micro_batches - stage)
    return actions + [weight_backward(stage, index) for index in range(first_late, num_micro_batches)]
