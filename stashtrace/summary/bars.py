"""The budget of each rank as a row of bars, one for each column; of many ranks the similar ones share a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.summary.style import Style
from stashtrace.text.units import duration_text, percent_text, ranks_text

#: More ranks than this become one row of the median and a row for each rank that differs from it.
_ROWS_AT_MOST = 8
_OUTLIERS_AT_MOST = 6
#: Smaller shares are printed with a decimal.
_SMALL_RATIO = 0.00995
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Budget:
    """A rank's row of bars."""

    rank: int
    step_kind: str
    step_ns: float
    shares: dict[str, float]

    def share(self, column: str) -> float:
        """Return the share of the step that a column is."""
        return self.shares.get(column, 0.0)


def budget_lines(ranks: Sequence[Budget], style: Style, sources: Collection[str]) -> list[str]:
    """Return the table with a row of bars for each rank; rows of validation and inference follow those of training."""
    kinds = list(dict.fromkeys(rank.step_kind for rank in ranks))
    rows = [row for kind in kinds for row in _rows([rank for rank in ranks if rank.step_kind == kind])]
    shares = [{g: np.median([r.share(g) for r in members]) for g in COLUMNS} for _, members in rows]
    shown = [g for g in COLUMNS if g in _always(ranks, sources) or any(s[g] >= 0.005 for s in shares)]
    label_width = max(4, *(len(label) for label, _ in rows)) + 2
    times = [duration_text(float(np.median([r.step_ns for r in members]))) for _, members in rows]
    time_width = max(len("step"), *(len(t) for t in times))
    cells = 20
    while cells > 4:
        widths = {g: max(len(g), 5 + max(len(style.bar(s[g], cells)) for s in shares)) + 2 for g in shown}
        if len(_INDENT) + label_width + time_width + 2 + sum(widths.values()) <= style.width:
            break
        cells -= 1
    lines = [
        (
            _INDENT
            + "rank".ljust(label_width)
            + "step".rjust(time_width)
            + "  "
            + "".join(_title(g, widths[g]) for g in shown)
        ).rstrip()
    ]
    for (label, _), time, share in zip(rows, times, shares, strict=True):
        line = _INDENT + label.ljust(label_width) + time.rjust(time_width) + "  "
        percents = _percents([float(share[g]) for g in shown])
        for group, percent in zip(shown, percents, strict=True):
            bar = style.bar(share[group], cells)
            pad = " " * (widths[group] - 6 - len(bar))
            line += f"{percent:>5} " + style.paint(bar, group) + pad
        lines.append(line.rstrip())
    return lines


def _title(group: str, width: int) -> str:
    # The title begins above the digits of the percents, so that short columns are readable.
    return (" " + group).ljust(width) if width > len(group) else group.ljust(width)


def _small_percent(text: str) -> str:
    """Return a percentage below 1 % in five characters, as ``0.4%``; whole numbers keep their space."""
    return text.replace(" ", "") if len(text) > len("1 %") else text


def _percents(ratios: Sequence[float]) -> list[str]:
    """Return whole percents that add up to 100; below 1 % with a decimal.

    The first one (compute) takes the rest of the rounding, so that stalls have the same figures as in the findings.
    """
    large = [r >= _SMALL_RATIO for r in ratios]
    whole = [round(100 * r) for r in ratios]
    if large[0]:
        whole[0] = round(100 * sum(r for r, is_large in zip(ratios, large, strict=True) if is_large)) - sum(
            number for number, is_large in zip(whole[1:], large[1:], strict=True) if is_large
        )
    return [
        f"{number} %" if is_large else _small_percent(percent_text(ratio))
        for ratio, number, is_large in zip(ratios, whole, large, strict=True)
    ]


def _always(ranks: Sequence[Budget], sources: Collection[str]) -> list[str]:
    """Return the columns that are shown even if they are 0, because they were measured."""
    shown = ["compute", "other"] + (["data"] if "data" in sources else [])
    several = len({r.rank for r in ranks}) > 1
    return shown + (["link", "late"] if several and any(name.startswith("link") for name in sources) else [])


def _rows(ranks: Sequence[Budget]) -> list[tuple[str, list[Budget]]]:
    """Return label and ranks of each row: one rank, or of many the similar ones together and those that differ."""
    kind = f" {ranks[0].step_kind}" if ranks[0].step_kind else ""
    if len(ranks) <= _ROWS_AT_MOST:
        return [(f"{r.rank}{kind}", [r]) for r in ranks]
    shares = np.array([[r.share(g) for g in COLUMNS] for r in ranks])
    distance = np.abs(shares - np.median(shares, axis=0)).max(axis=1)
    typical = float(np.median(distance))
    far = np.flatnonzero(distance > max(0.05, 4 * typical))
    apart = sorted(far[np.argsort(-distance[far], kind="stable")][:_OUTLIERS_AT_MOST].tolist())
    similar = [r for i, r in enumerate(ranks) if i not in apart]
    label = ranks_text([r.rank for r in similar])
    if len(label) > 12:
        label = f"{len(similar)} ranks" if not apart else f"{len(similar)} others"
    return [(f"{label}{kind}", similar), *((f"{ranks[i].rank}{kind}", [ranks[i]]) for i in apart)]
