"""Tables as short text, for the right-hand side of tests: table text out."""

from __future__ import annotations

from builders import MS

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.schema.trace import Trace


def number(value_ns: int, unit_ns: int) -> str:
    whole, rest = divmod(value_ns, unit_ns)
    return str(whole) if rest == 0 else f"{value_ns / unit_ns:.4g}"


def stall_text(trace: Trace, *, unit_ns: int = MS, outside: bool = False) -> str:
    """One line per rank and step: `rank step: kind amount [low..high] <cause, ...`, without kinds that cannot be."""
    lines: dict[tuple[int, int], list[str]] = {}
    for row in stalls(trace, warmup=True).rows():
        if row["step"] == -1 and not outside:
            continue
        cells = lines.setdefault((row["rank"], row["step"]), [])
        if row["high_ns"] == 0:
            continue
        cell = f"{row['kind']} {number(row['stall_ns'], unit_ns)}"
        if row["low_ns"] != row["high_ns"]:
            cell += f" [{number(row['low_ns'], unit_ns)}..{number(row['high_ns'], unit_ns)}]"
        if row["cause_rank"] >= 0:
            cell += f" <{row['cause_rank']}"
        cells.append(cell)
    return "\n".join(f"{rank} {step}: {', '.join(cells)}" for (rank, step), cells in lines.items())


def step_text(trace: Trace, *, unit_ns: int = MS) -> str:
    """One line per step: `rank step: begin-end kind xN`, N sub-steps; `w` warm-up, `?` collectives disagree."""
    out = []
    for row in steps(trace).rows():
        marks = "w" * row["warmup"] + "?" * (row["matched_code"] == 0)
        extra = f" x{row['sub_steps_count']}" if row["sub_steps_count"] > 1 else ""
        times = f"{number(row['begin_ns'], unit_ns)}-{number(row['end_ns'], unit_ns)}"
        out.append(f"{row['rank']} {row['step']}: {times} {row['kind']}{extra}{' ' + marks if marks else ''}")
    return "\n".join(out)


def expected(text: str) -> str:
    """Strip the indentation of a triple-quoted text."""
    return "\n".join(line.strip() for line in text.strip().splitlines())
