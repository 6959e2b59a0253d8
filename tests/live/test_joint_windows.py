"""Windows that somebody asks for, of all hosts of a job: the same steps of all ranks, without hosts that are gone."""

from __future__ import annotations

import subprocess
import threading
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from growing_files import grow
from other_boot import as_other_boot
from stash_files import RUN_ID
from test_accounts import SECOND, afterwards
from test_alarms import Calls
from test_hosts import NODES, Host, late_job, unequal

from stashtrace.errors import DataLossWarning
from stashtrace.live import times
from stashtrace.live.alarms import Alarms
from stashtrace.live.hosts.requests import Asked, Request, asked_hosts, put_request, take_requests
from stashtrace.live.hosts.windows import Limits, Windows
from stashtrace.live.state import Event, EventLog, LiveState
from stashtrace.loading.load import load_trace
from stashtrace.record.launchers import own_place
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Severity
from stashtrace.schema.table import Table


class Log(EventLog):
    """The log of a host of any name."""

    def __init__(self, directory: Path, host: str) -> None:
        super().__init__(directory, None)
        self._path = directory / f"events-{host}.jsonl"


def report_state(state: LiveState, host: Host, *, ended: bool) -> None:
    """Write the state of a follower after a round."""
    state.rounds_count += 1
    state.ended = ended
    state.ranks = {str(rank): {"last_step": step} for rank, step in host.accounts.closed.items()}
    state.write(host.directory)


class Follower:
    """What a follower does about windows, on one of several hosts; its rounds come in the order of the real one."""

    def __init__(self, host: Host, limits: Limits | None = None, after: int = 5, *, waits: bool = False) -> None:
        self.host, self.calls = host, Calls()
        facts = {"run_id": RUN_ID}
        self.windows = Windows(host.directory, facts, host.name, waits=waits, others=host.others, limits=limits)
        self.alarms = Alarms(Log(host.directory, host.name), self.windows, self.calls, after)
        self.state = LiveState(host.name, RUN_ID)
        self.say()

    @property
    def closed(self) -> int:
        return min(self.host.accounts.closed.values(), default=-1)

    def round(self, now_ns: int, triggers: list[Event] | None = None, *, ended: bool = False) -> None:
        self.host.round(now_ns, ended=ended)
        at_ns = now_ns + self.host.offset_ns
        for request in take_requests(self.host.directory, self.host.name):
            self.alarms.answer(request, self.closed, at_ns)
        for event in triggers or []:
            now = event.kind in ("stuck", "rank_lost")
            self.alarms.add(event, event.kind.partition("_")[0], at_ns, now=now)
        self.alarms.seal_if_ready(self.host.accounts, at_ns, ended=ended)
        self.host.accounts.held = self.windows.is_open
        self.say(ended=ended)

    def say(self, *, ended: bool = False) -> None:
        report_state(self.state, self.host, ended=ended)


def ask(target: Path, after_steps: int) -> Asked:
    return Asked(target, asked_hosts(target), after_steps)


def answered(asked: Asked) -> Path:
    asked.wait(1)
    assert asked.missing == {}
    return Path(asked.answer.window)


def capture(
    recorded: Path, target: Path, at_step: int, paces: tuple[int, int] = (1, 1), gone: int = -1, **grown: bool
) -> tuple[Asked, list[Follower]]:
    """Let a run grow, and ask its first host for a window once a step has closed.

    ``paces``: moments between two rounds of each host. ``gone``: a host that makes no further round then.
    """
    target.mkdir()
    followers = [Follower(Host(target, name)) for name in NODES]
    asked = None
    for at, now_ns in enumerate(grow(recorded, target, SECOND, **grown)):
        for number, (follower, pace) in enumerate(zip(followers, paces, strict=True)):
            if at % pace == 0 and (asked is None or number != gone):
                follower.round(now_ns)
        if asked is None and followers[0].closed >= at_step:
            asked = ask(target, 10)
    left = [follower for number, follower in enumerate(followers) if number != gone]
    for follower in left:
        follower.round(now_ns, ended=True)
    for follower in left:
        follower.alarms.collect(now_ns, last=True)
    assert asked is not None
    return asked, followers


def whole(window: str | Path) -> Table:
    """The rows of the steps of a window, none of whose records are lost."""
    trace = load_trace(window)
    serious = trace.losses["severity_code"] == int(Severity.DATA_LOSS)
    assert not serious.any(), [trace.text(code) for code in trace.losses["advice_code"][serious]]
    return afterwards(Path(window))


@pytest.mark.parametrize("paces", [(1, 7), (5, 2)])
def test_a_window_has_the_ranks_of_all_hosts(tmp_path: Path, paces: tuple[int, int]) -> None:
    """Whose rounds are as far apart as they like: the same steps of all ranks, with the times of the whole run."""
    late_job(tmp_path / "job")
    asked, followers = capture(tmp_path / "job", tmp_path / "grown", 100, paces)
    path = answered(asked)
    assert " of ranks 0-3 are kept in " in asked.answer.text
    assert asked.answer.text.endswith(")"), "nothing is missing"
    table = whole(path)
    by_rank = GroupBy(table["rank"])
    assert by_rank.values.tolist() == [0, 1, 2, 3]
    steps = [sorted(table["step"][table["rank"] == rank].tolist()) for rank in range(4)]
    assert steps == [list(range(steps[0][0], steps[0][-1] + 1))] * 4
    assert steps[0][0] > 0
    assert steps[0][-1] >= 100 + 10
    assert unequal(table, afterwards(tmp_path / "job"), tolerance_ns=5) == []
    assert not list((tmp_path / "grown").glob("*.request")), "each host has taken its request"
    assert all(not follower.windows.is_open for follower in followers)


def test_a_host_waits_for_the_steps_of_one_that_sealed_before_it_looked(tmp_path: Path) -> None:
    """Where recording begins with the request, a late host may open and seal its part within one round."""
    late_job(tmp_path / "job")
    target = tmp_path / "grown"
    target.mkdir()
    early, late = (Follower(Host(target, name), waits=True) for name in NODES)
    asked: Asked | None = None
    began, reported = 0, 0
    for now_ns in grow(tmp_path / "job", target, SECOND // 4):
        if asked is None:
            early.host.round(now_ns)
            late.host.round(now_ns)
            began = min(early.host.accounts.closed.values(), default=-1)
            if began >= 40:
                asked = ask(target, 10)
                early.round(now_ns)
                began = min(early.host.accounts.closed.values())
        elif reported:
            early.round(now_ns)
            if not early.windows.is_open:
                break
        else:
            early.host.round(now_ns)
            late.host.round(now_ns)
            if min(late.host.accounts.closed.values()) >= began + 30:
                reported = began + 18
                (request,) = take_requests(target, late.host.name)
                late.alarms.answer(request, reported, now_ns)
                late.alarms.seal_if_ready(late.host.accounts, now_ns, ended=False)
                assert not late.windows.is_open
                # What the early host knows of its ranks is from a moment before.
                before = copy(early.host.accounts)
                before.closed = dict.fromkeys(before.closed, began + 12)
                early.alarms.seal_if_ready(before, now_ns, ended=False)
                assert early.windows.is_open
    early.round(now_ns, ended=True)
    assert asked is not None
    assert reported
    path = answered(asked)
    table = whole(path)
    steps = [table["step"][table["rank"] == rank].tolist() for rank in range(4)]
    assert steps[0] == steps[1] == steps[2] == steps[3]
    assert max(steps[0]) >= reported + 10


def test_hosts_with_separate_clocks(tmp_path: Path) -> None:
    """Each says on its clock when its ranks began; the window is read on one."""
    late_job(tmp_path / "job")
    offset_ns = 977 * SECOND
    for path in (tmp_path / "job").glob("node02.*.stash"):
        as_other_boot(path, offset_ns=offset_ns, drift_ppb=20_000)
    target = tmp_path / "grown"
    target.mkdir()
    followers = [Follower(Host(target, name, offset_ns=offset_ns * at)) for at, name in enumerate(NODES)]
    asked = None
    for now_ns in grow(tmp_path / "job", target, SECOND, by_ticks=True):
        for follower in followers:
            follower.round(now_ns)
        if asked is None and followers[0].host.accounts.closed.get(0, -1) >= 100:
            asked = ask(target, 10)
    assert asked is not None
    path = answered(asked)
    table, recorded = whole(path), afterwards(tmp_path / "job")
    assert np.unique(table["rank"]).tolist() == [0, 1, 2, 3]
    assert int(table["step"].min()) > 0
    at = GroupBy(recorded["rank"], recorded["step"]).row_of(table["rank"], table["step"])
    lengths, others = (one["end_ns"] - one["begin_ns"] for one in (table, recorded.take(at)))
    assert np.abs(lengths - others).max() < 20_000, "fewer operations say less of the other host's clock"


def test_a_host_that_is_gone_does_not_hold_it_up(tmp_path: Path) -> None:
    """The window is sealed without its ranks, and it is said which host has not answered."""
    late_job(tmp_path / "job")
    asked, _ = capture(tmp_path / "job", tmp_path / "grown", 100, gone=1)
    path = answered(asked)
    assert " of ranks 0,1 are kept in " in asked.answer.text
    assert asked.answer.text.endswith(", without ranks 2,3 on node02 (no answer within 20 s)")
    with pytest.warns(DataLossWarning, match="ranks_missing"):
        table = afterwards(path)
    assert np.unique(table["rank"]).tolist() == [0, 1]
    assert table["step"].max() >= 100 + 10
    assert not list((tmp_path / "grown").glob("*.request")), "nobody takes it later"


def test_a_follower_that_is_seen_to_live_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its round takes; one that has ended is not waited for at all."""
    monkeypatch.setattr(times, "ASKED_SILENT_NS", SECOND // 10)
    monkeypatch.setattr(times, "SILENT_ROUNDS", 0)
    with subprocess.Popen(["sleep", "1000"]) as follower:
        state = LiveState("node01", follower_pid=follower.pid, follower_place=own_place())
        state.write(tmp_path)
        asked = Asked(tmp_path, [state], 5)
        asked.wait(1)
        assert asked.missing == {"node01": "no answer within 1 s"}
        follower.kill()
    asked = Asked(tmp_path, [state], 5)
    asked.wait(60)
    assert asked.missing == {"node01": "its follower has ended"}


def test_the_next_host_is_asked_where_one_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is taken back from the first one."""
    monkeypatch.setattr(times, "ASKED_SILENT_NS", SECOND // 10)
    monkeypatch.setattr(times, "SILENT_ROUNDS", 0)
    states = [LiveState(host) for host in NODES]
    for state in states:
        state.write(tmp_path)
    asked = Asked(tmp_path, states, 5)

    def answer() -> None:
        while not (taken := take_requests(tmp_path, NODES[1])):
            pass
        Log(tmp_path, NODES[1]).add(Event("capture", "kept", SECOND, window="w", request=taken[0].name))

    thread = threading.Thread(target=answer)
    thread.start()
    asked.wait(60)
    thread.join()
    assert asked.answer.window == "w"
    assert list(asked.missing) == ["node01"]
    assert asked.missing["node01"].startswith("its follower has made no round for ")
    assert not list(tmp_path.glob("*.request"))


def test_no_host_seals_more_than_the_limit(tmp_path: Path) -> None:
    """The one that is asked says so, and the others are not asked."""
    late_job(tmp_path / "job")
    target = tmp_path / "grown"
    target.mkdir()
    followers = [Follower(Host(target, name), Limits(folders_count=1)) for name in NODES]
    answers: list[Asked] = []
    for now_ns in grow(tmp_path / "job", target, SECOND):
        for follower in followers:
            follower.round(now_ns)
        if followers[0].host.accounts.closed.get(0, -1) >= 100 and len(answers) < 2:
            answers.append(ask(target, 0))
    assert answered(answers[0]).is_dir()
    answers[1].wait(1)
    assert answers[1].answer.window == ""
    assert "holds 1 window; remove some, or ask with" in answers[1].answer.text
    assert len(list((target / "windows").iterdir())) == 1


def test_hosts_whose_steps_begin_with_the_request(tmp_path: Path) -> None:
    """Of an idle run: a host that has begun waits until the other one has said with which step it begins."""
    late_job(tmp_path / "job")
    target = tmp_path / "grown"
    target.mkdir()
    followers = [Follower(Host(target, name), waits=True) for name in NODES]
    for now_ns in grow(tmp_path / "job", target, SECOND):
        for follower in followers:
            follower.round(now_ns)
        if followers[0].host.accounts.closed.get(0, -1) >= 100:
            break
    asked = ask(target, 0)
    first, second = followers
    (request,) = take_requests(target, "node01")
    first.alarms.answer(request, 10, 0)
    first.alarms.seal_if_ready(first.host.accounts, 1, ended=False)
    assert first.windows.is_open
    (request,) = take_requests(target, "node02")
    assert request.hosts == NODES
    second.alarms.answer(request, 20, 0)
    for follower in followers:
        follower.alarms.seal_if_ready(follower.host.accounts, 1, ended=False)
        assert not follower.windows.is_open
    first.alarms.collect(1)
    assert answered(asked).is_dir()


def test_requests_share_the_window_that_is_open(tmp_path: Path) -> None:
    """It becomes longer for them on all hosts, whichever host they ask; also one that a trigger has opened."""
    late_job(tmp_path / "job")
    target = tmp_path / "grown"
    target.mkdir()
    followers = [Follower(Host(target, name)) for name in NODES]
    answers: list[Asked] = []
    for now_ns in grow(tmp_path / "job", target, SECOND):
        for follower in followers:
            follower.round(now_ns)
        if followers[0].closed >= 100 and not answers:
            slow = Event("slow_step", "slow", SECOND, followers[1].closed)
            followers[1].alarms.add(slow, "slow", now_ns)
            closed = followers[0].closed
            answers = [Asked(target, [follower.state], 30) for follower in followers]
    paths = {answered(asked) for asked in answers}
    assert [path.name for path in paths] == [f"step-{slow.step:06}-slow"]
    table = whole(paths.pop())
    assert np.unique(table["rank"]).tolist() == [0, 1, 2, 3]
    assert table["step"].max() >= closed + 30


def test_requests_of_hosts_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two followers that take at the same time: each request once on each host."""
    names = [f"r{number}" for number in range(60)]
    taken: dict[str, list[str]] = {host: [] for host in NODES}
    done = threading.Event()

    def take(host: str) -> None:
        while not done.is_set() or list(tmp_path.glob("*.request")):
            taken[host] += [request.name for request in take_requests(tmp_path, host)]

    threads = [threading.Thread(target=take, args=(host,)) for host in NODES]
    for thread in threads:
        thread.start()
    for name, host in ((name, host) for name in names for host in NODES):
        put_request(tmp_path, Request(1, name), host)
    done.set()
    for thread in threads:
        thread.join()
    assert len(taken["node01"]) == len(names)
    assert sorted(taken["node01"]) == sorted(taken["node02"])
