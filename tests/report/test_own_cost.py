"""The tracer's own cost in the summary: which parts are in it, and its upper end. From files with known rows."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from stash_files import StashWriter, ms, write_run_json

from stashtrace.align.align import load_trace
from stashtrace.report import trust as trusted
from stashtrace.report.facts import gather
from stashtrace.report.findings import choose
from stashtrace.report.look import Look
from stashtrace.report.text import render
from stashtrace.report.trust import Trust, trust

USED_NS = 1_000_000_000


def run_of(folder: Path, *, probes: tuple[int, ...] = (), calls: int = 0, samples: int = 2) -> Path:
    """A process that used one second of CPU time, and said so in ``samples`` samples."""
    stash = StashWriter(folder)
    stash.sync(0, 1000)
    used = [(ms(n), USED_NS * n // (samples - 1)) for n in range(samples)]
    stash.add("process_sample", [stash.row("process_sample", ticks=at, user_ns=ns) for at, ns in used])
    for value in probes:
        key, text = stash.intern("probe_cost_ns"), stash.intern(str(value))
        stash.add("metadata", [stash.row("metadata", ticks=ms(900), key_id=key, value_id=text)])
    if calls:
        path = stash.intern("/data/a")
        rows = [
            stash.row("io_op", begin_ticks=ms(1 + n / 1000), duration_ticks=500, path_id=path) for n in range(calls)
        ]
        stash.add("io_op", rows)
    stash.save()
    write_run_json(folder)
    return folder


def own_cost(folder: Path) -> Trust:
    trace = load_trace(folder)
    return trust(trace, trace.ranks.tolist(), {})


def test_the_probes_are_in_it(tmp_path: Path) -> None:
    wakes_ns = 2 * trusted.WAKE_MOST_NS
    found = own_cost(run_of(tmp_path, probes=(4_000_000, 10_000_000)))
    assert found.own_cost_ratio == pytest.approx(10_000_000 / USED_NS), "what was said last counts, and once"
    assert found.own_cost_most_ratio == pytest.approx((10_000_000 * trusted.PROBE_MOST_RATIO + wakes_ns) / USED_NS)


def test_hooks_count_by_their_records(tmp_path: Path) -> None:
    found = own_cost(run_of(tmp_path, calls=300))
    assert found.own_cost_ratio == pytest.approx(300 * trusted.HOOK_COST_NS / USED_NS)
    assert found.own_cost_most_ratio > 300 * trusted.HOOK_MOST_NS / USED_NS


def test_each_wake_up_raises_the_upper_end_alone(tmp_path: Path) -> None:
    few, many = own_cost(run_of(tmp_path / "few", samples=2)), own_cost(run_of(tmp_path / "many", samples=12))
    assert few.own_cost_ratio == many.own_cost_ratio == 0
    added = many.own_cost_most_ratio - few.own_cost_most_ratio
    assert added == pytest.approx(10 * trusted.WAKE_MOST_NS / USED_NS)


def test_the_summary_says_both_ends(tmp_path: Path) -> None:
    facts = gather(load_trace(run_of(tmp_path, probes=(4_000_000,))))
    assert "own cost 0.4 % to 1 % CPU" in render(facts, choose(facts), Look(), "run")
