"""What the analyses of the graph of a run return; ``schemas`` adds these to the others."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import INTERVAL as _INTERVAL
from stashtrace.model.columns import schema as _schema

_RANK = ("rank", "i8", "", "global rank; -1 for transfers, which are all members'")
_RESOURCE = ("resource", "U16", "", "what it occupied: step_thread, worker, transfer, ...; empty: nothing, as in gaps")
_KIND = ("kind", "U16", "", "StallKind in lower case; of gaps and delays other, launch or sync")
_NAME = (
    "name",
    "U16",
    "",
    "function or phase, blocking call, worker, operation and its number in the step; gap; else the edge",
)
CRITICAL_PATH = _schema(
    "critical_path",
    "The critical path over all ranks, first stretch first; each begins where the one before ends",
    ("order", "i8", "", "number of the stretch, from 0"),
    ("step", "i8", "", "the job's step: from the moment that its last rank ended the one before to that of this one"),
    _RANK,
    _RESOURCE,
    _KIND,
    _NAME,
    *_INTERVAL,
    ("held_ns", "i8", "ns", "time for which it holds the path; those of a step sum to the length of the step"),
    ("fetch_ns", "i8", "ns", "of a batch: its maker was blocked in storage; above half of it the kind is fetch"),
    ("ambiguous", "i8", "", "1 if another path is as long within the error of the clocks"),
    ("rival_rank", "i8", "", "then: rank of that work, -1 if it is a transfer or there is none"),
    ("rival_kind", "U16", "", "then: its kind; empty if there is none"),
    ("rival_slack_ns", "i8", "ns", "then: by how much that path is shorter as measured, -1 if there is none"),
)
CRITICAL_SHARE = _schema(
    "critical_share",
    "Share of the critical path over the counted steps, the largest first",
    _RANK,
    _RESOURCE,
    _KIND,
    _NAME,
    ("share_ratio", "f8", "", "mean over the counted steps of its part of the step; all rows sum to 1"),
    ("spread_ratio", "f8", "", "standard deviation of that part from step to step"),
    ("ambiguous_ratio", "f8", "", "the part of share_ratio in which another path is as long, as in critical_path"),
    ("held_ns", "i8", "ns", "time for which it holds the path in all counted steps"),
    ("path_steps_count", "i8", "", "counted steps in which it is on the path"),
    ("steps_count", "i8", "", "counted steps"),
)
SLACK = _schema(
    "slack",
    "By how much each piece of work could end later and the run end no later",
    _RANK,
    ("step", "i8", "", "ordinal; of batches and transfers, the job's step in which they begin"),
    _RESOURCE,
    _KIND,
    ("process_id", "i8", "", "processes.process_id, -1 for transfers"),
    *_INTERVAL,
    ("slack_ns", "i8", "ns", "0 on the critical path, -1 if nothing that the end of the run waits for waits for it"),
    ("critical", "i8", "", "1 if it is on the critical path"),
)
