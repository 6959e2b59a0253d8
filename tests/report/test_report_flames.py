"""Flame graphs of the page: what a box stands for, what differs between ranks, and names that look like HTML."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from builders import MS, TraceBuilder
from stack_rows import FORKED, TORCH, long_call, sample, stack_of
from summary.scenes import job

from stashtrace.report.blocks import html_of
from stashtrace.report.document import report_facts
from stashtrace.report.page.flame_graphs import flame_graph, flames_part
from stashtrace.report.page.page import page
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace

MODULE, MAIN = "<module> /jobs/late.py:26", "main /jobs/late.py:23"
BACKWARD = f"Tensor.backward {TORCH}/_tensor.py:6"


def late_job(ranks: int = 3, slow: int = 1, steps: int = 30, hook: str = "hook", *, loads: bool = False) -> Trace:
    """Ranks that compute; one sleeps for 20 ms a step in a hook that backward calls, and the others wait for it."""
    build = TraceBuilder()
    for number in range(ranks):
        rank = build.rank(number)
        main = stack_of(rank, MODULE, MAIN)
        backward = stack_of(rank, MODULE, MAIN, BACKWARD)
        sleeper = stack_of(rank, MODULE, MAIN, BACKWARD, f"{hook} /jobs/late.py:11")
        for step in range(steps):
            at = step * 100 * MS
            rank.phase("forward", at, at + 30 * MS, cpu=(at, at + 30 * MS))
            if number == slow:
                rank.wait(WaitOp.SLEEP, at + 40 * MS, at + 60 * MS)
                long_call(rank, at + 40 * MS, at + 60 * MS, sleeper)
            used_ns = 40 * MS
            rank.phase("backward", at + 30 * MS, at + 90 * MS, cpu=(at + 30 * MS, at + 30 * MS + used_ns))
            rank.phase("optimizer", at + 90 * MS, at + 100 * MS, cpu=(at + 90 * MS, at + 100 * MS))
            for moment in range(0, 100, 10):
                sample(rank, at + moment * MS, backward if 30 <= moment < 90 else main)
            if loads:
                worker = rank.worker(0)
                rank.batch_wait(step, at, at + MS, worker=0)
                worker.fetch(step, at, at + 50 * MS)
                sample(worker, at + 25 * MS, stack_of(worker, *FORKED, "Images.__getitem__ /jobs/data.py:7"))
    for step in range(steps):
        entered = {rank: (step * 100 + (89 if rank == slow else 70)) * MS for rank in range(ranks)}
        end = (step * 100 + 90) * MS
        build.meet(entered, end, message_bytes=1000)
    return build.trace()


def flames_of(trace: Trace) -> dict[str, Any]:
    found = report_facts(trace)["flames"]
    assert found is not None
    return dict(found)


def boxes(graph: dict[str, Any]) -> list[str]:
    """One line for each box: its depth as indent, its text or kind, begin and length in ms."""
    return [
        f"{'  ' * box['depth']}{box['text'] or box['kind']} {box['begin_ns'] / MS:.3g} {box['length_ns'] / MS:.3g}"
        for box in graph["boxes"]
    ]


def svg_of(found: dict[str, Any]) -> ElementTree.Element:
    return ElementTree.fromstring(flame_graph(found["groups"][0], "a label", "step"))


def test_boxes_fill_the_step_and_stand_below_their_callers() -> None:
    found = flames_of(late_job())
    assert [group["ranks"] for group in found["groups"]] == ["0,2", "1"]
    slow = found["groups"][1]
    assert slow["whole_ns"] == slow["step_ns"] == 100 * MS
    (other,) = [at for at, box in enumerate(slow["boxes"]) if box["kind"] == "other" and not box["depth"]]
    assert [line.split(" ")[:-2] for line in boxes(slow)[other:]] == [
        ["other"],
        ["", "", "late.py:26"],
        ["", "", "", "", "main", "(late.py:23)"],
        ["", "", "", "", "", "", "hook", "(late.py:11)"],
    ]
    kinds = [box for box in slow["boxes"] if box["depth"] == 0]
    assert sum(box["length_ns"] for box in kinds) == slow["whole_ns"]
    for box in slow["boxes"]:
        assert box["begin_ns"] >= 0
        assert box["begin_ns"] + box["length_ns"] <= slow["whole_ns"]


def test_the_slow_rank_is_compared_with_the_median_of_the_others() -> None:
    found = flames_of(late_job(ranks=5, slow=3))["difference"]
    assert found["slow_rank"] == 3
    assert found["rank"] in (0, 1, 2, 4)
    hook = next(box for box in found["boxes"] if box["text"] == "hook (late.py:11)")
    assert (hook["slow_ns"], hook["other_ns"]) == (20 * MS, 0)
    assert not any(box["kind"] == "straggler" for box in found["boxes"]), "it mirrors the lateness of others"


def test_what_few_samples_leave_open_is_no_difference() -> None:
    build = TraceBuilder()
    for number in range(2):
        rank = build.rank(number)
        stacks = [stack_of(rank, MAIN, f"{name} /jobs/late.py:{at}") for at, name in enumerate("abc", 1)]
        for step in range(10):
            at = step * 100 * MS
            rank.phase("forward", at, at + 90 * MS, cpu=(at, at + 90 * MS))
            rank.phase("optimizer", at + 90 * MS, at + 100 * MS, cpu=(at + 90 * MS, at + 100 * MS))
            sample(rank, at + (37 * step + 11 * number) % 100 * MS, stacks[(step + step * number) % 3])
    found = flames_of(build.trace())
    assert found["difference"]["boxes"] == []
    text = "".join(html_of(flames_part(report_facts(build.trace()))))
    assert "No function differs by more than the error of the samples." in text


def test_one_rank_is_compared_with_nobody() -> None:
    assert flames_of(late_job(ranks=1, slow=0))["difference"] is None


def test_workers_have_a_graph_of_a_batch() -> None:
    workers = flames_of(late_job(loads=True))["workers"]
    assert workers["whole_ns"] == 50 * MS
    assert [line.split(" ")[-3] for line in boxes(workers)] == ["prep", "(data.py:7)"]
    assert flames_of(late_job())["workers"] is None


def test_a_recording_without_stacks_has_no_such_part() -> None:
    facts = report_facts(job(ranks=2)[1])
    assert facts["flames"] is None
    assert flames_part(facts) == []
    assert 'id="flames"' not in page(facts)


@pytest.mark.parametrize("name", ["<lambda>", "train.<locals>.<lambda>", "<module>", "</svg><script>alert(1)</script>"])
def test_names_that_look_like_elements_are_text(name: str) -> None:
    facts = report_facts(late_job(hook=name.replace(" ", "")))
    svg = ElementTree.fromstring(flame_graph(facts["flames"]["groups"][1], f"of {name}", "step"))
    assert {element.tag for element in svg.iter()} == {"svg", "title", "rect", "foreignObject", "div"}
    reported = [element.text or "" for element in svg.iter("title")]
    shown = "late.py:11" if name == "<module>" else f"{name.replace('.<locals>', '')} (late.py:11)"
    assert any(title.startswith(f"{shown}, other") for title in reported)
    whole = page(facts)
    assert "<lambda>" not in whole
    assert "<module>" not in whole
    assert "<script>alert" not in whole


def test_each_box_says_what_it_is_and_of_what_its_percent_is() -> None:
    svg = svg_of(flames_of(late_job(ranks=1, slow=0)))
    reported = [element.findtext("title") or "" for element in svg if element.tag == "svg"]
    assert "hook (late.py:11), other (blocked or asleep): 20.0 ms a step, 20 % of 100 ms" in reported
    assert any(re.fullmatch(r"compute: \S+ ms a step, \d+ % of 100 ms; \d+ samples", title) for title in reported)
    assert svg.attrib["aria-label"] == "a label"


def test_narrow_boxes_have_no_text() -> None:
    graph = {
        "whole_ns": 1000,
        "boxes": [
            {"kind": "compute", "depth": 0, "begin_ns": 0, "length_ns": length, "text": "", "library": False}
            | {"samples_count": 0}
            for length in (500, 100, 50, 30)
        ],
    }
    svg = ElementTree.fromstring(flame_graph(graph, "a label", "step"))
    classes = [words.attrib["class"] if (words := box.find("*/div")) is not None else None for box in svg]
    assert classes == ["t0", "t1", "t2", None]
