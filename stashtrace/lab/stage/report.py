"""The words of ``stashtrace stage``: what was copied, what was to be expected of it, and what it brought."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stashtrace.units import bytes_text, duration_text


def staging_lines(found: Mapping[str, Any]) -> list[str]:
    """Everything, for a terminal."""
    count, all_count = found["files_count"], found["files_in_all_count"]
    already = count - found["copied_count"]
    lines = [
        "",
        f"  staged       {count:,} of {all_count:,} files, {bytes_text(found['bytes'])}"
        + (f" ({already:,} were there)" if already else ""),
        _expected(found),
        *_left_out(found["left_out"]),
    ]
    if found["same_disk"]:
        lines.append("  ! the copies lie on the same disk as the files")
    check = found["check"]
    if check is not None:
        lines += _measured(check)
    return [*lines, f"  use it       stashtrace run --staged {found['list']} -- COMMAND"]


def _expected(found: Mapping[str, Any]) -> str:
    per_step, tier = found["predicted_step_gain_ns"], found["method"].partition(", ")[2]
    if per_step is None:
        gain = f"at most {duration_text(found['predicted_gain_ns'])} less inside I/O calls, all threads added"
    else:
        gain = f"at most {duration_text(per_step)} a step and rank less inside I/O calls, all threads added"
    return f"  expected     {gain} ({_TIERS.get(tier, tier)})"


_TIERS = {"no cost": "on a tier that takes no time", "calibration": "tier as calibrated", "stated": "tier as stated"}


def _left_out(left: list[Mapping[str, str]]) -> list[str]:
    if not left:
        return []
    more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
    return [f"  ! not copied: {left[0]['path']} ({left[0]['why']}){more}"]


def _measured(check: Mapping[str, Any]) -> list[str]:
    notes = [f"  ! {note}" for note in check["notes"]]
    if check["why"]:
        return ["  measured     nothing", *notes]
    before, after = duration_text(round(check["plain_ns"])), duration_text(round(check["staged_ns"]))
    pairs, low, high = check["pairs_count"], check["low_ns"], check["high_ns"]
    between = "" if low is None else f", between {_signed(low)} and {_signed(high)}"
    lines = [
        f"  measured     {before} a step before, {after} with the copies: {duration_text(round(abs(check['gain_ns'])))}"
        f" {'more' if check['gain_ns'] < 0 else 'less'}"
        f" ({pairs} pair{'s' * (pairs > 1)}{between})"
    ]
    if low is None:
        lines.append("               one pair says nothing of the spread: --repeat 3 or more gives an interval")
    elif low <= 0 <= high:
        lines.append("               that may be nothing: the interval holds zero")
    opens = check["staged_opens_counts"]
    lines.append(
        f"  served       {min(opens):,} opens of each run by copies"
        if min(opens) == max(opens)
        else f"  served       {min(opens):,} to {max(opens):,} opens of each run by copies"
    )
    return lines + notes


def _signed(ns: float) -> str:
    return ("-" if ns < 0 else "") + duration_text(round(abs(ns)))
