"""stashtrace.annotate and step: recorded inside a traced run, nothing at all outside."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from traced import ROOT, TracedRun, run_traced

from stashtrace.schema.kinds import SpanKind

SCRIPT = """
    import asyncio, json, sys, time
    import stashtrace

    with stashtrace.annotate("outer"):
        with stashtrace.annotate("inner"):
            time.sleep(0.002)

    again = stashtrace.annotate("again")
    for _ in range(3):
        with again:
            with again:
                pass

    @stashtrace.annotate("function")
    def double(x):
        "Twice x."
        return 2 * x

    @stashtrace.annotate("coroutine")
    async def later():
        await asyncio.sleep(0.002)
        return 7

    @stashtrace.annotate("raises")
    def bad():
        raise KeyError("mine")

    answers = [double(4), asyncio.run(later()), double.__name__, double.__doc__]
    try:
        bad()
    except KeyError as error:
        answers.append(str(error))
    for _ in range(5):
        stashtrace.step()
    stashtrace.flush()
    costs = []
    for _ in range(10):  # the best of ten: others may take the CPU away for longer than all of them cost
        begin = time.perf_counter_ns()
        for _ in range(200):
            with stashtrace.annotate("cheap"):
                pass
        costs.append((time.perf_counter_ns() - begin) // 200)
    cost_ns = min(costs)
    loaded = {name: name in sys.modules for name in ("numpy", "torch")}
    print(json.dumps({"answers": answers, "cost_ns": cost_ns, **loaded}))
"""
ANSWERS = [8, 7, "double", "Twice x.", "'mine'"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("annotations"))


def spans(run: TracedRun, name: str) -> np.ndarray:
    table = run.trace.spans
    rows = table.take(np.array(run.texts(table, "name_code")) == name)
    return np.stack([rows["begin_ns"], rows["end_ns"]], axis=1)


def test_the_users_code_sees_no_difference(run: TracedRun) -> None:
    result = run.results()[0]
    assert result["answers"] == ANSWERS
    assert not result["numpy"], "a traced program that uses no numpy must not be given one"
    assert not result["torch"]
    assert run.losses() == []


def test_nested_spans_lie_inside_each_other(run: TracedRun) -> None:
    (outer,), (inner,) = spans(run, "outer"), spans(run, "inner")
    assert outer[0] <= inner[0] < inner[1] <= outer[1]
    assert inner[1] - inner[0] >= 2_000_000


def test_one_object_can_be_used_again_and_inside_itself(run: TracedRun) -> None:
    again = spans(run, "again")
    assert len(again) == 6
    assert (again[:, 1] >= again[:, 0]).all()


def test_decorated_functions_and_coroutines_are_timed_to_their_end(run: TracedRun) -> None:
    assert len(spans(run, "function")) == 1
    assert len(spans(run, "raises")) == 1
    (coroutine,) = spans(run, "coroutine")
    assert coroutine[1] - coroutine[0] >= 2_000_000


def test_steps_are_moments_that_count(run: TracedRun) -> None:
    table = run.trace.spans
    marks = table.take(table["kind_code"] == SpanKind.STEP_MARK)
    assert marks["value"].tolist() == [0, 1, 2, 3, 4]
    assert (marks["begin_ns"] == marks["end_ns"]).all()


def test_cost_in_a_traced_run(run: TracedRun) -> None:
    # 1.1 us on a quiet machine; the bound leaves room for a busy one and still refuses a file write per call.
    assert run.results()[0]["cost_ns"] < 20_000


def test_outside_a_traced_run_nothing_happens(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(SCRIPT) + "print('_native' in str(sorted(sys.modules)))\n")
    done = subprocess.run(
        [sys.executable, str(file)], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    result, loaded = done.stdout.strip().splitlines()
    assert json.loads(result)["answers"] == ANSWERS
    assert json.loads(result)["cost_ns"] < 5_000, "some 200 ns on a quiet machine"
    assert loaded == "False", "the recorder must not even be loaded"
