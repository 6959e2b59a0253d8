"""What a summary says of other starts of an elastic job, and of checkpoints that are written in the background."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from builders import MS
from scenes import job

from stashtrace.schema.kinds import Phase, PhaseFlag, ThreadRole
from stashtrace.summary.summary_text import summary


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
