"""What ``stashtrace info`` says of files that other tools wrote, and where ``stashtrace view`` puts their time line."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.errors import MissingDataError
from stashtrace.units import bytes_text, duration_text, ranks_text
from stashtrace.visible import visible_line

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace

#: Metadata of the load as a whole that the lines say in other words.
_SAID = ("origin_monotonic_ns", "origin_realtime_ns", "imported", "numbered_steps")
_FACTS_AT_MOST = 12
_ALIKE_AT_MOST = 3


def describe_files(path: str) -> dict[str, Any]:
    """Facts about files of other tools, JSON-ready.

    ``importers`` says how many files of which format were read, ``records`` counts rows by table, ``facts`` is what the
    files say of themselves, once where all processes say the same.
    """
    import warnings

    from stashtrace.analysis.findings.losses import losses_of
    from stashtrace.analysis.registry import analyze
    from stashtrace.cli.loading import load_watched
    from stashtrace.errors import DataLossWarning
    from stashtrace.schema.events import TABLES
    from stashtrace.store.layout import is_store

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)  # the losses are part of the answer
        trace = load_watched(path)
    try:
        steps = analyze(trace, "steps")
        numbers = sorted({int(s) for s in steps["step"] if s >= 0})
    except MissingDataError:
        numbers = []
    said = _said(trace)
    ranks = [int(r) for r in trace.ranks]
    world = max((int(w) for w in trace.processes["world_size"]), default=-1)
    begin = said.get("origin_realtime_ns", "")
    hidden = ("processes", "tracks", "losses", "alignment", "metadata", "numbered_steps", "matched_collectives")
    return {
        "path": path,
        "importers": "store of " * is_store(path) + said.get("imported", "a run" if is_store(path) else ""),
        "size_bytes": _size_bytes(path),
        "begin_realtime_ns": int(begin) if begin.isdecimal() and len(begin) < 20 else None,
        "duration_ns": int(trace.processes["end_ns"].max()) if len(trace.processes) else 0,
        "hosts": sorted({trace.text(c) for c in trace.processes["host_code"]} - {""}),
        "processes": len(trace.processes),
        "ranks": ranks,
        "missing_ranks": [r for r in range(max(world, 0)) if r not in ranks],
        "steps": numbers,
        "devices": _devices(trace),
        "facts": {key: value for key, value in said.items() if key not in _SAID},
        "records": {name: len(trace.table(name)) for name in TABLES if name not in hidden and len(trace.table(name))},
        "losses": losses_of(trace),
    }


def lines(facts: dict[str, Any]) -> str:
    """The facts as text."""
    begin = facts["begin_realtime_ns"]
    missing = f", missing {ranks_text(facts['missing_ranks'])}" if facts["missing_ranks"] else ""
    told = [
        ("files", f"{facts['importers']}  {facts['path']}, {bytes_text(facts['size_bytes'])}"),
        ("begun", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin / 1e9)) if begin else "not known"),
        ("recorded", duration_text(facts["duration_ns"])),
        ("hosts", ", ".join(facts["hosts"]) or "not in the files"),
        ("processes", str(facts["processes"])),
        ("ranks", (ranks_text(facts["ranks"]) or "none") + missing),
        ("steps", f"{len(facts['steps'])}{_span(facts['steps'])}"),
    ]
    out = [f"{name:<12}{text}" for name, text in told]
    if facts["devices"]:
        width = max(map(len, facts["devices"].values())) + 2
        out += ["devices"] + [f"  {ranks:<{width}}{name}" for name, ranks in facts["devices"].items()]
    if facts["facts"]:
        listed = list(facts["facts"].items())
        out += ["said"] + [f"  {key:<22} {value}" for key, value in listed[:_FACTS_AT_MOST]]
    out += ["records"] + [f"  {name:<22} {count:>11,}" for name, count in facts["records"].items()]
    out += ["losses" + ("" if facts["losses"] else "      none")]
    return "\n".join(map(visible_line, [*out, *_losses(facts["losses"])])) + "\n"


def _losses(losses: list[dict[str, Any]]) -> list[str]:
    """Lines of losses; of many files that lack the same, the first ones."""
    totals: dict[tuple[str, str, str], dict[str, int]] = {}
    for row in losses:
        counts = totals.setdefault((row["collector"], row["reason"], row["severity"]), {})
        counts[row["advice"]] = counts.get(row["advice"], 0) + row["lost_count"]
    out = []
    for (tool, reason, severity), counts in totals.items():
        told = list(counts.items())
        out += [f"  {n:,} {tool}/{reason} ({severity}): {advice}" for advice, n in told[:_ALIKE_AT_MOST]]
        rest = told[_ALIKE_AT_MOST:]
        if rest:
            total = sum(n for _, n in rest)
            out.append(f"  {total:,} {tool}/{reason} ({severity}) in {len(rest):,} more lines, see --format json")
    return out


def timeline_beside(path: Path) -> Path:
    """Where the time line of foreign files goes: beside the file or folder, else into the temporary folder."""
    import tempfile

    place = path.resolve()
    folder = place.parent if os.access(place.parent, os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"{place.name}.stashtrace.pftrace.gz"


def _span(numbers: list[int]) -> str:
    if not numbers or numbers[-1] == len(numbers) - 1:
        return ""
    return f" ({numbers[0]} to {numbers[-1]})" if len(numbers) > 1 else f" (number {numbers[0]})"


def _said(trace: Trace) -> dict[str, str]:
    """What was said of the load; of processes what all say alike, else of each."""
    values: dict[str, dict[str, list[int]]] = {}
    for row in trace.metadata.rows():
        key, value = trace.text(row["key_code"]), trace.text(row["value_code"])
        values.setdefault(key, {}).setdefault(value, []).append(row["process_id"])
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    told: dict[str, list[str]] = {}
    for key, by_value in values.items():
        for value, processes in by_value.items():
            whose = _whose([rank_of.get(p, -1) for p in processes if p >= 0]) if len(by_value) > 1 else ""
            told.setdefault(f"{key} of {whose}" if whose else key, []).append(value)
    return {key: "; ".join(listed) for key, listed in told.items()}


def _whose(ranks: list[int]) -> str:
    """Ranks, and how many processes serve none."""
    parts = [ranks_text(known)] if (known := sorted({r for r in ranks if r >= 0})) else []
    if others := ranks.count(-1):
        parts.append(f"{others} process{'es' if others > 1 else ''} without a rank")
    return " and ".join(parts)


def _devices(trace: Trace) -> dict[str, str]:
    """Product -> which ranks use which of them."""
    found: dict[str, list[int]] = {}
    for row in trace.devices.rows():
        found.setdefault(trace.text(row["name_code"]) or "GPU", []).append(row["rank"])
    return {name: f"rank{'s' if len(set(r)) > 1 else ''} {ranks_text(sorted(set(r)))}" for name, r in found.items()}


def _size_bytes(path: str) -> int:
    found = Path(path)
    files = [found] if found.is_file() else [p for p in found.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)
