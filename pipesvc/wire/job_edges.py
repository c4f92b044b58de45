"""The edges of a run, as its job and its plan say, for the coordinator that looks at ways and the executor that goes
them."""

from __future__ import annotations

from pipesvc.core.edges import Edges, edges_of
from pipesvc.core.plan import Plan
from pipesvc.rpc.v1 import job_pb2


def edges_of_job(plan: Plan, job: job_pb2.JobSpec) -> Edges:
    has_labels = job.data.has_labels and not job.is_prediction
    decides = not job.is_prediction and (job.clip_norm > 0 or job.HasField("grad_scaler"))
    return edges_of(plan, has_labels=has_labels, decides=decides)
