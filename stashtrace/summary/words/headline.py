"""The headline: what matters most about a run, in one short sentence."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from stashtrace.summary.words import claim_text
from stashtrace.summary.words.ending import ENDINGS
from stashtrace.summary.words.evidence import peers_of, surplus
from stashtrace.summary.words.parts import Finding, ranks, share, verb

#: Longest headline, in characters.
MOST_CHARACTERS = 100
_NO_STEPS = "no_steps"


def headline_text(found: Sequence[Finding]) -> str:
    """Return the most important claim of a summary as one sentence of at most 100 characters.

    How a job ended goes before what slowed it down.
    """
    ended = [f for f in found if f.row["kind"] in ENDINGS]
    verdicts = [f for f in found if f.row["section"] == "verdict"]
    others = [f for f in found if f.row["kind"] == _NO_STEPS]
    for finding in [*ended, *verdicts, *others]:
        text = claim_text(finding)
        if len(text) > MOST_CHARACTERS and finding.row["kind"] in _SHORT:
            text = _SHORT[finding.row["kind"]](finding)
            text = f"in {finding.row['name']} steps, {text}" if finding.row["name"] else text
        if text:
            return textwrap.shorten(text, MOST_CHARACTERS, placeholder=" …")
    return ""


def _loses(one: str, many: str, what: str) -> Callable[[Finding], str]:
    """Word that ranks lose a share of the step; the verb is as certain as the bounds are."""
    return lambda f: f"{ranks(f.row)} {verb(f.row, one, many)} {share(f.row)} of a step {what}"


def _waits(whom: str) -> Callable[[Finding], str]:
    return _loses("waits", "wait", whom)


def _late(f: Finding) -> str:
    work = f.first("late_surplus") or f.first("late_surplus_before")
    if work is not None:
        return f"rank {work['rank']} {surplus(work, peers_of(work))}; {_waits('for it')(f)}"
    rank = f.row["cause_rank"]
    return _waits(f"for rank {rank}" if rank >= 0 else "for other ranks")(f)


def _link(f: Finding) -> str:
    doubtful = f.first("may_be_waiting") is not None or f.first("ranks_missing") is not None
    return _loses("spends", "spend", "in transfers" + (", or waiting for others in them" if doubtful else ""))(f)


#: Kind of verdict -> its sentence where that of the claim is too long.
_SHORT: dict[str, Callable[[Finding], str]] = {
    "data": _loses("waits", "wait", "for batches"),
    "late": _late,
    "link": _link,
    "copy": _loses("waits", "wait", "for copies between host and device"),
    "save": _loses("stops", "stop", "for checkpoints"),
    "host": _loses("waits", "wait", "for its host"),
    "other": _loses("is blocked", "are blocked", "outside of known waits"),
    "contention": _loses("waits", "wait", "for a CPU"),
}
