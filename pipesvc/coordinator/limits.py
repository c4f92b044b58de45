"""Every wait and bound of the coordinator, with unit and reason, so that none hides in the middle of a transition."""

from __future__ import annotations

from typing import Final

from pipesvc.wire.samples import MAX_SAMPLE_BYTES

# Steps issued and not yet committed: with two, feeder and stage 0 begin one while the last stage ends the one before.
WINDOW_STEPS: Final = 2

# A worker that keeps silent this long is lost; six beats may be late or missing before that.
BEAT_INTERVAL_S: Final = 0.5
BEAT_TIMEOUT_S: Final = 3.0

# A failure that is probably the consequence of another waits this long for the other one, which says more.
ECHO_WAIT_S: Final = 2.0
# A worker silent for this long may be the cause of an echo: the echo waits until it is known to live or to be lost.
SUSPECT_SILENCE_S: Final = 1.2

# Children end in good order within the grace; the agent then kills them, and has the rest of the bound to say so.
STOP_GRACE_S: Final = 3.0
STOP_BOUND_S: Final = 8.0

# Cancelling a running run: committing what was issued and saving the weights, together.
CANCEL_BOUND_S: Final = 30.0

# Saving is given up when no byte of a stage's state has come for this long.
SAVE_IDLE_S: Final = 60.0
# Writing the shards into one file, on the coordinator's own disk.
MERGE_BOUND_S: Final = 600.0
# Batches of a prediction that are computed or lie on the disk, and that the client has not said to have.
WINDOW_OUTPUTS: Final = 4
# A client that reads the outputs may lose its connection and come back.
READER_BOUND_S: Final = 30.0
# The journal's last word on a run.
CONCLUDE_BOUND_S: Final = 30.0

# The feeder times its source itself; the coordinator steps in when even the feeder keeps silent for this much longer.
DATA_GRACE_S: Final = 10.0

# A worker that is lost while it inspects is no fault of the job, the first times.
MAX_INSPECTIONS: Final = 3

# A profile: one link, with the time that a link which cannot be opened takes to say so; and how long it is believed.
LINK_PROFILE_BOUND_S: Final = 60.0
LINK_AGE_S: Final = 24 * 3600.0
# Files of profiles: how long one is kept that nobody asks for, and how many are. Some 10 KiB each.
PROFILE_AGE_S: Final = 90 * 24 * 3600.0
NUM_PROFILES: Final = 10_000

# Log lines and trace events kept per run, each; what comes later is counted, said and dropped.
LOG_BYTES: Final = 64 << 20
TRACE_BYTES: Final = 64 << 20

# What a submission may weigh.
BUNDLE_BYTES: Final = 16 << 20
JOB_BYTES: Final = 1 << 20
# What a client has read ahead of a stream, beside the job: its tensors, and what describes them.
SAMPLE_BYTES: Final = MAX_SAMPLE_BYTES + (1 << 20)

# Workers that dial a newcomer's data address, and that it dials: the join of one costs the same in a large fleet.
NUM_PROBED_PEERS: Final = 8
# For one peer: as long as a silent worker is given before it is lost.
PROBE_TIMEOUT_S: Final = 3.0
# An answer that has not come by then was lost, and the pair may be tried again.
PROBE_ANSWER_BOUND_S: Final = 10.0
# A pair that failed is tried again, soon the first time, to tell a passing trouble from one that stays.
FIRST_REPROBE_S: Final = 1.0
REPROBE_S: Final = 5.0
# A finding older than this (its worker no longer answers) refuses no plan any more.
FRESH_FINDING_S: Final = 15.0
