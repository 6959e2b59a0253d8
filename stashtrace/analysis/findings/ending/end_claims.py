"""Claims about how a job ended: what it failed of, or where it stood still. They come first in a summary."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.ending.endings import endings
from stashtrace.analysis.findings.ending.idle import find_idle
from stashtrace.analysis.findings.ending.last_activity import doing, is_gone
from stashtrace.analysis.findings.ending.looked import evidence_of_look
from stashtrace.analysis.findings.ending.newest_row import SUSPICIOUS_NS, newest_ns
from stashtrace.analysis.findings.ending.still_works import still_works
from stashtrace.analysis.findings.ending.stuck import NOT_ENTERED, Mismatch, Operation, Root, Stuck, find_stuck
from stashtrace.analysis.findings.rules.killed import first_to_end_claims
from stashtrace.analysis.steps.step_time import step_time_of
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.errors import MissingDataError
from stashtrace.record.host.memory_kills import MEMORY_KILLS, MEMORY_LIMIT
from stashtrace.record.look.progress import RUNS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.units import ranks_text

#: A wait is no ordinary one if it is longer than so many steps.
_STEPS = 3
_OTHERS_AT_MOST = 3
#: A process that leaves with one of these was ended by SIGTERM or Ctrl-C, as a rule by its launcher.
_TOLD_TO_END = ("SIGTERM", "SIGINT")
#: Codes of evidence about the rank that failed first.
FAILED_FIRST = ("raised", "ended_by", "left_with", "gone_first")
#: Programs that start ranks and leave with a code of their own, and of whose children no record says how they ended.
_LAUNCHERS = ("srun", "mpirun", "mpiexec", "orterun", "prun", "jsrun", "aprun", "flux")
#: Later than any moment of a trace.
_NEVER_NS = 1 << 62
#: Codes of evidence about the run as a whole.
_OF_THE_RUN = ("launched_by", "memory_kills")
#: Importer of dumps that are written when a job hangs.
_DUMPS = "flight_recorder"


def failure_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the exit code, signal or exception that ended the job; none for one that ended well."""
    facts, failed = run_facts(trace), _failures(trace)
    starved = _memory_kills(facts)
    if facts.get("signal", "0") not in ("", "0", "None"):
        return [Claim("headline", "ended_by_signal", name=facts["signal"], evidence=(*failed, *starved))]
    if facts.get("exit_code", "0") not in ("", "0", "None"):
        program = os.path.basename(facts.get("command", "").partition(" ")[0])
        launched = [Evidence("launched_by", "metadata", name=program)] if program in _LAUNCHERS else []
        return [Claim("headline", "ended_with_code", name=facts["exit_code"], evidence=(*failed, *launched, *starved))]
    return [Claim("headline", "failed", rank=failed[0].rank, evidence=tuple(failed))] if failed else []


def _memory_kills(facts: Mapping[str, str]) -> list[Evidence]:
    """Return how many processes the kernel ended for want of memory while the job ran, if any."""
    count, limit = (int(facts.get(name, "-1") or -1) for name in (MEMORY_KILLS, MEMORY_LIMIT))
    return [Evidence("memory_kills", "metadata", items_count=count, moved_bytes=limit)] if count > 0 else []


def ending_claims(trace: Trace, *, lives: bool = False) -> list[Claim]:
    """Return claims about how the job failed or stood still; empty for one that ended well, or still runs well.

    Of a job that still ``lives`` no claim says that it hung.
    """
    claims = _ending_claims(trace)
    now = Evidence("lives", "processes")
    return [replace(c, evidence=(*c.evidence, now)) if lives and c.kind == "hung" else c for c in claims]


def _ending_claims(trace: Trace) -> list[Claim]:
    claims = failure_claims(trace)
    failed = [row for claim in claims for row in claim.evidence if row.code not in _OF_THE_RUN]
    may_hang = run_facts(trace).get("exit_code", "") != "0"
    found = stuck_at_end(trace) if may_hang else None
    if found is None:
        if may_hang and claims:  # a backend may end a rank at once that called what the others did not
            claims = [_after_one_that_is_gone(trace, claims[0]), *claims[1:], *_mismatches_of_failed(trace)]
        still = _still(trace) if may_hang and not claims else []
        return still + claims if failed or not claims or still else claims + first_to_end_claims(trace)
    first = {row.rank for row in failed if row.code in FAILED_FIRST}
    if found.roots and {root.rank for root in found.roots} <= first:
        claims[0] = replace(claims[0], evidence=(*claims[0].evidence, _waited_for_it(trace, found)))
        return [*claims, *_mismatches(trace, found)]
    hung = _hung(trace, found, first)
    # Who waited for others failed because of them, and a job of which no rank failed was ended because it hung.
    return hung + claims if first <= set(found.waiting) else claims + hung


def _failed_ranks(trace: Trace) -> list[dict[str, Any]]:
    """Return the rows of ``endings`` of ranks and workers that failed by themselves, the first one first."""
    try:
        table = endings(trace)
    except MissingDataError:
        return []
    role = dict(zip(trace.processes["process_id"].tolist(), trace.processes["role_code"].tolist(), strict=True))
    return [
        row
        for row in table.rows()
        if row["sender"] not in ("launcher", "loader")
        and (row["rank"] >= 0 or role.get(row["process_id"]) == ProcessRole.RANK)
        and (row["worker_id"] < 0 or row["signal"] not in _TOLD_TO_END)
    ]


def _failures(trace: Trace) -> list[Evidence]:
    """Return how ranks failed, the first one first; then those of the others that failed otherwise."""
    rows = _failed_ranks(trace)
    if not rows and len(trace.processes):  # of a job without ranks, any of its processes
        rows = [row for row in endings(trace).rows() if row["exception"] and row["worker_id"] < 0]
    ranks = [row for row in rows if row["worker_id"] < 0] or rows
    if not ranks:
        return []
    first = _evidence(ranks[0])
    others: dict[tuple[str, str, int], list[int]] = {}
    texts: dict[str, str] = {}  # messages that differ in their numbers alone, such as ports, are one
    for row in ranks[1:]:
        if row["rank"] != ranks[0]["rank"]:
            text = texts.setdefault(re.sub(r"\d+", "#", row["exception"]), row["exception"])
            others.setdefault((text, row["signal"], row["exit_code"]), []).append(row["rank"])
    more = [
        Evidence(
            "ended_after", "endings", items_count=len(of), of_count=code, kind=signal, name=f"{ranks_text(of)}:{text}"
        )
        for (text, signal, code), of in list(others.items())[:_OTHERS_AT_MOST]
    ]
    return [first, *more]


def _after_one_that_is_gone(trace: Trace, claim: Claim) -> Claim:
    """Return the claim about the rank that failed first, behind the one that it waited for and that is gone.

    Where no parent recorded how ranks ended: the records of a rank that others wait for end before these fail. One that
    lives adds samples until it ends, and one that fails by an exception leaves it: this one was killed, or left.
    """
    failed = [row for row in _failed_ranks(trace) if row["worker_id"] < 0]
    if not failed or any(row["signal"] or row["exit_code"] >= 0 for row in failed):
        return claim
    found = find_stuck(trace, newest_ns(trace))
    if found is None:
        return claim
    awaited = [root.rank for root in found.roots] or found.waiting
    processes = trace.processes.take(trace.processes["role_code"] == ProcessRole.RANK)
    last_ns = {rank: int(processes["end_ns"][rows].max()) for rank, rows in GroupBy(processes["rank"]).items()}
    ended = sorted(set(awaited) - {row["rank"] for row in failed}, key=lambda rank: last_ns.get(rank, _NEVER_NS))
    ahead = failed[0]["at_ns"] - last_ns.get(ended[0], _NEVER_NS) if ended else -1
    if ahead <= 0:
        return claim
    steps_count = _steps_count(trace, ended[0])
    gone = Evidence("gone_first", "processes", rank=ended[0], items_count=steps_count, amount_ns=ahead)
    text = failed[0]["exception"]
    alike = ranks_text([row["rank"] for row in failed if row["exception"] == text])
    raised = Evidence("ended_after", "endings", of_count=-1, name=f"{alike}:{text}")
    rest = (row for row in claim.evidence[1:] if row.code != raised.code or not row.name.endswith(f":{text}"))
    return replace(claim, rank=ended[0], evidence=(gone, raised, *rest))


def _steps_count(trace: Trace, rank: int) -> int:
    try:
        return int(np.count_nonzero(find_steps(trace)["rank"] == rank))
    except MissingDataError:
        return -1


def _evidence(row: dict[str, Any]) -> Evidence:
    code = "raised" if row["exception"] else "ended_by" if row["signal"] else "left_with"
    name = row["exception"] or row["signal"]
    return Evidence(
        code,
        "endings",
        rank=row["rank"],
        worker_id=row["worker_id"],
        items_count=row["steps_count"],
        of_count=row["exit_code"],
        kind=row["sender"],
        name=name,
    )


# Where it stood still.


def stuck_at_end(trace: Trace, least_ns: int = SUSPICIOUS_NS) -> Stuck | None:
    """Return where the job stood still at the end of its records; None for waits as its steps have them.

    ``least_ns``: a wait of less is none.
    """
    facts = run_facts(trace)
    if ("imported" in facts and not _has_dumps(trace)) or facts.get("steps"):
        return None  # of a recording that was cut, no end was seen
    found = find_stuck(trace, newest_ns(trace))
    if found is None or _has_dumps(trace):
        return found
    step = step_time_of(trace)
    usual = _STEPS * step.median_ns if step is not None else 0
    since = found.since_ns
    if found.inside is not None:  # a member that fails inside at once is why none leaves it
        since = min(since, _first_failure_ns(trace) - found.inside.call_ns)
    return found if since > max(least_ns, usual) else None


def _first_failure_ns(trace: Trace) -> int:
    """Return when the first rank failed by itself, as far as its records say; the end of all time if none did."""
    ends = [row["at_ns"] for row in _failed_ranks(trace) if row["worker_id"] < 0 and row["at_ns"] >= 0]
    return min(ends, default=_NEVER_NS)


def _still(trace: Trace) -> list[Claim]:
    """Return a claim about ranks that stand still without a wait for another."""
    facts = run_facts(trace)
    idle = find_idle(trace) if "imported" not in facts and not facts.get("steps") else None
    if idle is None:
        return []
    rows = tuple(row for rank in idle.ranks[:_OTHERS_AT_MOST] for row in doing(trace, rank))
    ranks = ranks_text(list(idle.ranks))
    return [Claim("headline", "hung", name="still", ranks=ranks, stall_ns=idle.since_ns, evidence=rows)]


def _has_dumps(trace: Trace) -> bool:
    return _DUMPS in run_facts(trace).get("imported", "")


def _waited_for_it(trace: Trace, found: Stuck) -> Evidence:
    root = found.roots[0]
    return Evidence(
        "waited_for_it",
        "collectives",
        items_count=root.operation.sequence,
        amount_ns=found.since_ns,
        kind=root.operation.operation,
        name=f"{ranks_text(list(root.waiting))}:{root.operation.group}",
    )


def _mismatches(trace: Trace, found: Stuck) -> list[Claim]:
    if found.mismatch is None:
        return []
    claim = _mismatch(found.mismatch)
    one_of_each = sorted(ranks[0] for *_, ranks in found.mismatch.calls)
    return [replace(claim, evidence=(*claim.evidence, *_looked(trace, one_of_each)))]


def _mismatches_of_failed(trace: Trace) -> list[Claim]:
    if "imported" in run_facts(trace) or run_facts(trace).get("steps"):
        return []
    found = find_stuck(trace, newest_ns(trace))
    return _mismatches(trace, found) if found is not None else []


def _hung(trace: Trace, found: Stuck, ended: set[int]) -> list[Claim]:
    """Return claims about where the job stood still; ``ended`` are the ranks that are known to have failed before."""
    claims = _mismatches(trace, found)
    since = -1 if _has_dumps(trace) else found.since_ns
    left = _alike([root for root in found.roots if root.rank not in ended])
    claims += [_root_claim(trace, roots, found, since) for roots in left if not is_unseen(trace, roots)]
    claims += [_unseen_claim(roots, since) for roots in left if is_unseen(trace, roots)]
    if found.inside is not None:
        inside = replace(_about(found.inside, since), name="inside", ranks=ranks_text(list(found.waiting)))
        claims.append(replace(inside, evidence=(*inside.evidence, *_looked(trace, found.waiting))))
    if found.circle and found.mismatch is None:
        rows2 = tuple(
            Evidence("waits_in", "collectives", rank=rank, items_count=of.sequence, kind=of.operation, name=of.group)
            for rank, of in found.circle
        )
        ranks = sorted(rank for rank, _ in found.circle)
        rows2 += _looked(trace, ranks)
        claims.append(Claim("headline", "hung", name="circle", ranks=ranks_text(ranks), stall_ns=since, evidence=rows2))
    return claims


def is_unseen(trace: Trace, roots: Sequence[Root]) -> bool:
    """Return whether nothing was recorded of the ranks at which waits end: nobody knows what these have called."""
    return not _has_dumps(trace) and not {root.rank for root in roots} & set(trace.ranks.tolist())


def _unseen_claim(roots: Sequence[Root], since_ns: int) -> Claim:
    ranks = sorted({rank for root in roots for rank in root.waiting})
    return replace(_about(roots[0].operation, since_ns), name="unseen", ranks=ranks_text(ranks))


def _looked(trace: Trace, ranks: Sequence[int]) -> tuple[Evidence, ...]:
    return tuple(row for rank in ranks[:_OTHERS_AT_MOST] for row in evidence_of_look(trace, rank))


def _alike(roots: Sequence[Root]) -> Iterable[list[Root]]:
    """Group the ranks that lack the same: one sentence names them all."""
    groups: dict[tuple[object, ...], list[Root]] = {}
    for root in roots:
        of = root.operation
        groups.setdefault((root.lack, of.group, of.operation, of.sequence), []).append(root)
    return groups.values()


def _about(operation: Operation, since_ns: int) -> Claim:
    size = Evidence("hung_bytes", "collectives", moved_bytes=operation.message_bytes, name=operation.group)
    return Claim(
        "headline",
        "hung",
        items_count=operation.sequence,
        stall_ns=since_ns,
        call=operation.operation,
        evidence=(size,),
    )


def _root_claim(trace: Trace, roots: Sequence[Root], found: Stuck, since_ns: int) -> Claim:
    ranks = sorted(root.rank for root in roots)
    direct = sorted({rank for root in roots for rank in root.waiting} - set(ranks))
    claim = replace(
        _about(roots[0].operation, since_ns),
        name="gone" if not _has_dumps(trace) and all(is_gone(trace, rank) for rank in ranks) else roots[0].lack,
        ranks=ranks_text(ranks),
        rank=ranks[0],
        cause_rank=ranks[0],
        cause_kind=roots[0].lack,
    )
    rows = list(claim.evidence)
    if direct:
        inside = ranks_text(direct)
        rows.append(Evidence("hung_inside", "collectives", items_count=len(direct), amount_ns=since_ns, name=inside))
    through = sorted(set(found.waiting) - set(direct) - set(ranks))
    if through:
        rows.append(Evidence("hung_through", "collectives", items_count=len(through), name=ranks_text(through)))
    for root in roots[:_OTHERS_AT_MOST]:
        if root.operation.sequence >= 0 and (root.last >= 0 or since_ns >= 0):
            rows.append(Evidence("hung_last", "collectives", rank=root.rank, items_count=root.last))
        rows += doing(trace, root.rank)
    if claim.name == "gone" and len(ranks) == 1:
        rows += [_evidence(row) for row in _failed_ranks(trace) if row["rank"] == ranks[0] and row["worker_id"] < 0][:1]
    works = _still_work(trace, ranks, since_ns) if claim.name == NOT_ENTERED else ()
    return replace(claim, kind="awaited" if works else claim.kind, evidence=(*works, *rows))


def _still_work(trace: Trace, ranks: Sequence[int], since_ns: int) -> tuple[Evidence, ...]:
    """Return how each of some ranks still works; empty if one of them does not, or nobody can tell."""
    if since_ns < 0:
        return ()
    facts = run_facts(trace)
    was_ended = any(facts.get(key, "0") not in ("", "0", "None") for key in ("signal", "exit_code"))
    ways = {rank: still_works(trace, rank, since_ns) for rank in ranks}
    # A thread that runs may loop, and somebody ended the job as it stood.
    if not all(ways.values()) or (was_ended and RUNS in ways.values()):
        return ()
    return tuple(Evidence("still_works", "processes", rank=rank, kind=way) for rank, way in ways.items())


def _mismatch(mismatch: Mismatch) -> Claim:
    rows: tuple[Evidence, ...] = tuple(
        Evidence(
            "called",
            "collectives",
            items_count=len(ranks),
            of_count=element or -1,
            moved_bytes=size,
            kind=name,
            name=ranks_text(list(ranks)),
        )
        for name, size, element, ranks in mismatch.calls
    )
    if mismatch.swapped_with >= 0:
        rows += (Evidence("other_order", "collectives", items_count=mismatch.swapped_with),)
    least = mismatch.calls[-1][-1]
    return Claim(
        "headline",
        "mismatch",
        name=mismatch.group,
        ranks=ranks_text(list(least)),
        items_count=mismatch.sequence,
        evidence=rows,
    )
