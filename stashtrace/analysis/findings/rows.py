"""Claims and their evidence, and the tables made of them.

Everything that a claim states is in its fields, so a test can compare each field with the truth, and sentences are made
of the fields alone.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from stashtrace.schema.columns import RANK, Column, schema
from stashtrace.schema.table import Table

FINDINGS = schema(
    "findings",
    "What a summary claims, one row per claim; what it rests on stands in finding_evidence",
    Column("finding_id", "i8", "", "row number; finding_evidence.finding_id", role="key"),
    ("order", "i8", "", "reading order, 0 first"),
    ("section", "U12", "", "headline, verdict, time, files, machine, beside, trust or loss"),
    ("kind", "U24", "", "what is claimed: a column of the budget, compute_bound, steps, loss, ..."),
    ("name", "U16", "", "what it is about where the kind alone does not say: a host, a kind of step, a reason"),
    ("ranks", "U16", "", "ranks that it holds for, as 0-3,7; empty if for the run"),
    Column(
        "rank",
        "i8",
        "",
        "the rank whose figures these are, the one hit hardest; -1 for the run",
        role="rank",
        missing=-1,
    ),
    Column(
        "items_count", "i8", "", "how many: steps, ranks, lost records; -1 where there is nothing to count", missing=-1
    ),
    Column("share_ratio", "f8", "", "of the step time of that rank; -1 if it is not a share", missing=-1),
    ("least_ratio", "f8", "", "the same of the rank in ranks that is hit least"),
    Column("stall_ns", "i8", "ns", "mean per step of that rank; -1 if it is not a time", missing=-1),
    Column("low_ns", "i8", "ns", "not less than this; -1 if it is not a time", missing=-1),
    Column("high_ns", "i8", "ns", "not more than this; -1 if it is not a time", missing=-1),
    Column(
        "least_ns", "i8", "ns", "stall_ns of the rank in ranks that is hit least; -1 if it is not a time", missing=-1
    ),
    ("cause_kind", "U24", "", "what causes most of it, as far as rows of finding_evidence show it; empty if unknown"),
    Column(
        "cause_rank",
        "i8",
        "",
        "the rank that causes most of it, -1 if none does or it is unknown",
        role="rank",
        missing=-1,
    ),
    Column("worker_id", "i8", "", "DataLoader worker of the cause, -1 if unknown", role="id", missing=-1),
    ("file", "U16", "", "file of the cause, empty if unknown"),
    ("call", "U16", "", "kernel, call, collective or phase of the cause, empty if unknown"),
    ("advice_code", "U32", "", "what would help; its inputs are the rows of finding_evidence from that code on"),
    ("confidence", "U12", "", "exact, at_least, up_to or between, by the bounds; empty if it is not a time"),
    ("method", "U16", "", "kernels, brackets, host or mixed, as in stalls; empty if it comes from elsewhere", 7),
)
FINDING_EVIDENCE = schema(
    "finding_evidence",
    "What the claims of findings rest on; a code says what the numbers are",
    Column("finding_id", "i8", "", "", of="findings.finding_id"),
    ("order", "i8", "", "position within the finding, 0 first"),
    ("code", "U32", "", "what is said; docs/reference/findings.md lists them"),
    ("source_table", "U24", "", "table or analysis that the numbers come from"),
    Column("source_index", "i8", "", "row of it; -1 for a sum of several", missing=-1),
    Column("rank", "i8", "", "rank that it is about, -1 if none", role="rank", missing=-1),
    Column("worker_id", "i8", "", "DataLoader worker, -1 if none", role="id", missing=-1),
    Column("amount_ns", "i8", "ns", "a time; -1 if there is none", missing=-1),
    Column("low_ns", "i8", "ns", "not less than this; -1 if there is no time", missing=-1),
    Column("high_ns", "i8", "ns", "not more than this; -1 if there is no time", missing=-1),
    Column("items_count", "i8", "", "how many; -1 if nothing is counted", missing=-1),
    Column("of_count", "i8", "", "of how many; -1 if of none", missing=-1),
    Column("part_ratio", "f8", "", "a share or a number per step; -1 if there is none", missing=-1),
    Column("moved_bytes", "i8", "bytes", "payload; -1 if there is none", missing=-1),
    Column("rate_bytes_per_s", "f8", "", "bandwidth; -1 if there is none", missing=-1),
    ("kind", "U24", "", "kind of time or work; empty if none"),
    ("name", "U16", "", "file, call, stream, operation or text; empty if none"),
)
BUDGETS = schema(
    "budgets",
    "The bars of a summary: time of the counted steps of a rank by column; the columns of a rank sum to its step",
    RANK,
    ("host", "U16", "", "where it ran"),
    ("step_kind", "U16", "", "validation or inference beside the steps that train; empty for these, or the only ones"),
    ("steps_count", "i8", "", "counted steps"),
    ("step_ns", "i8", "ns", "mean length of a step"),
    ("median_step_ns", "i8", "ns", "median length of a step"),
    ("column", "U12", "", "compute, data, link, late, copy, save, host or other"),
    ("stall_ns", "i8", "ns", "sum over the counted steps"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this"),
    ("share_ratio", "f8", "", "of the counted steps"),
)


#: Sections in the order in which a summary has them.
SECTIONS = ("headline", "verdict", "time", "files", "machine", "beside", "trust", "loss")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of ``finding_evidence`` without its position; -1 and empty where a field does not apply."""

    code: str
    source_table: str = ""
    source_index: int = -1
    rank: int = -1
    worker_id: int = -1
    amount_ns: float = -1
    low_ns: float = -1
    high_ns: float = -1
    items_count: int = -1
    of_count: int = -1
    part_ratio: float = -1.0
    moved_bytes: float = -1
    rate_bytes_per_s: float = -1.0
    kind: str = ""
    name: str = ""


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
    worker_id: int = -1
    file: str = ""
    call: str = ""
    advice_code: str = ""
    confidence: str = ""
    method: str = ""
    evidence: tuple[Evidence, ...] = ()


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
    return [round(getattr(row, name)) if name in _WHOLE else getattr(row, name) for name in names]
