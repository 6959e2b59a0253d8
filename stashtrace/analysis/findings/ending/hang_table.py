"""hang: which ranks the others wait for, in which collective, since when, and what the step threads of these ranks do.

The rows say what the claims about a job that stands still say: they are made of these claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.ending.last_activity import find_idle, step_track
from stashtrace.analysis.findings.ending.looked import RUNS, UNKNOWN
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims, stuck_at_end
from stashtrace.analysis.findings.rules.ending.last_seen import doing
from stashtrace.errors import MissingDataError
from stashtrace.record.peek.model import STANDS_STILL
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, schema
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import ranks_in

HANG = schema(
    "hang",
    "Ranks that the others wait for when the records end, one row each; none if the job got on",
    RANK,
    col.word(
        "reason",
        "not_entered, not_finished, gone (its process ended or was stopped), mismatch (it called another operation),"
        " circle (it waits for another row's rank), inside (all are inside and none leaves), unseen (it waits for ranks"
        " of which nothing was recorded), still (nobody waits for another, and no rank gets on)",
        width=12,
    ),
    col.word(
        "works",
        "entered, records, moves, runs, others or device: how it still works, so that nothing hangs; else empty",
    ),
    col.word("group", "process group of the collective, empty if none or without a name"),
    col.word("operation", "the collective that the others wait in, as all_reduce; of a circle, the rank's own"),
    col.number("sequence", "its number within the group, -1 for messages and where nobody waits", missing=-1),
    col.nbytes("message_bytes", "payload of it, -1 if unknown", missing=-1),
    col.ns("since_ns", "how long they have waited when the records end, -1 if unknown", missing=-1),
    col.word("waiting", "ranks that wait in it, as 0-3,7"),
    col.word("through", "ranks that wait for those"),
    col.number("last_index", "the last number that the rank called in the group, -1 if none or unknown", missing=-1),
    col.word(
        "activity",
        "what its step thread does: a system call, runs, stopped, ended, kernel (no signal ends it) or unknown",
        width=12,
    ),
    col.word("target", "file, pipe or socket of that call; command of the child that it waits for"),
    col.word("place", "function and line of the job's code, where its stack was read"),
    col.word("gil_thread", "another thread that held its GIL, empty if none was seen"),
    col.word("workers", "workers that do not simply wait for work, and what they do; children that have ended"),
    col.word("unseen", "what could not be looked at, and why"),
)
_KINDS = ("hung", "awaited", "mismatch")


def hang(trace: Trace) -> Table:
    """Return the ranks that the others wait for when the records end, and what each of them does.

    Waits are followed through the groups to the ranks at which they end, so a rank that itself waits has no row. A rank
    that still works has one, with ``works``: then nothing hangs. What was not recorded, nor seen by a look at the
    living processes (``stashtrace analyze hang`` and ``stashtrace live`` take one), is unknown. Columns: table ``hang``
    of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace

    Raises
    ------
    MissingDataError
        If no rank was recorded.
    """
    if not len(trace.ranks):
        raise MissingDataError("no rank was recorded", hint="record a training job with `stashtrace run -- COMMAND`")
    rows = [row for claim in ending_claims(trace) if claim.kind in _KINDS for row in _rows(trace, claim)]
    return Table.from_rows(HANG, rows)


def ranks_to_look_at(trace: Trace) -> list[int]:
    """Return the ranks whose processes show why a job stands still; empty if it does not."""
    found = stuck_at_end(trace)
    if found is None:
        idle = find_idle(trace)
        return list(idle.ranks) if idle is not None else []
    ranks = {root.rank for root in found.roots} | {rank for rank, _ in found.circle}
    if found.mismatch is not None:
        ranks |= {ranks[0] for *_, ranks in found.mismatch.calls}
    return sorted(ranks or found.waiting)


def threads_to_look_at(trace: Trace, rank: int) -> Iterator[tuple[int, int]]:
    """Yield process_id and thread of a rank's step thread, then of its workers' main threads."""
    processes = trace.processes
    native = trace.tracks.lookup("track_id", "native_id")
    thread = step_track(trace, rank)
    of_rank = (processes["rank"] == rank) & (processes["role_code"] == ProcessRole.RANK)
    if thread is not None:
        yield thread[0], native[thread[1]]
    else:
        newest = processes.take(of_rank).sort_by("begin_ns")
        yield from zip(newest["process_id"][-1:].tolist(), newest["pid"][-1:].tolist(), strict=True)
    workers = processes.take((processes["rank"] == rank) & (processes["role_code"] == ProcessRole.WORKER))
    yield from zip(workers["process_id"].tolist(), workers["pid"].tolist(), strict=True)


def _rows(trace: Trace, claim: Claim) -> Iterator[tuple[Any, ...]]:
    by_code: dict[str, list[Evidence]] = {}
    for row in claim.evidence:
        by_code.setdefault(row.code, []).append(row)
    about = by_code.get("hung_bytes", [Evidence("")])[0].facts
    inside, through = (
        by_code.get(code, [Evidence("")])[0].facts.get("name", "") for code in ("hung_inside", "hung_through")
    )
    works, last = (_by_rank(by_code.get(code, ())) for code in ("still_works", "hung_last"))
    waits = _by_rank(by_code.get("waits_in", ()))
    is_mismatch = claim.kind == "mismatch"
    for rank in ranks_in(claim.ranks):
        group, operation, sequence = about.get("group", ""), claim.call, claim.items_count
        if rank in waits:
            group, operation, sequence = waits[rank]["name"], waits[rank]["kind"], waits[rank]["items_count"]
        if is_mismatch:
            group = claim.name
            operation = next((row["kind"] for row in by_code["called"] if rank in ranks_in(row["name"])), "")
        yield (
            rank,
            "mismatch" if is_mismatch else claim.name,
            works[rank]["kind"] if rank in works else "",
            group,
            operation,
            sequence,
            about.get("message_bytes", -1),
            round(claim.stall_ns),
            inside if claim.name not in ("inside", "unseen") else claim.ranks,
            through,
            last[rank]["items_count"] if rank in last else -1,
            *_activity(doing(trace, rank)),
        )


def _by_rank(rows: Any) -> Mapping[int, Evidence]:
    return {row["rank"]: row for row in rows}


def _activity(rows: list[Evidence]) -> tuple[str, str, str, str, str, str]:
    """Return activity, target, place, thread with the GIL, workers and what was not seen."""
    activity, target, place, holder = UNKNOWN, "", "", ""
    workers, unseen = [], []
    for row in rows:
        if row.code == "look_thread" or row.code == "stands_in":
            activity, target, place = row["kind"], row["target"], row["place"]
        elif row.code == "ran_since":
            activity = RUNS if row["part_ratio"] > STANDS_STILL else UNKNOWN
            place = row["place"]
        elif row.code == "look_gil":
            holder = row["name"]
        elif row.code == "look_worker":
            workers.append(f"{row['worker_id']} {row['kind']} {row['target']}".rstrip())
        elif row.code == "look_child":
            workers.append(f"{row['items_count']} ended ({row['name']})")
        elif row.code == "look_unseen":
            unseen.append(row["name"])
    return activity, target, place, holder, ", ".join(workers), "; ".join(unseen)
