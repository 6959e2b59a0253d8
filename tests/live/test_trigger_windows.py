"""Windows that a trigger on one host opens: the same steps of all ranks of all hosts, one line, one call."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing_files import grow
from made_job import write_job
from other_boot import as_other_boot
from stash_files import START_NS
from test_accounts import SECOND, afterwards
from test_hosts import NODES, Host, late_job, restarted_job, unequal
from test_joint_windows import Follower, whole

from stashtrace.errors import DataLossWarning
from stashtrace.format.compact import write_packed
from stashtrace.format.stash_file import StashFile
from stashtrace.live import times
from stashtrace.live.hosts.collecting import take_in
from stashtrace.live.hosts.requests import Request, take_requests
from stashtrace.live.hosts.windows import Limits
from stashtrace.live.state import Event, read_events
from stashtrace.loading.load import load_trace
from stashtrace.schema.table import Table

BEFORE, AFTER = 20, 5


def slow(step: int, rank: int = 1, cost_ns: int = 10) -> Event:
    return Event("slow_step", f"step {step} took 3 s", SECOND, step, rank, cost_ns)


def stuck(step: int, rank: int = 1) -> Event:
    return Event("stuck", f"rank {rank} is waited for", SECOND, step, rank)


#: Called with the number of a look and the followers; returns what each of them sees in its round, by its number.
Sees = Callable[[int, list[Follower]], dict[int, list[Event]]]


def follow(
    tmp_path: Path,
    sees: Sees,
    *,
    paces: tuple[int, int] = (1, 1),
    limits: Limits | None = None,
    after: int = AFTER,
    steps_count: int = 200,
) -> tuple[list[Follower], Path]:
    """Let a job of four ranks grow on two hosts; the follower of each makes a round in every n-th look."""
    late_job(tmp_path / "job", steps_count)
    return grown(tmp_path, sees, paces=paces, limits=limits, after=after)


def grown(
    tmp_path: Path,
    sees: Sees,
    *,
    paces: tuple[int, int] = (1, 1),
    limits: Limits | None = None,
    after: int = AFTER,
    offset_ns: int = 0,
) -> tuple[list[Follower], Path]:
    """Do so with the job that is there; ``offset_ns``: of the second host's clock against that of the first."""
    target = tmp_path / "grown"
    target.mkdir()
    followers = [Follower(Host(target, name, offset_ns=offset_ns * at), limits, after) for at, name in enumerate(NODES)]
    now_ns = 0
    for at, now_ns in enumerate(grow(tmp_path / "job", target, SECOND, by_ticks=bool(offset_ns))):
        seen = sees(at, followers)
        for number, (follower, pace) in enumerate(zip(followers, paces, strict=True)):
            if at % pace == 0 or number in seen:
                follower.round(now_ns, seen.get(number))
            else:
                follower.alarms.collect(now_ns + follower.host.offset_ns)
    for follower in followers:
        follower.round(now_ns, ended=True)
    for follower in followers:
        follower.alarms.collect(now_ns + follower.host.offset_ns, last=True)
    return followers, target


def once(step: int, make: Callable[[int], dict[int, list[Event]]]) -> Sees:
    """See something once the first host has closed a step."""
    done: list[int] = []

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        if done or followers[0].closed < step:
            return {}
        done.append(at)
        return make(followers[0].closed)

    return sees


def windows(target: Path) -> list[Path]:
    return sorted((target / "windows").iterdir())


def captures(target: Path) -> list[Event]:
    return [event for event in read_events(target) if event.kind == "capture"]


def steps_by_rank(table: Table) -> dict[int, list[int]]:
    return {rank: sorted(table["step"][table["rank"] == rank].tolist()) for rank in np.unique(table["rank"]).tolist()}


@pytest.mark.parametrize("paces", [(1, 6), pytest.param((4, 1), marks=pytest.mark.thorough)])
def test_the_window_of_a_slow_step_has_all_hosts(tmp_path: Path, paces: tuple[int, int]) -> None:
    """Also where the other host has let go of the steps before: 20 before it and 5 after, one line, one call."""
    at: list[int] = []

    def make(closed: int) -> dict[int, list[Event]]:
        at.append(closed - 3)
        return {0: [slow(closed - 3)]}

    followers, target = follow(tmp_path, once(150, make), paces=paces, steps_count=300)
    (window,) = windows(target)
    trigger, sealed = read_events(target)
    assert trigger.window == sealed.window == str(window)
    table = whole(window)
    found = steps_by_rank(table)
    assert sorted(found) == [0, 1, 2, 3]
    first, last = found[0][0], found[0][-1]
    assert all(steps == list(range(first, last + 1)) for steps in found.values())
    assert 0 < first <= at[0] - BEFORE
    assert last >= at[0] + AFTER
    assert sealed.text.startswith(f"steps {first} to {last} of ranks 0-3 are kept in {window} (")
    assert sealed.text.endswith(")"), "nothing is missing"
    assert unequal(table, afterwards(tmp_path / "job"), tolerance_ns=5) == []
    assert [(event.kind, event.window) for event in followers[0].calls.events] == [("slow_step", str(window))]
    assert followers[1].calls.events == []
    assert not [path for path in window.iterdir() if path.is_dir()]
    assert not list(target.glob("*.request"))
    assert not any(follower.windows.is_open or follower.windows.collecting.parts for follower in followers)


def test_a_host_that_looks_seldom(tmp_path: Path) -> None:
    """Its first look is so late that it lets go of the step at once: the rows are read again from the begin."""
    first: list[int] = []

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        if not first and followers[1].closed >= 150:
            first.append(at)
        return {0: [slow(40)]} if first == [at - 1] else {}

    _, target = follow(tmp_path, sees, paces=(1, 12), steps_count=300)
    (window,) = windows(target)
    found = steps_by_rank(whole(window))
    assert sorted(found) == [0, 1, 2, 3]
    assert all(steps[0] <= 40 - BEFORE and steps[-1] >= 40 + AFTER for steps in found.values())
    assert [event.text.endswith(")") for event in captures(target)] == [True]


@pytest.mark.parametrize("apart", [pytest.param(0, marks=pytest.mark.thorough), 3])
def test_two_hosts_see_the_same_slow_step(tmp_path: Path, apart: int) -> None:
    """In the same round or some rounds later: one window, one line, one call."""
    seen: list[tuple[int, int]] = []

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        if not seen and followers[0].closed >= 100:
            seen.append((at, followers[0].closed))
        if not seen:
            return {}
        return {number: [slow(seen[0][1], 2 * number)] for number in (0, 1) if at == seen[0][0] + number * apart}

    followers, target = follow(tmp_path, sees)
    assert len(windows(target)) == 1
    assert [event.kind for event in read_events(target)] == ["slow_step", "capture"]
    assert len(followers[0].calls.events + followers[1].calls.events) == 1
    assert sorted(steps_by_rank(whole(windows(target)[0]))) == [0, 1, 2, 3]


def test_triggers_of_both_hosts_share_a_window(tmp_path: Path) -> None:
    """Another trigger meanwhile has its line and its call, and the path of the window that is open."""
    seen: list[tuple[int, int]] = []

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        if not seen and followers[0].closed >= 100:
            seen.append((at, followers[0].closed))
            return {0: [slow(seen[0][1])]}
        if seen and at == seen[0][0] + 1:
            return {1: [Event("stall_grows", "reads have grown", SECOND, seen[0][1], 2, 10)]}
        return {}

    followers, target = follow(tmp_path, sees, after=40)
    (window,) = windows(target)
    assert [event.kind for event in read_events(target)] == ["slow_step", "stall_grows", "capture"]
    assert [[(e.kind, e.window) for e in one.calls.events] for one in followers] == [
        [("slow_step", str(window))],
        [("stall_grows", str(window))],
    ]


def test_a_stuck_job_seals_at_once(tmp_path: Path) -> None:
    """Its window waits for no step; one that is open for an earlier trigger is sealed with it."""
    moments: list[int] = []

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        closed = followers[0].closed
        if closed >= 100 and len(moments) < 2:
            moments.append(at)
            return {0: [slow(closed)]} if len(moments) == 1 else {0: [stuck(closed)]}
        if len(moments) == 2 and at == moments[1] + 2:
            assert not followers[0].windows.collecting.parts
            assert [event.kind for event in read_events(tmp_path / "grown")] == ["slow_step", "stuck", "capture"]
        return {}

    followers, target = follow(tmp_path, sees, after=60)
    (window,) = windows(target)
    assert sorted(steps_by_rank(whole(window))) == [0, 1, 2, 3]
    assert [event.kind for event in followers[0].calls.events] == ["slow_step", "stuck"]
    assert followers[1].calls.events == []


def test_steps_that_do_not_come_are_waited_for_a_minute(tmp_path: Path) -> None:
    """A job that is neither stuck nor at its end: the window has the steps that there are."""
    target = tmp_path / "grown"
    target.mkdir()
    write_job(tmp_path / "job", ranks_count=4, steps_count=130, hosts=NODES)
    followers = [Follower(Host(target, name), after=60) for name in NODES]
    sees, asked_ns, now_ns = once(100, lambda closed: {0: [slow(closed)]}), 0, 0
    for at, now_ns in enumerate(grow(tmp_path / "job", target, SECOND)):
        seen = sees(at, followers)
        asked_ns = now_ns if seen else asked_ns
        for number, follower in enumerate(followers):
            follower.round(now_ns, seen.get(number))
    for later_s, sealed_count in ((58, 0), (62, 1)):
        for _ in range(2):  # the parts of both, and the window of them
            for follower in followers:
                follower.round(asked_ns + later_s * SECOND)
        assert len(captures(target)) == sealed_count
    found = steps_by_rank(whole(windows(target)[0]))
    assert sorted(found) == [0, 1, 2, 3]
    assert all(steps[-1] > 120 for steps in found.values())


def test_a_dead_host_is_named_and_not_waited_for(tmp_path: Path) -> None:
    """A lost host: its follower died with it. What is there is sealed within seconds."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=200, hosts=NODES)
    begun: list[int] = []

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        if not begun and followers[0].closed >= 100:
            begun.append(at)
            followers[1].round = lambda *_, **__: None  # type: ignore[method-assign]
            return {0: [stuck(followers[0].closed, 2)]}
        if begun and at == begun[0] + 5:
            assert len(captures(tmp_path / "grown")) == 1
        return {}

    _, target = grown(tmp_path, sees)
    (sealed,) = captures(target)
    assert sealed.text.endswith(", without ranks 2,3 on node02 (no answer within 4 s)")
    with pytest.warns(DataLossWarning, match="ranks_missing"):
        assert sorted(steps_by_rank(afterwards(windows(target)[0]))) == [0, 1]
    assert not list(target.glob("*.request")), "nobody takes it later"


def test_a_host_that_has_ended(tmp_path: Path) -> None:
    """It is not asked; the window is one of the other host alone."""

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        found = trigger(at, followers)
        if found:
            followers[1].say(ended=True)
            followers[1].round = lambda *_, **__: None  # type: ignore[method-assign]
        return found

    trigger = once(100, lambda closed: {0: [slow(closed)]})
    _, target = follow(tmp_path, sees)
    (sealed,) = captures(target)
    assert sealed.window == str(windows(target)[0])
    assert sealed.text.endswith(", without ranks 2,3 on node02 (its job has ended)")
    assert {path.name.partition(".")[0] for path in windows(target)[0].glob("*.stash")} == {"node01"}


def fill_disk(monkeypatch: pytest.MonkeyPatch, first_letters: str) -> None:
    """Let there be no space for the files whose names begin so."""

    def refuse(file: StashFile, path: str) -> int:
        if file.name.startswith(first_letters):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_packed(file, path)

    monkeypatch.setattr("stashtrace.live.hosts.windows.write_packed", refuse)


def test_a_host_whose_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left in the window, and the line says why."""
    fill_disk(monkeypatch, "node02.1021")
    followers, target = follow(tmp_path, once(100, lambda closed: {0: [slow(closed)]}))
    (window,) = windows(target)
    (sealed,) = captures(target)
    assert sealed.text.endswith(", without ranks 2,3 on node02 (No space left on device)")
    assert {path.name.partition(".")[0] for path in window.glob("*.stash")} == {"node01"}
    assert not [path for path in window.iterdir() if path.is_dir() or path.suffix == ".refused"]
    assert [event.window for event in followers[0].calls.events] == [str(window)]


def test_the_disk_of_the_host_that_saw_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of the other one are kept all the same."""
    fill_disk(monkeypatch, "node01.")
    _, target = follow(tmp_path, once(100, lambda closed: {0: [slow(closed)]}))
    (sealed,) = captures(target)
    assert " of ranks 2,3 are kept in " in sealed.text
    assert sealed.text.endswith(", without ranks 0,1 on node01 (No space left on device)")


@pytest.mark.parametrize("rounds", [0, pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_run_directory_that_vanishes(tmp_path: Path, rounds: int) -> None:
    """When the trigger comes, or while the parts are collected: no follower fails, nothing is made again."""
    late_job(tmp_path / "job")
    target = tmp_path / "grown"
    target.mkdir()
    followers = [Follower(Host(target, name)) for name in NODES]
    moments = grow(tmp_path / "job", target, SECOND)
    for now_ns in moments:
        for follower in followers:
            follower.round(now_ns)
        if followers[0].closed >= 100:
            break
    accounts = followers[0].host.accounts
    steps = [lambda: followers[0].alarms.add(slow(followers[0].closed - AFTER), "slow", now_ns)]
    steps += [lambda: followers[0].alarms.seal_if_ready(accounts, now_ns, ended=False)]
    for number, step in enumerate(steps):
        if number == rounds:
            shutil.rmtree(target)
        step()
    shutil.rmtree(target, ignore_errors=True)
    for follower in followers:
        follower.alarms.collect(now_ns + SECOND)
        follower.alarms.collect(now_ns + 2 * SECOND, last=True)
    assert not target.exists()
    assert [event.window for event in followers[0].calls.events] == [""]
    assert not followers[0].windows.collecting.parts


@pytest.mark.parametrize("begun", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_the_host_that_saw_it_dies_while_parts_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The other one puts the window together, with the part that is there, and says so; also of one that had begun."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=950, hosts=NODES)
    monkeypatch.setattr(times, "TAKEN_NS", 3 * SECOND)

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        found = trigger(at, followers)
        if found:
            stop.append(at)
        elif stop:
            if begun and at == stop[0] + 1:
                (windows(tmp_path / "grown")[0] / "taken").touch()
            followers[0].round = lambda *_, **__: None  # type: ignore[method-assign]
            followers[0].alarms.collect = lambda *_, **__: None  # type: ignore[method-assign]
        return found

    stop: list[int] = []
    trigger = once(100, lambda closed: {0: [slow(closed)]})
    _, target = grown(tmp_path, sees, after=40)
    (sealed,) = captures(target)
    assert " of ranks 2,3 are kept in " in sealed.text
    assert ", without ranks 0,1 on node01 (its follower has made no round for " in sealed.text
    assert not [path for path in windows(target)[0].iterdir() if path.is_dir() or path.name == "taken"]


@pytest.mark.parametrize("moved_count", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_slow_host_is_taken_for_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved_count: int) -> None:
    """It has begun to put the window together when the other one means to do so in its place: one of them does."""
    target, times, moved, looks = tmp_path / "grown", [0], list[Path](), list[int]()
    target.mkdir()
    late_job(tmp_path / "job")
    followers = [Follower(Host(target, name)) for name in NODES]

    def take(window: Path, part: Path) -> None:
        if len(moved) == moved_count and not looks:
            looks.append(times[-1] + 12 * SECOND)  # node01 has made no round meanwhile
            followers[1].alarms.collect(looks[0])
        moved.append(part)
        take_in(window, part)

    monkeypatch.setattr("stashtrace.live.hosts.collecting.take_in", take)
    sees = once(100, lambda closed: {0: [slow(closed)]})
    for at, now_ns in enumerate(grow(tmp_path / "job", target, SECOND)):
        seen = sees(at, followers)
        times.append(now_ns)
        for number, follower in enumerate(followers):
            follower.round(now_ns, seen.get(number))
    for follower in followers:
        follower.alarms.collect(times[-1] + 13 * SECOND, last=True)
    assert [path.name for path in moved] == ["node01.ranks", "node02.ranks"]
    (sealed,) = captures(target)
    assert " of ranks 0-3 are kept in " in sealed.text
    assert sorted(steps_by_rank(whole(windows(target)[0]))) == [0, 1, 2, 3]


def test_a_part_that_comes_too_late_is_removed(tmp_path: Path) -> None:
    """The window stays as it was said to be."""

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        found = trigger(at, followers)
        if found:
            begun.append(at)
            paces.append(followers[1].round)
            followers[1].round = lambda *_, **__: None  # type: ignore[method-assign]
        elif begun and at == begun[0] + 6:
            assert (tmp_path / "grown/windows").exists()
            followers[1].round = paces[0]  # type: ignore[method-assign]
            requests.extend(take_requests(tmp_path / "grown", NODES[1]))
        return found

    begun: list[int] = []
    requests: list[Any] = []
    paces: list[Any] = []
    trigger = once(100, lambda closed: {0: [stuck(closed)]})
    _, target = follow(tmp_path, sees)
    assert requests == [], "it was withdrawn"
    (window,) = windows(target)
    assert {path.name.partition(".")[0] for path in window.glob("*.stash")} == {"node01"}
    assert not [path for path in window.iterdir() if path.is_dir()]


def test_limits_hold_for_all_hosts_together(tmp_path: Path) -> None:
    """A window that one host opens counts on the others, too."""

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        number = at % 2
        closed = followers[number].closed
        return {number: [slow(closed)]} if closed >= 60 and at % 8 < 2 else {}

    followers, target = follow(tmp_path, sees, limits=Limits(windows_count=2, pause_ns=0), steps_count=300)
    assert len(windows(target)) == 2
    assert any("no window was sealed for " in note for follower in followers for note in follower.alarms.notes)


def test_a_signal_asks_all_hosts(tmp_path: Path) -> None:
    """One window, one line, one call."""
    asked: list[int] = []
    late_job(tmp_path / "job")

    def sees(at: int, followers: list[Follower]) -> dict[int, list[Event]]:
        if not asked and followers[1].closed >= 100:
            asked.append(followers[1].closed)
            followers[1].alarms.answer(Request(AFTER), followers[1].closed, 10**15)
        return {}

    followers, target = grown(tmp_path, sees)
    (window,) = windows(target)
    assert window.name.endswith("-asked")
    (sealed,) = read_events(target)
    assert [[event.window for event in one.calls.events] for one in followers] == [[], [str(window)]]
    found = steps_by_rank(whole(window))
    assert sorted(found) == [0, 1, 2, 3]
    assert found[3][-1] >= asked[0] + AFTER
    assert sealed.window == str(window)


def test_ranks_that_are_started_again(tmp_path: Path) -> None:
    """The steps after the trigger will not come: what there is of the first start is sealed."""
    restarted_job(tmp_path / "job")
    _, target = grown(tmp_path, once(96, lambda closed: {0: [slow(closed)]}))
    (window,) = windows(target)
    (sealed,) = captures(target)
    trace = load_trace(window)
    assert sorted(trace.ranks.tolist()) == [0, 1, 2, 3]
    assert " of ranks 0-3 are kept in " in sealed.text


def test_clocks_of_hosts_that_are_set_meanwhile(tmp_path: Path) -> None:
    """Each host has a separate clock, and the wall clock of one is set back by an hour in the middle."""
    late_job(tmp_path / "job")
    step = (START_NS + 6 * SECOND, -3600 * SECOND)
    for path in (tmp_path / "job").glob("node02.*.stash"):
        as_other_boot(path, offset_ns=977 * SECOND, drift_ppb=20_000, wall_step=step)
    _, target = grown(tmp_path, once(100, lambda closed: {0: [slow(closed)]}), offset_ns=977 * SECOND)
    (window,) = windows(target)
    (sealed,) = captures(target)
    assert " of ranks 0-3 are kept in " in sealed.text
    found = steps_by_rank(afterwards(window))
    assert sorted(found) == [0, 1, 2, 3]
    assert len({tuple(steps) for steps in found.values()}) == 1
