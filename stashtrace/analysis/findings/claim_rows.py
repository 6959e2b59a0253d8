"""Claims and their evidence, and the tables made of them.

Everything that a claim states is in its fields and facts, so a test can compare each with the truth. A rule makes its
sentences of named facts where it finds these (``claim``, ``fact``, and ``stall_claims.verdict``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np

from stashtrace.errors import guarded
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, schema
from stashtrace.schema.table import Table
from stashtrace.text.units import filled

_TEXT = col.word("text", "the sentence; empty where another one says it")
_FACTS = col.word("facts", "JSON: named facts, with their units; of a claim those without a column", detail=9)
FINDINGS = schema(
    "findings",
    "What a summary claims, one row per claim; what it rests on stands in finding_evidence",
    col.key("finding_id", "row number; finding_evidence.finding_id"),
    col.number("order", "reading order, 0 first", detail=9),
    col.word("section", "headline, verdict, time, files, machine, beside, trust or loss", width=12),
    col.word("kind", "what is claimed: a column of the budget, compute_bound, steps, loss, ...", width=24),
    col.word("name", "what it is about where the kind alone does not say: a host, a kind of step, a reason", detail=3),
    col.word("ranks", "ranks that it holds for, as 0-3,7; empty if for the run", detail=2),
    col.rank("rank", "the rank whose figures these are, the most affected one; -1 for the run", missing=-1),
    col.number(
        "items_count", "how many: steps, ranks, lost records; -1 where there is nothing to count", missing=-1, detail=4
    ),
    col.real("share_ratio", "of the step time of that rank; -1 if it is not a share", missing=-1, detail=2),
    col.real("least_ratio", "the same of the rank in ranks that is hit least", detail=8),
    col.ns("stall_ns", "mean per step of that rank; -1 if it is not a time", missing=-1, detail=1),
    col.ns("low_ns", "not less than this; -1 if it is not a time", missing=-1, detail=5),
    col.ns("high_ns", "not more than this; -1 if it is not a time", missing=-1, detail=5),
    col.ns("least_ns", "stall_ns of the rank in ranks that is hit least; -1 if it is not a time", missing=-1, detail=8),
    col.word(
        "cause_kind",
        "what causes most of it, as far as rows of finding_evidence show it; empty if unknown",
        width=24,
        detail=4,
    ),
    col.rank("cause_rank", "the rank that causes most of it, -1 if none does or it is unknown", missing=-1, detail=5),
    col.word("file", "file of the cause, empty if unknown", detail=6),
    col.word("call", "kernel, call, collective or phase of the cause, empty if unknown", detail=6),
    col.word(
        "confidence", "exact, at_least, up_to or between, by the bounds; empty if it is not a time", width=12, detail=6
    ),
    col.word("method", "kernels, brackets, host or mixed, as in stalls; empty if it comes from elsewhere", detail=7),
    _TEXT,
    _FACTS,
)
FINDING_EVIDENCE = schema(
    "finding_evidence",
    "What the claims of findings rest on; a code says which facts there are",
    col.refers("finding_id", "findings.finding_id"),
    col.number("order", "position within the finding, 0 first"),
    col.word("code", "what is said; docs/reference/findings.md lists them", width=32),
    col.word("source_table", "table or analysis that the numbers come from", width=24),
    col.number("source_index", "row of it; -1 for a sum of several", missing=-1),
    _TEXT,
    _FACTS,
)
BUDGETS = schema(
    "budgets",
    "The bars of a summary: time of the counted steps of a rank by column; the columns of a rank sum to its step",
    RANK,
    col.word("host", "where it ran"),
    col.word("step_kind", "validation or inference next to the steps that train; empty for these, or the only ones"),
    col.number("steps_count", "counted steps"),
    col.ns("step_ns", "mean length of a step"),
    col.ns("median_step_ns", "median length of a step"),
    col.word("column", "compute, data, link, late, copy, save, host or other", width=12),
    col.ns("stall_ns", "sum over the counted steps"),
    col.ns("low_ns", "not less than this"),
    col.ns("high_ns", "not more than this"),
    col.real("share_ratio", "of the counted steps"),
)


#: Sections in the order in which a summary has them.
SECTIONS = ("headline", "verdict", "time", "files", "machine", "beside", "trust", "loss")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of ``finding_evidence`` without its position; ``row["wait_ns"]`` is its fact of that name."""

    code: str
    source_table: str = ""
    source_index: int = -1
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of ``findings`` without its position, and its evidence."""

    section: str
    kind: str
    name: str = ""
    ranks: str = ""
    rank: int = -1
    items_count: int = -1
    share_ratio: float = -1.0
    least_ratio: float = -1.0
    stall_ns: float = -1
    low_ns: float = -1
    high_ns: float = -1
    least_ns: float = -1
    cause_kind: str = ""
    cause_rank: int = -1
    file: str = ""
    call: str = ""
    confidence: str = ""
    method: str = ""
    text: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()


Facts = dict[str, Any]


def fact(
    code: str,
    template: str,
    source_table: str = "",
    source_index: int = -1,
    *,
    phrases: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Evidence:
    """Return evidence whose sentence is a template filled with named facts; empty where another one says it all.

    Units end the names of facts, as in ``wait_ns``. ``phrases``: what else the template names.
    """
    return Evidence(code, source_table, source_index, filled(template, {**(phrases or {}), **facts}), facts)


def claim(
    section: str,
    kind: str,
    template: str,
    evidence: Iterable[Evidence] = (),
    *,
    parts: Sequence[Evidence] = (),
    phrases: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Claim:
    """Return a claim whose sentence is a template filled with named facts: its own, and those of its evidence.

    ``{parts}`` stands for the sentences of ``parts``; these rows are its first evidence, and are not said again.
    ``phrases``: what the template names that is no fact.
    """
    rows = (*(replace(row, text="") for row in parts), *evidence)
    known = {name: value for row in rows for name, value in row.facts.items()}
    known |= {"kind": kind, "parts": ", ".join(row.text for row in parts if row.text), **(phrases or {})}
    columns, more = by_column(facts)
    return Claim(section, kind, text=filled(template, {**known, **facts}), facts=more, evidence=rows, **columns)


def by_column(facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part facts of a claim into those that have a column and those that have none."""
    return (
        {name: value for name, value in facts.items() if name in _CLAIM_FIELDS},
        {name: value for name, value in facts.items() if name not in _CLAIM_FIELDS},
    )


#: Kind of the claim that something is not said, and code of such evidence; ``name`` is the line that says so.
NOT_SAID = "not_said"


def claims_by(what: str, detect: Callable[..., list[Claim]], *arguments: object) -> list[Claim]:
    """Return the claims that a detector finds; where it fails, the claim that it does."""
    return guarded(what, partial(detect, *arguments), lambda line: [not_said(line)])


def evidence_by(what: str, find: Callable[..., Sequence[Evidence]], *arguments: object) -> list[Evidence]:
    """Return the evidence that a search finds; where it fails, the evidence that it does."""
    return guarded(what, lambda: list(find(*arguments)), lambda line: [unsaid(line)])


def unsaid(line: str) -> Evidence:
    """Return the evidence that something is not said."""
    return Evidence(NOT_SAID, text=line)


def not_said(line: str) -> Claim:
    """Return the claim that something is not said."""
    return Claim("loss", NOT_SAID, name=line, text=line)


_CLAIM_FIELDS = tuple(f.name for f in fields(Claim) if f.name != "evidence")
_EVIDENCE_FIELDS = tuple(f.name for f in fields(Evidence))
_WHOLE = {c.name for schema in (FINDINGS, FINDING_EVIDENCE) for c in schema.columns if c.dtype == "i8"}


def tables_of(claims: Sequence[Claim]) -> tuple[Table, Table]:
    """Make the tables ``findings`` and ``finding_evidence``; claims of one section keep their order."""
    ordered = sorted(claims, key=lambda claim: SECTIONS.index(claim.section))
    rows = [(n, n, *_values(claim, _CLAIM_FIELDS)) for n, claim in enumerate(ordered)]
    details = [
        (n, position, *_values(row, _EVIDENCE_FIELDS))
        for n, claim in enumerate(ordered)
        for position, row in enumerate(claim.evidence)
    ]
    return Table.from_rows(FINDINGS, rows), Table.from_rows(FINDING_EVIDENCE, details)


def _values(row: Claim | Evidence, names: Sequence[str]) -> list[object]:
    return [_cell(name, getattr(row, name)) for name in names]


def _cell(name: str, value: Any) -> object:
    if name == "facts":
        return json.dumps({n: _plain(n, v) for n, v in value.items()}, ensure_ascii=False) if value else ""
    return round(value) if name in _WHOLE else value


def _plain(name: str, value: Any) -> Any:
    """Return a fact as JSON has it: times and bytes are whole numbers."""
    plain = value.item() if isinstance(value, np.generic) else value
    return round(plain) if isinstance(plain, float) and name.endswith(("_ns", "_bytes")) else plain
