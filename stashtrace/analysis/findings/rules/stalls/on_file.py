"""Ranks whose training loop spends much time on one file; other claims are left the rest of their time.

``on_file`` is all time of the step thread in calls on the file ``name``, in whichever kinds the budget counts it: the
verdict has the kind that most of them are in. ``way`` is ``reads`` or ``writes`` if most of it is, else ``calls``;
``files_count`` the number of files, if none takes most of the time; ``names_count`` the number of different files over
the ranks. ``file_call`` is the part in calls of one ``kind``, the longest first.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.rules.stalls.loop_code import annotations_in
from stashtrace.analysis.findings.rules.stalls.policy import POLICY
from stashtrace.analysis.findings.stall_claims import verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.stragglers.file_calls import OnFile
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.text import count_noun
from stashtrace.units import duration_text, ranks_text, shortened

#: Way of the bytes -> what a rank does with a file.
_WAYS = {"reads": "reading", "writes": "writing", "calls": "in calls on"}


def doing(way: str, path: str) -> str:
    """Say what is done with a file: ``reading shard-0017.tar``."""
    return f"{_WAYS[way]} {_name(path)}"


def _name(path: str) -> str:
    return shortened(os.path.basename(path), POLICY.name_characters)


def file_claims(facts: RunFacts) -> list[Claim]:
    """Return the claims about ranks whose loop is in calls on a file, the one that spends most first."""
    hit = [(rank, rank.on_file) for rank in facts.ranks if rank.on_file is not None]
    hit.sort(key=lambda pair: (-_per_step_ns(*pair), pair[0].rank))
    claims = []
    while hit:
        way, least = hit[0][1].way, POLICY.like_ratio * _per_step_ns(*hit[0])
        alike = [pair for pair in hit if pair[1].way == way and _per_step_ns(*pair) >= least]
        claims.append(_claim(facts, alike))
        hit = [pair for pair in hit if pair not in alike]
    return claims


def without_files(facts: RunFacts) -> RunFacts:
    """Return the facts of a run in which the time of these claims has no kind of the budget."""
    return replace(facts, ranks=tuple(_without_file(rank) for rank in facts.ranks))


def _per_step_ns(rank: RankFacts, on: OnFile) -> float:
    return on.time.total_ns / max(rank.steps_count, 1)


def _claim(run: RunFacts, hit: Sequence[tuple[RankFacts, OnFile]]) -> Claim:
    worst, on = hit[0]
    most, least = (_per_step_ns(*hit[place]) for place in (0, -1))
    shares = [one.time.total_ns / max(rank.wall_ns, 1) for rank, one in hit]
    names = {one.name for _, one in hit}
    column = COLUMN_OF[max(on.parts_ns, key=lambda kind: on.parts_ns[kind]).name.lower()]
    if column == StallKind.COMPUTE.name.lower():
        column = COLUMN_OF["python"]  # what counts as computing where no phase was seen is the loop's own time
    calls = [
        fact("file_call", "", "io", rank=worst.rank, spent_ns=ns / max(worst.steps_count, 1), kind=call)
        for call, ns in list(on.calls_ns.items())[: POLICY.calls_count]
        if ns >= POLICY.part_ratio * on.time.total_ns
    ]
    own = Facts(rank=worst.rank, spent_ns=most, way=on.way, name=on.name)
    said = "the file is {name:path}" if on.files_count == 1 else "most of it on {name:path}"
    head = fact("on_file", said, "io", files_count=on.files_count, names_count=len(names), **own)
    base = Claim(
        "verdict",
        column,
        ranks=ranks_text(sorted(rank.rank for rank, _ in hit)),
        rank=worst.rank,
        items_count=len(hit),
        share_ratio=max(shares),
        least_ratio=min(shares),
        stall_ns=most,
        low_ns=most,
        high_ns=most,
        least_ns=least,
        cause_kind="on_file",
        file=on.name,
        call=next(iter(on.calls_ns), ""),
        confidence="exact",  # clocks were read at the begin and the end of each call
        method=worst.method,
    )
    named = ", ".join(f"{call['kind']}() {duration_text(call['spent_ns'])}" for call in calls)
    of_whom = " on rank {rank}" if len(hit) > 1 else ""
    parts = f": {{parts}}{of_whom}" if len(calls) > 1 else ", in {call}()"
    words = {"doing": _doing(on, len(names), worst.rank, len(hit)), "parts": named}
    said, short = "{who} {who:spends|spend} {lost} {doing}", "{who} {who:spends|spend} {share} {of_step} {doing}"
    rows = [head, *calls, *_annotations(run, worst, on)]
    return verdict(column, f"{said}{parts}", run, base, rows, short=short, phrases=words)


def _doing(on: OnFile, names_count: int, rank: int, ranks_count: int) -> str:
    if on.files_count > 1:
        return f"{_WAYS[on.way]} {count_noun(on.files_count, 'file') if ranks_count == 1 else 'files'}"
    if names_count > 1:
        return f"{_WAYS[on.way]} a file each (rank {rank} {_name(on.name)})"
    return doing(on.way, on.name)


def _annotations(facts: RunFacts, rank: RankFacts, on: OnFile) -> list[Evidence]:
    index, steps = TraceIndex(facts.trace), facts.tables["steps"]
    threads = {thread.rank: thread for thread, _ in ranks_and_steps(index.origin, steps)}
    return annotations_in(facts.trace, threads[rank.rank], on.time, steps)


def _without_file(rank: RankFacts) -> RankFacts:
    """Return a rank's facts with the calls on its file as a kind of time of their own, which no column has."""
    if rank.on_file is None:
        return rank
    parts = {kind.name.lower(): ns for kind, ns in rank.on_file.parts_ns.items()}
    whole = {"on_file": rank.on_file.time.total_ns}
    kinds, low, high = (
        {kind: max(ns - parts.get(kind, 0), 0) for kind, ns in of_rank.items()} | whole
        for of_rank in (rank.kinds, rank.low, rank.high)
    )
    exact = {
        members: (max(bounds[0] - taken, 0), max(bounds[1] - taken, 0))
        for members, bounds in rank.exact.items()
        for taken in (sum(parts.get(kind, 0) for kind in members),)
    }
    blocked = dict(rank.blocked_ns)
    if "file" in blocked:
        blocked["file"] = max(blocked["file"] - parts.get(StallKind.OTHER.name.lower(), 0), 0)
    return replace(rank, kinds=kinds, low=low, high=high, exact=exact, blocked_ns=blocked)
