"""Random flows of modules: values that skip, units that stay together, parameters with several users."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

from pipesvc.core.costs import Costs, LayerCost
from pipesvc.core.flow import PARAMETER, Flow, Joined, Value, gradient_transfers, transfers
from pipesvc.core.flow_json import to_json
from pipesvc.core.layer_info import LayerInfo, SharedParameter


def random_flow(rng: random.Random, layers: tuple[LayerCost, ...]) -> Flow:
    """With these layers as units. Parameters are named by the first of their users."""
    num_units = len(layers)
    values = []
    for index in range(rng.randint(0, 2 * num_units)):
        producer = rng.randint(-1, num_units - 1)
        later = range(producer + 1, num_units)
        users = sorted(rng.sample(later, rng.randint(1, min(3, len(later))))) if later else []
        if users:
            values.append(
                Value(
                    key=f"{index}.0.0",
                    producer=producer,
                    users=tuple(users),
                    shape=(),
                    dtype="float32",
                    num_bytes=rng.randint(0, 4),
                    is_differentiable=rng.random() < 0.7,
                )
            )
    pairs = list(combinations(range(-1, num_units), 2))
    joined = [Joined(first=a, last=b, reason="so", advice="") for a, b in rng.sample(pairs, min(1, len(pairs)))]
    names = [f"shared{index}" for index in range(rng.randint(0, 2) if num_units > 1 else 0)]
    return Flow(
        units=tuple(LayerInfo(name=layer.name, type="", mark=layer.mark) for layer in layers),
        values=tuple(values),
        input_users={},
        parameters={name: tuple(sorted(rng.sample(range(num_units), min(num_units, 3)))) for name in names},
        shared=tuple(
            SharedParameter(name=name, num_bytes=rng.randint(0, 9), is_trained=rng.random() < 0.8) for name in names
        ),
        joined=tuple(joined) if rng.random() < 0.3 else (),
    )


def with_flow(rng: random.Random, costs: Costs) -> Costs:
    """The costs as those of a random flow: what crosses each boundary is what that cut alone would send."""
    flow = random_flow(rng, costs.layers)
    layers = list(costs.layers)
    for cut in range(1, len(layers)):
        output_bytes, output_gradient_bytes = sent_over(flow, cut)
        layers[cut - 1] = replace(
            layers[cut - 1], output_bytes=output_bytes, output_gradient_bytes=output_gradient_bytes
        )
    return replace(costs, layers=tuple(layers), flow_json=to_json(flow))


def sent_over(flow: Flow, cut: int) -> tuple[int, int]:
    """Bytes over a single cut before this unit, forward and backward."""
    free = replace(flow, joined=())
    ends = (cut, len(flow.units))
    sizes = {value.key: value.num_bytes for value in flow.values}
    sizes |= {PARAMETER + each.name: each.num_bytes for each in flow.shared}
    forward = sum(sizes[key] for key in transfers(free, ends).get((0, 1), ()))
    return forward, sum(sizes[key] for key in gradient_transfers(free, ends).get((1, 0), ()))
