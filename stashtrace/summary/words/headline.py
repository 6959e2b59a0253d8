"""The headline: what matters most about a run, in one short sentence."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from stashtrace.analysis.findings.rules.ending import ENDINGS
from stashtrace.errors import guarded
from stashtrace.summary.words import claim_text
from stashtrace.summary.words.beside_causes import steps_of
from stashtrace.summary.words.cause_templates import cause_headline
from stashtrace.summary.words.change_templates import steps_of_time
from stashtrace.summary.words.claim_templates import verdict_text
from stashtrace.summary.words.evidence_templates import BLOCKED_WORDS
from stashtrace.summary.words.on_file import file_short
from stashtrace.summary.words.template_parts import Finding, Row, of_recording, ranks, share, verb
from stashtrace.text import plural
from stashtrace.units import percent_text, shortened

#: Longest headline, in characters.
MOST_CHARACTERS = 100
#: A clause of fewer says too little alone.
_LEAST_CHARACTERS = 30
_NO_STEPS = "no_steps"
_NAME_WIDTH = 24


def headline_text(found: Sequence[Finding], causes: Sequence[Row] = ()) -> str:
    """Return what matters most about a run as one sentence of at most 100 characters.

    How a job ended goes before what slowed it down: its first cause, or, where none is known, its first claim.
    ``causes``: rows of that table without reasons.
    """
    ended = any(f.row["kind"] in ENDINGS for f in found)
    said = cause_headline(causes[0], steps_of(causes[0], found)) if causes and not ended else ""
    return said or guarded("the headline", lambda: _headline_text(found), str)


def _headline_text(found: Sequence[Finding]) -> str:
    ended = [f for f in found if f.row["kind"] in ENDINGS]
    verdicts = [f for f in found if f.row["section"] == "verdict"]
    others = [f for f in found if f.row["kind"] == _NO_STEPS]
    for finding in [*ended, *verdicts, *others]:
        texts = list(_forms(finding)) if finding.row["section"] == "verdict" else [claim_text(finding)]
        if texts[-1]:
            fits = (text for text in texts if len(text) <= MOST_CHARACTERS)
            return next(fits, _beginning(texts[-1]))
    return ""


def _beginning(text: str) -> str:
    """Return the clauses of a sentence that fit; where the first is too long, as much of it as fits, marked."""
    end = max(text.rfind(mark, _LEAST_CHARACTERS, MOST_CHARACTERS + len(mark)) for mark in (": ", "; "))
    return text[:end] if end > 0 else textwrap.shorten(text, MOST_CHARACTERS, placeholder=" …")


def _forms(f: Finding) -> Iterator[str]:
    """Give the forms of a verdict from the one that says most to the shortest."""
    where = steps_of_time(f, amounts=False)
    yield verdict_text(f)
    whole = verdict_text(f, steps=False)
    short = _SHORT.get("on_file" if f.first("on_file") is not None else f.row["kind"])
    said = of_recording(f, short(f)) if short is not None else ""
    said = f"in {f.row['name']} steps, {said}" if said and f.row["name"] else said
    texts = [text for text in (whole, said, said.partition("; ")[0]) if text]
    yield from (f"{text}{where}" for text in texts)  # a mean is not said without the steps that it is of
    yield from texts


def _loses(one: str, many: str, what: str) -> Callable[[Finding], str]:
    """Word that ranks lose a share of the step; the verb is as certain as the bounds are."""
    return lambda f: f"{ranks(f.row)} {verb(f.row, one, many)} {_part_of_step(f)} {what}"


def _part_of_step(f: Finding) -> str:
    return f"{share(f.row)} of a step"


def _waits(whom: str) -> Callable[[Finding], str]:
    return _loses("waits", "wait", whom)


def _late(f: Finding) -> str:
    rank = f.row["cause_rank"]
    return _waits(f"mostly for rank {rank}" if rank >= 0 else "for other ranks")(f)


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
        if sum(e["part_ratio"] for e in f.all("compiles")) >= 0.5:
            return f"{spend} {upto}{part} of a step in torch.compile"
        collects = f.first("python_collects")
        if collects is not None and collects["part_ratio"] >= 0.5 and not f.row["call"]:
            return f"{spend} {upto}{part} of a step in code of the loop, mostly in garbage collection"
        return f"{spend} {upto}{part} of a step outside forward, backward and optimizer"
    if f.row["cause_kind"] not in ("sync", "launch"):
        return ""
    devices = f"the device{plural(f.row['items_count'])} of {ranks(f.row)}"
    if f.row["cause_kind"] == "launch" and f.row["call"]:
        hosts = "their hosts are" if f.row["items_count"] > 1 else "its host is"
        name = shortened(f.row["call"], _NAME_WIDTH)
        return f"{devices} {verb(f.row, 'waits', 'wait')} {_part_of_step(f)}: {hosts} in {name}"
    return f"{devices} {verb(f.row, 'stands', 'stand')} idle for {_part_of_step(f)} because of the host"


def _other(f: Finding) -> str:
    if f.row["cause_kind"] == "unknown":
        return _loses("is blocked", "are blocked", "with no known cause")(f)
    words = BLOCKED_WORDS.get(f.row["cause_kind"], "")
    return _loses("is blocked", "are blocked", words)(f) if words and f.row["cause_kind"] != "asleep" else ""


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
    "on_file": lambda f: file_short(f, _part_of_step(f)),
    "contention": _loses("waits", "wait", "for a CPU"),
}
