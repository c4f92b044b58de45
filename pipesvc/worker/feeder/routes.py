"""What the feeder sends of a micro-batch, and to which stages.

The first layer of a list gets the inputs as they are. Of a module that is replayed every stage runs the whole forward,
so each gets them all, but with the values of those tensors alone that it reads. A flow names a tensor by its place in
the arguments of forward; that is its place in what the source gave, or the same behind the number of the one
argument ("0"), for the feeder has no model and does not know which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipesvc.core.edges import edges_of
from pipesvc.core.flow import inputs_of
from pipesvc.core.plan import Plan
from pipesvc.errors import ErrorCode, PipesvcError
from pipesvc.rpc.v1 import types_pb2
from pipesvc.wire.links import FEEDER, Link
from pipesvc.worker import absent


@dataclass(frozen=True, kw_only=True, slots=True)
class FeederRoutes:
    """`known` are the paths of all tensors of a flow's inputs, None for a list of layers; `read` those that a stage
    reads."""

    input_readers: tuple[int, ...]
    label_readers: tuple[int, ...]
    known: frozenset[str] | None
    read: Mapping[int, frozenset[str]]

    def parcels(self, inputs: Any, labels: Any) -> Iterator[tuple[Link, Any]]:
        prefix = "" if self.known is None else _prefix(absent.paths_of(inputs), self.known)
        for stage in self.input_readers:
            yield Link(FEEDER, stage, types_pb2.LINK_KIND_INPUT), self._part(inputs, stage, prefix)
        for stage in self.label_readers:
            yield Link(FEEDER, stage, types_pb2.LINK_KIND_LABEL), labels

    def _part(self, inputs: Any, stage: int, prefix: str) -> Any:
        if self.known is None:
            return inputs
        read = self.read[stage]
        return absent.without(inputs, lambda path: _joined(prefix, path) in read)


def routes_of(plan: Plan, *, has_labels: bool) -> FeederRoutes:
    """One stage gets all inputs, whichever they are."""
    edges, flow = edges_of(plan, has_labels=has_labels, decides=False), plan.flow if plan.num_stages > 1 else None
    return FeederRoutes(
        input_readers=edges.input_readers,
        label_readers=edges.label_readers,
        known=None if flow is None else frozenset(flow.input_users),
        read={}
        if flow is None
        else {stage: frozenset(inputs_of(flow, plan.ends, stage)) for stage in edges.input_readers},
    )


def _prefix(paths: Collection[str], known: frozenset[str]) -> str:
    """What makes the flow's paths of these; other tensors than those that were planned with are refused by name."""
    for prefix in ("", "0"):
        if {_joined(prefix, path) for path in paths} == known:
            return prefix
    raise PipesvcError(
        ErrorCode.INVALID_JOB,
        f"the inputs have the tensors {_text(paths)}, and the plan was made with {_text(known)}",
        advice="Let the data source give the same tensors in the same places in every batch.",
    )


def _joined(prefix: str, path: str) -> str:
    return ".".join(filter(None, (prefix, path)))


def _text(paths: Collection[str]) -> str:
    return ", ".join(sorted(path or "(alone)" for path in paths)) or "(none)"
