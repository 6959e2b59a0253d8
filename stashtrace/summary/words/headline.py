"""The headline: what matters most about a run, in one short sentence."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from stashtrace.summary.words import claim_text
from stashtrace.summary.words.ending import ENDINGS
from stashtrace.summary.words.evidence import peers_of, surplus
from stashtrace.summary.words.parts import Finding, plural, ranks, share, verb
from stashtrace.units import percent_text

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
        short = _SHORT.get(finding.row["kind"])
        if len(text) > MOST_CHARACTERS and short is not None and (said := short(finding)):
            text = said
            text = f"in {finding.row['name']} steps, {text}" if finding.row["name"] else text
        if text:
            return textwrap.shorten(text, MOST_CHARACTERS, placeholder=" …")
    return ""


def _loses(one: str, many: str, what: str) -> Callable[[Finding], str]:
    """Word that ranks lose a share of the step; the verb is as certain as the bounds are."""
    return lambda f: f"{ranks(f.row)} {verb(f.row, one, many)} {_part_of_step(f)} {what}"


def _part_of_step(f: Finding) -> str:
    """Word a share of the step: ``33 % of a step on rank 1``."""
    part, on, rank = share(f.row).partition(" on rank")
    return f"{part} of a step{on}{rank}"


def _waits(whom: str) -> Callable[[Finding], str]:
    return _loses("waits", "wait", whom)


def _late(f: Finding) -> str:
    work = f.first("late_surplus") or f.first("late_surplus_before")
    if work is not None:
        return f"rank {work['rank']} {surplus(work, peers_of(work))}; {_waits('for it')(f)}"
    rank = f.row["cause_rank"]
    return _waits(f"for rank {rank}" if rank >= 0 else "for other ranks")(f)


def _data(f: Finding) -> str:
    if f.row["cause_kind"] == "reads":
        return _loses("is blocked", "are blocked", "in reads of files")(f)
    return _waits("for batches")(f)


def _host(f: Finding) -> str:
    """Word an idle device, or code of the loop; pauses and mere bounds have no shorter form that is as true."""
    if f.row["cause_kind"] == "python":
        part = percent_text(f.row["share_ratio"])
        upto = "up to " if f.row["items_count"] > 1 else ""
        spend = f"{ranks(f.row)} {'spend' if f.row['items_count'] > 1 else 'spends'}"
        return f"{spend} {upto}{part} of a step outside forward, backward and optimizer"
    if f.row["cause_kind"] not in ("sync", "launch"):
        return ""
    devices = f"the device{plural(f.row['items_count'])} of {ranks(f.row)}"
    return f"{devices} {verb(f.row, 'stands', 'stand')} idle for {_part_of_step(f)} because of the host"


def _other(f: Finding) -> str:
    return _loses("is blocked", "are blocked", "with no known cause")(f) if f.row["cause_kind"] == "unknown" else ""


def _link(f: Finding) -> str:
    doubtful = f.first("may_be_waiting") is not None or f.first("ranks_missing") is not None
    return _loses("spends", "spend", "in transfers" + (", or waiting for others in them" if doubtful else ""))(f)


#: Kind of verdict -> its sentence where that of the claim is too long; empty where that is cut instead.
_SHORT: dict[str, Callable[[Finding], str]] = {
    "data": _data,
    "late": _late,
    "link": _link,
    "copy": _loses("waits", "wait", "for copies between host and device"),
    "save": _loses("stops", "stop", "for checkpoints"),
    "host": _host,
    "other": _other,
    "contention": _loses("waits", "wait", "for a CPU"),
}
