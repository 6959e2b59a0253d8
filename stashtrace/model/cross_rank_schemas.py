"""What only all ranks together can tell, as tables beside the rows of each rank; ``schemas`` adds them to the others.

A store that is partitioned by rank keeps them, so that one rank's partition is attributed as within its whole run.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import INTERVAL as _INTERVAL
from stashtrace.model.columns import Schema
from stashtrace.model.columns import schema as _schema

STEPS = _schema(
    "steps",
    "One row per rank and step",
    ("rank", "i8", "", "global rank"),
    ("step", "i8", "", "ordinal from 0, the same step on every rank"),
    *_INTERVAL,
    ("process_id", "i8", "", "processes.process_id"),
    ("track_id", "i8", "", "tracks.track_id of the step thread"),
    ("sub_steps_count", "i8", "", "micro-batches"),
    ("kind", "U16", "", "train, skipped_update, validation, iteration (rollout and its updates), inference or marked"),
    ("warmup", "i8", "", "1 if left out of summaries by default"),
    ("matched_code", "i8", "", "1 its collectives fall into the same step on other ranks, 0 some do not, -1 none"),
    ("clock_code", "i8", "", "DeviceClock that its begin and end are from, 0 for the host's"),
    ("thinned", "i8", "", "1 if the event budget left it without timing events: totals pass over it"),
)
NUMBERED_STEPS = Schema(
    "numbered_steps", STEPS.columns, "Steps as numbered among all ranks; empty unless loaded from a store of partitions"
)
MATCHED_COLLECTIVES = _schema(
    "matched_collectives",
    "Collectives as matched among all ranks; empty unless loaded from a store of partitions",
    ("collective_key", "i8", "", "collectives.collective_key"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank"),
    ("resolved_end_ns", "i8", "ns", "end on this rank, estimated where it was not seen"),
    ("last_enter_ns", "i8", "ns", "when the last rank entered that this row had to wait for"),
    ("last_rank", "i8", "", "that rank, -1 if it waits for nobody"),
    ("partial", "i8", "", "1 if a member's row is missing although the operation ended"),
    ("link", "i8", "", "0 inside a host, 1 between hosts, 2 between hosts of which some hold several members"),
    ("by_clock", "i8", "", "0 if the ranks' clocks are too far apart for this operation"),
    ("ordered", "i8", "", "0 if it entered closer to the last rank than their clocks can tell apart"),
    ("device_resolved_end_ns", "i8", "ns", "the same seven by the clocks of devices"),
    ("device_last_enter_ns", "i8", "ns", ""),
    ("device_last_rank", "i8", "", ""),
    ("device_partial", "i8", "", ""),
    ("device_link", "i8", "", ""),
    ("device_by_clock", "i8", "", ""),
    ("device_ordered", "i8", "", ""),
    ("network_low_ns", "i8", "ns", "over hosts and inside them: its network part is not over before, -1 if unknown"),
    ("network_point_ns", "i8", "ns", "when it is over, as the budget takes it, -1 if unknown"),
    ("network_high_ns", "i8", "ns", "at the latest, -1 if unknown"),
    ("network_estimated", "i8", "", "1 if no proxy said so"),
)

#: Part of ``schemas.TABLES``.
CROSS_RANK_TABLES = (NUMBERED_STEPS, MATCHED_COLLECTIVES)
