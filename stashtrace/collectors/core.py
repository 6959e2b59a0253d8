"""Decodes what a recorder reports about itself: threads, losses, facts.

``clock_sync`` and ``clock_ping`` rows are read by ``loading.clocks`` before any decoder runs, ``string_part`` rows by
the reader.
"""

from __future__ import annotations

import numpy as np

from stashtrace import _native
from stashtrace.collectors.decode_context import DecodeContext
from stashtrace.schema.trace import EventTables, LossRow, RawProcess, losses_columns

RECORDS = ("string_part", "clock_sync", "clock_ping", "thread_info", "loss", "metadata")
TABLES = ("losses", "metadata", "tracks")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Name the tracks; fill ``losses`` and ``metadata``."""
    threads = raw.rows("thread_info")
    if threads is not None:
        rows = np.sort(threads, order="ticks", kind="stable")
        for tid, name_id, role in zip(
            rows["tid"].tolist(), rows["name_id"].tolist(), rows["role_code"].tolist(), strict=True
        ):
            context.registry.describe_thread(context.process_id, tid, name=context.text(name_id), role=role)
    return context.tables(
        losses=losses_columns(context.process_id, _losses(raw, context), context.strings),
        metadata=_metadata(raw, context),
    )


def _losses(raw: RawProcess, context: DecodeContext) -> list[LossRow]:
    """Losses, one for each reason: the recorder reports a growing count piece by piece, and these are added."""
    rows = raw.rows("loss")
    if rows is None:
        return []
    names = {c["code"]: c["name"] for c in _native.schema()["collectors"]}
    total: dict[tuple[str, str, int, str], int] = {}
    for row in rows.tolist():
        _ticks, count, reason_id, detail_id, collector, severity, _reserved = row
        name = names.get(collector, f"collector_{collector}")
        key = (name, context.text(reason_id) or "unnamed", severity, context.text(detail_id))
        total[key] = total.get(key, 0) + count
    return [(c, r, s, n, a) for (c, r, s, a), n in total.items()]


def _metadata(raw: RawProcess, context: DecodeContext) -> dict[str, object]:
    facts = {k: v if isinstance(v, str) else _plain(v) for k, v in raw.metadata.items() if k not in ("env", "losses")}
    env = raw.metadata.get("env")
    if isinstance(env, dict):
        facts.update({f"env.{k}": str(v) for k, v in env.items()})
    rows = raw.rows("metadata")
    if rows is not None:
        for row in np.sort(rows, order="ticks", kind="stable"):
            facts[context.text(row["key_id"])] = context.text(row["value_id"])
    return {
        "process_id": np.full(len(facts), context.process_id, dtype=np.int64),
        "key_code": context.strings.codes(facts),
        "value_code": context.strings.codes(facts.values()),
    }


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
