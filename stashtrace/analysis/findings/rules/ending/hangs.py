"""Where a job stood still when its records end, for whom its ranks wait, and what these do.

The ``ranks`` of ``hung`` are those that all others waited for. ``name``: ``not_entered``, ``not_finished`` (on their
devices), ``gone`` (their processes had ended), ``inside`` (all entered, none left), ``unseen`` (they wait for ranks of
which nothing was recorded), ``circle`` (they wait for each other) or ``still`` (nobody waits for another). ``call``
and ``items_count`` are the operation and its number, -1 for a message; ``stall_ns`` is for how long, -1 in dumps, which
do not say. The ranks of ``awaited`` had not entered an operation, but were still at work (``still_works``): they wrote
records, read or wrote files, or their threads ran. ``mismatch``: ranks called different operations under one number
(``called``) of the process group ``name``. ``lives`` means that the job still runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.ending.last_activity import find_idle, is_gone, newest_ns, still_works
from stashtrace.analysis.findings.ending.looked import ENDED
from stashtrace.analysis.findings.ending.policy import POLICY
from stashtrace.analysis.findings.ending.stuck import NOT_ENTERED, NOT_FINISHED, Operation, Root, Stuck, find_stuck
from stashtrace.analysis.findings.rules.ending.failures import (
    FAILED_FIRST,
    NAMELESS,
    NEVER_NS,
    after_one_that_is_gone,
    failed_ranks,
    failure,
    failure_claims,
    failures,
    first_to_end_claims,
    how_failed,
    waited_for_it,
)
from stashtrace.analysis.findings.rules.ending.last_seen import doing, seen
from stashtrace.analysis.steps.step_time import step_time_of
from stashtrace.record.peek.model import DEVICE_RUNS, ENTERED, MOVES, OTHERS_RUN, RECORDS, RUNS
from stashtrace.schema.kinds import ElementType
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.text.units import ranks_text

#: Importer of dumps that are written when a job hangs.
_DUMPS = "flight_recorder"
#: An operation, as its claim names it.
_OPERATION = "{call:operation} {items_count} of {group}"
#: How a rank that others wait for is still at work; how several are.
_STILL = {
    ENTERED: ("it has gone on since", "they have gone on since"),
    OTHERS_RUN: ("a child or another thread of it still runs", "children or other threads of them still run"),
    DEVICE_RUNS: ("its device still computes", "their devices still compute"),
    RECORDS: ("its records go on", "their records go on"),
    MOVES: ("it still reads or writes files", "they still read or write files"),
    RUNS: ("its thread still runs", "their threads still run"),
}


def ending_claims(trace: Trace, *, lives: bool = False, in_part: bool = False) -> list[Claim]:
    """Return claims about how the job failed or stood still; empty for one that ended well, or still runs well.

    Of a job that still ``lives`` no claim says that it hung. ``in_part``: the job has ranks that are not seen here.
    """
    failed = failures(trace)
    claims = failure_claims(trace, failed)
    may_hang = run_facts(trace).get("exit_code", "") != "0"
    found = stuck_at_end(trace) if may_hang else None
    if found is None:
        if may_hang and claims:  # a backend may end a rank at once that called what the others did not
            waits = find_stuck(trace, newest_ns(trace))
            claims = after_one_that_is_gone(trace, failed, waits) or claims
            facts = run_facts(trace)
            if waits is not None and "imported" not in facts and not facts.get("steps"):
                claims += _mismatches(trace, waits)
        still = _still(trace, lives, in_part) if may_hang and not claims else []
        return still + claims if failed or not claims or still else claims + first_to_end_claims(trace)
    first = {row["rank"] for row in failed if row.code in FAILED_FIRST}
    if found.roots and {root.rank for root in found.roots} <= first:
        claims[0] = replace(claims[0], evidence=(*claims[0].evidence, waited_for_it(found)))
        return [*claims, *_mismatches(trace, found)]
    hung = _hung(trace, found, first, lives)
    # Who waited for others failed because of them, and a job of which no rank failed was ended because it hung.
    return hung + claims if first <= set(found.waiting) else claims + hung


def stuck_at_end(trace: Trace, least_ns: int = POLICY.suspicious_ns) -> Stuck | None:
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
    usual = POLICY.hung_steps_count * step.median_ns if step is not None else 0
    since = found.since_ns
    if found.inside is not None:  # a member that fails inside at once is why none leaves it
        since = min(since, _first_failure_ns(trace) - found.inside.call_ns)
    return found if since > max(least_ns, usual) else None


def _first_failure_ns(trace: Trace) -> int:
    """Return when the first rank failed by itself, as far as its records say; the end of all time if none did."""
    ends = [row["at_ns"] for row in failed_ranks(trace) if row["worker_id"] < 0 and row["at_ns"] >= 0]
    return min(ends, default=NEVER_NS)


def _has_dumps(trace: Trace) -> bool:
    return _DUMPS in run_facts(trace).get("imported", "")


def _stands_still(said: str, evidence: Sequence[Evidence], lives: bool, since_ns: int, **facts: Any) -> Claim:
    """Return the claim that a job hung; while it lives, only for how long nobody has gone on."""
    if lives:
        head = f"no progress{' for {stall_ns:time}' if since_ns >= 0 else ''}"
        said = f"{head}{':' if said.startswith(' inside') else ''}{said}"
        evidence = [*evidence, fact("lives", "", "processes")]
    else:
        said = f"the job hung{said}"
    return claim("headline", "hung", said, evidence, stall_ns=since_ns, **facts)


def _still(trace: Trace, lives: bool, in_part: bool) -> list[Claim]:
    """Return a claim about ranks that stand still without a wait for another."""
    facts = run_facts(trace)
    idle = find_idle(trace) if "imported" not in facts and not facts.get("steps") else None
    if idle is None:
        return []
    rows = [row for rank in idle.ranks[: POLICY.named_count] for row in doing(trace, rank)]
    nobody = "no rank that is seen from here" if in_part else "no rank"
    said = f": {{ranks:ranks}} {{ranks:gets|get}} on with nothing, and {nobody} waits for another"
    return [_stands_still(said, rows, lives, idle.since_ns, name="still", ranks=ranks_text(list(idle.ranks)))]


def _hung(trace: Trace, found: Stuck, ended: set[int], lives: bool) -> list[Claim]:
    """Return claims about where the job stood still; ``ended`` are the ranks that are known to have failed before."""
    claims = _mismatches(trace, found)
    since = -1 if _has_dumps(trace) else found.since_ns
    for roots in _by_lack([root for root in found.roots if root.rank not in ended]):
        if is_unseen(trace, roots):
            ranks = ranks_text(sorted({rank for root in roots for rank in root.waiting}))
            rows, facts = _about(roots[0].operation)
            said = f": {{ranks:ranks}} {{ranks:waits|wait}} in {_OPERATION}, and no rank of which there are records is"
            said += " missing from it"
            claims.append(_stands_still(said, rows, lives, since, name="unseen", ranks=ranks, **facts))
        else:
            claims.append(_root_claim(trace, roots, found, since, lives))
    if found.inside is not None:
        rows, facts = _about(found.inside)
        said = f" inside {_OPERATION}: its members have entered it and none has left it"
        rows += _looked(trace, found.waiting)
        ranks = ranks_text(list(found.waiting))
        claims.append(_stands_still(said, rows, lives, since, name="inside", ranks=ranks, **facts))
    if found.circle and found.mismatch is None:
        circle = list[Evidence]()
        for rank, of in found.circle:
            number = "{kind:operation} {items_count}" if of.sequence >= 0 else "a {kind:operation}"
            where = Facts(rank=rank, items_count=of.sequence, kind=of.operation, name=of.group)
            circle.append(fact("waits_in", f"rank {{rank}} waits in {number} of {{name}}", "collectives", **where))
        numbers = sorted(rank for rank, _ in found.circle)
        said, rows = ": ranks {ranks} wait for each other", [*circle, *_looked(trace, numbers)]
        claims.append(_stands_still(said, rows, lives, since, name="circle", ranks=ranks_text(numbers)))
    return claims


def is_unseen(trace: Trace, roots: Sequence[Root]) -> bool:
    """Return whether nothing was recorded of the ranks at which waits end: nobody knows what these have called."""
    return not _has_dumps(trace) and not {root.rank for root in roots} & set(trace.ranks.tolist())


def _looked(trace: Trace, ranks: Sequence[int]) -> list[Evidence]:
    return [row for rank in ranks[: POLICY.named_count] for row in seen(trace, rank)]


def _by_lack(roots: Sequence[Root]) -> Iterable[list[Root]]:
    """Group the ranks that lack the same: one sentence names them all."""
    groups: dict[tuple[object, ...], list[Root]] = {}
    for root in roots:
        of = root.operation
        groups.setdefault((root.lack, of.group, of.operation, of.sequence), []).append(root)
    return groups.values()


def _about(operation: Operation) -> tuple[list[Evidence], Facts]:
    """Return evidence and facts of the operation in which ranks wait."""
    size = Facts(message_bytes=operation.message_bytes, group=operation.group)
    facts = Facts(items_count=operation.sequence, call=operation.operation, group=operation.group or NAMELESS)
    return [fact("hung_bytes", "", "collectives", **size)], facts


def _root_claim(trace: Trace, roots: Sequence[Root], found: Stuck, since_ns: int, lives: bool) -> Claim:
    ranks = sorted(root.rank for root in roots)
    direct = sorted({rank for root in roots for rank in root.waiting} - set(ranks))
    gone = not _has_dumps(trace) and all(is_gone(trace, rank) for rank in ranks)
    operation, lack = roots[0].operation, roots[0].lack
    rows, facts = _about(operation)
    facts |= Facts(ranks=ranks_text(ranks), rank=ranks[0], cause_rank=ranks[0], cause_kind=lack)
    facts |= Facts(name="gone" if gone else lack)
    if direct:
        how_long = " for {amount_ns:time}" if since_ns >= 0 else ""
        said = f"{{name:ranks}} {{name:waits|wait}} in it{how_long}" if operation.sequence >= 0 else ""
        inside = Facts(items_count=len(direct), amount_ns=since_ns, name=ranks_text(direct))
        rows.append(fact("hung_inside", said, "collectives", **inside))
    through = sorted(set(found.waiting) - set(direct) - set(ranks))
    if through:
        said = "{name:ranks} {name:waits|wait} for ranks that wait for that"
        rows.append(fact("hung_through", said, "collectives", items_count=len(through), name=ranks_text(through)))
    for root in roots[: POLICY.named_count]:
        if root.operation.sequence >= 0 and (root.last >= 0 or since_ns >= 0):
            said = "rank {rank} last called number {items_count}"
            said = said if root.last >= 0 else "rank {rank} has called no collective of this group"
            rows.append(fact("hung_last", said, "collectives", rank=root.rank, items_count=root.last))
        rows += doing(trace, root.rank)
    works = _still_work(trace, ranks, since_ns) if facts["name"] == NOT_ENTERED else []
    lacking = _lacking(operation, lack, ranks_text(direct), gone)
    if works:
        ways = {row["kind"] for row in works}
        still = _STILL[works[0]["kind"]][len(works) > 1] if len(ways) == 1 else "they still work"
        return claim("headline", "awaited", f"{lacking}, but {still}", [*works, *rows], stall_ns=since_ns, **facts)
    if gone:
        how = "its process ended before the others, or was stopped"
        if any(row.code == "look_thread" and row["kind"] == ENDED for row in rows):
            how = "its process has ended"
            rows = [
                replace(row, text="") if row.facts.get("kind") == ENDED and row.facts.get("worker_id", -1) < 0 else row
                for row in rows
            ]
        if len(ranks) == 1:
            failed = [row for row in failed_ranks(trace) if row["rank"] == ranks[0] and row["worker_id"] < 0][:1]
            rows += [replace(failure(row), text="") for row in failed]
            how = f"it {how_failed(rows[-1].code)}" if failed else how
        rows += [fact("lives", "", "processes")] if lives else []
        return claim("headline", "hung", f"{lacking}: {how}", rows, stall_ns=since_ns, **facts)
    return _stands_still(f": {lacking}", rows, lives, since_ns, **facts)


def _lacking(operation: Operation, lack: str, inside: str, gone: bool) -> str:
    """Return the template that says what the ranks that everybody waits for have not done."""
    if lack == NOT_FINISHED and not gone:
        whose = "the {ranks:device of rank|devices of ranks} {ranks} {ranks:has|have} not finished"
        return f"{whose} {_OPERATION}, which other members have finished"
    head = "{ranks:ranks} {ranks:has|have} not"
    if operation.sequence < 0 and not gone:
        waiter = f"rank {inside}" if inside else "another rank"
        sent = operation.operation == "receive"
        return (
            f"{head} {f'sent what {waiter} waits to receive' if sent else f'received what {waiter} sends'} ({{group}})"
        )
    return f"{head} entered {_OPERATION}{', {message_bytes:bytes}' if operation.message_bytes > 0 else ''}"


def _still_work(trace: Trace, ranks: Sequence[int], since_ns: int) -> list[Evidence]:
    """Return how each of some ranks still works; empty if one of them does not, or nothing shows it."""
    if since_ns < 0:
        return []
    facts = run_facts(trace)
    was_ended = any(facts.get(key, "0") not in ("", "0", "None") for key in ("signal", "exit_code"))
    ways = {rank: still_works(trace, rank, since_ns) for rank in ranks}
    # A thread that runs may loop, and somebody ended the job as it stood.
    if not all(ways.values()) or (was_ended and RUNS in ways.values()):
        return []
    return [fact("still_works", "", "processes", rank=rank, kind=way) for rank, way in ways.items()]


def _mismatches(trace: Trace, found: Stuck) -> list[Claim]:
    """Return the claim about ranks that called different operations, sizes or types, with a look at one of each."""
    if found.mismatch is None:
        return []
    mismatch = found.mismatch
    names, types = {name for name, *_ in mismatch.calls}, any(element > 0 for _, _, element, _ in mismatch.calls)
    what, call = "called {kind:operation}", "{operation:operation} {items_count} of {group}"
    said = "mismatched collectives: as number {items_count} of {group}, {parts}"
    if len(names) == 1:
        what = "{element}" if types else "{moved_bytes:bytes}"
        said = f"mismatched {'element types' if types else 'message sizes'} in {call}: {{parts}}"
    parts = list[Evidence]()
    for name, size, element, ranks in mismatch.calls:
        while_ = "while " if parts and len(names) > 1 else ""
        facts = Facts(items_count=len(ranks), moved_bytes=size, kind=name, name=ranks_text(list(ranks)))
        facts |= {"element": ElementType(element).name.lower()}
        parts.append(fact("called", f"{while_}{{name:ranks}} {what}", "collectives", **facts))
    rows = _looked(trace, sorted(ranks[0] for *_, ranks in mismatch.calls))
    if mismatch.swapped_with >= 0:
        order = "as number {items_count} they call them the other way round: the order differs between ranks"
        rows.insert(0, fact("other_order", order, "collectives", items_count=mismatch.swapped_with))
    facts = Facts(name=mismatch.group, group=mismatch.group or NAMELESS, items_count=mismatch.sequence)
    facts |= {"operation": mismatch.calls[0][0]} if len(names) == 1 else {}
    facts |= Facts(ranks=ranks_text(list(mismatch.calls[-1][-1])))
    return [claim("headline", "mismatch", said, rows, parts=parts, **facts)]
