"""Windows and runs of which only the last steps are kept: their steps have the numbers and times of the whole run."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from growing_files import grow
from made_job import write_job
from test_accounts import SECOND, afterwards, differences

from stashtrace.analysis.steps.steps import steps
from stashtrace.analysis.steps.window import with_window
from stashtrace.errors import StashtraceError
from stashtrace.format import growing
from stashtrace.format.compact import compact_run
from stashtrace.format.growing import GrowingRun
from stashtrace.format.reader import open_run
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.followed import Keeper
from stashtrace.live.hosts.collecting import Finished
from stashtrace.live.hosts.requests import Request, put_request, take_requests
from stashtrace.live.hosts.windows import Limits, Windows
from stashtrace.loading.load import load_trace
from stashtrace.loading.run_tables import Window
from stashtrace.record.directory import read_run_file
from stashtrace.schema.kinds import Severity
from stashtrace.schema.table import Table
from stashtrace.summary.summary_text import summary


def seal(windows: Windows, accounts: LiveAccounts, at_ns: int) -> list[Finished]:
    """Seal what is ready; return the windows that are whole."""
    windows.seal_ready(accounts, at_ns)
    return windows.collect(at_ns)


def triggered(step: int, after_steps: int = 0, cost_ns: int = 0) -> Request:
    return Request(after_steps, event="slow_step", step=step, cost_ns=cost_ns, window="step-x")


def whole_steps(path: Path) -> Table:
    """The rows of all steps of a run or window."""
    return afterwards(path)


def dropped_rows(path: Path) -> int:
    trace = load_trace(path)
    named = trace.losses["name_code"] == trace.strings.find("dropped_rows")
    assert (trace.losses["severity_code"][named] == int(Severity.INFO)).all()
    serious = trace.losses["severity_code"] == int(Severity.DATA_LOSS)
    assert not serious.any(), [trace.text(code) for code in trace.losses["name_code"][serious]]
    return int(trace.losses["lost_count"][named].sum())


def test_a_window_has_the_steps_of_the_whole_run(tmp_path: Path) -> None:
    """Asked for at step 200 of 400 with 10 steps after it; loaded as a run, its steps equal those of the recording."""
    write_job(tmp_path / "job", steps_count=400, late_ms={(1, 195): 60.0})
    target = tmp_path / "grown"
    accounts = LiveAccounts(GrowingRun(str(target)))
    windows = Windows(target, {"run_id": "x"}, "node01")
    asked, sealed = None, list[Finished]()
    for now_ns in grow(tmp_path / "job", target, SECOND):
        accounts.round(now_ns)
        if not asked and accounts.closed.get(0, -1) >= 200:
            asked, _ = windows.ask(Request(10, step=200, window="step-000200-asked"), now_ns)
            assert asked
        sealed += seal(windows, accounts, now_ns)
        accounts.held = windows.is_open
    (whole,) = sealed
    assert whole.path == str(asked)
    window = whole_steps(Path(whole.path))
    first, last = int(window["step"].min()), int(window["step"].max())
    assert first <= 195
    assert last == whole.last_step >= 210
    assert whole.text.startswith(f"steps {first} to {last} are kept in {whole.path} (")
    assert len(window) == 2 * (last - first + 1)
    assert differences(window, whole_steps(tmp_path / "job")) == []
    slow = window.take((window["step"] == 195) & (window["rank"] == 0))
    assert slow["straggler_ns"][0] >= 50_000_000
    said = summary(load_trace(whole.path))
    assert f"a window of a run: steps {first} to {last} of the job" in " ".join(said.split())
    sizes = [sum(path.stat().st_size for path in folder.glob("*.stash")) for folder in (Path(whole.path), target)]
    assert sizes[0] < sizes[1]
    assert not load_trace(whole.path).losses["severity_code"].tolist().count(int(Severity.DATA_LOSS))


def holes_count(path: Path) -> int:
    """How many holes a file has."""
    count, at = 0, 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (hole := os.lseek(file.fileno(), at, os.SEEK_HOLE)) < size:
            count += 1
            try:
                at = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            except OSError:  # none behind it
                break
    return count


def test_only_the_last_steps_stay_on_disk(tmp_path: Path) -> None:
    """Of 2000 steps at least 100 are kept; files stay small, and what is left has the numbers of the whole run."""
    write_job(tmp_path / "job", steps_count=2000)
    target = tmp_path / "grown"
    accounts = LiveAccounts(GrowingRun(str(target)))
    keeper = Keeper(target, steps=100)
    taken = []
    for now_ns in grow(tmp_path / "job", target, 2 * SECOND):
        accounts.round(now_ns)
        keeper.drop(accounts)
        taken.append(accounts.run.bytes_on_disk())
    accounts.round(now_ns, ended=True)
    assert keeper.error == ""
    assert keeper.dropped_bytes > 0
    left = whole_steps(target)
    assert left["step"].min() == keeper.window.first_step  # type: ignore[union-attr]
    assert 1800 < left["step"].min() <= 1900
    assert left["step"].max() == 1999
    assert differences(left, whole_steps(tmp_path / "job")) == []
    assert dropped_rows(target) > 0
    said = " ".join(summary(load_trace(target)).split())
    assert f"steps {left['step'].min()} to 1999 of the job: the records of earlier ones were dropped, as asked" in said
    half = len(taken) // 2
    assert max(taken[half:]) < 1.2 * max(taken[: half // 2]), "space on disk is to stay bounded"
    holes = {path.name: holes_count(path) for path in target.glob("*.stash")}
    assert max(holes.values()) <= 3, "each hole leaves a page with its header, so they join"


@pytest.mark.thorough
def test_a_limit_of_bytes(tmp_path: Path) -> None:
    write_job(tmp_path / "job", steps_count=1500)
    target = tmp_path / "grown"
    accounts = LiveAccounts(GrowingRun(str(target)))
    keeper = Keeper(target, most_bytes=800_000)
    for now_ns in grow(tmp_path / "job", target, SECOND):
        accounts.round(now_ns)
        keeper.drop(accounts)
    assert accounts.run.bytes_on_disk() < 1_200_000
    assert differences(whole_steps(target), whole_steps(tmp_path / "job")) == []


def test_a_file_system_without_holes_keeps_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS before 4.2, for one: said once, and nothing is damaged."""
    write_job(tmp_path / "job", steps_count=1000)
    target = tmp_path / "grown"
    accounts, keeper = LiveAccounts(GrowingRun(str(target))), Keeper(target, steps=50)

    def refuse(descriptor: int, begin: int, end: int) -> int:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(growing, "punch_hole", refuse)
    for now_ns in grow(tmp_path / "job", target, SECOND):
        accounts.round(now_ns)
        keeper.drop(accounts)
    said = r"no more steps are dropped: the file system of .* refuses it \(Operation not supported\)"
    assert re.fullmatch(said, keeper.error)
    assert dropped_rows(target) == 0
    assert whole_steps(target)["step"].min() == 0, "the run is to begin where its rows do"


def test_a_run_that_was_cut_merges(tmp_path: Path) -> None:
    """The merge carries along what was dropped, and the steps are the same before and after it."""
    write_job(tmp_path / "job", steps_count=500)
    target = tmp_path / "grown"
    accounts, keeper = LiveAccounts(GrowingRun(str(target))), Keeper(target, steps=50)
    for now_ns in grow(tmp_path / "job", target, SECOND):
        accounts.round(now_ns)
        keeper.drop(accounts)
    before, dropped = whole_steps(target), dropped_rows(target)
    compact_run(open_run(target))
    assert differences(whole_steps(target), before) == []
    assert dropped_rows(target) == dropped > 0


def test_a_storm_of_triggers_seals_few_windows(tmp_path: Path) -> None:
    windows = Windows(tmp_path, {}, "node01", limits=Limits(windows_count=3, pause_ns=10))
    accounts = LiveAccounts(GrowingRun(str(tmp_path)))
    accounts.closed = {0: 1000}
    sealed = 0
    for at_ns in range(0, 1000, 4):
        windows.ask(triggered(5), at_ns)
        sealed += len(seal(windows, accounts, at_ns))
    assert sealed == 3
    assert windows.refused_count == 250 - 3
    assert windows.ask(Request(step=5, window="step-y"), 1001)[0], "these limits are those of triggers"


def ask_in_a_loop(directory: Path, limits: Limits, count: int, *, unlimited: bool = False) -> tuple[int, str]:
    """Ask for a window after each that was sealed, as a script would; return how many were, and the last refusal."""
    windows, sealed = Windows(directory, {}, "node01", limits=limits), 0
    accounts = LiveAccounts(GrowingRun(str(directory)), closed={0: 1000})
    for at_ns in range(count):
        if windows.ask(Request(unlimited=unlimited, step=5, window="step-x"), at_ns)[0]:
            assert len(seal(windows, accounts, at_ns)) == 1
            sealed += 1
    return sealed, windows.refusal


def test_a_script_that_asks_again_and_again(tmp_path: Path) -> None:
    """It gets a limited number of windows; one more for each that is removed; and all with the option for it."""
    limits = Limits(folders_count=3)
    sealed, refusal = ask_in_a_loop(tmp_path, limits, 10)
    assert sealed == 3
    more = "remove some, or ask with `stashtrace capture --no-limit`"
    assert refusal == f"{tmp_path / 'windows'} holds 3 windows; {more}"
    shutil.rmtree(tmp_path / "windows" / "step-x-2")
    assert ask_in_a_loop(tmp_path, limits, 10)[0] == 1, "also of a follower that has sealed none"
    assert ask_in_a_loop(tmp_path, limits, 5, unlimited=True)[0] == 5
    assert ask_in_a_loop(tmp_path, limits, 5)[1].startswith(f"{tmp_path / 'windows'} holds 8 windows")


def test_windows_take_a_limited_number_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "windows" / "step-1").mkdir(parents=True)
    (tmp_path / "windows" / "step-1" / "a.stash").write_bytes(b"x" * 5000)
    sealed, refusal = ask_in_a_loop(tmp_path, Limits(folders_bytes=5000), 3)
    assert sealed == 0
    assert refusal.startswith(f"the windows in {tmp_path / 'windows'} take 5.00 KB; remove some")
    assert ask_in_a_loop(tmp_path, Limits(folders_bytes=6000), 1)[0] == 1


def test_a_window_is_not_held_open_for_ever(tmp_path: Path) -> None:
    """Though it is asked for every half minute: its rows stay in memory as long as it is open."""
    windows = Windows(tmp_path, {}, "node01")
    accounts = LiveAccounts(GrowingRun(str(tmp_path)), closed={0: 0})
    sealed_s = None
    for at_s in range(0, 3600, 30):
        assert windows.ask(Request(1000, step=at_s, window="step-x"), at_s * SECOND)[0]
        if seal(windows, accounts, at_s * SECOND) and sealed_s is None:
            sealed_s = at_s
    assert sealed_s == 600


def test_what_costs_far_more_gets_its_window(tmp_path: Path) -> None:
    """A small trigger a moment ago does not keep the window of a large one from being sealed."""
    windows = Windows(tmp_path, {}, "node01", limits=Limits(pause_ns=1000))
    accounts = LiveAccounts(GrowingRun(str(tmp_path)), closed={0: 1000})
    for step, cost_ns, is_opened in ((1, 3, True), (2, 12, False), (3, 800, True), (4, 900, False)):
        path, why = windows.ask(triggered(step, cost_ns=cost_ns), 10 * step)
        assert (path is not None) == is_opened
        assert why == ("" if is_opened else "the last window was a moment ago")
        assert len(seal(windows, accounts, 10 * step + 1)) == is_opened


def test_requests_are_taken_once(tmp_path: Path) -> None:
    """Each host takes its request; one that makes no sense, or names another folder, is removed."""
    for host in ("a", "b"):
        put_request(tmp_path, Request(7, "x", step=4, collector="c", window="step-000004-asked"), host)
    (tmp_path / "capture-x@b.request").rename(tmp_path / "capture-x@[b].request")
    for name, window in (("y", "../../step-000004-asked"), ("z", "")):
        put_request(tmp_path, Request(7, name, collector="c", window=window), "a")
    (tmp_path / "capture-w@a.request").write_text("{")
    (taken,) = take_requests(tmp_path, "a")
    assert taken == Request(7, "x", step=4, collector="c", window="step-000004-asked")
    assert taken.name == "x"
    assert take_requests(tmp_path, "a") == []
    assert [path.name for path in tmp_path.glob("*.request")] == ["capture-x@[b].request"]
    assert len(take_requests(tmp_path, "[b]")) == 1


@pytest.mark.parametrize("fact", ["x", "-1", "3-x 0:5", "3 0:-5", "3 x:5", "9" * 30])
def test_a_damaged_fact_is_no_window(tmp_path: Path, fact: str) -> None:
    """Steps count from 0 then, or from the number that makes sense; nothing is raised but errors of ours."""
    write_job(tmp_path / "job", steps_count=20)
    content = read_run_file(tmp_path / "job") | {"window": fact}
    (tmp_path / "job" / "run.json").write_text(json.dumps(content))
    try:
        table = steps(load_trace(tmp_path / "job"))
    except StashtraceError:
        return
    assert np.unique(table["step"]).tolist() in ([*range(20)], [*range(3, 23)])


def test_a_collective_whose_end_went_with_older_rows_is_not_open(tmp_path: Path) -> None:
    """Calls and ends are rows of two threads, which are let go of in separate pieces."""
    write_job(tmp_path / "job", steps_count=40)
    trace = load_trace(tmp_path / "job")
    table = trace.collectives
    ends = table["end_ns"].copy()
    lost = table["sequence"] < 10
    ends[lost | (table["sequence"] == 39)] = -1
    unseen = np.where(ends < 0, -1, table["return_ns"])
    torn = trace.replace(collectives=table.replace(end_ns=ends, return_ns=unseen))
    begins = {rank: int(table["call_ns"][(table["rank"] == rank) & (table["sequence"] == 12)][0]) for rank in (0, 1)}
    cut = with_window(torn, Window(12, begins), 0)
    left = cut.collectives
    assert left["sequence"].min() == 10
    assert (left["end_ns"] < 0).sum() == 2, "the last one is open, and stays"
    assert left["collective_key"].tolist() == list(range(len(left)))
    waits = cut.collective_waits
    known = waits.take(waits["collective_key"] >= 0)
    assert len(known) == len(left)
    waited_ns = known["begin_ns"] - left["call_ns"][known["collective_key"]]
    assert (waited_ns == 30_000).all(), "each wait is still of its collective"
