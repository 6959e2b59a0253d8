"""What tests ask of a trace that was made of other tools' files."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import stashtrace
from stashtrace.schema.trace import Trace


def load(*paths: Path) -> Trace:
    """Load files, or one path, without the warnings of what they lack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stashtrace.load(list(paths) if len(paths) > 1 else paths[0])


def losses(trace: Trace) -> Counter[str]:
    """Count what was lost, by reason."""
    found = Counter[str]()
    for row in trace.losses.rows():
        found[trace.text(row["name_code"])] += row["lost_count"]
    return found


def advice(trace: Trace, reason: str) -> list[str]:
    """Return what the losses of a reason say."""
    return [trace.text(r["advice_code"]) for r in trace.losses.rows() if trace.text(r["name_code"]) == reason]


def said(trace: Trace, key: str) -> list[str]:
    """Return the values of a key of the metadata."""
    return [trace.text(r["value_code"]) for r in trace.metadata.rows() if trace.text(r["key_code"]) == key]
