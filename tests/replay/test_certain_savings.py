"""What time of which little is certain promises, and waits for collectives that a recording does not show."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from builders import MS
from importers.kineto_files import PID, host, step, write
from replay.ddp_runs import MIB, STEPS, ddp_run, step_ns

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.analysis.steps.step_time import step_time_of
from stashtrace.replay.causes import causes
from stashtrace.replay.changes import Change
from stashtrace.replay.whatif import Answer, what_if
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.summary.words.cause_templates import cause_text

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "kineto_gloo"


@pytest.mark.parametrize(("own_us", "certain"), [(980, 0.49), (90, 0.045), (0, 0.0)])
def test_operators_of_another_thread_may_be_waited_for(tmp_path: Path, own_us: int, certain: float) -> None:
    """Of 980 us of operators in steps of 1 ms those of the step's thread are computation for certain."""
    events = []
    for at in range(0, 5000, 1000):
        events += [step(at // 1000, at, 1000), host("aten::mm", at + 10 + own_us, 980 - own_us, tid=PID + 1)]
        events += [host("aten::mm", at + 10, own_us)] if own_us else [host("python", at + 1, 1, cat="python_function")]
    trace = stashtrace.load(write(tmp_path / "rank0.json", events))
    (row,) = causes(trace).rows()
    if certain < 0.25:  # most of it may be something else than computation
        assert cause_text(row, "RUN").startswith("no single cause that can be replayed is predicted to save 3 %")
        return
    assert (row["kind"], row["level"]) == ("compute", "half")
    assert row["high_ratio"] == pytest.approx(0.49, abs=0.15)
    assert row["low_ratio"] <= certain
    assert cause_text(row, "RUN").startswith("compute bound: 996 us a step (100 %); no other change is sure to save")


def test_a_wait_that_may_be_none_is_saved_perhaps() -> None:
    """The summary says that rank 0 may wait up to 31 ms a step for rank 1."""
    (row, *_) = causes(stashtrace.load([RECORDED / f"rank{rank}.json.gz" for rank in range(2)])).rows()
    assert (row["sure"], row["saved_low_ns"]) == ("perhaps", 0)


@pytest.mark.parametrize(("buffers_mib", "facts", "said"), [(0, True, True), (20, True, True), (0, False, False)])
def test_gradients_are_advised_in_16_bits_and_nothing_else(buffers_mib: int, facts: bool, said: bool) -> None:
    """Messages of backward passes are gradients where a wrapper of data parallelism is known, and buffers are not."""
    wrapper = "DistributedDataParallel" if facts else "Mine"
    build = ddp_run(2 * MIB, facts=facts, latency_ns=0, wrapper=wrapper)
    for number in range(STEPS if buffers_mib else 0):
        at = number * step_ns(2 * MIB, 0) + 1000
        build.collective(
            dict.fromkeys(range(2), (at, at + MS)), op=CollectiveOp.BROADCAST, message_bytes=buffers_mib * MIB
        )
    text = " ".join(cause_text(row, "RUN") for row in causes(build.trace()).rows())
    assert ("gradients in 16 bits" in text) is said


@pytest.mark.parametrize("path", [RECORDED, ROOT.parent / "shared" / "cases" / "traces" / "two_windows_whatif"])
def test_shares_are_of_the_step_that_the_summary_has(path: Path) -> None:
    """A replay begins with the second step of a file, and leaves out steps that one of its ranks lacks."""
    if not path.is_dir():
        pytest.skip("the folder of cases is not next to the checkout")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the files is there twice
        trace = stashtrace.load(path)
    step = step_time_of(trace)
    for row in causes(trace).rows():
        if row["reason"]:
            continue
        assert row["high_ratio"] == pytest.approx(row["saved_high_ns"] / step.mean_ns, rel=1e-6)


CASES = ROOT.parent / "shared" / "cases" / "traces"
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of cases is not next to the checkout")


def _loaded(path: Path) -> stashtrace.Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the files is there twice: that is what the losses say
        return stashtrace.load(path)


def _without_late(path: Path) -> Answer:
    return what_if(build(_loaded(path)), [Change.parse("straggler=0")])


def test_a_rank_that_sleeps_30_of_41_ms_is_most_of_the_step() -> None:
    answer = _without_late(RECORDED)
    assert 1 - answer.high_ns / answer.replayed_ns > 0.6
    assert answer.after_ns["late"] < 0.1 * answer.replayed_ns


@needs_cases
def test_steps_of_one_rank_alone_do_not_count() -> None:
    """Rank 1 sleeps 20 of 27 ms; four of its steps are not recorded of rank 0."""
    answer = _without_late(CASES / "two_windows_whatif")
    assert answer.steps_count == 2
    assert 1 - answer.high_ns / answer.replayed_ns > 0.65


@needs_cases
def test_a_rank_that_waits_is_not_advised_to_be_quicker() -> None:
    rows = list(causes(_loaded(CASES / "kineto_a2a_words")).rows())
    assert all(row["ranks"] != "0" for row in rows)
    assert all("asleep" not in cause_text(row, "RUN") for row in rows)
