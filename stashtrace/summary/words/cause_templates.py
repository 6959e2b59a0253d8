"""Templates of causes: who does what, where and when; who waits for it; what to do and what that saves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import product
from typing import Any

from stashtrace.errors import guarded
from stashtrace.schema.table import Table
from stashtrace.summary.words import Row
from stashtrace.summary.words.policy import POLICY
from stashtrace.text import units
from stashtrace.text.prose import count_noun, ordinal

#: What blocks a thread -> what it does.
_BLOCKED = {
    "asleep": ("sleeps", "sleep"),
    "gil": ("waits for the GIL", "wait for the GIL"),
    "join": ("waits for a thread or a process to end", "wait for a thread or a process to end"),
    "poll": ("waits in poll or select", "wait in poll or select"),
    "lock": ("waits for a lock or a condition", "wait for a lock or a condition"),
    "file": ("is in calls on files", "are in calls on files"),
    "socket": ("waits for a socket", "wait for a socket"),
    "pipe": ("waits for a pipe", "wait for a pipe"),
    "io": ("waits for a device", "wait for a device"),
    "garbage": ("collects garbage", "collect garbage"),
    "cpu": ("waits for a CPU with its batch ready", "wait for a CPU with their batches ready"),
    "": ("is blocked", "are blocked"),
}
#: Kind of work -> what a rank, or several, does.
_DOES = {
    "": ("takes", "take"),
    "compute": ("computes", "compute"),
    "prep": ("prepares batches", "prepare batches"),
    "fetch": ("waits for storage", "wait for storage"),
    "handoff": (
        "waits for the hand-off of batches (sampler, queue, unpickling, pinning)",
        "wait for the hand-off of batches (sampler, queue, unpickling, pinning)",
    ),
    "checkpoint": ("writes checkpoints", "write checkpoints"),
    "loads": ("is in loads and saves of checkpoints", "are in loads and saves of checkpoints"),
    "launch": ("is launch bound for", "are launch bound for"),
    "sync": ("leaves its device idle around blocking calls for", "leave their devices idle around blocking calls for"),
    "python": ("runs code of the loop", "run code of the loop"),
    "compile": ("compiles (torch.compile)", "compile (torch.compile)"),
    "objects": ("exchanges Python objects", "exchange Python objects"),
    "h2d": ("waits for copies", "wait for copies"),
    "contention": ("waits for a CPU", "wait for a CPU"),
    "unrecorded": ("has no records", "have no records"),
}
#: Kind of code, and whether it is mostly Python, not operators and calls that release the GIL -> what it does.
_CODE = {
    ("python", True): ("runs Python in the loop", "run Python in the loop"),
    ("python", False): ("computes in the loop", "compute in the loop"),
    ("compute", True): ("runs Python in forward or backward", "run Python in forward or backward"),
    ("compute", False): _DOES["compute"],
}
#: The same where a function of the user has nearly all of it.
_SPENDS = ("spends", "spend")
#: What need not be done, or not while the step waits for it.
_GONE = {
    "other": "without this wait",
    "asleep": "without this sleep",
    "gil": "with no other thread that holds the GIL (its Python code in a process of its own)",
    "contention": "with a free CPU for each thread",
    "checkpoint": "checkpoints in the background, so that no step waits for one",
    "loads": "with no step that waits for checkpoints",
    "fetch": "without waits for storage in reads and opens of files (data in memory)",
    "compile": "with nothing compiled again in the steps (torch._dynamo.mark_dynamic, dynamic=True, or inputs padded to"
    " few sizes)",
    "objects": "with tensors exchanged in place of Python objects (all_gather_object and the like), or less often",
}
_THAN = {
    "peers": " longer than the others",
    "even": " longer than the other stages on average",
    "usual": " longer than usual",
}
#: What all ranks do, now one of them longer and now another one.
_UNEVENLY = " longer than the mean of the ranks, alternately"
_EVENLY = "the same amount of work for each rank in each step (batches of even cost)"
_AS = {
    "peers": "as fast as the others",
    "even": "with the same amount of work as the other stages",
    "usual": "as in the other steps",
}
#: What is done in half of its time, where nothing says how much of it can go.
_HALF = {
    "": "the same work twice as fast",
    "compute": "no other change is sure to save 3 %; computing twice as fast",
    "python": "this code twice as fast",
    "operators": "this code twice as fast (operators of whole tensors instead of Python)",
    "prep": "batches made twice as fast",
    "fetch": "storage twice as fast",
    "handoff": "hand-off twice as fast (fewer or larger objects in a batch, tensors instead of Python objects, a"
    " cheaper sampler)",
    "h2d": "copies twice as fast",
    "launch": "half as long between launches (CUDA graphs or torch.compile may)",
    "sync": "half as long in calls that block",
    "cpu": "with half of the wait for a CPU (fewer threads, workers or other programs on its CPUs)",
}
_SETTINGS = {
    "persistent_workers": "the workers kept from one epoch to the next (persistent_workers=True)",
    "in_order": "batches taken as they become ready (in_order=False of DataLoader, torch 2.6 or newer)",
}
#: How steps lie -> which these are.
_SHAPES = {
    "from": "from step {first_step_index} on",
    "until": "up to step {last_step_index}",
    "within": "in steps {first_step_index} to {last_step_index}",
}
#: What certainly saves something, how much is an interval; and what may save nothing.
_SAVES = {"sure": "saves", "likely": "saves", "perhaps": "may save"}
#: What a line calls in a library, within its place.
_LEAF = re.compile(r", in [^()]*\)$")


def cause_rows(table: Table, path: str) -> list[dict[str, Any]]:
    """Return these rows with their ``text``, and with its parts: ``what``, ``who_waits`` and ``saving``."""
    return [
        {**row, "text": cause_text(row, path)}
        | dict(zip(("what", "who_waits", "saving"), cause_lines(row, path), strict=True))
        for row in table.rows()
    ]


def cause_text(row: Row, path: str) -> str:
    """Word one cause in one sentence."""
    return "; ".join(text for text in cause_lines(row, path) if text)


def cause_lines(row: Row, path: str) -> tuple[str, str, str]:
    """Word one cause: who does what, where and when; who waits for it, or nothing; what to do and what that saves."""
    if row["reason"]:
        return str(row["reason"]), "", ""
    what = guarded("a cause", lambda: _what(row), str)
    return what, guarded("who waits", lambda: _waits(row), str), guarded("a saving", lambda: _saving(row, path), str)


def cause_headline(row: Row, steps: str = "", characters: int = POLICY.headline_characters) -> str:
    """Word a cause, and the step without it, in at most ``characters``; empty for a reason. ``steps``: where it is."""
    if row["reason"]:
        return ""
    return guarded("the headline", lambda: next(_headlines(row, steps, characters)), str)


def _headlines(row: Row, steps: str, characters: int) -> Iterator[str]:
    """Give the forms of a headline that fit, the one that says most first."""
    near = {**row, "place": _LEAF.sub(")", row["place"])}
    function = {**row, "place": row["place"].partition(" (")[0]}
    forms = [_what(row), _what(near)]
    near, function = ({**form, "caller": ""} for form in (near, function))
    forms += [_what(form, short=True) for form in (near, function, {**row, "place": ""})]
    # A place says more than the length of the step without it, which stands below.
    for what, tail in product(forms, (steps + _without(row), steps)):
        if len(what + tail) <= characters:
            yield what + tail
    yield textwrap.shorten(forms[-1], characters, placeholder=" …")


def _without(row: Row) -> str:
    """Return how long a step is without the cause."""
    if row["sure"] == "perhaps" or row["step_ns"] <= 0 or row["steps_count"] == 1 or row["level"] == "half":
        return ""
    least, most = (units.duration_text(row["step_ns"] - row[name]) for name in ("saved_high_ns", "saved_low_ns"))
    return f"; without, a step takes {units.range_text(least, most)}, not {units.duration_text(row['step_ns'])}"


def _what(row: Row, *, short: bool = False) -> str:
    """Return who does what for how long, where and when."""
    where = _place(row)
    if row["where"] == "setting":
        return _of_setting(row)
    if row["where"] == "link":
        operation = _operation(row["op"])
        needless = ", and steps can do without them" if row["level"] == "gone" else ""
        count, size = units.number(row["operations_count"]), units.bytes_text(row["moved_bytes"]) + _a_step(row)
        moved = f" ({count} operation{'' if count == '1' else 's'}, {size})" if row["moved_bytes"] > 0 else ""
        between = f" between {_ranks(row['ranks'])}" if "," in row["ranks"] else ""
        what = f"transfers{f' of {operation}' if operation else ''}{between}"
        waited = f", waited for{where.removeprefix(',')}" if where else ""
        return f"{what} are in flight {''.join(_amount(row))}{moved}{needless}{waited}"
    if _computes(row):
        return f"compute bound: {''.join(_amount(row))}{_in_backward(row)}{where}"
    several = not row["ranks"] or len(row["ranks"].split(",")) > 1
    who = _ranks(row["ranks"]) if row["ranks"] else "all ranks"
    if row["where"] == "worker":
        who, several = f"the workers of {who}", True
    blocked = row["kind"] in ("other", "gil") or row["call"]
    does = (_BLOCKED[row["call"] or ""] if blocked else _DOES.get(row["kind"], _DOES[""]))[several]
    if row["python_ratio"] >= 0 and (code := _CODE.get((row["kind"], _is_python(row)))) and not row["call"]:
        does = code[several]
        if row["kind"] == "python" and where.startswith(" in "):
            does = (_SPENDS if _is_python(row) else _DOES["compute"])[several]
    if not row["kind"] and row["level"] == "half":
        does = f"({'they make' if several else 'it makes'} no steps) {does}"
    if row["file"]:
        # Calls that do not block find their data in memory.
        cached = " (already in memory)" if row["kind"] == "python" and "read" in row["file_call"] else ""
        does = f"{_on_file(row['file_call'], several)} {_files(row)}{cached}"
    than = _THAN.get(row["level"], "") if row["ranks"] or row["level"] != "even" else _UNEVENLY
    amount, when = _amount(row, short=short)
    if row["waiter"] and where:
        waiter = "" if short else f" in {row['waiter']}"
        where = f"{waiter}, for another thread{where.removeprefix(',')}"
    elif (when or than == _UNEVENLY) and where and not where.startswith(","):
        where = f",{where}"
    return f"{who} {does} {amount}{than}{when}{where}"


def _in_backward(row: Row) -> str:
    """Return which part of a computation backward passes are; what is said behind it is then about the rest."""
    if row["backward_ratio"] <= 0:
        return ""
    rest = "; the rest" if row["place_ratio"] > POLICY.nearly_all_ratio else "; of the rest"
    rest = rest if row["place"] else ""
    return f", {units.percent_text(row['backward_ratio'])} of it in autograd{rest}"


def _is_python(row: Row) -> bool:
    return bool(2 * row["python_ratio"] > 1)


def _computes(row: Row) -> bool:
    """Return True for the computation of operators: what is left where nothing else is found."""
    return row["kind"] == "compute" and row["level"] == "half" and not _is_python(row)


def _on_file(call: str, several: bool) -> str:
    if "read" in call or call in ("open", "stat", "mmap"):
        return "read" if several else "reads"
    if "write" in call or "sync" in call or "flush" in call:
        return "write" if several else "writes"
    return f"{'are' if several else 'is'} in {call}() of"


def _files(row: Row) -> str:
    base = row["file"].rpartition("/")[2] or row["file"]
    return base if row["files_count"] <= 1 else f"{count_noun(row['files_count'], 'file')} ({base}, ...)"


def _a_step(row: Row) -> str:
    """Return of what an amount is: of a mean step, or of the only one that counts, such as a whole recording."""
    return " in all" if row["of_steps_count"] == 1 else " a step"


def _amount(row: Row, *, short: bool = False) -> tuple[str, str]:
    """Return how long it is, of a step; of what comes in few steps, how long in one of these, and in which."""
    several = not row["ranks"] or "," in row["ranks"]
    upto = "up to " if several and row["where"] != "link" else ""
    event = upto + units.duration_text(row["event_ns"])
    if row["level"] != "half" and row["every_count"] > 1:
        return event, f" in every {ordinal(row['every_count'])} step"
    if row["level"] != "half" and row["shape"] in _SHAPES:
        return event + _a_step(row), f" {units.filled(_SHAPES[row['shape']], row)}"
    few = row["level"] != "half" and 0 < 2 * row["steps_count"] <= row["of_steps_count"]
    if few and row["steps_count"] == 1:
        return event, f" once in {row['of_steps_count']} steps"
    if few:
        return event, f" each in {row['steps_count']} of {row['of_steps_count']} steps"
    share = units.percent_text(row["work_ns"] / row["of_step_ns"]) if row["of_step_ns"] > 0 else ""
    # Work of a worker, and transfers during the computation, may be more than the step that they are part of. Of a
    # single step the table has the shares, each of the step of its rank.
    part = f" ({share})" if share and not short and row["where"] == "step" and row["of_steps_count"] != 1 else ""
    return f"{upto}{units.duration_text(row['work_ns'])}{_a_step(row)}{part}", ""


def _waits(row: Row) -> str:
    """Return who waits for it, in what and through whom."""
    if not row["waiting_ranks"]:
        return ""
    several = "," in row["waiting_ranks"]
    inside = _operation(row["waiting_op"])
    where = f" in {inside}" if inside else ""
    through = f", through {_ranks(row['through_ranks'])}" if row["through_ranks"] else ""
    whom = "them" if "," in row["ranks"] else "it"
    return f"{_ranks(row['waiting_ranks'])} wait{'' if several else 's'} for {whom}{where}{through}"


def _saving(row: Row, path: str) -> str:
    """Return what to do about a cause, what that saves of this run, and what to expect of the next one."""
    if row["saved_ns"] < 0:
        most = f"{units.duration_text(row['saved_high_ns'])}{_a_step(row)} ({units.percent_text(row['high_ratio'])})"
        return f"{_do(row)}: may save up to {most}"
    share = units.percent_text(row["saved_ns"] / row["step_ns"]) if row["step_ns"] > 0 else ""
    if row["steps_count"] == 1 and row["of_steps_count"] > 1:
        saved = f"{units.duration_text(row['saved_ns'])}{_a_step(row)} of this run ({share})"
        return f"{_do(row)}: saves {saved}; of another run only if it comes again"
    least, most = (units.duration_text(row[name]) for name in ("saved_low_ns", "saved_high_ns"))
    expected = f"expect {units.range_text(least, most)}" if row["saved_low_ns"] > 0 else f"at most {most}"
    command = f"; `stashtrace whatif {path} {row['change']}`" if row["change"] else ""
    more = "; waits for it get shorter too" if _saves_more_than_itself(row) else ""
    saved = f"{units.duration_text(row['saved_ns'])}{_a_step(row)} ({share}; {expected}{more})"
    return f"{_do(row)}: {_SAVES[row['sure']]} {saved}{command}"


def _saves_more_than_itself(row: Row) -> bool:
    """Return whether the step becomes shorter by clearly more than the time that a cause is about."""
    enough_ns = row["work_ns"] * (1 + POLICY.clearly_more_ratio)
    return bool(row["where"] == "step" and 0 < enough_ns < row["saved_ns"])


def _do(row: Row) -> str:
    """Return what a person would do."""
    kind = row["kind"]
    if row["where"] == "setting":
        return _setting(row)
    if row["where"] == "link":
        if row["level"] == "gone":
            return "without them" + (" (broadcast_buffers=False of DDP)" if row["op"] == "broadcast" else "")
        each_bytes = row["moved_bytes"] / max(row["operations_count"], 1)
        if 0 < each_bytes < POLICY.small_bytes:
            return "half as long (fewer operations: their number takes the time, not their bytes)"
        return f"half as long ({'gradients in 16 bits' if kind == 'gradients' else 'fewer bytes'}, or fewer operations)"
    if row["level"] == "gone":
        return _GONE.get(row["call"] if row["call"] == "asleep" else kind, "without it")
    if row["level"] == "even" and not row["ranks"]:
        return _EVENLY
    if row["level"] in ("peers", "usual") and row["excess_ratio"] > POLICY.nearly_all_ratio:
        return "without it"
    if row["level"] in _AS:
        return _AS[row["level"]]
    what = "cpu" if row["call"] == "cpu" else "operators" if kind == "compute" and _is_python(row) else kind
    if what == "prep" and row["place"] and row["place_ratio"] >= 1:  # it is no more than this function
        what = "python"
    return _HALF.get(what, _HALF[""])


def _place(row: Row) -> str:
    if not row["place"]:
        return ""
    part = ", mostly" if 2 * row["place_ratio"] >= 1 else ", partly"
    part = "" if row["place_ratio"] > POLICY.nearly_all_ratio else part
    caller = f", called by {row['caller'].replace('.<locals>', '')}" if row["caller"] else ""
    return f"{part} in {row['place']}{caller}"


def _operation(name: str) -> str:
    """Return an operation as people write it; a send is one with its receive."""
    if name in ("send", "receive"):
        return "sends and receives"
    return "" if name == "other" else name.replace("_", "-")


def _ranks(ranks: str) -> str:
    numbers = [int(rank) for rank in ranks.split(",")]
    return units.named_ranks(units.ranks_text(numbers), len(numbers))


def _of_setting(row: Row) -> str:
    amount = f"{units.duration_text(row['work_ns'])} a step"
    if row["step_ns"] > 0:
        amount += f" ({units.percent_text(row['work_ns'] / row['step_ns'])})"
    several = not row["ranks"] or "," in row["ranks"]
    who = _ranks(row["ranks"]) if row["ranks"] else "all ranks"
    upto = "up to " if several else ""
    wait = f"{who} wait{'' if several else 's'} {upto}{amount}"
    quantity = row["change"].partition("=")[0]
    if quantity == "workers":
        if not row["present_count"]:
            return f"{who} make{'' if several else 's'} batches in the loop itself, {upto}{amount}{_place(row)}"
        makers = f"{count_noun(row['present_count'], 'worker')} make{'' if row['present_count'] > 1 else 's'}"
        return f"{wait} for batches, which {makers}{_place(row)}"
    if quantity == "bucket_mb":
        return f"{wait} for gradients that are sent in buckets"
    if quantity == "slow_worker":
        if row["worker_id"] < 0:
            return "workers take longer for their batches than others"
        of_rank = f" of rank {row['ranks']}" if row["ranks"] else " of each rank"
        made = f", which are made{where.removeprefix(',')}" if (where := _place(row)) else ""
        return f"worker {row['worker_id']}{of_rank} takes longer for its batches than the others{made}"
    if quantity == "in_order":
        return f"batches that are ready wait for one that is not: {wait}"
    return f"workers are started again in each epoch: {wait} for batches"


def _setting(row: Row) -> str:
    quantity, _, value = row["change"].partition("=")
    if quantity == "workers":
        return f"num_workers={value} instead of {row['present_count']}"
    if quantity == "bucket_mb":
        return f"bucket_cap_mb={value} of DistributedDataParallel"
    return "with its batches as fast as those of the others" if quantity == "slow_worker" else _SETTINGS[quantity]
