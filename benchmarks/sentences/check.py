"""Hold the rows of ``findings`` against what is known of a run: true, true within its bounds, or false."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence

from sentences import beside
from sentences.judgement import BOUNDS, FALSE, TRUE, Checked, Expected, Row
from sentences.truth import NOTHING, STALLS, Amount, RankTruth, Truth

#: A figure is right within this part of itself, or of the step.
OF_FIGURE, OF_STEP = 0.05, 0.02
#: What kept a rank made up at least this part of the wait for it.
MATTERS = 0.25
#: Between its clock and the call that it stamps, a thread may lose its CPU for this long: seen in single waits.
SLICE_NS = 4_000_000
#: A stall below this share of the step needs no verdict; so much above it, it does.
WORTH_RATIO = 0.03
#: A cause may be named that is nearly the largest.
NEARLY = 0.8
#: Hand-over is the cause of waits if it is about half of them.
HALF = 0.4

#: Part of making a batch as a claim names it -> as a clock of the job knows it.
_PARTS = {"cpu": "cpu", "queue": "queue"}
#: What kept a late rank, as a claim names it -> column of the budget.
_COLUMNS = {
    "asleep": "other",
    "sleep": "other",
    "gc": "compute",
    "checkpoint": "save",
    "prep": "data",
    "fetch": "data",
    "handoff": "data",
    "reads": "data",
    "cpu_contention": "compute",
    "straggler": "late",
    "network": "link",
    "interconnect": "link",
    "unrecorded": "other",
    "h2d": "copy",
    "sync": "host",
    "launch": "host",
    "python": "compute",  # the job's clock does not separate its operators from its other code
}


def check(findings: Sequence[Row], evidence: Sequence[Row], truth: Truth, expected: Expected) -> list[Checked]:
    """Judge the headline, each verdict, and what else a clock of the job knows."""
    results = []
    for row in findings:
        own = [e for e in evidence if e["finding_id"] == row["finding_id"]]
        if row["section"] == "headline" and row["kind"] not in beside.HOW_IT_ENDED:
            results.append(_headline(row, own, findings, truth, expected))
        elif row["kind"] == "contention":  # a verdict from some share on
            results.append(_contention(row, truth))
        elif row["section"] == "verdict":
            results.append(_verdict(row, own, truth, expected))
        else:
            results.append(beside.judge(row, own, truth, expected))
    results += beside.unsaid(findings, expected)
    return [r for r in results if r is not None]


def first_verdict(findings: Sequence[Row], truth: Truth) -> str:
    """Empty if the first verdict about a stall is about the largest true one, else what is wrong."""
    verdicts = [row for row in findings if row["section"] == "verdict" and row["kind"] != "contention"]
    if not truth.ranks:
        lost = any(row["kind"] == "no_steps" and row["name"] == "lost" for row in findings)
        return "verdicts without steps" if verdicts else "no verdict" if truth.steps and not lost else ""
    if not verdicts:
        return "no verdict"
    # A stall of the steps other than those that train counts by the time that all of them take.
    whole = {id(t): sum(r.step_ns * r.steps_count for r in t.ranks.values()) for t in (truth, *truth.beside.values())}
    parts = [
        (r, min(whole[id(t)] / whole[id(truth)], 1.0))
        for t in (truth, *truth.beside.values())
        for r in t.ranks.values()
    ]
    largest = {c: max(r.share(c).low_ns * weight for r, weight in parts) for c in STALLS}
    possible = {c: max(r.share(c).high_ns for r, _ in parts) for c in STALLS}
    worst = max(largest, key=largest.__getitem__)
    first = verdicts[0]["kind"]
    if largest[worst] < WORTH_RATIO - OF_STEP / 2:
        fine = first in ("compute_bound", "not_told") or possible.get(first, 0.0) >= WORTH_RATIO - OF_STEP / 2
        return "" if fine else f"{first} first where nothing is above {largest[worst]:.1%}"
    if first in ("compute_bound", "not_told"):
        return f"{first} first, {worst} is {largest[worst]:.1%}" if largest[worst] > WORTH_RATIO + OF_STEP else ""
    if possible[first] >= largest[worst] - OF_STEP:
        return ""
    return f"{first} ({possible[first]:.1%}) first, {worst} is {largest[worst]:.1%}"


def missed(findings: Sequence[Row], truth: Truth) -> list[str]:
    """Stalls of a rank well above what is worth a verdict that no verdict names."""
    found = []
    for rank in truth.ranks.values():
        for column in STALLS:
            share = rank.share(column).low_ns
            rows = [r for r in findings if r["section"] == "verdict" and r["kind"] == column]
            if share > WORTH_RATIO + OF_STEP and not any(rank.rank in ranks_of(r["ranks"]) for r in rows):
                found.append(f"rank {rank.rank}: {column} {share:.1%}")
    return found


def ranks_of(text: str) -> set[int]:
    """``0-3,7`` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _slack(own: Amount, step_ns: float) -> float:
    return max(OF_FIGURE * own.high_ns, OF_STEP * step_ns)


def judge_amount(row: Row, own: Amount, step_ns: float) -> tuple[str, str]:
    """A time with its bounds against the true one."""
    slack, point, sure = _slack(own, step_ns), row["stall_ns"], row["confidence"]
    near = own.low_ns - slack <= point <= own.high_ns + slack
    known = f"{own.low_ns / 1e6:.3g}" + (f" to {own.high_ns / 1e6:.3g}" if own.high_ns > own.low_ns else "")
    why = f"{point / 1e6:.3g} ms ({row['low_ns'] / 1e6:.3g} to {row['high_ns'] / 1e6:.3g}), {sure}; truth {known} ms"
    if sure == "exact":
        if own.high_ns - own.low_ns > 2 * slack:
            if own.rough:
                return (BOUNDS, "") if near else (FALSE, why)
            return FALSE, f"{why}: nobody can know it so exactly"
        return (TRUE, "") if near else (FALSE, why)
    above = sure == "up_to" or own.high_ns + slack >= (point if sure == "at_least" else row["low_ns"])
    below = sure == "at_least" or own.low_ns - slack <= row["high_ns"]
    if not (above and below):
        return FALSE, why
    return (TRUE, "") if near and own.high_ns - own.low_ns <= 2 * slack else (BOUNDS, "")


def _headline(
    row: Row, evidence: list[Row], findings: Sequence[Row], truth: Truth, expected: Expected
) -> Checked | None:
    kind = row["kind"]
    if kind == "ranks":
        wrong = truth.ranks_count >= 0 and row["items_count"] != truth.ranks_count
        return Checked(row, FALSE if wrong else TRUE, f"{row['items_count']} of {truth.ranks_count}" if wrong else "")
    if kind == "ranks_missing":
        same = ranks_of(row["ranks"]) == set(truth.missing)
        return Checked(row, TRUE if same else FALSE, "" if same else f"{row['ranks']}, truly {truth.missing}")
    if kind == "records_lost":
        return Checked(row, TRUE if expected.lost else FALSE, "" if expected.lost else "nothing was lost")
    if kind == "no_steps" and row["name"] == "lost":
        return Checked(row, TRUE if expected.lost else FALSE, "" if expected.lost else "nothing was lost")
    if kind == "no_steps":
        return Checked(row, FALSE, f"there were {_kinds(truth)}") if truth.steps else Checked(row, TRUE)
    if kind == "low_confidence":
        return _doubts(row, evidence, truth)
    if kind == "steps" and truth.steps_known:
        return _steps(row, findings, truth)
    return None  # warmup stands with the steps that it is left out of


def _doubts(row: Row, evidence: list[Row], truth: Truth) -> Checked | None:
    named = {e["name"]: e["part_ratio"] for e in evidence if e["code"] == "doubt"}
    if set(named) != {"unexplained"} or not truth.ranks:
        return None
    wall = sum(r.step_ns * r.steps_count for r in truth.ranks.values())
    low = sum((r.columns["other"].low_ns - r.asleep_ns) * r.steps_count for r in truth.ranks.values()) / wall
    high = sum(r.blocked_ns * r.steps_count for r in truth.ranks.values()) / wall
    share = named["unexplained"]
    fine = share <= high + OF_STEP and (row["confidence"] == "at_least" or low - OF_STEP <= share)
    why = "" if fine else f"{share:.1%} unexplained, blocked without a cause {low:.1%} to {high:.1%}"
    most = next((e for e in evidence if e["code"] == "doubt_most"), None)
    if fine and most is not None:
        worst = truth.ranks[most["rank"]]
        own = worst.blocked_ns / worst.step_ns
        fine = abs(own - most["part_ratio"]) <= OF_STEP + OF_FIGURE * own
        why = "" if fine else f"{most['part_ratio']:.1%} on rank {most['rank']}, truly {own:.1%}"
    return Checked(row, TRUE if fine else FALSE, why)


def _steps(row: Row, findings: Sequence[Row], truth: Truth) -> Checked:
    marked = "train" if "train" in truth.steps else "marked"
    names = {"training": "train", "marked": marked, "recording": marked}
    name = names.get(row["name"], row["name"])
    if name not in truth.steps:
        return Checked(row, FALSE, f"{row['items_count']} {row['name']} steps; the job had {_kinds(truth)}")
    count, mean = truth.steps[name]
    left_out = sum(r["items_count"] for r in findings if r["section"] == "headline" and r["kind"] == "warmup")
    # Which kinds the steps that are left out were of, the headline does not say.
    if not count - left_out <= row["items_count"] <= count:
        return Checked(
            row, FALSE, f"{row['items_count']} {row['name']} steps, {left_out} left out; had {_kinds(truth)}"
        )
    if mean and abs(row["stall_ns"] - mean) > OF_FIGURE * mean:
        return Checked(row, FALSE, f"{row['stall_ns'] / 1e6:.3g} ms a step, truly {mean / 1e6:.3g} ms")
    return Checked(row, TRUE)


def _kinds(truth: Truth) -> str:
    return ", ".join(f"{count} {kind} of {mean / 1e6:.3g} ms" for kind, (count, mean) in truth.steps.items())


def _contention(row: Row, truth: Truth) -> Checked | None:
    """How long step threads stood in the queue for a CPU."""
    named = [truth.ranks.get(rank) for rank in sorted(ranks_of(row["ranks"]))]
    worst = truth.ranks.get(row["rank"])
    if worst is None or any(rank is None for rank in named):
        return Checked(row, FALSE, "a rank without steps")
    if worst.waited_for_cpu_ns < 0:
        return None
    own = worst.waited_for_cpu_ns / worst.step_ns
    if abs(row["share_ratio"] - own) > OF_STEP + OF_FIGURE * own:
        return Checked(row, FALSE, f"rank {worst.rank} waited for a CPU for {own:.1%}, not {row['share_ratio']:.1%}")
    idle = [r.rank for r in named if r is not None and r.waited_for_cpu_ns < WORTH_RATIO * r.step_ns]
    return Checked(row, FALSE if idle else TRUE, f"ranks {idle} hardly waited for a CPU" if idle else "")


def _verdict(row: Row, evidence: list[Row], truth: Truth, expected: Expected) -> Checked:
    kind = row["kind"]
    if row["name"] and row["name"] not in truth.beside:
        return Checked(row, FALSE, f"there were no {row['name']} steps")
    truth = truth.beside.get(row["name"], truth)
    if kind in ("compute_bound", "not_told"):
        return _no_stall(row, truth)
    rank = truth.ranks.get(row["rank"])
    if rank is None:
        return Checked(row, FALSE, f"rank {row['rank']} has no steps")
    own = rank.columns.get(kind, NOTHING)
    result, why = judge_amount(row, own, rank.step_ns)
    if result == FALSE:
        return Checked(row, FALSE, why)
    for wrong in (
        _share(row, rank, truth),
        _others(row, kind, truth),
        _cause(row, evidence, rank, truth, expected),
    ):
        if wrong:
            return Checked(row, FALSE, wrong)
    return Checked(row, result)


def _no_stall(row: Row, truth: Truth) -> Checked:
    stalls = [
        f"rank {r.rank}: {c} {r.share(c).low_ns:.1%}"
        for r in truth.ranks.values()
        for c in STALLS
        if r.share(c).low_ns > WORTH_RATIO + OF_STEP
    ]
    if stalls:
        return Checked(row, FALSE, "; ".join(stalls))
    rank = truth.ranks.get(row["rank"])
    if rank is None:
        return Checked(row, FALSE, "there were no steps")
    own, slack = rank.columns["compute"], _slack(rank.columns["compute"], rank.step_ns)
    if row["kind"] == "not_told":
        fine = own.high_ns + slack >= row["low_ns"] and own.low_ns - slack <= row["high_ns"]
        return Checked(row, BOUNDS if fine else FALSE, "" if fine else "compute is not within its bounds")
    floor = row["least_ratio"] * rank.step_ns
    if own.high_ns + slack < floor:
        return Checked(row, FALSE, f"compute is {own.high_ns / rank.step_ns:.1%} of the step")
    return Checked(row, TRUE if own.low_ns + slack >= floor else BOUNDS)


def _share(row: Row, rank: RankTruth, truth: Truth) -> str:
    """The share is that of the rank, or the largest of all that are named."""
    if row["share_ratio"] <= 0 or row["stall_ns"] <= 0:
        return ""
    point = row["stall_ns"] / rank.step_ns
    named = [truth.ranks[r].share(row["kind"]).high_ns for r in ranks_of(row["ranks"]) if r in truth.ranks]
    if any(
        abs(row["share_ratio"] - share) <= OF_STEP + OF_FIGURE * share for share in (point, max(named, default=0.0))
    ):
        return ""
    return f"{row['share_ratio']:.1%} of the step, truly {point:.1%}"


def _others(row: Row, kind: str, truth: Truth) -> str:
    """Every rank that is named loses what is said, as far as that is said exactly."""
    for number in sorted(ranks_of(row["ranks"])):
        rank = truth.ranks.get(number)
        if rank is None:
            return f"rank {number} has no steps"
        own, slack = rank.columns.get(kind, NOTHING), _slack(rank.columns.get(kind, NOTHING), rank.step_ns)
        if row["confidence"] != "exact":
            if own.high_ns + slack < WORTH_RATIO * rank.step_ns:
                return f"rank {number} loses {own.high_ns / 1e6:.3g} ms"
        elif not (row["least_ns"] - slack <= own.high_ns and own.low_ns <= row["stall_ns"] + slack):
            low, high = row["least_ns"] / 1e6, row["stall_ns"] / 1e6
            return f"rank {number} loses {own.low_ns / 1e6:.3g} ms, not {low:.3g} to {high:.3g} ms"
    return ""


def _cause(row: Row, evidence: list[Row], rank: RankTruth, truth: Truth, expected: Expected) -> str:
    kind, cause = row["kind"], row["cause_kind"]
    if row["file"] and expected.files and not any(part in row["file"] for part in expected.files):
        return f"blames {row['file']}"
    if kind == "late":
        return _late(row, evidence, rank, truth, expected)
    if kind == "link":
        reported = {e["code"] for e in evidence}
        if truth.missing and "all_arrived" in reported:
            return f"after every rank had arrived, but nothing is known of {truth.missing}"
    if kind == "data":
        return _data_cause(cause, rank, expected)
    if kind == "other" and "other" not in expected.causes and cause.partition("_")[0] in ("asleep", "gil", "unknown"):
        asleep = rank.asleep_ns >= rank.blocked_ns
        right = cause.startswith("asleep") == asleep and not cause.startswith("gil")
        return "" if right else f"cause {cause}, but asleep for {rank.asleep_ns / 1e6:.3g} ms"
    allowed = expected.causes.get(kind)
    return f"cause {cause}" if allowed is not None and cause not in allowed else ""


def _data_cause(cause: str, rank: RankTruth, expected: Expected) -> str:
    allowed, waited = expected.causes.get("data", frozenset()), rank.columns["data"].high_ns
    if not cause or (cause in allowed and (cause == "epochs" or not rank.making)):
        return ""
    if cause == "handoff" and rank.handed_ns is not None:
        fine = rank.handed_ns >= HALF * waited
        return (
            "" if fine else f"cause handoff, but of the waits only {rank.handed_ns / 1e6:.3g} ms were for made batches"
        )
    if not rank.making or cause in ("handoff", "epochs"):
        return f"cause {cause}" if allowed and cause not in allowed else ""
    part = _PARTS.get(cause, "waiting")
    if part == "waiting" and allowed and cause not in allowed and cause != "unknown":
        return f"cause {cause}, the loader knows {sorted(allowed)}"
    if rank.making[part] < NEARLY * max(rank.making.values()):
        spent = ", ".join(f"{ns / 1e6:.3g} ms {name}" for name, ns in rank.making.items())
        return f"cause {cause}, but a step's batches take {spent}"
    return ""


def _late(row: Row, evidence: list[Row], rank: RankTruth, truth: Truth, expected: Expected) -> str:
    if rank.late_ns is None:
        return ""
    waited = rank.late_ns
    most = max(waited.values(), default=0.0)
    if row["cause_kind"] in ("alternates", "chance") and len(truth.ranks) == 2:
        whole = [sum((r.late_ns or {}).values()) for r in truth.ranks.values()]
        if row["cause_kind"] == "chance":  # this rank is said to wait longer than the other one
            fine = sum(waited.values()) == max(whole)
        else:
            fine = min(whole) >= MATTERS * max(whole)
        return "" if fine else f"they wait {' and '.join(f'{w / 1e6:.3g} ms' for w in whole)}"
    if row["cause_rank"] < 0:
        return ""
    if waited.get(row["cause_rank"], 0.0) < NEARLY * most:
        return f"rank {row['cause_rank']} named, waited for {_waited(waited)}"
    return ""


def _waited(waited: Mapping[int, float]) -> str:
    return ", ".join(f"rank {r} {ns / 1e6:.3g} ms" for r, ns in sorted(waited.items()))
