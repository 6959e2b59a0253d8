"""Lines about a job that runs: a slow step with its cause, once; a job that stands still, once, until a step ends."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from growing_files import grow
from made_job import write_job

from stashtrace.analysis.findings.rules.steps.slow import claim_of_step
from stashtrace.analysis.findings.spikes.spikes import SPIKES
from stashtrace.format.growing import GrowingRun
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.triggers import SlowStepSeen, SlowStepTrigger, StuckTrigger
from stashtrace.loading.peeks import with_peeks
from stashtrace.record.peek.model import Peek, ThreadPeek
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

SECOND = 1_000_000_000


def slow_steps(job: Path, target: Path) -> list[SlowStepSeen]:
    """What the trigger says of a job while it grows."""
    accounts, trigger = LiveAccounts(GrowingRun(str(target))), SlowStepTrigger()
    found = []
    for now_ns in grow(job, target, 2 * SECOND):
        closed = accounts.round(now_ns)
        if closed.window is not None and len(closed.closed):
            found += trigger.round(closed.closed, closed.window)
    return found


def test_one_slow_read_is_one_line(tmp_path: Path) -> None:
    """The batch of step 200 of rank 1 is read 300 ms longer; rank 0 waits for it in the all-reduce."""
    write_job(tmp_path / "job", steps_count=400, slow_read_ms={(1, 200): 300.0})
    (slow,) = slow_steps(tmp_path / "job", tmp_path / "grown")
    assert (slow.step, slow.rank) == (200, 1)
    assert slow.cost_ns == pytest.approx(300e6, rel=0.15)
    assert slow.text.startswith("step 200 took 3")
    assert "rank 1" in slow.text
    assert "shard-0000.bin" in slow.text
    assert "; its worker 0 made that batch; rank 0 waits 30" in slow.text
    assert "of the time of all steps" not in slow.text  # nobody knows yet how many there will be


def test_a_standstill_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = (["rank 1 has not entered all-reduce 7"], [1])
    peeks: list[int] = []

    def stands_still(trigger: StuckTrigger, window: Trace, *others: Collection[int]) -> tuple[list[str], list[int]]:
        peeks.append(1)
        return seen

    monkeypatch.setattr(StuckTrigger, "_stands_still", stands_still)
    trigger, window = StuckTrigger(str(tmp_path)), Trace.__new__(Trace)
    assert not trigger.round(window, 3 * SECOND, last_end_ns=0), "too early"
    assert peeks == []
    assert trigger.round(window, 5 * SECOND, last_end_ns=0)
    assert (trigger.sentences, trigger.ranks) == seen
    assert not trigger.round(window, 9 * SECOND, last_end_ns=0), "said already, and looked at a moment ago"
    seen = ([], [])  # its processes end: that is no step
    assert not trigger.round(window, 30 * SECOND, last_end_ns=0)
    assert trigger.sentences
    assert trigger.round(window, 40 * SECOND, last_end_ns=39 * SECOND)
    assert trigger.sentences == trigger.ranks == []
    assert len(peeks) == 2


@pytest.mark.parametrize(
    ("in_part", "more"), [(False, ""), (True, ", or in waits for ranks that are not seen from here")]
)
def test_a_host_that_sees_a_part_of_the_ranks_says_so(in_part: bool, more: str) -> None:
    """The transfers of a slow step may be waits for ranks that nobody sees."""
    names, texts = (
        ("length_ns", "usual_ns", "extra_ns", "cause_ns"),
        ("step_kind", "cause_kind", "cause_name", "beside"),
    )
    row = dict.fromkeys(SPIKES.names, -1) | dict.fromkeys(names, SECOND) | dict.fromkeys(texts, "")
    row |= {"step": 7, "rank": 0, "ranks": "0", "kind": "network", "usual_ns": SECOND // 2, "every_count": 0}
    slow = Table.from_rows(SPIKES, [tuple(row[name] for name in SPIKES.names)])
    claim = claim_of_step(slow, [], {}, in_part=in_part)
    assert claim.text.endswith(f": rank 0 spends 1.00 s more in transfers{more}")


@pytest.mark.parametrize("waits_s", [20.0, 50.0])
def test_a_rank_that_uses_a_cpu_and_records_nothing_is_said_after_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_s: float
) -> None:
    """It may compute: no alarm says that the job is stuck; a person learns who is waited for, and where it runs."""
    write_job(tmp_path / "job", steps_count=200, dead=[(1, 100)], waits=True, waits_s=waits_s)
    facts = json.loads((tmp_path / "job" / "run.json").read_text())
    (tmp_path / "job" / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "exit_code"}))

    def peek_at(trace: Trace, path: str, wanted: Mapping[int, int]) -> Trace:
        thread = ThreadPeek(1, "MainThread", "R", 5, frames=("spin at /job/train.py:7",))
        busy = Peek(1, 1 << 60, SECOND, "R", thread, thread_ran_ns=SECOND, others_ran_ns=0, moved_bytes=0)
        return with_peeks(trace, dict.fromkeys(wanted, busy.to_text()))

    monkeypatch.setattr("stashtrace.live.triggers.peek_at", peek_at)
    accounts, trigger = LiveAccounts(GrowingRun(str(tmp_path / "grown"))), StuckTrigger(str(tmp_path / "grown"))
    said: list[str] = []
    now_ns = 0
    for now_ns in grow(tmp_path / "job", tmp_path / "grown", SECOND):
        found = accounts.round(now_ns)
        if found.window is not None:
            trigger.round(found.window, now_ns, 0)
            said.append(trigger.waits)
    found = accounts.round(now_ns + 8 * SECOND)
    assert found.window is not None
    trigger.round(found.window, now_ns + 8 * SECOND, 0)
    said.append(trigger.waits)
    assert trigger.sentences == []
    assert any(said) == (waits_s > 30)
    if any(said):
        text = next(text for text in said if text)
        assert text.startswith("rank 1 has not entered all-reduce 100 of default")
        assert "but its thread still runs" in text
        assert "in spin (/job/train.py:7): it computes, or loops" in text
