"""What a summary says of other starts of an elastic job, and of checkpoints that are written in the background."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

from builders import MS, TraceBuilder
from scenes import job

from stashtrace.analysis.graph.transfer_nodes import IN_COLLECTIVES
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import Phase, PhaseFlag, StallKind, ThreadRole
from stashtrace.summary.summary_text import summary
from stashtrace.summary.words.cause_templates import _DOES


def test_other_starts_are_named() -> None:
    build, _ = job()
    advice = "torchrun started the ranks 3 times; shown is start 2 of 0 to 2, --run abc.0 or --run abc.1 has the others"
    build.loss("other_starts", 2, collector="format", severity=0, advice=advice)
    assert advice in " ".join(summary(build.trace()).split())


def test_background_saves_are_counted_with_their_length() -> None:
    build, _ = job()
    process = build.rank(1)
    track = build.track(process.process_id, 77, "saver", ThreadRole.UNKNOWN)
    for begin, length in ((100, 200), (500, 400)):
        build.add(
            "phases",
            begin_ns=begin * MS,
            end_ns=(begin + length) * MS,
            track_id=track,
            process_id=process.process_id,
            phase_code=int(Phase.CHECKPOINT),
            phase_flags=int(PhaseFlag.BACKGROUND),
            name_code=0,
        )
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
        keys = build.collective({0: (now + 10 * MS, now + 42 * MS), 1: (now + 40 * MS, now + 42 * MS)})
        for number in range(2):
            rank = build.rank(number)
            rank.collective_wait(keys[number], now + (10 + 30 * number) * MS, now + 42 * MS)
            rank.phase("optimizer", now + 42 * MS, now + 50 * MS)
        now += 50 * MS
    trace = build.trace()
    shown = " ".join(summary(trace, first=causes(trace), everything=True).split())
    assert "checkpoints loaded in these steps, 30.0 ms on average" in shown
    assert not re.search(r"\bsav(es|ed|ing) checkpoint|write checkpoints", shown)
    assert "▶ rank 1 is in loads and saves of checkpoints " in shown
    assert "with no step that waits for checkpoints: saves " in shown


def test_every_kind_of_work_that_makes_a_rank_late_has_words() -> None:
    told = {
        kind for kind in StallKind if kind not in (*IN_COLLECTIVES, StallKind.OTHER)
    }  # what blocks has its own words
    assert set(_DOES) >= {kind.name.lower() for kind in told} | {"unrecorded"}
