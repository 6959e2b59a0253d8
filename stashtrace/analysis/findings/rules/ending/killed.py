"""Processes that a signal ended, and the rank whose records end first.

``killed`` leaves out what a launcher or a loader ended on purpose; it has a row (``killed``) for each process. Where a
job broke off, ``first_to_end`` names the rank to look at.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim, fact
from stashtrace.analysis.findings.ending.killed import killed
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace

#: What follows a death by SIGKILL in which the kernel may have had a hand.
FOR_MEMORY = "; the kernel ended a process for want of memory meanwhile"


def whose(rank: int, worker_id: int) -> str:
    """Return the template that names a process by its rank, or by its worker."""
    who = "rank {rank}" if rank >= 0 else "a process without a rank"
    return f"worker {{worker_id}} of {who}" if worker_id >= 0 else who


def killed_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the processes that a signal ended."""
    rows = []
    for number, row in enumerate(killed(trace).rows()):
        if row["sender"] not in ("unknown", "kernel"):
            continue
        who, memory = whose(row["rank"], row["worker_id"]), FOR_MEMORY if row["sender"] == "kernel" else ""
        own: Facts = {"rank": row["rank"], "worker_id": row["worker_id"], "pid": row["pid"], "name": row["signal"]}
        rows.append(fact("killed", f"{who} (pid {{pid}}) was killed by {{name}}{memory}", "killed", number, **own))
    said = "{items_count:process} ended by a signal:"
    return [claim("machine", "killed", said, rows, items_count=len(rows))] if rows else []


def first_to_end_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the rank that ended clearly before the others."""
    processes = trace.processes
    ranks = processes.take(processes["role_code"] == ProcessRole.RANK).sort_by("end_ns")
    ends, numbers = ranks["end_ns"].tolist(), ranks["rank"].tolist()
    if len(ranks) < 2 or ends[1] - ends[0] < POLICY.ends_before_ns:
        return []
    said = "the records of rank {rank} end first, {stall_ns:time} before those of rank {cause_rank}"
    own: Facts = {"rank": numbers[0], "cause_rank": numbers[1], "stall_ns": ends[1] - ends[0]}
    return [claim("machine", "first_to_end", said, **own)]
