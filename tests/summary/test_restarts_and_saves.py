"""What a summary says of other starts of an elastic job, of checkpoints, and of a rank that makes fewer steps."""

from __future__ import annotations

import re

from builders import MS, TraceBuilder
from scenes import job

from stashtrace.analysis.findings import summarize
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import IN_COLLECTIVES, PhaseFlag, StallKind, WaitOp
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary
from stashtrace.summary.words.cause_templates import _DOES


def test_other_starts_are_named() -> None:
    build, _ = job()
    advice = "torchrun started the ranks 3 times; shown is start 2 of 0 to 2, --run abc.0 or --run abc.1 has the others"
    build.loss("other_starts", 2, collector="format", severity=0, advice=advice)
    assert advice in " ".join(summary(build.trace()).split())


def test_background_saves_are_counted_with_their_length() -> None:
    build, _ = job()
    saver = build.rank(1).thread("saver")
    for begin, length in ((100, 200), (500, 400)):
        saver.phase("checkpoint", begin * MS, (begin + length) * MS, flags=PhaseFlag.BACKGROUND)
    shown = " ".join(summary(build.trace()).split())
    assert "rank 1 wrote 2 checkpoints in the background: 300 ms each, the longest 400 ms" in shown


def test_a_load_is_no_save() -> None:
    """Rank 1 loads a checkpoint for 30 ms in each step of 50, and rank 0 waits for it."""
    build, now = TraceBuilder(), 0
    build.group([0, 1])
    for _ in range(12):
        for number in range(2):
            rank, end = build.rank(number), now + (10 + 30 * number) * MS
            rank.phase("forward", now, now + 10 * MS)
            if number:
                rank.phase("checkpoint_load", now + 10 * MS, end)
        build.meet({0: now + 10 * MS, 1: now + 40 * MS}, now + 42 * MS, update_ns=8 * MS)
        now += 50 * MS
    trace = build.trace()
    shown = " ".join(summary(trace, first=causes(trace), everything=True).split())
    assert "checkpoints loaded in these steps, 30.0 ms on average" in shown
    assert not re.search(r"\bsav(es|ed|ing) checkpoint|write checkpoints", shown)
    assert "▶ rank 1 is in loads and saves of checkpoints " in shown
    assert "with no step that waits for checkpoints: saves " in shown


def test_every_kind_of_work_that_makes_a_rank_late_has_words() -> None:
    reported = {
        kind for kind in StallKind if kind not in (*IN_COLLECTIVES, StallKind.OTHER)
    }  # what blocks has separate words
    assert set(_DOES) >= {kind.name.lower() for kind in reported} | {"unrecorded"}


def test_fewer_steps_are_said_and_are_no_shorter_time() -> None:
    """Two ranks compute 20 ms a step and meet while both make steps; rank 1 sleeps for 40 ms and ends earlier."""
    build, clock = TraceBuilder(), [0, 0]
    for step in range(80):
        entered = {}
        for rank in (0, 1) if step < 45 else (0,):
            process, now, ran = build.rank(rank), clock[rank], 22 * MS * step
            process.phase("forward", now, now + 5 * MS, cpu=(ran, ran + 5 * MS), runqueue=(0, 0))
            process.phase("backward", now + 5 * MS, now + 20 * MS, cpu=(ran + 5 * MS, ran + 20 * MS), runqueue=(0, 0))
            entered[rank] = now + (20 + 40 * rank) * MS
            if rank:
                process.wait(WaitOp.SLEEP, now + 20 * MS, entered[rank])
        end = max(entered.values()) + MS
        if len(entered) == 2:
            build.meet(entered, end)
        for rank in entered:
            ran = 22 * MS * step + 20 * MS
            build.rank(rank).phase("optimizer", end, end + 2 * MS, cpu=(ran, ran + 2 * MS), runqueue=(0, 0))
            clock[rank] = end + 2 * MS
    trace = build.trace()
    assert "; rank 1 made 45 of 80 steps" in " ".join(summary(trace, first=causes(trace)).split())
    (change,) = [row for row in document(summarize(trace))["findings"] if row["section"] == "time"]
    assert change["text"].endswith(": rank 1 makes no step then")
