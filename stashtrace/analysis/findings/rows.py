"""Claims and their evidence as they are made, and the tables that they become.

A claim says nothing that is not in its fields, so a test can hold each field against the truth, and a sentence can be
made of nothing else.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from stashtrace.model.schemas import FINDING_EVIDENCE, FINDINGS
from stashtrace.model.table import Table

#: Sections in the order in which a summary has them.
SECTIONS = ("headline", "verdict", "files", "machine", "beside", "trust", "loss")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One row of ``finding_evidence`` without its position; -1 and empty where there is nothing to say."""

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
    """One row of ``findings`` without its position, and what it rests on."""

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
    """Tables ``findings`` and ``finding_evidence``; claims of one section keep their order."""
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
