"""Read a summary as a person would: which cause does its first verdict name, whose is it, and how long does it take?

A verdict is a paragraph that begins with the mark of a verdict; its head is its first sentence. Blamed is who is said
to do something that takes time: the subject of the head, or, if that one waits for a rank, the rank that it waits for.
Transfers and ranks that take turns blame nobody, and neither does a head about all ranks of the job.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from causes.plan import Cause, Plan, Truth
from causes.words import NO_CAUSE, NOT_COMPUTE, WORDS

MARK = "▶"
#: A figure is right within this part of the true one.
AMOUNT_RATIO = 0.15
#: An interval that is wider than this says no amount.
WIDE_RATIO = 1.5
#: A wait below this part of the step, or this long, is the noise of a busy machine: naming a rank for it is no blame.
NOISE_RATIO, NOISE_MS = 0.05, 3.0
#: Next to a planted cause, smaller waits do not matter.
MATTERS_RATIO = 0.1
#: The stopwatches agree with a blame if they see at least this part of the waiting behind that rank.
SEEN_RATIO = 0.5

#: Characters that are quoted on both sides of what is false.
QUOTED = 70

RIGHT, READER = "right", "needs a reader"
NO_VERDICT, WRONG_CAUSE, WRONG_RANK, WRONG_AMOUNT = "no verdict", "wrong cause", "wrong rank", "wrong amount"
NOT_FIRST, INCOMPLETE = "not first", "not all of it said"
NO_NAME, NO_SHAPE, MISSED = "name not said", "shape not said", "second cause missed"
WRONG_BLAME, FALSE = "blames another", "false sentence"

_RANKS = r"\branks?\s+(\d+(?:\s*[-–]\s*\d+)?(?:\s*(?:,|and)\s*\d+(?:\s*[-–]\s*\d+)?)*)"
_AWAITED = re.compile(r"\bwait(?:s|ing|ed)?\b.*?\bfor\b.*?" + _RANKS + r"|\btraces? back to " + _RANKS)
_LENGTH = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(us|µs|ms|s)\b")
#: Of a time that is said whole before, the part in one call: "fsync() 16.9 ms".
_PART = re.compile(r"\b\w+\(\) \d[\d,]*(?:\.\d+)?\s*(?:us|µs|ms|s)\b")
_UNIT_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_NOBODY = re.compile(
    r"\ball ranks\b|\balternat|\bin turns?\b|\btransfers?\b|\bcompute bound\b|\bbubble\b(?!.*\bstage \d)"
)


@dataclass(frozen=True)
class Verdict:
    """A paragraph of a summary."""

    head: str
    details: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the whole paragraph as one line."""
        return " / ".join([self.head, *self.details])


@dataclass(frozen=True)
class Outcome:
    """What is right and wrong about a summary."""

    faults: tuple[str, ...]
    first: str
    wrong: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """Return the one word that counts."""
        return self.faults[0] if self.faults else RIGHT


def verdicts(text: str) -> list[Verdict]:
    """Return the verdicts of a rendered summary in their order."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(MARK):
            found.append([stripped.removeprefix(MARK).strip()])
            inside = True
        elif inside and stripped and line.startswith("    "):
            indent = len(line) - len(line.lstrip())
            if indent == 6:
                found[-1].append(stripped)
            else:
                found[-1][-1] += " " + stripped
        else:
            inside = False
    return [Verdict(paragraph[0], tuple(paragraph[1:])) for paragraph in found]


def stall_verdicts(text: str) -> list[Verdict]:
    """Return the verdicts but for that about other work on the machine's CPUs, which the bench does not plant."""
    return [verdict for verdict in verdicts(text) if not verdict.head.startswith("CPU contention")]


def opening(text: str) -> str:
    """Return what stands above the first verdict, or above the sources if there is none, as one line."""
    return re.sub(r"\s+", " ", re.split(rf"{MARK}|\bmeasured:", text)[0]).strip()


def numbers(text: str) -> set[int]:
    """Read a list of ranks such as ``0-3,7`` or ``2 and 3``."""
    found: set[int] = set()
    for part in re.split(r",|\band\b", text):
        first, _, last = part.replace("–", "-").partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def blamed(head: str, ranks_count: int) -> set[int] | None:
    """Return whom a head blames; None if that cannot be decided."""
    clause, _, rest = head.partition("; ")
    clause = clause.split(": ")[0]
    if re.search(r"\bwait(s|ing)?\b.*\bfor (the )?others\b", clause):
        # Who the others are stands behind, if it is said.
        found = _named_ranks(rest, _AWAITED.search(rest))
        return set() if len(found) >= ranks_count > 1 else found
    if _NOBODY.search(clause):
        return set()
    awaited = _AWAITED.search(clause)
    if awaited:
        found = _named_ranks(clause, awaited)
    else:
        match = re.search(_RANKS, clause)
        if match is None:
            return {0} if ranks_count == 1 else None
        found = numbers(match.group(1))
    return set() if len(found) >= ranks_count > 1 else found


def _named_ranks(text: str, awaited: re.Match[str] | None) -> set[int]:
    """Return the ranks that are waited for; of "rank 1, which waits for rank 0" the last."""
    if awaited is None:
        return set()
    begin = awaited.start(1) if awaited.group(1) else awaited.start(2)
    tail = re.split(r"\b(?:which|that|who) (?:itself )?waits?\b", text[max(text.rfind("rank", 0, begin), 0) :])[-1]
    return {rank for match in re.finditer(_RANKS, tail) for rank in numbers(match.group(1))}


def lengths_ms(head: str) -> list[tuple[float, float]]:
    """Return the lengths of time that a head says, each with its bounds."""
    found: list[tuple[float, float]] = []
    head = _PART.sub("", head)
    # "is blocked 25 ms a step, 20 ms of it asleep" says 20 ms of the cause.
    matches = [match for match in _LENGTH.finditer(head) if head.startswith(" of it", match.end())]
    matches = matches or list(_LENGTH.finditer(head))
    number = 0
    while number < len(matches):
        low = high = _as_ms(matches[number])
        if number + 1 < len(matches):
            between = head[matches[number].end() : matches[number + 1].start()]
            if re.fullmatch(r"\s*(to|and|[-–])\s*", between):
                number += 1
                high = _as_ms(matches[number])
        found.append((low, high))
        number += 1
    return found


def _as_ms(match: re.Match[str]) -> float:
    return float(match.group(1).replace(",", "")) * _UNIT_MS[match.group(2)]


def is_true(length: tuple[float, float], amounts: Mapping[str, float]) -> bool:
    """Return whether a length is true; a range is if both ends are, or if it is narrow."""
    low, high = length
    ends = [any(_is_near(end, true) for true in amounts.values()) for end in length]
    narrow = high <= WIDE_RATIO * low
    inside = any(low <= (1 + AMOUNT_RATIO) * true and high >= (1 - AMOUNT_RATIO) * true for true in amounts.values())
    return all(ends) or (narrow and inside)


def _is_near(said: float, true: float) -> bool:
    return abs(said - true) <= AMOUNT_RATIO * true


def says_kind(cause: Cause, text: str) -> bool:
    """Return whether a text has the words of a cause, and does not say that none is known."""
    return bool(re.search(WORDS[cause.kind], text)) and not re.search(NO_CAUSE, text)


def says_name(cause: Cause, text: str) -> bool:
    """Return whether a text has the name that belongs to a cause."""
    return bool(re.search(cause.named, text))


def unlike_rows(text: str, rows: str) -> list[str]:
    """Return the causes, or the verdicts, of a rendered summary that do not stand in its JSON."""
    read = json.loads(rows)
    said = [*(finding["text"] for finding in read["findings"]), *(cause["what"] for cause in read["do_first"])]
    return [verdict.head for verdict in verdicts(text) if not any(map(verdict.head.startswith, said))]


def judge(text: str, plan: Plan, truth: Truth) -> Outcome:
    """Judge a rendered summary."""
    found = stall_verdicts(text)
    first = found[0].text if found else opening(text)
    false = [*_false_sentences(text, plan), *_false_blames(found, plan, truth)]
    if not plan.causes:
        return _balanced(found, first, false, truth)
    if plan.ending:
        faults = _ending(text, found, plan)
    elif not found:
        faults = [NO_VERDICT]
    else:
        faults = _planted(found, plan, truth)
    if false and FALSE not in faults:
        faults.append(WRONG_BLAME if all(kind == WRONG_BLAME for kind, _ in false) else FALSE)
    return Outcome(tuple(faults), first, tuple(sentence for _, sentence in false))


def _planted(found: list[Verdict], plan: Plan, truth: Truth) -> list[str]:
    """Return what is wrong about the verdicts of a member with causes."""
    first = found[0]
    who = blamed(first.head, truth.ranks_count)
    if who is None:
        return [READER]
    every = who == {rank for cause in plan.causes for rank in cause.ranks}
    spoken = [n for n, cause in enumerate(plan.causes) if says_kind(cause, first.text)]
    right_ranks = [n for n, cause in enumerate(plan.causes) if every or _is_culprit(who, cause, truth)]
    matched = [n for n in spoken if n in right_ranks]
    faults = [] if right_ranks else [WRONG_RANK]
    if not matched and (right_ranks or not spoken):
        faults.insert(0, WRONG_CAUSE)
    if not matched:
        return faults
    known = {label: ms for n in matched for label, ms in truth.amounts[n].items()}
    if known and not all(is_true(length, known) for length in lengths_ms(first.head)):
        faults.append(WRONG_AMOUNT)
    if not all(says_name(plan.causes[n], first.text) for n in matched):
        faults.append(NO_NAME)
    if plan.shape and not re.search(plan.shape, first.text):
        faults.append(NO_SHAPE)
    others = [cause for n, cause in enumerate(plan.causes) if n not in (matched if every else matched[:1])]
    if not all(any(_says(verdict, cause, truth) for verdict in found) for cause in others):
        faults.append(MISSED)
    return faults


def _is_culprit(who: set[int], cause: Cause, truth: Truth) -> bool:
    """Return whether the blamed are the culprits; a cause that all ranks share blames nobody."""
    return who == set(cause.ranks) or (len(cause.ranks) == truth.ranks_count and not who)


def _says(verdict: Verdict, cause: Cause, truth: Truth) -> bool:
    """Return whether a verdict names a cause, its name and its ranks."""
    who = blamed(verdict.head, truth.ranks_count)
    named = says_kind(cause, verdict.text) and says_name(cause, verdict.text)
    return named and who is not None and _is_culprit(who, cause, truth)


def _ending(text: str, found: list[Verdict], plan: Plan) -> list[str]:
    """Return what is wrong about how a job is said to have ended: above the verdicts or in the first."""
    cause = plan.causes[0]
    first = [opening(text), *(v.text for v in found[:1])]
    if _names_ending(" / ".join(first), cause):
        return []
    if _names_ending(re.sub(r"\s+", " ", text), cause):
        return [NOT_FIRST]
    said = any(re.search(WORDS[cause.kind], part) for part in (*first, text))
    return [INCOMPLETE if said else NO_VERDICT]


def _names_ending(text: str, cause: Cause) -> bool:
    """Return whether the ranks of an ending stand near its words, and the text has the name that belongs to it."""
    near = [text[max(m.start() - QUOTED, 0) : m.end() + QUOTED] for m in re.finditer(WORDS[cause.kind], text)]
    ranks = [numbers(match.group(1)) for part in near for match in re.finditer(_RANKS, part)]
    return set(cause.ranks) in ranks and says_name(cause, text)


def _balanced(found: list[Verdict], first: str, false: list[tuple[str, str]], truth: Truth) -> Outcome:
    """Judge the summary of a member in which nothing is planted."""
    kinds = [kind for kind, _ in false]
    unclear = [
        v.head for v in found if blamed(v.head, truth.ranks_count) is None and _largest(v.head) >= _noise_ms(truth)
    ]
    faults = list(dict.fromkeys(kinds)) + ([READER] if unclear else [])
    return Outcome(tuple(faults), first, tuple(sentence for _, sentence in false) + tuple(unclear))


def _noise_ms(truth: Truth) -> float:
    return max(NOISE_RATIO * truth.step_ms, NOISE_MS)


def _largest(head: str) -> float:
    return max((high for _, high in lengths_ms(head)), default=0.0)


def _false_sentences(text: str, plan: Plan) -> list[tuple[str, str]]:
    """Return the sentences that are known to be false of this member."""
    flat = re.sub(r"\s+", " ", text)
    patterns = [*plan.false]
    if plan.causes and not any(cause.kind in ("compute", "skew") for cause in plan.causes):
        patterns += NOT_COMPUTE
    found: list[tuple[str, str]] = []
    quoted = (0, 0)
    for match in sorted((m for p in patterns for m in re.finditer(p, flat)), key=lambda m: m.start()):
        if match.start() >= quoted[1]:
            quoted = max(match.start() - QUOTED, 0), match.end() + QUOTED
            found.append((FALSE, f"...{flat[slice(*quoted)]}..."))
    return found


def _false_blames(found: list[Verdict], plan: Plan, truth: Truth) -> list[tuple[str, str]]:
    """Return the heads that blame a rank which did nothing."""
    culprits = {rank for cause in plan.causes for rank in cause.ranks}
    noise = max(_noise_ms(truth), MATTERS_RATIO * truth.step_ms if plan.causes else 0.0)
    result = []
    for verdict in found:
        who = (blamed(verdict.head, truth.ranks_count) or set()) - culprits
        if not who or _largest(verdict.head) < noise:
            continue
        if truth.ranks_count == 1 and not plan.causes:
            continue
        seen = max(truth.caused.get(rank, 0.0) for rank in who)
        # By the stopwatches this rank was last: on a busy machine that may be so without anything planted.
        backed = seen >= SEEN_RATIO * _largest(verdict.head) and not plan.bubble
        if not (backed and plan.ending):
            result.append((READER if backed and not plan.causes else WRONG_BLAME, verdict.head))
    return result
