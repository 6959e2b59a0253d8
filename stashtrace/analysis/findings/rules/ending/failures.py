"""What a job failed of: an exit code, a signal or an exception, and the rank that failed first.

``ended_with_code``, ``ended_by_signal`` and ``failed`` are the first of all claims; ``name`` is the exit code or the
number of the signal. The evidence has how the first rank failed (``raised``, ``ended_by`` or ``left_with``;
``items_count`` is the steps that it had finished), the launcher if the code is the launcher's, and
how many processes the kernel ended for want of memory meanwhile (``memory_kills``). ``gone_first`` is a rank for which
the others waited and whose records end before these fail; nobody recorded how it ended. ``waited_for_it`` are the ranks
that waited for the one that failed.

``killed`` are the processes that a signal ended, without those that a launcher or a loader ended on purpose, each with
a row (``killed``). Where a job broke off, ``first_to_end`` names the rank to look at.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.ending.endings import endings, killed
from stashtrace.analysis.findings.ending.policy import POLICY
from stashtrace.analysis.findings.ending.stuck import Stuck
from stashtrace.analysis.intervals import NEVER
from stashtrace.analysis.steps.steps import steps_if_any
from stashtrace.errors import MissingDataError
from stashtrace.record.host import MEMORY_KILLS, MEMORY_LIMIT
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.text.units import filled, ranks_text

#: A process that leaves with one of these was ended by SIGTERM or Ctrl-C, as a rule by its launcher.
_TOLD_TO_END = ("SIGTERM", "SIGINT")
#: Codes of evidence about the rank that failed first.
FAILED_FIRST = ("raised", "ended_by", "left_with", "gone_first")
#: Programs that start ranks and exit with a code that is not a rank's. No record says how their children ended.
_LAUNCHERS = ("srun", "mpirun", "mpiexec", "orterun", "prun", "jsrun", "aprun", "flux")
#: Later than any moment of a trace.
NEVER_NS = int(NEVER)
#: Code of evidence -> how a rank failed.
_HOW = {"raised": "raised {reason}", "ended_by": "killed by {reason}", "left_with": "left with exit code {exit_code}"}
#: What follows a death by SIGKILL in which the kernel may have had a hand.
_FOR_MEMORY = "; the kernel ended a process for want of memory meanwhile"
#: What stands for a process group without a name.
NAMELESS = "a group without a name"


def failure_claims(trace: Trace, failed: Sequence[Evidence] | None = None) -> list[Claim]:
    """Return a claim about the exit code, signal or exception that ended the job; none for one that ended well.

    ``failed``: of the ranks that failed, the first one first, if that is known already.
    """
    facts, rows = run_facts(trace), failures(trace) if failed is None else list(failed)
    count, limit = (int(facts.get(name, "-1") or -1) for name in (MEMORY_KILLS, MEMORY_LIMIT))
    of_run = [fact("memory_kills", "", "metadata", killed_count=count, limit_bytes=limit)] if count > 0 else []
    starved = f"; {_starved(limit)}" if of_run else ""
    first = ": {parts}" if rows else ""
    number, code = facts.get("signal", "0"), facts.get("exit_code", "0")
    if number not in ("", "0", "None"):
        known = number.isdecimal() and int(number) in set(signal.Signals)
        name = f" ({signal.Signals(int(number)).name})" if known else ""
        said = (
            f"the job was ended by signal {{name}}{name}; a step that it did not finish is not counted{first}{starved}"
        )
        return [claim("headline", "ended_by_signal", said, [*rows[1:], *of_run], parts=rows[:1], name=number)]
    if code not in ("", "0", "None"):
        program = os.path.basename(facts.get("command", "").partition(" ")[0])
        if program in _LAUNCHERS:
            first = first or "; how its ranks ended is not in the recording"
        who = program if program in _LAUNCHERS else "the job"
        said = f"{who} ended with exit code {{name}}{first}{starved}"
        return [claim("headline", "ended_with_code", said, [*rows[1:], *of_run], parts=rows[:1], name=code)]
    return [claim("headline", "failed", "{parts}", rows[1:], parts=rows[:1], rank=rows[0]["rank"])] if rows else []


def memory_kills_text(count: int, limit_bytes: float) -> str:
    """Say how many processes the kernel ended for want of memory, and by which limit."""
    return filled(_starved(limit_bytes), {"killed_count": count, "limit_bytes": limit_bytes})


def _starved(limit_bytes: float) -> str:
    why = ", whose memory limit of {limit_bytes:bytes} was reached" if limit_bytes > 0 else " for want of memory"
    return f"the kernel ended {{killed_count:process}} of the job's cgroup{why}"


def failed_ranks(trace: Trace) -> list[dict[str, Any]]:
    """Return the rows of ``endings`` of ranks and workers that failed by themselves, the first one first."""
    try:
        table = endings(trace)
    except MissingDataError:
        return []
    role = trace.processes.lookup("process_id", "role_code")
    return [
        row
        for row in table.rows()
        if row["sender"] not in ("launcher", "loader")
        and (row["rank"] >= 0 or role.get(row["process_id"]) == ProcessRole.RANK)
        and (row["worker_id"] < 0 or row["signal"] not in _TOLD_TO_END)
    ]


def failures(trace: Trace) -> list[Evidence]:
    """Return how ranks failed, the first one first; then those of the others that failed otherwise."""
    rows = failed_ranks(trace)
    if not rows and len(trace.processes):  # of a job without ranks, any of its processes
        rows = [row for row in endings(trace).rows() if row["exception"] and row["worker_id"] < 0]
    ranks = [row for row in rows if row["worker_id"] < 0] or rows
    if not ranks:
        return []
    others: dict[tuple[str, str, int], list[int]] = {}
    texts: dict[str, str] = {}  # messages that differ in their numbers alone, such as ports, are one
    for row in ranks[1:]:
        if row["rank"] != ranks[0]["rank"]:
            text = texts.setdefault(re.sub(r"\d+", "#", row["exception"]), row["exception"])
            others.setdefault((text, row["signal"], row["exit_code"]), []).append(row["rank"])
    more = [_after(of, *how) for how, of in list(others.items())[: POLICY.named_count]]
    return [failure(ranks[0]), *more]


def failure(row: dict[str, Any]) -> Evidence:
    """Return how a rank failed, by its row of ``endings``."""
    facts = Facts(rank=row["rank"], worker_id=row["worker_id"], items_count=row["steps_count"], kind=row["sender"])
    facts |= Facts(reason=row["exception"] or row["signal"], exit_code=row["exit_code"])
    code = _code(row["exception"], row["signal"])
    steps = " after {items_count:step}" if row["steps_count"] >= 0 else ""
    memory = _FOR_MEMORY if row["sender"] == "kernel" else ""
    return fact(code, f"{_whose(row['rank'], row['worker_id'])} {how_failed(code)}{steps}{memory}", "endings", **facts)


def how_failed(code: str) -> str:
    """Return the template that says how a rank failed, given the code of the evidence."""
    return f"{'was ' if code == 'ended_by' else ''}{_HOW[code]}"


def _code(exception: str, signal_name: str) -> str:
    return "raised" if exception else "ended_by" if signal_name else "left_with"


def _after(ranks: list[int], exception: str, signal_name: str = "", exit_code: int = -1) -> Evidence:
    """Return evidence of ranks that failed later."""
    code = _code(exception, signal_name)
    said = f"then {{ranks:ranks}}{' {ranks:was|were}' if code == 'ended_by' else ''} {_HOW[code]}"
    facts = Facts(ranks=ranks_text(ranks), reason=exception or signal_name, exit_code=exit_code)
    return fact("ended_after", said, "endings", items_count=len(ranks), **facts)


def after_one_that_is_gone(trace: Trace, failed: Sequence[Evidence], found: Stuck | None) -> list[Claim]:
    """Return the claims about ranks that failed behind one that they waited for and that is gone, if there is one.

    Where no parent recorded how ranks ended: the records of a rank that others wait for end before these fail. One that
    lives adds samples until it ends, and one that fails by an exception leaves it: this one was killed, or left.
    """
    rows = [row for row in failed_ranks(trace) if row["worker_id"] < 0]
    if found is None or not rows or any(row["signal"] or row["exit_code"] >= 0 for row in rows):
        return []
    awaited = [root.rank for root in found.roots] or found.waiting
    processes = trace.processes.take(trace.processes["role_code"] == ProcessRole.RANK)
    last_ns = {rank: int(processes["end_ns"][of].max()) for rank, of in GroupBy(processes["rank"]).items()}
    ended = sorted(set(awaited) - {row["rank"] for row in rows}, key=lambda rank: last_ns.get(rank, NEVER_NS))
    ahead = rows[0]["at_ns"] - last_ns.get(ended[0], NEVER_NS) if ended else -1
    if ahead <= 0:
        return []
    steps = steps_if_any(trace)
    steps_count = int(np.count_nonzero(steps["rank"] == ended[0])) if steps is not None else -1
    after = "after {items_count:step}, " if steps_count >= 0 else ""
    said = (
        f"the records of rank {{rank}} end first, {after}{{amount_ns:time}} before another rank failed; how it ended is"
        " not in the recording"
    )
    gone = fact("gone_first", said, "processes", rank=ended[0], items_count=steps_count, amount_ns=ahead)
    text = rows[0]["exception"]
    raised = _after([row["rank"] for row in rows if row["exception"] == text], text)
    rest = [row for row in failed[1:] if row.facts["reason"] != text]
    return [replace(one, rank=ended[0]) for one in failure_claims(trace, [gone, raised, *rest])]


def waited_for_it(found: Stuck) -> Evidence:
    """Return the evidence that others waited for the rank that failed."""
    root = found.roots[0]
    of = root.operation
    number = " {items_count}" if of.sequence >= 0 else ""
    facts = Facts(items_count=of.sequence, amount_ns=found.since_ns, kind=of.operation, group=of.group or NAMELESS)
    said = f"{{ranks:ranks}} waited {{amount_ns:time}} for it in {{kind:operation}}{number} of {{group}}"
    return fact("waited_for_it", said, "collectives", ranks=ranks_text(list(root.waiting)), **facts)


def _whose(rank: int, worker_id: int) -> str:
    """Return the template that names a process by its rank, or by its worker."""
    who = "rank {rank}" if rank >= 0 else "a process without a rank"
    return f"worker {{worker_id}} of {who}" if worker_id >= 0 else who


def killed_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the processes that a signal ended."""
    rows = []
    for number, row in enumerate(killed(trace).rows()):
        if row["sender"] not in ("unknown", "kernel"):
            continue
        who, memory = _whose(row["rank"], row["worker_id"]), _FOR_MEMORY if row["sender"] == "kernel" else ""
        facts: Facts = {"rank": row["rank"], "worker_id": row["worker_id"], "pid": row["pid"], "name": row["signal"]}
        rows.append(fact("killed", f"{who} (pid {{pid}}) was killed by {{name}}{memory}", "killed", number, **facts))
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
    facts: Facts = {"rank": numbers[0], "cause_rank": numbers[1], "stall_ns": ends[1] - ends[0]}
    return [claim("machine", "first_to_end", said, **facts)]
