"""How much work a summary of many ranks is, in calls: what is made once is not made again, each rank costs the same.

Seconds depend on the machine (``benchmarks/bench_many_ranks.py``), calls do not.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import pytest

import stashtrace
from stashtrace.lab import synth
from stashtrace.replay.causes import what_to_do_first
from stashtrace.summary.summary_text import summary

_PACKAGE = Path(stashtrace.__file__).parent
_FEW, _MANY = 6, 12
#: Each adds what one rank does; the trace keeps it.
_ONCE_PER_RANK = (
    "analysis/stalls/batch_waits.py:batch_waits",
    "analysis/stalls/collective_blocking.py:blocked_on_collectives",
    "analysis/stalls/on_host.py:host_layers",
    "analysis/stalls/on_host.py:outer_phase_rows",
    "analysis/graph/batch_nodes.py:worker_starts",
    "analysis/graph/build.py:add_host_nodes",
)
#: One more rank, with its steps and workers, makes this number of calls between functions of the package. More means
#: that a stage asks for each rank what could be asked for all, or asks again. A tenth is left for findings to come.
_MOST_CALLS_PER_RANK = 5_900


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Counter[str]]:
    """Calls of each function of the package, by ranks of the run that is loaded and summarized."""
    return {ranks: _calls(tmp_path_factory.mktemp("ranks"), ranks) for ranks in (_FEW, _MANY)}


def _calls(folder: Path, ranks: int) -> Counter[str]:
    synth.write(folder, synth.SyntheticJob(ranks=ranks, workers=2, steps=8, late_rank=1, late_ns=7_000_000))
    found: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        trace = stashtrace.load(folder)
        text = summary(trace, first=what_to_do_first(trace))
    finally:
        sys.setprofile(before)
    assert "saves " in text
    named: Counter[str] = Counter()
    for code, number in found.items():
        path = Path(code.co_filename)
        if path.is_relative_to(_PACKAGE) and not code.co_name.startswith("<"):
            named[f"{path.relative_to(_PACKAGE)}:{code.co_name}"] += number
    return named


@pytest.mark.parametrize("function", _ONCE_PER_RANK)
def test_once_per_rank(calls: dict[int, Counter[str]], function: str) -> None:
    assert {ranks: of[function] for ranks, of in calls.items()} == {_FEW: _FEW, _MANY: _MANY}


def test_workers_are_counted_once_for_all_ranks(calls: dict[int, Counter[str]]) -> None:
    of_graph = "analysis/graph/work_graph.py:workers"
    assert 0 < calls[_FEW][of_graph] == calls[_MANY][of_graph]


def test_one_more_rank_costs_few_calls(calls: dict[int, Counter[str]]) -> None:
    more = calls[_MANY] - calls[_FEW]
    assert more.total() / (_MANY - _FEW) <= _MOST_CALLS_PER_RANK, more.most_common(20)


def test_merge_imports_no_advice() -> None:
    """Of what a merge and a summary print, nothing needs the advice on overlap, or programs of the lab."""
    code = (
        "import sys, stashtrace.cli.merging, stashtrace.analysis.findings, stashtrace.loading.load,"
        " stashtrace.summary.summary_text, stashtrace.replay.causes; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name for name in done.stdout.split() if name.startswith("stashtrace.")}
    unwanted = (
        "stashtrace.replay.advice",
        "stashtrace.lab",
        "stashtrace.live",
        "stashtrace.report",
        "stashtrace.sql",
        "stashtrace.trackers",
    )
    assert not [name for name in loaded if name.startswith(tuple(f"stashtrace.{one}" for one in unwanted))]
