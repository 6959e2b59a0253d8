"""Shifts, drifts and periods of the step: which steps change, by how much, and whose time it is.

``shift``, ``drift`` and ``period`` are rows of the table ``over_time``: ``stall_ns`` is the length of a changed step
(of a drift: at its end), ``share_ratio`` how much longer that is, ``items_count`` the number of changed steps, or of a
period the steps from one to the next; ``rank`` and ``cause_kind`` have the time that changes.

``changed_steps`` has the first and the last of them and the usual length, ``changed_time`` by how much a ``kind`` of
time of the ranks changes, ``behind_it`` what the time goes to. Where there are other changes, not all steps outside of
this one are as usual.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.text import count_noun, ordinal
from stashtrace.units import duration_text, is_several, shortened

Row = dict[str, Any]

_TABLE = "over_time"
#: Column or kind of the budget -> verb for one rank and for several, and what follows the time by which it changes.
_VERBS = {
    "compute": (("computes", "compute"), "{longer}"),
    "data": (("waits", "wait"), "{longer} for batches{part}"),
    "link": (("spends", "spend"), "{more} in transfers"),
    "copy": (("waits", "wait"), "{longer} for copies between host and device"),
    "save": (("spends", "spend"), "{more} in checkpoints"),
    "host": (("leaves its device idle", "leave their devices idle"), "{longer}"),
    "python": (("spends", "spend"), "{more} in code of the loop outside forward, backward and optimizer"),
    "reads": (("is blocked", "are blocked"), "{longer} in reads of files"),
    "other": (("is blocked or asleep", "are blocked or asleep"), "{longer}"),
    "together": (("works", "work"), "{longer}, in several kinds of time"),
    **{kind: (("spends", "spend"), f"{{more}} in {kind} steps before it") for kind in QUIET_KINDS},
}
_PARTS = {"fetch": ", which its storage delays", "prep": " in the making", "handoff": " that are handed over"}
_BEHIND = {
    "gc": "garbage collection takes {ns} of it",
    "compile": "{name} takes {ns} of it",
    "checkpoint": "checkpoints take {ns} of it",
    "annotation": "the annotation {name} takes {ns} of it",
    "file": "calls on {name} take {ns} of it",
    "phase": "the {name} takes {ns} of it",
    "worker": "worker {name} makes these batches",
}
_WAITS = {
    "sleep": "a sleep (time.sleep, usleep or the like) takes {ns} of it",
    "gil": "waiting for the GIL takes {ns} of it",
    "cpu": "waiting for a CPU takes {ns} of it",
    "join": "waiting for a thread or a process to end takes {ns} of it",
}
#: What the claim itself says: it is no work of the job.
_FOR_A_CPU = ("wait", "cpu")
#: Onset of a shift that is not sudden, and whether its steps grow -> what its steps do.
_GROWS = {
    ("gradual", True): "each step takes longer than the one before, in the median {stall_ns:time}",
    ("gradual", False): "each step takes less than the one before, in the median {stall_ns:time}",
    ("either", True): "growing or at once, a step takes {stall_ns:time}",
    ("either", False): "shrinking or at once, a step takes {stall_ns:time}",
}
_NOBODY = "no kind of time of one rank explains it"


def change_claims(changes: Table, loading: Collection[int]) -> list[Claim]:
    """Return a claim for each change, the one that costs most first; ``loading`` are the ranks with a loader."""
    rows = enumerate(changes.take(slice(POLICY.named_count)).rows())
    return [_change(number, row, len(changes), loading) for number, row in rows]


def _change(number: int, row: Row, changes_count: int, loading: Collection[int]) -> Claim:
    kind, grows = row["kind"], row["delta_ns"] >= 0
    # Without a loader there are no batches to wait for.
    of_kind = "reads" if row["stall_kind"] == "fetch" and row["rank"] not in loading else row["stall_kind"]
    own = Facts(first_step=row["first_step_index"], last_step=row["last_step_index"], usual_ns=row["usual_ns"])
    rows = [fact("changed_steps", "", _TABLE, number, **own)]
    whole_ns = abs(row["rank_delta_ns"]) if row["rank"] >= 0 else -1
    if row["rank"] >= 0:
        known = Facts(rank=row["rank"], longer_ns=whole_ns, kind=of_kind, ranks=row["ranks"])
        rows.append(changed_time(_TABLE, number, **known))
    if row["cause_kind"]:
        rows.append(_behind(number, row, whole_ns))
    whose = f"; {_NOBODY}"
    if row["cause_kind"] == "absent":
        whose = f": {_who(row['cause_name'], ('makes', 'make'))} no step then"
    elif row["rank"] >= 0:
        until = " at the end than at the beginning" if kind == "drift" else ""
        whose = f": {time_that_changes(of_kind, row['ranks'], whole_ns, grows)}{until}"
        if (row["cause_kind"], row["cause_name"]) == _FOR_A_CPU:
            whose += f", {_part(row['cause_ns'], whole_ns)} of it waiting for a CPU"
    says = {"shift": _shift, "drift": _drift, "period": _period}[kind]
    changed = Facts(items_count=row["every_count"] if kind == "period" else row["changed_count"])
    changed |= Facts(share_ratio=row["delta_ns"] / max(row["usual_ns"], 1), stall_ns=row["changed_ns"])
    changed |= Facts(ranks=row["ranks"], rank=row["rank"], cause_kind=row["stall_kind"], cause_rank=row["rank"])
    changed |= Facts(file=row["cause_name"] if row["cause_kind"] == "file" else "")
    changed |= Facts(call=row["cause_name"] if row["cause_kind"] in ("annotation", "phase") else "")
    said = says(row, changes_count > 1) + "{whose}"
    return claim("time", kind, said, rows, phrases={"whose": whose}, **changed)


def _behind(number: int, row: Row, whole_ns: float) -> Evidence:
    is_said = row["cause_kind"] == "absent" or (row["cause_kind"], row["cause_name"]) == _FOR_A_CPU
    said = "" if is_said else behind_text(row["cause_kind"], row["cause_name"], row["cause_ns"], whole_ns)
    worker = int(row["cause_name"]) if row["cause_kind"] == "worker" else -1
    own = Facts(rank=row["rank"], worker_id=worker, spent_ns=row["cause_ns"], kind=row["cause_kind"])
    return fact("behind_it", "{said}", _TABLE, number, phrases={"said": said}, name=row["cause_name"], **own)


def changed_time(table: str, number: int, *, rank: int, longer_ns: float, kind: str, ranks: str) -> Evidence:
    """Return whose time changes, by how much: a row of ``over_time`` or of ``spikes``, -1 for a sum of several."""
    return fact("changed_time", "", table, number, rank=rank, longer_ns=longer_ns, kind=kind, ranks=ranks)


def behind_text(kind: str, name: str, spent_ns: float, whole_ns: float) -> str:
    """Say what the longer time goes to. ``whole_ns``: all of it, -1 if that is not known."""
    words = _BEHIND.get(kind) or _WAITS.get(name, "waits for a lock, a pipe or a socket take {ns} of it")
    return words.format(ns=_part(spent_ns, whole_ns), name=shortened(name, POLICY.path_characters))


def _part(spent_ns: float, whole_ns: float) -> str:
    return "all" if spent_ns >= whole_ns >= 0 else duration_text(spent_ns)


def time_that_changes(kind: str, ranks: str, longer_ns: float, grows: bool) -> str:
    """Say whose time it is that changes: ``rank 1 computes 5 ms longer``.

    ``kind``: any of ``StallKind`` or of its columns, ``reads``, ``together``, or a kind of steps.
    """
    verbs, rest = _VERBS[kind if kind in _VERBS else COLUMN_OF[kind]]
    words = {"longer": "longer", "more": "more"} if grows else {"longer": "less", "more": "less"}
    said = rest.format(**words, part=_PARTS.get(kind, ""))
    return f"{_who(ranks, verbs)} {duration_text(longer_ns)} {said}"


def _who(ranks: str, verbs: tuple[str, str]) -> str:
    return f"rank{'s' if is_several(ranks) else ''} {ranks} {verbs[is_several(ranks)]}"


def _shift(row: Row, beside: bool) -> str:
    first, last, usual = row["first_step_index"], row["last_step_index"], duration_text(row["usual_ns"])
    if row["onset"] != "sudden":
        return f"from about step {first} on, {_GROWS[row['onset'], row['delta_ns'] >= 0]}, before {usual}"
    when, other = {
        "end": (f"from step {first} on", "before"),
        "begin": (f"up to step {last}", "afterwards"),
        "middle": (f"in steps {first} to {last}", "in the others"),
    }[row["place"]]
    # Of several changes, the steps before or behind one of them are not all as usual.
    return f"{when} a step takes {{stall_ns:time}}" + (
        f" instead of the usual {usual}" if beside else f", {other} {usual}"
    )


def _drift(row: Row, beside: bool) -> str:
    each, usual = duration_text(abs(row["step_delta_ns"])), duration_text(row["usual_ns"])
    grow = "longer" if row["delta_ns"] >= 0 else "shorter"
    steps = count_noun(row["changed_count"], "step")
    return f"steps get {each} {grow} each, from {usual} to {{stall_ns:time}} over {steps}"


def _period(row: Row, beside: bool) -> str:
    which = every_nth(row["first_step_index"], row["every_count"], row["together_count"])
    usual = f"{' usually' if beside else ''} {duration_text(row['usual_ns'])}"
    if row["together_count"] > 1:
        return f"in {which} a step takes {{stall_ns:time}}, in the others{usual}"
    return f"{which} takes {{stall_ns:time}}, the others{usual}"


def every_nth(first: int, every: int, together: int = 1) -> str:
    """Name the steps of a period: ``every 20th step (19, 39, ...)``; of several in a row how many are given."""
    if together > 1:
        row = [str(first + at) for at in range(together)]
        again = [str(first + every + at) for at in range(together)]
        return f"{together} of every {every} steps ({', '.join([*row, *again])}, ...)"
    if every == 2:
        return f"every other step ({first}, {first + 2}, ...)"
    return f"every {ordinal(every)} step ({first}, {first + every}, ...)"
