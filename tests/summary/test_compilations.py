"""torch.compile that compiles again in the steps: no compute, named with its function and reason, and removable."""

from __future__ import annotations

import pytest
from builders import MS, TraceBuilder
from summary.scenes import Verdict, verdicts

from stashtrace.analysis.graph import build as graph_of
from stashtrace.analysis.registry import analyze
from stashtrace.replay.causes import causes
from stashtrace.replay.changes import Change
from stashtrace.replay.whatif import what_if
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.cause_templates import cause_text

STEPS, USUAL_MS, COMPILE_MS = 24, 20, 80
REASON = "tensor 'x' size mismatch at index 0. expected 64, actual 65"


def job(*, inside_forward: bool, ranks: int = 1, every: int = 4, reason: str = REASON) -> Trace:
    """Steps of 20 ms; the last rank compiles again for 80 ms in each fourth one, in its forward or before it."""
    build, start = TraceBuilder(), 0
    if ranks > 1:
        build.group(range(ranks))
    for step in range(STEPS):
        calls: dict[int, int] = {}
        for number in range(ranks):
            rank, at = build.rank(number), start
            long = COMPILE_MS * MS if number == ranks - 1 and step % every == 0 else 0
            if long:
                rank.compiles("Net.forward (net.py:8)", at + MS, at + MS + long, before=step // every, reason=reason)
            begin = at if inside_forward else at + MS + long
            forward_ends = at + 10 * MS + long
            rank.phase("forward", begin, forward_ends, cpu=(begin, forward_ends))
            calls[number] = forward_ends + 5 * MS
        end = max(calls.values()) + MS
        for number, call in calls.items():
            build.rank(number).phase("backward", call - 5 * MS, end, cpu=(call - 5 * MS, call))
        if ranks > 1:
            build.meet(calls, end)
        start = end + 4 * MS
        for number in range(ranks):
            build.rank(number).phase("optimizer", end, start, cpu=(end, start))
    return build.trace()


def about(found: list[Verdict], kind: str) -> Verdict:
    return next(one for one in found if one.kind == kind)


@pytest.mark.parametrize("inside_forward", [True, False])
def test_a_compilation_is_no_compute_wherever_it_is(inside_forward: bool) -> None:
    trace = job(inside_forward=inside_forward)
    steps = analyze(trace, "steps")
    rows = analyze(trace, "stalls", by="run")
    by_kind = dict(zip(rows["kind"].tolist(), rows["stall_ns"].tolist(), strict=True))
    counted = steps["step"][steps["warmup"] == 0]
    compiled = sum(step % 4 == 0 for step in counted.tolist()) * COMPILE_MS * MS
    assert by_kind["python"] >= compiled
    assert by_kind["python"] <= compiled + len(counted) * MS  # what lies before it in the loop
    assert by_kind["compute"] == pytest.approx(len(counted) * USUAL_MS * MS, rel=0.1)


def test_the_summary_names_the_function_how_often_and_why() -> None:
    said = about(verdicts(job(inside_forward=True)), "host")
    assert said.text.endswith(" %) in torch.compile Net.forward (net.py:8)")
    assert "outside forward" not in said.text
    (line,) = [text for text in said.evidence if "compiles again" in text]
    assert f"80.0 ms each time: {REASON}" in line
    assert "mark_dynamic" in line


def test_a_cure_of_sizes_is_not_offered_for_another_reason() -> None:
    said = about(verdicts(job(inside_forward=True, reason="self.training == True")), "host")
    assert any("each time: self.training == True" in text for text in said.evidence)
    assert not any("mark_dynamic" in text for text in said.evidence)


def test_the_rank_that_compiles_is_the_one_that_others_wait_for() -> None:
    trace = job(inside_forward=False, ranks=2)
    first = next(iter(causes(trace).rows()))
    assert (first["ranks"], first["kind"], first["waiting_ranks"]) == ("1", "compile", "0")


def test_without_compilations_the_steps_are_as_long_as_the_others() -> None:
    trace = job(inside_forward=True, ranks=2)
    answer = what_if(graph_of(trace), [Change.parse("compile=0")])
    assert answer.middle_ns == pytest.approx(USUAL_MS * MS, rel=0.05)


def test_what_to_do_first_is_not_to_compile_again() -> None:
    table = causes(job(inside_forward=True))
    assert (table["kind"][0], table["level"][0]) == ("compile", "gone")
    assert cause_text(next(table.rows()), "run").startswith(
        "rank 0 compiles (torch.compile) 80.0 ms in every 4th step; with nothing compiled again in the steps"
    )


def test_loop_code_twice_as_quick_leaves_compilations_as_they_are() -> None:
    graph = graph_of(job(inside_forward=False))
    halved = what_if(graph, [Change.parse("python=x0.5")])
    assert halved.replayed_ns - halved.middle_ns < 1.5 * MS
