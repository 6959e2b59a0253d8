"""Text of ``stashtrace stage``: what was copied, the expected gain and the measured one."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stashtrace.text import count_noun, list_some
from stashtrace.units import bytes_text, duration_text


def staging_lines(answer: Mapping[str, Any]) -> list[str]:
    """Lines of text about what was staged and what it brought."""
    count, all_count = answer["files_count"], answer["files_in_all_count"]
    already = count - answer["copied_count"]
    lines = [
        "",
        f"  staged       {count:,} of {all_count:,} files, {bytes_text(answer['bytes'])}"
        + (f" ({already:,} were there)" if already else ""),
        _expected_gain(answer),
    ]
    if answer["left_out"]:
        lines.append(f"  ! not copied: {list_some(['{path} ({why})'.format_map(one) for one in answer['left_out']])}")
    if answer["same_disk"]:
        lines.append("  ! the copies lie on the same disk as the files")
    check = answer["check"]
    if check is not None:
        lines += _measured_gain(check)
    return [*lines, f"  use it       stashtrace run --staged {answer['list']} -- COMMAND"]


def _expected_gain(answer: Mapping[str, Any]) -> str:
    per_step, tier = answer["predicted_step_gain_ns"], answer["method"].partition(", ")[2]
    whole = duration_text(answer["predicted_gain_ns"])
    gain = whole if per_step is None else f"{duration_text(per_step)} a step and rank"
    return f"  expected     at most {gain} less inside I/O calls, all threads added ({_TIERS.get(tier, tier)})"


_TIERS = {"no cost": "on a tier that takes no time", "calibration": "tier as calibrated", "stated": "tier as stated"}


def _measured_gain(check: Mapping[str, Any]) -> list[str]:
    notes = [f"  ! {note}" for note in check["notes"]]
    if check["why"]:
        return ["  measured     nothing", *notes]
    before, after = duration_text(round(check["plain_ns"])), duration_text(round(check["staged_ns"]))
    pairs, low, high = check["pairs_count"], check["low_ns"], check["high_ns"]
    between = "" if low is None else f", between {duration_text(low)} and {duration_text(high)}"
    lines = [
        f"  measured     {before} a step before, {after} with the copies: {duration_text(round(abs(check['gain_ns'])))}"
        f" {'more' if check['gain_ns'] < 0 else 'less'}"
        f" ({count_noun(pairs, 'pair')}{between})"
    ]
    if low is None:
        lines.append("               one pair says nothing of the spread: --repeat 3 or more gives an interval")
    elif low <= 0 <= high:
        lines.append("               that may be nothing: the interval holds zero")
    opens = check["staged_opens_counts"]
    served = " to ".join(f"{count:,}" for count in sorted({min(opens), max(opens)}))
    return [*lines, f"  served       {served} opens of each run by copies", *notes]
