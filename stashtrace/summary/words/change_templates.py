"""Templates of shifts, drifts and periods of the step."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

from stashtrace.analysis.findings.over_time.affected_steps import NOTHING_RATIO
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.summary.words.on_file import doing
from stashtrace.summary.words.template_parts import Finding, Row, ranks_named
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, shortened

_PATH_WIDTH = 48
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


def whose_time(f: Finding) -> str:
    """Say whose time it is that changes, with the mark before it."""
    mark, said = changed_time(f)
    return f"{mark} {said}"


def changed_time(f: Finding) -> tuple[str, str]:
    """Return the mark that goes before, and whose time it is that changes."""
    row, absent = f.first("changed_time"), f.first("behind_it")
    if absent is not None and absent["kind"] == "absent":
        return ":", f"{ranks_named(absent['name'], ('makes', 'make'))} no step then"
    if row is None:
        return ";", "no kind of time of one rank explains it"
    file = f.first("changed_file")
    kind = row["kind"] if row["kind"] in _VERBS or file is not None else COLUMN_OF[row["kind"]]
    verbs, rest = _VERBS[kind] if file is None else (("spends", "spend"), "{more} {doing}")
    grows = f.row["share_ratio"] >= 0
    words = {"longer": "longer" if grows else "less", "more": "more" if grows else "less"}
    words["doing"] = doing(file["kind"], file["name"]) if file is not None else ""
    said = rest.format(**words, part=_PARTS.get(row["kind"], ""))
    until = " at the end than at the beginning" if f.row["kind"] == "drift" else ""
    return ":", f"{ranks_named(row['name'], verbs)} {duration_text(row['amount_ns'])} {said}{until}"


#: Onset of a shift that is not sudden -> what its steps do.
_GROWS = {
    "gradual": "each step takes longer than the one before, in the median {ns}",
    "either": "growing or at once, a step takes {ns}",
}


def _shift(f: Finding) -> str:
    at = f.evidence[0]
    if at["kind"] == "levels":
        return _levels(f)
    if at["name"]:
        grows = _GROWS[at["name"]]
        if f.row["share_ratio"] < 0:
            grows = grows.replace("longer", "less").replace("growing", "shrinking")
        length, before = duration_text(f.row["stall_ns"]), duration_text(at["amount_ns"])
        return f"from about step {at['items_count']} on, {grows.format(ns=length)}, before {before}{whose_time(f)}"
    when, other = {
        "end": (f"from step {at['items_count']} on", "before"),
        "begin": (f"up to step {at['of_count']}", "afterwards"),
        "middle": (f"in steps {at['items_count']} to {at['of_count']}", "in the others"),
    }[at["kind"]]
    usual = duration_text(at["amount_ns"])
    # Of several changes, the steps before or behind one of them are not all as usual.
    beside = f" instead of the usual {usual}" if f.first("beside_changes") is not None else f", {other} {usual}"
    return f"{when} a step takes {duration_text(f.row['stall_ns'])}{beside}{whose_time(f)}"


def _levels(f: Finding) -> str:
    """Name the levels of stairs: up to where the first one goes, from where on the others."""
    levels = f.all("level")
    said = [f"{duration_text(levels[0]['amount_ns'])} up to step {levels[1]['items_count'] - 1}"]
    said += [f"{duration_text(level['amount_ns'])} from step {level['items_count']} on" for level in levels[1:]]
    grow = "longer" if f.row["share_ratio"] >= 0 else "shorter"
    whose = whose_time(f)
    last = f": in the last{whose.removeprefix(':')} than in the first" if whose else ""
    return f"steps get {grow} in at least {len(levels)} levels: {', '.join(said)}{last}"


def _drift(f: Finding) -> str:
    at, row = f.evidence[0], f.row
    each = duration_text(abs(at["part_ratio"]) * 1e6)
    steps = count_noun(row["items_count"], "step")
    grow = "longer" if row["share_ratio"] >= 0 else "shorter"
    span = f"from {duration_text(at['amount_ns'])} to {duration_text(row['stall_ns'])} over {steps}"
    return f"steps get {each} {grow} each, {span}{whose_time(f)}"


def _period(f: Finding) -> str:
    at = f.evidence[0]
    which = every_nth(at["items_count"], f.row["items_count"], at["name"])
    usually = " usually" if f.first("beside_changes") is not None else ""
    length, usual = duration_text(f.row["stall_ns"]), duration_text(at["amount_ns"])
    if at["name"]:
        return f"in {which} a step takes {length}, in the others{usually} {usual}{whose_time(f)}"
    return f"{which} takes {length}, the others{usually} {usual}{whose_time(f)}"


def every_nth(first: int, every: int, together: str = "") -> str:
    """Name the steps of a period: ``every 20th step (19, 39, ...)``; of several in a row how many are given."""
    if together:
        row = [str(first + at) for at in range(int(together))]
        again = [str(first + every + at) for at in range(int(together))]
        return f"{together} of every {every} steps ({', '.join([*row, *again])}, ...)"
    if every == 2:
        return f"every other step ({first}, {first + 2}, ...)"
    return f"every {_nth(every)} step ({first}, {first + every}, ...)"


def _nth(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


#: Kind of claim -> its words.
CHANGES: dict[str, Callable[[Finding], str]] = {"shift": _shift, "drift": _drift, "period": _period}


def steps_of_time(f: Finding, *, amounts: bool = True) -> str:
    """Say in which steps the time of a verdict lies, to follow its sentence; empty if in all of them alike."""
    words = {"only_in_steps": _only_in, "by_turns": _by_turns, "in_few_steps": _few_steps, "fewer_steps": _fewer_steps}
    return "".join(f"; {words[e['code']](e, f, amounts)}" for e in f.evidence if e["code"] in words)


def _only_in(e: Row, f: Finding, amounts: bool) -> str:
    first, last, kind = e["items_count"], e["of_count"], e["kind"]
    some = amounts and e["amount_ns"] >= 0
    length = duration_text(e["amount_ns"]) if some else ""
    if kind in ("growth", "decline"):
        return f"{'growing' if kind == 'growth' else 'shrinking'} {f'by {length} ' if some else ''}over the run"
    only = "only" if e["part_ratio"] <= NOTHING_RATIO else "mostly"
    if kind == "period":  # its name is a count, that of the others the onset
        which = f"{only} in {every_nth(first, last, e['name'])}"
    else:
        which = {
            "begin": f"{only} up to step {last}",
            "middle": f"{only} in steps {first} to {last}",
            "end": f"{only} from {'about ' if e['name'] else ''}step {first} on",
            "ends": f"{'not' if only == 'only' else 'less'} in steps {first} to {last}",
        }[kind]
    if not some:
        return which
    there = "in the others" if kind == "ends" else "there"
    several = " on average" if f.row["items_count"] > 1 else ""
    return f"{which}, {length} a step {there}{several}"


def _by_turns(e: Row, f: Finding, amounts: bool) -> str:
    return "they take turns: in each step only one of them"


def _few_steps(e: Row, f: Finding, amounts: bool) -> str:
    part = percent_text(e["part_ratio"])
    part = "all" if part == percent_text(1) else part
    if e["items_count"] == 1:
        return f"{part} of it in step {e['name']} alone"
    return f"{part} of it in {e['items_count']} of {e['of_count']} steps"


def _fewer_steps(e: Row, f: Finding, amounts: bool) -> str:
    return f"{ranks_named(e['name'], ('made', 'made'))} {e['items_count']} of {e['of_count']} steps"


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
    "join": "waiting for a thread or a process to end takes {ns} of it",
}


def behind_it(row: Row, f: Finding, whole_ns: float | None = None) -> str:
    """Say what the longer time goes to; ``whole_ns`` where that is not the one of the claim."""
    if row["kind"] == "absent":
        return ""  # the claim says it
    name = row["name"]
    words = _BEHIND.get(row["kind"]) or _WAITS.get(name, "waits for a lock, a pipe or a socket take {ns} of it")
    whole = (f.first("changed_time") or {"amount_ns": -1})["amount_ns"] if whole_ns is None else whole_ns
    part = "all" if row["amount_ns"] >= whole >= 0 else duration_text(row["amount_ns"])
    return words.format(ns=part, name=shortened(name, _PATH_WIDTH))


def mean_alone(f: Finding, mean_ns: float) -> str:
    """Say of a run's step what its mean hides, to follow the count of steps; empty if they are alike."""
    usual = f.first("usual_steps")
    if usual is not None:
        most = f"{duration_text(usual['amount_ns'])} in {usual['items_count']} of {usual['of_count']} steps"
        return f", mean {duration_text(mean_ns)}, but {most}"
    turns = f.first("steps_alternate")
    if turns is not None:
        which = "every other step" if turns["of_count"] == 2 else f"{turns['items_count']} of {turns['of_count']} steps"
        long, short = duration_text(turns["amount_ns"]), duration_text(turns["low_ns"])
        return f", mean {duration_text(mean_ns)}: {long} in {which}, {short} in the others"
    grow = f.first("steps_grow")
    if grow is not None:
        verb = "grows" if grow["amount_ns"] > grow["low_ns"] else "shrinks"
        span = f"from {duration_text(grow['low_ns'])} to {duration_text(grow['amount_ns'])}"
        return f", mean {duration_text(mean_ns)}: the usual step {verb} {span}"
    change = f.first("steps_change")
    if change is None:
        return ""
    first, last = change["items_count"], change["of_count"]
    about = "about " if change["name"] else ""
    when = {"end": f"from {about}step {first} on", "begin": f"up to step {last}"}.get(
        change["kind"], f"in steps {first} to {last}"
    )
    usually = "usually " if f.first("beside_changes") is not None else ""
    return (
        f" of {usually}{duration_text(change['low_ns'])}, but {duration_text(change['amount_ns'])} {when}"
        f" (mean {duration_text(mean_ns)})"
    )
