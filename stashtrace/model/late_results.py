"""What the analyses of late ranks return; ``schemas`` adds these to the others."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import schema

LATE = schema(
    "late",
    "Collectives that somebody waited in: who was late, what kept it, and what the transfer then took",
    ("step", "i8", "", "ordinal of the step of the late rank, -1 outside"),
    ("communicator", "U16", "", "name of the group"),
    ("group_kind", "U16", "", "dp, tp, pp, ep, cp or fsdp by its name; else all, block, stride or some by its members"),
    ("sequence", "i8", "", "number within the group"),
    ("op", "U16", "", "CollectiveOp in lower case"),
    ("bytes", "i8", "bytes", "payload of one rank's input"),
    ("begin_ns", "i8", "ns", "the first rank entered"),
    ("late_rank", "i8", "", "the rank that was waited for, -1 if unknown"),
    ("waiting_ranks", "U16", "", "ranks that waited for it, runs folded"),
    ("wait_ns", "i8", "ns", "longest wait for the last arrival, without launch_skew_ns"),
    ("total_wait_ns", "i8", "ns", "waits of all ranks added up; where one waits in several at once, the oldest counts"),
    ("launch_skew_ns", "i8", "ns", "then: the late rank had called, its idle device had not begun; -1 if unknown"),
    ("expected_ns", "i8", "ns", "then: the transfer at the rate this link is capable of, -1 if unknown"),
    ("excess_ns", "i8", "ns", "then: the transfer beyond that, 0 if it was faster, -1 if unknown"),
    ("expected_by", "U16", "", "calibration, run (its best tenth of the same operation and size) or none"),
    ("link", "U16", "", "host of the group, or the hosts that it joins"),
    (
        "cause_kind",
        "U16",
        "",
        "what the late rank did longer than the median of the others; before: it began later; or unknown",
    ),
    ("cause_ns", "i8", "ns", "by how much longer, -1 if unknown"),
    ("late_by_ns", "i8", "ns", "entry of the late rank after the median of the others, -1 if unknown"),
    ("cause_process_id", "i8", "", "processes.process_id of the process that did it, -1 if unknown"),
    ("cause_worker_id", "i8", "", "DataLoader worker that did it, -1 if none"),
    ("cause_name", "U16", "", "file, kernel, phase, call or rank behind the cause; empty if unknown"),
    ("named_ns", "i8", "ns", "time in that: of a kernel or phase, the surplus; -1 if unknown"),
    ("method", "U16", "", "clock, duration (clocks too far apart), unordered, partial (a row is missing) or hung"),
)
LATE_RANKS = schema(
    "late_ranks",
    "Who is late again and again, per rank and process group",
    ("communicator", "U16", "", "name of the group"),
    ("group_kind", "U16", "", "as in late"),
    ("rank", "i8", "", "global rank"),
    ("last_count", "i8", "", "collectives of the group that it entered last"),
    ("collectives_count", "i8", "", "collectives of the group that somebody waited in and whose last rank is known"),
    ("steps_last_count", "i8", "", "steps in which it cost the others of the group most"),
    ("steps_count", "i8", "", "steps that cost at least a tenth of the mean one; without steps, collectives"),
    ("share_ratio", "f8", "", "the first by the second"),
    ("total_wait_ns", "i8", "ns", "waits of the others for it, as in late"),
    ("behind_second_ns", "i8", "ns", "it alone was missing: its entry after the second latest one, time counted once"),
    ("cause_kind", "U16", "", "the cause behind most of that, as in late"),
    ("cause_share_ratio", "f8", "", "its share of total_wait_ns"),
    ("first_step_index", "i8", "", "first step in which it was last, -1 outside"),
    ("last_step_index", "i8", "", "last such step, -1 outside"),
    ("chance_ratio", "f8", "", "odds of steps_last_count or more if all ranks were late alike, times the group's size"),
    (
        "verdict",
        "U16",
        "",
        "always: chance_ratio < 0.001, share_ratio > 0.5; often: the first alone; else once (one step counts),"
        " few (too few steps to tell) or alternates",
    ),
)
PIPELINE = schema(
    "pipeline",
    "What each pipeline stage waited for its neighbours, per step",
    ("step", "i8", "", "ordinal, -1 outside"),
    ("communicator", "U16", "", "name of the group"),
    ("stage_index", "i8", "", "place of the rank within the group"),
    ("rank", "i8", "", "global rank"),
    ("receives_count", "i8", "", "receives that were called"),
    ("sends_count", "i8", "", "sends that were called"),
    ("wait_ns", "i8", "ns", "receives were pending and their data had not been sent, overlaps counted once"),
    ("bubble_ns", "i8", "ns", "of this, the rank did nothing else; -1 if unknown"),
    ("transfer_ns", "i8", "ns", "receives from the call of their send, or the own one, to the end"),
    ("step_ns", "i8", "ns", "length of the step, -1 if unknown"),
    ("bubble_ratio", "f8", "", "bubble_ns by step_ns, -1 if unknown"),
    ("from_rank", "i8", "", "the rank whose data was waited for longest, -1 if none"),
)
