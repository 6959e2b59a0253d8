"""The gate in words: no sentence says more than its bounds; Markdown, JUnit and annotations hold any name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.gate_verdict import Condition, Gate, judge, other_work
from stashtrace.analysis.compare.steps_of_run import StepsOfRun
from stashtrace.schema.stall_kinds import words_of
from stashtrace.summary.ci import annotation_lines, junit_xml
from stashtrace.summary.diff_text import jobs_lines, other_work_lines
from stashtrace.summary.gate_text import Command, document, gate_lines, markdown, sentences

MS = 1_000_000
FACTS = {"ranks": 2, "device": "none", "torch": "2.13.0", "command": "python train.py --lr 0.1"}
HOSTILE = "a|b`c*<img src=x>@team $x$ http://e.example\n::error::x\x1b[2J\x00]]>"


def side(*means_ms: float, name: str = "main", steps: int = 60, spread: float = 0.02, **facts: Any) -> Side:
    runs = []
    for number, mean in enumerate(means_ms):
        random = np.random.default_rng((number, steps, round(mean * 10)))
        times = np.rint(mean * MS * (1 + spread * random.standard_normal(steps))).astype(np.int64)
        ranks = {0: {"step": float(times.mean())}, 1: {"step": float(times.mean()) + MS}}
        runs.append(StepsOfRun(name, {"step": times, "compute": times // 2}, steps, ranks, {**FACTS, **facts}))
    return Side(name, tuple(runs))


def gate(before: Side, after: Side, *conditions: str, **options: Any) -> Gate:
    return judge(before, after, [Condition.of(text) for text in conditions or ("step+5%",)], **options)


def random_gates() -> list[Gate]:
    random = np.random.default_rng(4)
    gates = []
    for _ in range(120):
        count = [int(n) for n in random.integers(1, 5, 2)]
        steps = int(random.choice([1, 2, 12, 60]))
        sides = [
            side(*(40 * random.uniform(0.8, 1.3, n)), steps=steps, spread=float(random.choice([0.001, 0.02, 0.2])))
            for n in count
        ]
        gates.append(gate(*sides, "step+5%", "compute+0%", "network+10%", by_turns=count[0] == count[1] > 2))
    return gates


def test_sentences_say_what_the_bounds_allow() -> None:
    """Each number of each sentence is taken out of it again, and compared with the bounds."""
    said = {"worse": 0, "not worse": 0, "inconclusive": 0}
    for one in random_gates():
        step_ns = one.changes[0].before_ns
        by_condition = {judged.condition.words: judged for judged in one.judged}
        for text in sentences(one):
            name = next((n for n in by_condition if f"{n} allows" in text), None)
            if name is None:
                assert re.search(r"but a run has (a single step|only 2 steps), too few to show how steps spread", text)
                assert text.startswith("inconclusive: ")
                continue
            judged = by_condition[name]
            change = judged.change
            said[judged.verdict] += 1
            low, high, limit = (100 * ns / step_ns for ns in (change.low_ns, change.high_ns, judged.limit_ns))
            if not change.before_ns and not change.after_ns:
                assert (
                    text
                    == f"not worse: {words_of(change.kind)} took no time in either job; {name} allows 10 % of the step"
                )
            elif text.startswith("worse beyond doubt: "):
                assert low > limit
                assert low - (1 if low >= 100 else 0.1) < number(r"at least ([+-][\d.,]+) %", text) <= low
            elif text.startswith("not worse: "):
                assert high <= limit + 1e-9
                assert high <= number(r"at most ([+-][\d.,]+) %", text) < high + 0.1
            else:
                assert text.startswith("inconclusive: ")
                assert low <= limit < high
                assert number(r"between ([+-][\d.,]+|0) %", text) <= low
                assert number(r" and ([+-][\d.,]+|0) %; ", text) >= high
    assert min(said.values()) > 5


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_worse_names_amount_and_limit() -> None:
    (text,) = sentences(gate(side(40), side(50)))
    assert re.fullmatch(
        r"worse beyond doubt: the step went from (?:39|40)\.\d ms to (?:49|50)\.\d ms on average: \+2\d\.\d %,"
        r" at least \+2\d\.\d %; step\+5% allows 5 %",
        text,
    )


def test_a_rank_is_named_if_it_grew_by_more_than_the_others() -> None:
    before, after = side(40), side(50)
    ranks = {0: {"step": 40.0 * MS}, 1: {"step": 60.0 * MS}}
    uneven = Side("main", tuple(replace(run, ranks_ns=ranks) for run in after.runs))
    (text,) = sentences(gate(before, uneven))
    assert re.search(r"; most on rank 1, by 19\.\d ms$", text)


def test_inconclusive_says_what_would_decide() -> None:
    (few,) = sentences(gate(side(40, steps=20, spread=0.1), side(44, steps=20, spread=0.1)))
    assert re.search(
        r"about [\d,]+ steps a run or \d+ alternating runs a side would separate \+10\.0 % from \+5\.0 %$", few
    )
    (single,) = sentences(gate(side(40, steps=1), side(80, steps=1)))
    ending = ", too few to show how steps spread: record 10 or more"
    assert single.endswith(f"but a run has a single step{ending}")
    (short,) = sentences(gate(side(40, steps=75), side(40, steps=3, spread=0.0)))
    assert short.endswith(f"but a run has only 3 steps{ending}")
    (mixed,) = sentences(gate(side(40, 40, 40, steps=1), side(40, steps=75)))
    assert mixed.endswith(f"but a run has a single step{ending}")
    busy = side(50)
    busy = Side("main", tuple(replace(run, cpu_wait_ns=9.0 * MS) for run in busy.runs))
    quiet = Side("main", tuple(replace(run, cpu_wait_ns=0.0) for run in side(40).runs))
    (waited,) = sentences(gate(quiet, busy))
    assert re.search(
        r"^inconclusive: .*, at least \+2\d\.\d %; step\+5% allows 5 %, but ranks or their workers waited for a CPU for"
        r" 9\.00 ms more of a step: .* alternately \(`stashtrace check --rerun`\)$",
        waited,
    )
    (idle,) = sentences(gate(busy, quiet, "step+0%"))
    assert re.search(
        r"^inconclusive: .*, at most -1\d\.\d %; .* or their workers waited for a CPU for 9\.00 ms less of a step: ",
        idle,
    )
    (near,) = sentences(gate(side(40, steps=3000), side(42.4, steps=3000)))
    assert re.search(r": about \d+ alternating runs a side would separate \+\d\.\d % from \+5\.0 %$", near)
    (equal,) = sentences(gate(side(40, steps=3000), side(39.9, steps=3000), "step+1%"))
    assert equal.endswith(" alternating runs a side would separate no growth from +1.0 %")
    (hidden,) = sentences(gate(side(40, steps=20, spread=3), side(41, steps=20, spread=3)))
    assert hidden.endswith(
        ": it would take more than 30 runs a side, as the machine's spread hides the growth:"
        " use --rerun on a quiet machine"
    )


def test_a_busy_machine_is_named_with_what_it_can_explain() -> None:
    def using(ms: float, wait_ms: float, count: float, stolen: float) -> Side:
        return Side("main", tuple(replace(run, cpus=CpuUse(wait_ms * MS, count, stolen)) for run in side(ms).runs))

    quiet = using(40, 2, 0.1, 0.0)
    (busy,) = sentences(gate(quiet, using(160, 150, 1.4, 0.0)))
    assert re.search(
        r"but the machine was busier: programs outside the job used 0\.1 CPUs before and 1\.4 after; that can explain"
        r" up to 148 ms of a step, so record on a machine without other work, or alternately"
        r" \(`stashtrace check --rerun`\)$",
        busy,
    )
    (stolen,) = sentences(gate(quiet, using(50, 2, 0.1, 0.3)))
    assert "but the machine was busier: its hypervisor took 0 % of the CPU time before and 30 % after; that" in stolen
    (little,) = sentences(gate(quiet, using(43.5, 6, 0.14, 0.0), "step+4%"))
    assert "but the machine was busier: programs outside the job used 0.10 CPUs before and 0.14 after; that" in little
    (rarely,) = sentences(gate(quiet, using(43.5, 2, 0.1, 0.004), "step+6.5%"))
    assert (
        "but the machine was busier: its hypervisor took 0.0 % of the CPU time before and 0.4 % after; that" in rarely
    )
    (before,) = sentences(gate(using(42, 30, 1.4, 0.0), quiet))
    assert "but the machine was less busy: programs outside the job used 1.4 CPUs before and 0.1 after" in before


def test_percentages_of_kinds_are_of_the_step() -> None:
    """Growth of a kind, its bounds and its limit have one base, on screen too: a kind of half a step grew by a half."""
    before = side(40)
    longer = {**before.runs[0].times_ns, "compute": before.runs[0].times_ns["compute"] * 3 // 2}
    after = Side("main", (replace(before.runs[0], times_ns=longer),))
    found = gate(before, after, "compute+5%")
    (text,) = sentences(found)
    assert re.search(
        r"compute per step went from (19|20)\.\d ms to (29|30)\.\d ms on average: \+25\.0 % of the step before,"
        r" at least \+2\d\.\d %; compute\+5% allows 5 % of the step",
        text,
    )
    lines = gate_lines(found)
    head = next(line for line in lines if "95 % bounds" in line)
    assert "growth of step" in head
    assert any(
        line.startswith("growth, bounds and limits are parts of the step before (") and line.endswith("of a kind too")
        for line in lines
    )


def test_the_worst_comes_first() -> None:
    found = sentences(gate(side(40), side(50), "network+10%", "compute+11%", "step+5%"))
    assert [text.partition(":")[0] for text in found] == ["worse beyond doubt", "inconclusive", "not worse"]


def test_what_differs_comes_first() -> None:
    lines = gate_lines(gate(side(40), side(40, torch="2.14.0", command="python train.py --lr 0.2")))
    assert lines[:3] == [
        "jobs: 2 recorded facts differ",
        "  torch    2.13.0 -> 2.14.0",
        "  command  0.1 -> 0.2",
    ]
    assert gate_lines(gate(side(40), side(40)))[0].startswith("jobs: nothing that was recorded differs (ranks: 2, ")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            {"cpu_wait_ns": 1.0 * MS},
            {"cpu_wait_ns": 9.0 * MS},
            "ranks or their workers waited for a CPU for 8.00 ms more",
        ),
        (
            {"cpu_wait_ns": 9.0 * MS},
            {"cpu_wait_ns": 1.0 * MS},
            "ranks or their workers waited for a CPU for 8.00 ms less",
        ),
        (
            {"worker_wait_ns": 0.0},
            {"worker_wait_ns": 8.0 * MS},
            "ranks or their workers waited for a CPU for 8.00 ms more",
        ),
        ({"cpu_wait_ns": 1.0 * MS}, {"cpu_wait_ns": 1.5 * MS}, ""),
        ({}, {"cpu_wait_ns": 9.0 * MS}, ""),
        (
            {"cpus": CpuUse(2.0 * MS, 0.1, 0.0)},
            {"cpus": CpuUse(150.0 * MS, 1.4, 0.0)},
            "the machine was busier: programs outside the job used 0.1 CPUs before and 1.4 after",
        ),
        # Its threads waited for each other.
        (
            {"cpus": CpuUse(2.0 * MS, 0.1, 0.0), "cpu_wait_ns": 1.0 * MS},
            {"cpus": CpuUse(150.0 * MS, 0.1, 0.0), "cpu_wait_ns": 9.0 * MS},
            "",
        ),
    ],
)
def test_diff_and_gate_say_the_same_of_other_work(before: Any, after: Any, said: str) -> None:
    """One rule and one wording; a gate of the same runs is inconclusive for it where it decides."""
    sides = [
        Side("main", tuple(replace(run, **more) for run in side(ms).runs)) for ms, more in ((40, before), (46, after))
    ]
    lines = other_work_lines(other_work(*sides), 40.0 * MS)
    assert [line.partition(" of a step: such")[0].partition("; that can")[0] for line in lines] == [said] * bool(said)
    if said and "less" not in said:
        (text,) = sentences(gate(*sides, "step+1%"))
        assert text.endswith(f"but {lines[0]}")


def test_what_one_side_does_not_record() -> None:
    lines = jobs_lines(FACTS, {**FACTS, "torch": None, "cpu": "EPYC"})
    assert lines == ["jobs: no difference is known", "  recorded on one side alone: CPU, torch"]


def test_the_allowance_is_stated() -> None:
    single = "\n".join(gate_lines(gate(side(40), side(40))))
    assert "run-to-run allowance: 2.0 % of the step before (" in single
    assert "smallest growth that would be called worse in four of five such comparisons: step+5%: +" in single
    given = "\n".join(gate_lines(gate(side(40), side(40), allowance_ratio=0.01)))
    assert "run-to-run allowance: 1.0 % of the step before (" in given
    assert "as given by --allowance" in given
    assert "none, by --allowance" in "\n".join(gate_lines(gate(side(40), side(40), allowance_ratio=0.0)))
    three = "\n".join(gate_lines(gate(side(40, 41, 42), side(40, 41, 42))))
    assert "none needed, as the bounds are those of the means of the runs" in three
    turns = "\n".join(gate_lines(gate(side(40, 41, 42), side(40, 41, 42), by_turns=True)))
    assert "differences of alternating runs" in turns


def test_jobs_that_do_not_compare() -> None:
    found = gate(side(40), side(40, ranks=4))
    assert sentences(found) == ["not comparable: the jobs differ in ranks (2 -> 4)"]
    suite = ElementTree.fromstring(junit_xml(found))
    assert (suite.get("errors"), suite.get("tests")) == ("1", "1")
    assert annotation_lines(found) == [
        "::error title=stashtrace check%3A not comparable::not comparable: the jobs differ in ranks (2 -> 4)"
    ]


def test_junit() -> None:
    found = gate(side(40), side(50), "network+10%", "compute+11%", "step+5%")
    suite = ElementTree.fromstring(junit_xml(found))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {"network+10%": [], "compute+11%": ["skipped"], "step+5%": ["failure"]}
    assert "worse beyond doubt: the step went" in (suite.find("testcase/failure").get("message") or "")


def test_annotations_are_escaped() -> None:
    lines = annotation_lines(gate(side(40), side(50), "network+10%", "compute+11%", "step+5%"))
    assert [line.partition(" ")[0] for line in lines] == ["::warning", "::error"]
    for line in lines:
        assert "\n" not in line
        title, _, message = line[2:].partition("::")
        assert ":" not in title.partition("=")[2]
        assert "," not in title
        assert not re.search("%(?!25|0A|0D|3A|2C)", title + message)


def test_names_are_shown_not_obeyed() -> None:
    found = gate(side(40, name=HOSTILE), side(50, name=HOSTILE, torch=HOSTILE))
    page = markdown(found)
    assert "<img" not in page
    assert "@team" not in page
    assert "$x$" not in page
    assert "http://" not in page
    assert not re.search(r"^::", page, re.M)
    assert not re.search("[\x00-\x08\x1b]", page)
    ElementTree.fromstring(junit_xml(found))
    refused = gate(side(40), side(40, device=HOSTILE))
    assert all("\n" not in line and line.startswith("::error ") for line in annotation_lines(refused))
    ElementTree.fromstring(junit_xml(refused))


def test_a_command_can_be_copied_from_markdown() -> None:
    words = "stashtrace check --rerun 5 -- python a_b.py '*' '`x`'"
    page = markdown(gate(side(40), side(40)), Command(words))
    assert f"to decide it: `` {words} ``" in page


def test_markdown_is_a_table() -> None:
    lines = markdown(gate(side(40), side(50))).splitlines()
    assert lines[0] == "### stashtrace check: worse"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1


def test_document_holds_all_numbers() -> None:
    found = gate(side(40), side(50), "step+5%", "network+10%")
    content = json.loads(json.dumps(document(found)))
    assert (content["verdict"], content["exit_code"]) == ("worse", 1)
    step = content["conditions"][0]
    assert step["condition"] == "step+5%"
    assert step["low_ns"] < step["growth_ns"] < step["high_ns"]
    assert step["growth_ns"] == pytest.approx(step["after_ns"] - step["before_ns"])
    assert [kind["kind"] for kind in content["kinds"]] == ["step", "compute", "network"]
    assert content["before"]["facts"]["ranks"] == 2
