"""Writes the phases of one rank as a stopwatch file."""

from __future__ import annotations

from pathlib import Path

from stashtrace.plugins import Exported, Phase, Trace, UsageError


def export_stopwatch(trace: Trace, path: Path, *, ranks: list[int] | None = None) -> Exported:
    """Write the phases of the first of ``ranks``, of rank 0 if there are none."""
    rank = ranks[0] if ranks else 0
    if rank not in trace.ranks:
        raise UsageError(f"no such rank: {rank}")
    own = trace.processes["process_id"][trace.processes["rank"] == rank]
    phases = trace.phases[trace.phases["process_id"] == own[0]]
    lines = [f"# stopwatch {rank}"]
    lines += [f"{Phase(r['phase_code']).name.lower()},{r['begin_ns']},{r['end_ns']}" for r in phases.rows()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Exported(path, path.stat().st_size, len(phases))
