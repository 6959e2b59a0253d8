"""Every answer about a job at random is given or refused in one line: no other exception, whatever the job does.

The same jobs come every time; TRUST_JOBS_SEED chooses others. A few come in the gate; the long form tries hundreds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import stashtrace
from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.diff import diff
from stashtrace.analysis.compare.gate_verdict import Condition, judge
from stashtrace.analysis.compare.steps_of_run import steps_of_run
from stashtrace.analysis.graph import build
from stashtrace.analysis.registry import ANALYSES
from stashtrace.cli.commands.summary import FORMATS
from stashtrace.errors import StashtraceError
from stashtrace.replay import Change, buckets_if_any, gradient_buckets, single_changes, what_if
from stashtrace.replay.communication.communication_model import communication_model
from stashtrace.report.document import report_facts
from stashtrace.report.page.page import markdown, page
from stashtrace.schema.trace import Trace
from stashtrace.summary.diff_text import verdict
from stashtrace.summary.gate_text import gate_lines
from stashtrace.timeline.timeline import export_perfetto
from trust.random_jobs import random_job

SEED = int(os.environ.get("TRUST_JOBS_SEED", "29"))
QUICK_JOBS, LONG_JOBS, LEAST_ANSWERS = 4, 400, 20
CHANGES = ("straggler=0", "data=0", "compute=x0.5", "prep=x0.5", "other=0", "ranks=16", "workers=4")


def questions(trace: Trace, before: Trace, folder: Path) -> Iterator[Callable[[], object]]:
    """All that can be asked of a trace; ``before``: another job, to compare with."""
    yield from (partial(text, trace, "./run") for text in FORMATS.values())
    yield lambda: page(report_facts(trace, ["./run"]))
    yield lambda: markdown(report_facts(trace, ["./run"]))
    yield from (partial(stashtrace.analyze, trace, name) for name, _, _ in ANALYSES)
    yield lambda: single_changes(build(trace), buckets=buckets_if_any(trace, build(trace), []))
    yield lambda: what_if(build(trace), [Change.parse("bucket_mb=4")], buckets=gradient_buckets(trace, build(trace)))
    yield lambda: communication_model(trace)
    for text in CHANGES:
        yield partial(lambda text: what_if(build(trace), Change.parse_all(text)), text)
    yield lambda: verdict(diff(before, trace), "before", "after")
    yield lambda: gate_lines(
        judge(
            Side("before", (steps_of_run(before, "before"),)),
            Side("after", (steps_of_run(trace, "after"),)),
            [Condition.of("step+5%"), Condition.of("late+3%")],
        )
    )
    yield lambda: export_perfetto(trace, folder / "timeline.pftrace")


def try_jobs(first: int, count: int, folder: Path) -> None:
    before = random_job(first - 1)
    for seed in range(first, first + count):
        trace, answered_count = random_job(seed), 0
        for place, ask in enumerate(questions(trace, before, folder)):
            try:
                ask()
            except StashtraceError:
                continue
            except Exception as error:
                raise AssertionError(f"question {place} about the job of seed {seed}: {error!r}") from error
            answered_count += 1
        # Of a job that ended in its first step most is refused, and rightly.
        if has_steps(trace):
            assert answered_count > LEAST_ANSWERS, f"nearly all is refused of the job of seed {seed}"
        before = trace


def has_steps(trace: Trace) -> bool:
    try:
        return bool(len(stashtrace.analyze(trace, "steps")))
    except StashtraceError:
        return False


def test_a_few_jobs(tmp_path: Path) -> None:
    try_jobs(SEED, QUICK_JOBS, tmp_path)


@pytest.mark.trust
def test_many_jobs(tmp_path: Path) -> None:
    try_jobs(SEED + QUICK_JOBS, LONG_JOBS, tmp_path)
