"""The view of a run: states with known numbers, merged, worded and laid out for screens of all sizes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from made_job import write_job
from test_live_table import made_steps

from stashtrace.errors import FormatError, MissingDataError
from stashtrace.format.growing import GrowingRun
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.state import LATE, MOST, Event, LineNow, LiveState
from stashtrace.live.table import LiveTotals
from stashtrace.live.view import watched
from stashtrace.live.view.text import live_lines
from stashtrace.live.view.watched import LiveView, Watched, merge_states
from stashtrace.record.launchers import own_place
from stashtrace.summary.style import Style

S = 1_000_000_000
MS = 1_000_000
BEGIN = 1_800_000_000 * S
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def state(host: str = "node1", ranks: tuple[int, ...] = (0, 1), steps: int = 40, **more: object) -> LiveState:
    """The state of a host 100 s after the begin, whose ranks have made steps of 80 ms; a round is every 2 s."""
    totals = LiveTotals()
    totals.add(made_steps(list(ranks), list(range(steps)), fetch=20, straggler=10))
    made = LiveState(host, "id", ["python", "train.py"], begin_realtime_ns=BEGIN, interval_s=2.0, own_cpu_ns=S)
    made.take_totals(totals, BEGIN + 100 * S - steps * 80 * MS)
    made.updated_realtime_ns = BEGIN + 100 * S
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def view_of(*states: LiveState, after_s: float = 1.0, **facts: object) -> LiveView:
    """These states, looked at so long after the 100 s."""
    return merge_states(
        states, facts, path="run", origin="follower", now_realtime_ns=BEGIN + 100 * S + round(after_s * S)
    )


def text_of(view: LiveView, width: int = 80, **more: object) -> str:
    return "\n".join(live_lines(view, Style(width), **more))  # type: ignore[arg-type]


def test_numbers_of_a_state_are_shown() -> None:
    """30 newest steps of 80 ms, of which 20 ms are fetch and 10 ms waits: 62.5 %, 25 %, 12.5 %."""
    text = text_of(view_of(state(verdicts=["rank 1 reads slowly"], lost_records_count=7, notes=["a note"])))
    assert "running: 2 ranks on 1 host, 40 steps\n" in text
    assert "12.5 steps/s (80.0 ms each) in the newest 30 steps, 12.5 in the 10 before" in text
    assert "1 min 41 s ago" in text
    assert "seen 1.0 s ago" in text
    assert re.search(r"^  0  +80\.0 ms +63 % █+▌? +25 % █+▏? +0 % +12 % █", text, re.M)
    assert "▶ rank 1 reads slowly" in text
    assert "! a note" in text
    assert "lost records 7    following the run takes 1 % of one core" in text


def test_the_costliest_line_is_shown_with_its_kind_and_bounds() -> None:
    made = state(lines=[LineNow(MOST, -1, "step", "python", "parse (a.py:4)", 20 * MS, 18 * MS, 24 * MS)])
    said = "costliest line: parse (a.py:4), 18.0 to 24.0 ms a step (host: Python)"
    assert said in " ".join(text_of(view_of(made)).split())
    assert "costliest" not in text_of(view_of(state())), "no stacks"


def test_the_line_of_a_late_rank_and_of_workers_are_shown() -> None:
    lines = [
        LineNow(MOST, -1, "worker", "prep", "decode (a.py:4)", 80 * MS, 80 * MS, 81 * MS),
        LineNow(LATE, 1, "step", "other", "hook (a.py:9)", 20 * MS, 20 * MS, 20 * MS),
    ]
    text = text_of(view_of(state(lines=lines)), 100)
    assert "  costliest line: decode (a.py:4), 80.0 ms a batch of the workers (data: prep)\n" in text
    assert "  rank 1 is late: 20.0 ms a step longer in hook (a.py:9) (other)\n" in text
    of_worker = LineNow(LATE, 1, "worker", "fetch", "read (a.py:9)", 20 * MS, 20 * MS, 20 * MS)
    text = text_of(view_of(state(lines=[of_worker])), 100)
    assert "rank 1 is late: its workers spend 20.0 ms a batch longer in read (a.py:9) (data: storage)\n" in text


def test_of_many_hosts_the_costliest_line_is_shown_unless_it_is_old() -> None:
    def line(ms: int) -> list[LineNow]:
        return [LineNow(MOST, -1, "step", "compute", "main (a.py:1)", ms * MS, ms * MS, ms * MS)]

    first, second = state("node1", (0,), lines=line(20)), state("node2", (1,), lines=line(30))
    assert "costliest line on node2: main (a.py:1), 30.0 ms a step (compute)" in text_of(view_of(first, second))
    second.updated_realtime_ns -= 20 * S
    assert "costliest line on node1: main (a.py:1), 20.0 ms a step (compute)" in text_of(view_of(first, second))


def test_the_rate_of_the_newest_steps_is_compared_with_those_before() -> None:
    totals = LiveTotals()
    slow = made_steps([0], list(range(100, 130)), fetch=20)
    slow = slow.replace(end_ns=slow["end_ns"] + 20 * MS, fetch_ns=slow["fetch_ns"] + 20 * MS)
    totals.add(made_steps([0], list(range(100))))
    totals.add(slow)
    made = state()
    made.take_totals(totals, BEGIN)
    view = view_of(made)
    assert (view.steps_per_s, view.earlier_steps_per_s) == (10.0, 12.5)
    assert view.ranks[0].newest.share_ratio["data"] == 0.4
    assert "10 steps/s (100 ms each) in the newest 30 steps, 12.5 in the 100 before" in text_of(view)


def test_many_steps_before_are_the_newest_300() -> None:
    assert view_of(state(steps=1000)).ranks[0].earlier_count == 300


@pytest.fixture(scope="module")
def crowded() -> LiveView:
    """64 ranks of which there is much to say."""
    events = [
        Event("slow_step", f"step {n} took 1.2 s longer: " + "rank 0 read shard-7.tar " * 6, BEGIN, window=f"run/w{n}")
        for n in range(30)
    ]
    sentences = ["ranks 0,1 are input bound: 57 ms a step waiting for batches, as " + "far as is known " * 8] * 3
    return view_of(state(ranks=tuple(range(64)), verdicts=sentences, events=events))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("height", [0, 12, 24, 50])
def test_lines_fit_and_colour_says_nothing_alone(crowded: LiveView, width: int, height: int) -> None:
    plain, lines = (live_lines(crowded, Style(width, colour=c), height=height, keys="q quits") for c in (False, True))
    assert max(map(len, plain)) <= width
    assert plain == [COLOUR.sub("", line) for line in lines] != lines
    assert not height or len(lines) <= height
    assert "q quits" in plain[-1]


def test_ascii_screens_get_ascii() -> None:
    lines = live_lines(view_of(state(verdicts=["a ± b"], stuck="c")), Style(utf8=False))
    assert "\n".join(lines).isascii()


def test_what_fits_are_the_verdicts_and_the_newest_events() -> None:
    events = [Event("slow_step", f"step {n} was slow", BEGIN + n * S) for n in range(20)]
    made = state(verdicts=["one", "two", "three"], events=events)
    text = text_of(view_of(made), height=24)
    assert all(word in text for word in ("▶ one", "▶ two", "▶ three", "step 19 was slow"))
    assert "what happened, newest last, 6 of 20:" in text
    assert "step 13 was slow" not in text
    small = text_of(view_of(made), height=17)
    assert "about the newest steps, 1 of 3:\n  ▶ one\n" in small
    assert "▶ three" not in small
    assert "step 19 was slow" in small


def test_events_come_with_time_and_window() -> None:
    text = text_of(view_of(state(events=[Event("slow_step", "step 7 was slow", BEGIN, window="run/windows/7")])))
    assert re.search(r"^  \d\d:\d\d:\d\d  step 7 was slow\n {12}window run/windows/7$", text, re.M)
    named = Event("capture", "steps 5 to 9 are kept in run/windows/7", BEGIN, window="run/windows/7")
    assert text_of(view_of(state(events=[named]))).count("windows/7") == 1


def test_many_ranks_are_the_different_ones_and_the_others() -> None:
    made = state(ranks=tuple(range(64)))
    odd = made.ranks["9"]
    odd["newest_stall_ns"] = odd["newest_stall_ns"] | {"fetch": 0, "compute": odd["newest_ns"], "straggler": 0}
    odd["caused_wait_ns"] = 5 * S
    text = text_of(view_of(made))
    assert "newest 30 steps; 64 ranks, similar ranks as their median in one row:" in text
    assert re.findall(r"^  (0-8,10-63|9) ", text, re.M) == ["0-8,10-63", "9"]
    assert "waits since the start, summed over the ranks that waited: 5.00 s for rank 9" in text


def test_a_stuck_job_says_so_first() -> None:
    sentence = "ranks 0,2,3 wait in all-reduce 87 since 41 s; rank 1 never entered it"
    made = state(stuck=sentence, stuck_ranks=[1], events=[Event("stuck", sentence, BEGIN), Event("stuck", "x", BEGIN)])
    made.updated_realtime_ns += 41 * S
    view = view_of(made, after_s=42)
    assert (view.condition, view.stuck_ranks) == ("stuck", [1])
    lines = text_of(view).splitlines()
    assert lines[1] == "STUCK, no step has ended for 41 s: 2 ranks on 1 host, 40 steps"
    at = lines.index("  ▶ ranks 0,2,3 wait in all-reduce 87 since 41 s")
    assert lines[at + 1] == "    rank 1 never entered it"
    assert [line[12:] for line in lines[-4:-2]] == ["stuck, as above", "x"]


def test_a_long_sentence_leaves_room_for_the_foot() -> None:
    made = state(ranks=tuple(range(8)), stuck="; ".join(f"rank {rank} waits for something" for rank in range(14)))
    lines = live_lines(view_of(made), Style(), height=24, keys="q quits")
    assert len(lines) == 24
    assert lines[-1].endswith("q quits")
    assert "    rank 13 waits for something" in lines


def test_no_step_for_a_while_is_said_and_is_not_stuck() -> None:
    made = state()
    made.updated_realtime_ns += 45 * S
    view = view_of(made, after_s=46)
    assert (view.condition, view.quiet_ns) == ("quiet", 45 * S)
    assert "running, but no step has ended for 45 s: 2 ranks" in text_of(view)


def test_long_steps_are_not_quiet_before_five_of_them() -> None:
    made = state()
    for own in made.ranks.values():
        own["newest_ns"] *= 250  # 20 s a step
    made.updated_realtime_ns += 90 * S
    assert view_of(made, after_s=90).condition == "moves"
    made.updated_realtime_ns += 20 * S
    assert view_of(made, after_s=110).condition == "quiet"


def test_before_the_first_step() -> None:
    view = view_of(LiveState("node1", "id", ["x"], begin_realtime_ns=BEGIN, updated_realtime_ns=BEGIN + 99 * S))
    assert view.condition == "begins"
    assert "running, no step has ended yet: 1 host" in text_of(view)


def test_an_ended_job_shows_all_of_its_steps() -> None:
    made = state(steps=90, ended=True, stuck="it was")
    view = view_of(made, after_s=9000, end_realtime_ns=BEGIN + 100 * S, exit_code=3, begin_realtime_ns=BEGIN)
    text = text_of(view)
    assert view.condition == "ended"
    assert re.search(
        r"^ended \d\d:\d\d:\d\d with exit code 3 after 1 min 40 s: 2 ranks on 1 host, 90 steps$", text, re.M
    )
    assert "all 90 steps, the first ones too:" in text
    assert "more: `stashtrace summary run`" in text
    assert "old" not in text


def test_a_job_whose_follower_was_killed_has_ended_by_its_run_file() -> None:
    made = state()
    assert view_of(made, after_s=5, end_realtime_ns=BEGIN + 101 * S).condition == "moves"
    assert view_of(made, after_s=7, end_realtime_ns=BEGIN + 101 * S).condition == "ended"


def test_an_old_state_is_marked_after_three_rounds() -> None:
    assert not view_of(state(), after_s=5.9).hosts[0].is_old
    view = view_of(state(), after_s=6.1)
    assert view.hosts[0].is_old
    assert view.condition == "unknown"
    text = " ".join(text_of(view).split())
    assert "unknown: no host has written its state" in text
    assert "! old: node1 was last seen 6.1 s ago, more than 3 rounds; the figures of ranks 0,1 are as old" in text


@pytest.mark.parametrize(
    ("pid", "said"),
    [
        (os.getpid(), "the process that follows the run there goes on, and gets no CPU or waits for the file system"),
        (2**22 + 1, "the process that follows the run there is gone; the job is recorded all the same"),
    ],
    ids=["lives", "gone"],
)
def test_an_old_state_of_this_host_shows_whether_its_follower_lives(pid: int, said: str) -> None:
    made = state()
    made.follower_pid, made.follower_place = pid, own_place()
    assert said in " ".join(text_of(view_of(made, after_s=30)).split())
    made.follower_place = "another host"
    assert "may be gone" in " ".join(text_of(view_of(made, after_s=30)).split())


def test_hosts_are_merged_and_the_old_one_is_named() -> None:
    first = state("node1", (0, 1), steps=40, verdicts=["one"], own_cpu_ns=2 * S, lost_records_count=1)
    second = state("node2", (2, 3), steps=38, verdicts=["two"], lost_records_count=2, notes=["no clock"])
    second.updated_realtime_ns -= 20 * S
    view = view_of(first, second)
    assert [(own.rank, own.host) for own in view.ranks] == [(0, "node1"), (1, "node1"), (2, "node2"), (3, "node2")]
    assert (view.least_steps_count, view.steps_count, view.lost_records_count) == (38, 40, 3)
    assert [host.is_old for host in view.hosts] == [False, True]
    assert view.condition == "moves"
    text = text_of(view, 200)
    assert "running: 4 ranks on 2 hosts, 38 to 40 steps" in text
    assert "! old: node2 was last seen 21 s ago" in text
    assert "▶ node1: one" in text
    assert "▶ node2: two" in text
    assert "! node2: no clock" in text
    assert "following the run takes 2 % of one core on each host at most" in text


def test_waits_for_a_rank_of_another_host_are_added_up() -> None:
    first, second = state("node1", (0,)), state("node2", (1,))
    first.ranks["1"] = {**second.ranks["1"], "steps_count": 0, "caused_wait_ns": 3 * S, "last_end_realtime_ns": 0}
    second.ranks["1"]["caused_wait_ns"] = 2 * S
    view = view_of(first, second)
    assert [(own.rank, own.host, own.caused_wait_ns) for own in view.ranks] == [(0, "node1", 0), (1, "node2", 5 * S)]


@pytest.mark.parametrize(
    "damage", [{"ranks": []}, {"ranks": {"0": {}}}, {"ranks": {"x": {}}}, {"updated_realtime_ns": None}, {"ranks": 3}]
)
def test_a_damaged_state_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="live state of host node1 is damaged"):
        view_of(dataclasses.replace(state(), **damage))  # type: ignore[arg-type]


def test_control_characters_are_visible() -> None:
    made = state(verdicts=["a\x1b[2Jb"], command=["x\x1b]0;y"])
    text = text_of(view_of(made, command=["x\x1b]0;y"]))
    assert "\x1b" not in text
    assert r"a\u001b[2Jb" in text


def test_the_json_page_names_each_field() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/live.md").read_text(encoding="utf-8")
    classes = (LiveView, watched.HostView, watched.RankView, watched.Spent, LineNow, Event)
    names = {"format", *(one.name for kind in classes for one in dataclasses.fields(kind))}
    first_cells = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    assert names - set(re.findall(r"`(\w+)`", first_cells)) == set()
    for word, meaning in {**watched.CONDITIONS, **watched.ORIGINS}.items():
        assert f"| `{word}` | {meaning} |" in page


def test_the_document_is_json() -> None:
    document = view_of(state(events=[Event("stuck", "x", 5)])).document()
    assert json.loads(json.dumps(document)) == document
    assert document["format"] == 1
    assert document["ranks"][0]["newest"]["share_ratio"]["compute"] == 0.625
    assert document["events"][0]["kind"] == "stuck"


# Where it comes from.


def test_states_are_read_if_there_are_any(tmp_path: Path) -> None:
    line = LineNow(MOST, -1, "step", "compute", "main (a.py:1)", 3, 2, 4)
    state("node1", (0,), lines=[line]).write(tmp_path)
    state("node2", (1,)).write(tmp_path)
    view = Watched(tmp_path).peek()
    assert [host.lines for host in view.hosts] == [[line], []]
    assert (view.origin, [host.host for host in view.hosts]) == ("follower", ["node1", "node2"])


def test_a_finished_run_has_the_numbers_of_one_that_was_followed(tmp_path: Path) -> None:
    write_job(tmp_path, steps_count=60, late_ms={(1, 50): 400.0})
    view = Watched(tmp_path).peek()
    followed = LiveTotals()
    accounts = LiveAccounts(GrowingRun(str(tmp_path)))
    followed.add(accounts.round(0, ended=True).closed)
    assert view.origin == "recording"
    assert view.condition == "ended"
    assert [own.steps_count for own in view.ranks] == [60, 60]
    for own in view.ranks:
        assert own.whole.stall_ns == followed.ranks[own.rank].stall_ns
        assert own.caused_wait_ns == followed.ranks[own.rank].caused_wait_ns
    assert view.ranks[1].caused_wait_ns > 300 * MS
    assert "no process followed this run" in text_of(view)
    assert sorted(path.name for path in tmp_path.glob("live-*")) == []


def test_a_state_of_another_run_is_left_out(tmp_path: Path) -> None:
    state("node1").write(tmp_path)
    state("node2", run_id="other").write(tmp_path)
    with pytest.raises(FormatError, match="holds several runs: id, other"):
        Watched(tmp_path).peek()
    assert [host.host for host in Watched(tmp_path, "oth").peek().hosts] == ["node2"]


def test_a_directory_that_vanishes_is_one_clear_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    state().write(run)
    watched = Watched(run)
    watched.peek()
    shutil.rmtree(run)
    with pytest.raises(FormatError, match=r"run is gone: it was renamed or removed$"):
        watched.peek()


def test_files_of_other_tools_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(MissingDataError, match="holds no run of stashtrace"):
        Watched(tmp_path).peek()
