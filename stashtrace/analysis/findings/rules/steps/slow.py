"""Slow steps that take enough of the run: how many, whose time grew in most, what it went to.

``slow_steps`` are rows of ``spikes`` that neither come back nor lie in steps that a change is about: ``stall_ns`` is
the median of their lengths, ``share_ratio`` what they take longer than usual, of the time of all steps; ``cause_kind``
is the time that grew in most of them, and ``grew`` says whose. ``grew_in`` has in how many of them ``changed_time`` is
what grew, ``awaited_slowly`` in how many others wait for a rank of which nothing recorded takes longer,
``behind_slow`` what the time went to, ``beside_slow`` what happened during this number of them. Of one slow step,
``made_by_worker`` is the worker of its batch, ``waited_for_slow`` who waited for its rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.over_time.step_changes import changed_steps
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.steps.step_time import step_lengths
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, is_several, ranks_in, ranks_text, shortened

#: Name of the claim about one step of a job that runs.
AS_IT_RUNS = "as_it_runs"
_TABLE = "spikes"
_WAITED = StallKind.STRAGGLER.name.lower()
_NOBODY = "no kind of time of one rank grows in most of them"
#: Column or kind of the budget -> verb for one rank and for several, and what follows the time by which it changes.
_VERBS = {
    "compute": (("computes", "compute"), "{longer}"),
    "data": (("waits", "wait"), "{longer} for batches{part}"),
    "link": (("spends", "spend"), "{more} in transfers"),
    "copy": (("waits", "wait"), "{longer} for copies between host and device"),
    "save": (("spends", "spend"), "{more} in checkpoints"),
    "host": (("leaves its device idle", "leave their devices idle"), "{longer}"),
    "python": (("spends", "spend"), "{more} in code of the loop outside forward, backward and optimizer"),
    "reads": (("is blocked", "are blocked"), "{longer} in reads of files"),
    "other": (("is blocked or asleep", "are blocked or asleep"), "{longer}"),
    "together": (("works", "work"), "{longer}, in several kinds of time"),
}
_PARTS = {"fetch": ", which its storage delays", "prep": " in the making", "handoff": " that are handed over"}
_BEHIND = {
    "gc": "garbage collection takes {ns} of it",
    "compile": "{name} takes {ns} of it",
    "checkpoint": "checkpoints take {ns} of it",
    "annotation": "the annotation {name} takes {ns} of it",
    "file": "calls on {name} take {ns} of it",
    "phase": "the {name} takes {ns} of it",
    "worker": "worker {name} makes these batches",
}
_WAITS = {
    "sleep": "a sleep (time.sleep, usleep or the like) takes {ns} of it",
    "gil": "waiting for the GIL takes {ns} of it",
    "cpu": "waiting for a CPU takes {ns} of it",
    "join": "waiting for a thread or a process to end takes {ns} of it",
}
#: Name in ``spikes.beside`` -> what was so in those steps.
BESIDE = {
    "gc": "garbage was collected",
    "background_save": "a checkpoint was written in the background",
    "cpu_contention": "the step thread waited for a CPU",
    "evaluation": "another rank evaluated",
    "epoch_begin": "a loader ended or began again",
    "steal": "the hypervisor took CPU time",
    "other_cpus": "programs outside the job used CPUs",
    "io_pressure": "tasks of the host waited for I/O",
    "memory_pressure": "tasks of the host waited for memory",
    "sm_clock": "the GPU's clock was lower",
}

_Row = tuple[int, dict[str, Any]]


def slow_claims(slow: Table, changes: Table, counted: Table, loading: Collection[int]) -> list[Claim]:
    """Return a claim about the slow steps of a run, or none.

    ``slow``: rows of ``spikes``. ``changes``: rows of ``over_time``, whose shifts and periods have separate claims.
    ``counted``: the steps that the step time is made of. ``loading``: the ranks with a loader.
    """
    numbers = np.unique(counted["step"])
    in_changes = np.zeros(len(numbers), dtype=bool)
    for change in changes.rows():
        in_changes |= changed_steps(change, numbers) if change["kind"] != "drift" else False
    single = numbers[~in_changes]
    rows = [pair for pair in enumerate(slow.rows()) if not pair[1]["every_count"] and pair[1]["step"] in single]
    share = sum(row["length_ns"] - row["usual_ns"] for _, row in rows) / max(float(step_lengths(counted).sum()), 1.0)
    if not rows or share < POLICY.slow_ratio:
        return []
    return [_claim(rows, len(numbers), loading, share=share)]


def claim_of_step(
    slow: Table,
    loading: Collection[int],
    waited_ns: Mapping[int, int],
    *,
    is_elsewhere: bool = False,
    in_part: bool = False,
) -> Claim:
    """Return the claim about one slow step of a job that runs: of which part of the run it is, nobody knows yet.

    ``slow``: one row of ``spikes``. ``waited_ns``: rank -> how long it waited for the rank of that row.
    ``is_elsewhere``: that rank is on another host, of which nothing is recorded here. ``in_part``: the job has ranks
    that are not seen from here, so that its transfers may be waits for these.
    """
    row = next(iter(slow.rows()))
    claim = _claim([(0, row)], 1, loading, is_elsewhere=is_elsewhere, in_part=in_part)
    more = []
    if row["worker_id"] >= 0 and row["cause_kind"] != "worker":
        facts = Facts(rank=row["rank"], worker_id=row["worker_id"])
        more.append(fact("made_by_worker", "its worker {worker_id} made that batch", _TABLE, 0, **facts))
    if waited_ns:
        waiting = ranks_text(sorted(waited_ns))
        said = "rank {ranks} waits {longest_ns:time} for it"
        said = said if len(waited_ns) == 1 else "ranks {ranks} wait up to {longest_ns:time} for it"
        facts = Facts(rank=row["rank"], longest_ns=max(waited_ns.values()), ranks=waiting)
        more.append(fact("waited_for_slow", said, _TABLE, 0, **facts))
    before = [one for one in claim.evidence if one.code != "beside_slow"]
    during = [replace(one, text="") for one in claim.evidence if one.code == "beside_slow"]
    if during:
        said = " and ".join(BESIDE[one["name"]] for one in during)
        during[0] = replace(during[0], text=f"meanwhile {said}")
    return replace(claim, evidence=(*before, *more, *during))


def _claim(
    rows: Sequence[_Row],
    steps_count: int,
    loading: Collection[int],
    *,
    share: float = -1.0,
    is_elsewhere: bool = False,
    in_part: bool = False,
) -> Claim:
    """Return the claim about slow steps. ``share``: their part of the run; -1 of one step of a job that runs."""
    similar, count = _most_similar(rows), len(rows)
    named = ", ".join(str(row["step"]) for _, row in rows[: POLICY.named_count])
    longer_ns = median(row["length_ns"] - row["usual_ns"] for _, row in rows)
    facts = Facts(slow_count=count, steps_count=steps_count, longer_ns=longer_ns, named=named)
    whose, evidence = _whose(similar, count, loading, is_elsewhere)
    if in_part and similar and COLUMN_OF.get(similar[0][1]["kind"]) == "link":
        whose += ", or in waits for ranks that are not seen from here"
    evidence = [fact("slow_steps", "", _TABLE, rows[0][0], **facts), *evidence, *_during(rows)]
    longer, mark = f"{duration_text(longer_ns)} longer than others like", ":" if whose else ";"
    if share < 0:
        said = f"step {named} took {{stall_ns:time}}, {longer} it{mark} {{grew}}"
    elif count == 1:
        said = f"step {named} takes {longer} it, {{share_ratio:percent}} of the time of all steps{mark} {{grew}}"
    else:
        more = ", ..." if count > POLICY.named_count else ""
        which = f"{count} of {count_noun(steps_count, 'step')} ({named}{more})"
        said = f"{which} take {longer} them (median), {{share_ratio:percent}} of the time of all steps{mark} {{grew}}"
    first, cause = similar[0][1] if similar else None, _cause(similar)
    return claim(
        "time",
        "slow_steps",
        said,
        evidence,
        name=AS_IT_RUNS if share < 0 else "",
        ranks=_ranks_of(similar),
        rank=first["rank"] if first else -1,
        items_count=count,
        share_ratio=max(share, 0.0),
        stall_ns=median(row["length_ns"] for _, row in rows),
        cause_kind=first["kind"] if first else "",
        cause_rank=first["rank"] if first else -1,
        file=cause[1] if cause[0] == "file" else "",
        call=cause[1] if cause[0] in ("annotation", "phase") else "",
        grew=whose or _NOBODY,
    )


def _most_similar(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows of the rank and kind, or of the kind, that make most steps slow; none if they are all unlike."""
    for names in (("kind", "rank"), ("kind",)):
        of_like = Counter(tuple(row[name] for name in names) for _, row in rows)
        most, count = of_like.most_common(1)[0]
        if count >= POLICY.mostly_ratio * len(rows):
            return [pair for pair in rows if tuple(pair[1][name] for name in names) == most]
    return []


def _ranks_of(similar: Sequence[_Row]) -> str:
    return ranks_text(sorted({rank for _, row in similar for rank in ranks_in(row["ranks"])}))


def _whose(
    similar: Sequence[_Row], count: int, loading: Collection[int], is_elsewhere: bool
) -> tuple[str, list[Evidence]]:
    """Return whose time grew in most slow steps, empty if no one's did, and what it went to."""
    if not similar:
        return "", []
    at, row = similar[0]
    ranks, some = _ranks_of(similar), "" if len(similar) == count else f"in {len(similar)} of them "
    facts = Facts(rank=row["rank"], slow_count=len(similar), of_count=count)
    if row["kind"] == _WAITED:
        whom = f"rank {row['rank']}" if row["rank"] >= 0 else "a rank"
        untold = "which is on another host" if is_elsewhere else "of which nothing recorded takes longer"
        return f"{some}others wait for {whom}, {untold}", [fact("awaited_slowly", "", _TABLE, at, **facts)]
    kind = "reads" if row["kind"] == "fetch" and row["rank"] not in loading else row["kind"]
    extra_ns = median(row["extra_ns"] for _, row in similar)
    rows = [
        fact("changed_time", "", _TABLE, at, rank=row["rank"], longer_ns=extra_ns, kind=kind, ranks=ranks),
        fact("grew_in", "", _TABLE, **facts),
    ]
    cause = _cause(similar)
    if cause[0]:
        like = [one for _, one in similar if (one["cause_kind"], one["cause_name"]) == cause]
        spent_ns, whole_ns = (median(one[name] for one in like) for name in ("cause_ns", "extra_ns"))
        in_some = "" if len(like) == len(similar) else f", in {len(like)} of {len(similar)}"
        words = {"said": behind_text(*cause, spent_ns, whole_ns)}
        known = Facts(rank=row["rank"], spent_ns=spent_ns, grew_ns=whole_ns, kind=cause[0], name=cause[1])
        known |= Facts(slow_count=len(like), of_count=len(similar))
        known |= Facts(worker_id=int(cause[1]) if cause[0] == "worker" else -1)
        rows.append(fact("behind_slow", f"{{said}}{in_some}", _TABLE, at, phrases=words, **known))
    return f"{some}{time_that_changes(kind, ranks, extra_ns, grows=True)}", rows


def _cause(similar: Sequence[_Row]) -> tuple[str, str]:
    """Return kind and name of what the extra time goes to in most of these steps; empty if it is nothing recorded."""
    causes = Counter((row["cause_kind"], row["cause_name"]) for _, row in similar if row["cause_kind"])
    if not causes:
        return "", ""
    cause, count = causes.most_common(1)[0]
    return cause if count >= POLICY.mostly_ratio * len(similar) else ("", "")


def _during(rows: Sequence[_Row]) -> list[Evidence]:
    """Return what happened during most of the slow steps."""
    names, found = Counter(name for _, row in rows for name in row["beside"].split(", ") if name), list[Evidence]()
    for name, count in names.items():
        if count >= POLICY.mostly_ratio * len(rows):
            some = "all" if count == len(rows) else str(count)
            said = f"in {some} of these {len(rows)} steps {BESIDE[name]}"
            said = f"meanwhile {BESIDE[name]}" if len(rows) == 1 else said
            found.append(fact("beside_slow", said, _TABLE, slow_count=count, of_count=len(rows), name=name))
    return found


def behind_text(kind: str, name: str, spent_ns: float, whole_ns: float) -> str:
    """Say what the longer time goes to. ``whole_ns``: all of it, -1 if that is not known."""
    words = _BEHIND.get(kind) or _WAITS.get(name, "waits for a lock, a pipe or a socket take {ns} of it")
    part = "all" if spent_ns >= whole_ns >= 0 else duration_text(spent_ns)
    return words.format(ns=part, name=shortened(name, POLICY.path_characters))


def time_that_changes(kind: str, ranks: str, longer_ns: float, grows: bool) -> str:
    """Say whose time it is that changes: ``rank 1 computes 5 ms longer``.

    ``kind``: any of ``StallKind`` or of its columns, ``reads`` or ``together``.
    """
    verbs, rest = _VERBS[kind if kind in _VERBS else COLUMN_OF[kind]]
    words = {"longer": "longer", "more": "more"} if grows else {"longer": "less", "more": "less"}
    said = rest.format(**words, part=_PARTS.get(kind, ""))
    several = is_several(ranks)
    return f"rank{'s' if several else ''} {ranks} {verbs[several]} {duration_text(longer_ns)} {said}"
