"""Shifts, drifts and periods of the step: which steps change, and by how much. Whose time it is, ``causes`` says.

``shift``, ``drift`` and ``period`` are rows of the table ``over_time``: ``stall_ns`` is the length of a changed step
(of a drift: at its end), ``share_ratio`` how much longer that is, ``items_count`` the number of changed steps, or of a
period the steps from one to the next. ``changed_steps`` has the first and the last of them and the usual length. Where
there are other changes, not all steps outside of this one are as usual.
"""

from __future__ import annotations

from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.schema.table import Table
from stashtrace.text.prose import ordinal
from stashtrace.text.units import duration_text, filled

Row = dict[str, Any]

#: Onset of a shift that is not sudden, and whether its steps grow -> what its steps do.
_GROWS = {
    ("gradual", True): "each step takes longer than the one before, in the median {stall_ns:time}",
    ("gradual", False): "each step takes less than the one before, in the median {stall_ns:time}",
    ("either", True): "growing or at once, a step takes {stall_ns:time}",
    ("either", False): "shrinking or at once, a step takes {stall_ns:time}",
}


def change_claims(changes: Table) -> list[Claim]:
    """Return a claim for each change, the one that costs most first."""
    claims = []
    for number, row in enumerate(changes.take(slice(POLICY.named_count)).rows()):
        says = {"shift": _shift, "drift": _drift, "period": _period}[row["kind"]]
        facts = Facts(first_step=row["first_step_index"], last_step=row["last_step_index"], usual_ns=row["usual_ns"])
        rows = [fact("changed_steps", "", "over_time", number, **facts)]
        facts = Facts(items_count=row["every_count"] if row["kind"] == "period" else row["changed_count"])
        facts |= Facts(share_ratio=row["delta_ns"] / max(row["usual_ns"], 1), stall_ns=row["changed_ns"])
        absent = filled(": {ranks:ranks} {ranks:makes|make} no step then", {"ranks": row["absent_ranks"]})
        facts |= Facts(phrases={"absent": absent if row["absent_ranks"] else ""})
        claims.append(says(row, len(changes) > 1, rows, facts))
    return claims


def _shift(row: Row, several: bool, rows: list[Evidence], facts: Facts) -> Claim:
    first, last, usual = row["first_step_index"], row["last_step_index"], duration_text(row["usual_ns"])
    when, other = {
        "end": (f"from step {first} on", "before"),
        "begin": (f"up to step {last}", "afterwards"),
        "middle": (f"in steps {first} to {last}", "in the others"),
    }[row["place"]]
    # Of several changes, the steps before or behind one of them are not all as usual.
    instead = f" instead of the usual {usual}" if several else f", {other} {usual}"
    said = f"{when} a step takes {{stall_ns:time}}{instead}"
    if row["onset"] != "sudden":
        said = f"from about step {first} on, {_GROWS[row['onset'], row['delta_ns'] >= 0]}, before {usual}"
    return claim("time", "shift", f"{said}{{absent}}", rows, **facts)


def _drift(row: Row, several: bool, rows: list[Evidence], facts: Facts) -> Claim:
    each, usual = duration_text(abs(row["step_delta_ns"])), duration_text(row["usual_ns"])
    grow = "longer" if row["delta_ns"] >= 0 else "shorter"
    said = f"steps get {each} {grow} each, from {usual} to {{stall_ns:time}} over {{items_count:step}}{{absent}}"
    return claim("time", "drift", said, rows, **facts)


def _period(row: Row, several: bool, rows: list[Evidence], facts: Facts) -> Claim:
    which = every_nth(row["first_step_index"], row["every_count"], row["together_count"])
    usual = f"{' usually' if several else ''} {duration_text(row['usual_ns'])}"
    said = f"{which} takes {{stall_ns:time}}, the others{usual}"
    if row["together_count"] > 1:
        said = f"in {which} a step takes {{stall_ns:time}}, in the others{usual}"
    return claim("time", "period", f"{said}{{absent}}", rows, **facts)


def every_nth(first: int, every: int, together: int = 1) -> str:
    """Name the steps of a period: ``every 20th step (19, 39, ...)``; of several in a row how many are given."""
    if together > 1:
        row = [str(first + at) for at in range(together)]
        again = [str(first + every + at) for at in range(together)]
        return f"{together} of every {every} steps ({', '.join([*row, *again])}, ...)"
    if every == 2:
        return f"every other step ({first}, {first + 2}, ...)"
    return f"every {ordinal(every)} step ({first}, {first + every}, ...)"
