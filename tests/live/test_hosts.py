"""Hosts of one job that follow their ranks and report them to each other through the run directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from growing_files import grow
from made_job import MS, write_job
from other_boot import as_other_boot
from stash_files import RUN_ID, START_NS
from test_accounts import SECOND, afterwards

from stashtrace.analysis.findings.ending.hang_table import hang
from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS
from stashtrace.errors import DataLossWarning
from stashtrace.format.growing import GrowingRun
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.hosts import shared_ranks
from stashtrace.live.hosts.shared_ranks import OtherHosts, Share
from stashtrace.live.table import LIVE_STEPS
from stashtrace.live.triggers import SlowStepSeen, SlowStepTrigger, StuckTrigger
from stashtrace.loading.load import load_trace
from stashtrace.loading.peeks import with_peeks
from stashtrace.record.directory import HOSTS_FOLDER
from stashtrace.record.peek.model import Peek, ThreadPeek
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

NODES = ("node01", "node02")
#: Of the ranks of a made-up job of four.
PIDS = (1000, 1010, 1020, 1030)


@dataclass
class Host:
    """What runs on one host: its accounts, and what it reports to others."""

    directory: Path
    name: str
    #: It makes a round in every n-th of its looks; 0 for a host that has died.
    pace: int = 1
    #: Of its CLOCK_MONOTONIC against that of the first host.
    offset_ns: int = 0
    parts: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        def is_ours(metadata: Mapping[str, Any]) -> bool:
            return metadata["host"] == self.name

        self.others = OtherHosts(self.directory, self.name, RUN_ID)
        self.accounts = LiveAccounts(GrowingRun(str(self.directory), is_ours), self.others)
        self.share = Share(self.directory)
        (self.directory / f"launch.{self.name}.1.json").write_text(json.dumps({"host": self.name}))

    def round(self, now_ns: int, *, ended: bool = False) -> None:
        self.parts.append(self.accounts.round(now_ns + self.offset_ns, ended=ended).closed)
        self.report(now_ns)

    def report(self, now_ns: int) -> None:
        ranks, rest = self.accounts.own_files()
        self.share.write(ranks, rest, now_ns + self.offset_ns)

    def closed(self) -> Table:
        return Table.concat(LIVE_STEPS, self.parts)


def follow(
    recorded: Path, target: Path, change: Callable[[int, list[Host]], None] = lambda at, hosts: None, **grown: Any
) -> list[Host]:
    """Let a run grow and follow it on two hosts; ``change`` is called with the number of each look."""
    target.mkdir()
    hosts = [Host(target, name) for name in NODES]
    now_ns = 0
    for at, now_ns in enumerate(grow(recorded, target, SECOND, **grown)):
        change(at, hosts)
        for host in hosts:
            if host.pace and at % host.pace == 0:
                host.round(now_ns)
    living = [host for host in hosts if host.pace]
    for host in living:  # what came since the last round is reported before the last steps close
        host.accounts.run.take_in(now_ns + host.offset_ns)
        host.report(now_ns)
    for host in living:
        host.round(now_ns, ended=True)
    return hosts


def unequal(live: Table, whole: Table, tolerance_ns: int = 0) -> list[str]:
    """Where the times of a step differ, in words; the hosts' clocks have different zeros."""
    at = GroupBy(whole["rank"], whole["step"]).row_of(live["rank"], live["step"])
    assert (at >= 0).all(), "a step closed that the recording does not have"
    other = whole.take(at)
    pairs = {name: (live[name], other[name]) for name in (*KIND_COLUMNS.values(), "cause_rank", "cause_ns")}
    pairs["length"] = live["end_ns"] - live["begin_ns"], other["end_ns"] - other["begin_ns"]
    return [
        f"rank {live['rank'][row]} step {live['step'][row]}: {name} {mine[row]} {theirs[row]}"
        for name, (mine, theirs) in pairs.items()
        for row in np.flatnonzero(abs(mine - theirs) > (0 if name == "cause_rank" else tolerance_ns)).tolist()
    ]


def restarted_job(folder: Path) -> None:
    """Write a job whose ranks are started again after 100 steps, under other numbers of processes."""
    for restart, begin_ms, pid in (("0", 100.0, 1000), ("1", 15_000.0, 3000)):
        write_job(
            folder,
            ranks_count=4,
            steps_count=100,
            restart=restart,
            begin_ms=begin_ms,
            first_pid=pid,
            hosts=NODES,
        )


def all_sleep_in_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks at processes find each of them in a read that does not return."""

    def peek_at(trace: Trace, path: str, wanted: Mapping[int, int]) -> Trace:
        thread = ThreadPeek(1, "MainThread", "S", 5, "read", "/data/shard.tar")
        asleep = Peek(1, 1 << 60, SECOND, "S", thread, thread_ran_ns=0, others_ran_ns=0, moved_bytes=0)
        return with_peeks(trace, dict.fromkeys(wanted, asleep.to_text()))

    monkeypatch.setattr("stashtrace.live.triggers.peek_at", peek_at)


def late_job(folder: Path, steps_count: int = 200, **more: Any) -> dict[tuple[int, int], float]:
    """Four ranks on two hosts; now and then a rank of each is late."""
    late = {(rank, step): 40.0 for rank in (1, 2) for step in range(30 + rank, steps_count - 20, 9)}
    write_job(folder, ranks_count=4, steps_count=steps_count, late_ms=late, hosts=NODES, **more)
    return late


@pytest.mark.parametrize("inside_count", [pytest.param(0, marks=pytest.mark.thorough), 20])
def test_hosts_with_one_clock_equal_the_analysis(tmp_path: Path, inside_count: int) -> None:
    """To the nanosecond, on every step of every rank; waits for a rank of the other host are among them.

    What is reported of a step of a rank takes 92 bytes: each text once, nothing that ranks of one host do together.
    """
    late = late_job(tmp_path / "job", inside_count=inside_count)
    hosts = follow(tmp_path / "job", tmp_path / "grown")
    whole = afterwards(tmp_path / "job")
    for host, ranks in zip(hosts, ((0, 1), (2, 3)), strict=True):
        live = host.closed()
        assert sorted(set(live["rank"].tolist())) == list(ranks)
        assert len(live) == 400
        assert unequal(live, whole) == []
        assert (live["complete"] == 1).all()
        assert sum(map(len, host.parts[:-1])) > 300, "most steps are to close while the run grows"
        assert host.accounts.window is not None, "and rows of many of them are let go of meanwhile"
        assert host.accounts.window.first_step > 100
        assert host.others.notes() == []
    abroad = hosts[0].closed().take(np.isin(hosts[0].closed()["step"], [step for rank, step in late if rank == 2]))
    assert set(abroad["cause_rank"].tolist()) == {2}
    assert int(abroad["cause_ns"].sum()) >= 0.8 * 2 * len(late) / 2 * 40 * MS
    assert hosts[0].share.bytes_count / (2 * 200) < 96
    reported = sorted(path.name for path in (tmp_path / "grown" / HOSTS_FOLDER).iterdir())
    assert [name for name in reported if name.endswith(".stash")] == [
        f"node0{1 + rank // 2}.10{rank}0.0.stash" for rank in range(4)
    ]
    assert not [name for name in reported if name.endswith(".ring")], "all ranks have ended"


def test_a_rank_that_alone_evaluates(tmp_path: Path) -> None:
    """The steps of the others have the numbers that they have in the whole job."""
    late_job(tmp_path / "job", evaluates=[(0, step) for step in range(20, 200, 20)])
    hosts = follow(tmp_path / "job", tmp_path / "grown")
    whole = afterwards(tmp_path / "job")
    for host in hosts:
        assert unequal(host.closed(), whole) == []
        assert len(host.closed()) == int(np.isin(whole["rank"], host.closed()["rank"]).sum())


CLOCKS = {"close": (7 * MS, 0), "an hour off": (3600 * SECOND, 0), "set in the middle": (7 * MS, 600 * SECOND)}


@pytest.mark.parametrize(
    "wall",
    [
        pytest.param(wall, marks=[pytest.mark.thorough] * (name != "an hour off"), id=name)
        for name, wall in CLOCKS.items()
    ],
)
def test_hosts_with_separate_clocks(tmp_path: Path, wall: tuple[int, int]) -> None:
    """Waits are divided by the clocks as they are known so far, to their error; lengths are those of the host's clock.

    ``wall``: how far the wall clock of the other host is off, and by how much it is set while the job runs.
    """
    late = late_job(tmp_path / "job")
    for path in (tmp_path / "job").glob("node02.*.stash"):
        as_other_boot(
            path,
            offset_ns=77 * SECOND,
            drift_ppb=20_000,
            realtime_offset_ns=wall[0],
            wall_step=(START_NS + 6 * SECOND, wall[1]),
        )

    def set_clock(at: int, hosts: list[Host]) -> None:
        hosts[1].offset_ns = 77 * SECOND

    hosts = follow(tmp_path / "job", tmp_path / "grown", set_clock, by_ticks=True)
    whole = afterwards(tmp_path / "job")
    for host in hosts:
        live = host.closed()
        assert len(live) == 400
        assert unequal(live, whole, tolerance_ns=MS) == []
        waited = live.take(live["cause_ns"] > 10 * MS)
        assert len(waited) > 0.9 * len(late)
    sums = [sum(int(host.closed()[name].sum()) for host in hosts) for name in ("straggler_ns", "network_ns")]
    assert sums == pytest.approx([int(whole["straggler_ns"].sum()), int(whole["network_ns"].sum())], rel=0.01)


def test_a_host_that_dies(tmp_path: Path) -> None:
    """Its ranks and its follower stop at once: the other host's steps close without it, and it says so."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=750, hosts=NODES, dead=[(2, 100), (3, 100)], lockstep=False)

    def die(at: int, hosts: list[Host]) -> None:
        if at == 20:
            hosts[1].pace = 0

    heard: list[str] = []

    def watch(at: int, hosts: list[Host]) -> None:
        die(at, hosts)
        heard.extend(hosts[0].others.notes())

    killed = (1020, 1021, 1030, 1031)
    here, _ = follow(tmp_path / "job", tmp_path / "grown", watch, killed=killed)
    live = here.closed()
    assert len(live) == 2 * 750
    assert int((live["complete"] == 0).sum()) > 0
    assert (live["complete"][live["step"] < 80] == 1).all()
    assert any(note.startswith("node02 has reported nothing of its ranks for 3") for note in heard), set(heard)
    assert unequal(live.take(live["complete"] == 1), afterwards(tmp_path / "job")) == []


def test_a_host_that_is_late(tmp_path: Path) -> None:
    """It makes a round every seven seconds: the other one waits for it, and nothing is missing."""

    def slow(at: int, hosts: list[Host]) -> None:
        hosts[1].pace = 7

    late_job(tmp_path / "job")
    hosts = follow(tmp_path / "job", tmp_path / "grown", slow)
    whole = afterwards(tmp_path / "job")
    for host in hosts:
        assert len(host.closed()) == 400
        assert unequal(host.closed(), whole) == []
        assert (host.closed()["complete"] == 1).all()


@pytest.mark.thorough
def test_a_host_that_joins_later(tmp_path: Path) -> None:
    """Its follower begins in the middle: until then steps close without it, and from then on they are whole."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=900, hosts=NODES)

    def join(at: int, hosts: list[Host]) -> None:
        hosts[1].pace = int(at > 36)

    hosts = follow(tmp_path / "job", tmp_path / "grown", join)
    whole = afterwards(tmp_path / "job")
    here, there = (host.closed() for host in hosts)
    assert len(here) == len(there) == 1800
    alone = here["complete"] == 0
    assert 100 < int(alone.sum()) < 1400
    assert unequal(here.take(~alone), whole) == []
    assert unequal(there, whole) == []


@pytest.mark.thorough
def test_a_host_that_falls_silent_comes_back(tmp_path: Path) -> None:
    """Its follower is stopped for a minute; the numbers of the steps stay what they are."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=1700, hosts=NODES)

    def pause(at: int, hosts: list[Host]) -> None:
        hosts[1].pace = 0 if 30 < at < 70 else 1

    hosts = follow(tmp_path / "job", tmp_path / "grown", pause)
    whole = afterwards(tmp_path / "job")
    for host in hosts:
        live = host.closed()
        assert len(live) == 3400
        assert unequal(live.take(live["complete"] == 1), whole) == []
    alone = hosts[0].closed()["complete"] == 0
    assert 0 < int(alone.sum()) < 2000
    assert (hosts[0].closed()["complete"][-100:] == 1).all()


def test_a_host_that_reports_nothing_of_its_last_steps(tmp_path: Path) -> None:
    """Its follower is too busy when the job ends: the steps that it has not reported are marked."""
    late_job(tmp_path / "job")
    (tmp_path / "grown").mkdir()
    hosts = [Host(tmp_path / "grown", name) for name in NODES]
    moments = grow(tmp_path / "job", tmp_path / "grown", SECOND)
    for at, now_ns in enumerate(moments):
        for host in hosts if at < 8 else hosts[:1]:
            host.round(now_ns)
    hosts[0].round(now_ns, ended=True)
    live = hosts[0].closed()
    assert len(live) == 400
    assert 70 < int((live["complete"] == 0).sum()) < 270
    assert unequal(live.take(live["complete"] == 1), afterwards(tmp_path / "job")) == []


def test_ranks_that_are_started_again(tmp_path: Path) -> None:
    restarted_job(tmp_path / "job")
    hosts = follow(tmp_path / "job", tmp_path / "grown")
    whole = afterwards(tmp_path / "job", start=1)
    for host in hosts:
        second = host.closed().take(host.closed()["start"] == 1)
        assert len(second) == 200
        assert unequal(second, whole) == []


def test_more_ranks_than_a_follower_takes_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps close as on a host alone, and that is said."""
    monkeypatch.setattr(shared_ranks, "MOST_RANKS", 1)
    late_job(tmp_path / "job")
    heard: set[str] = set()
    hosts = follow(tmp_path / "job", tmp_path / "grown", lambda at, hosts: heard.update(hosts[0].others.notes()))
    assert [len(host.closed()) for host in hosts] == [400, 400]
    assert (hosts[0].closed()["complete"] == 0).sum() > 330
    note = "other hosts report 2 ranks, and a follower reads 1 at most: waits for them have no cause"
    assert note in heard


def test_a_directory_that_is_not_shared(tmp_path: Path) -> None:
    """A host says in one sentence what it knows and what it cannot know; its steps close as ever."""
    late_job(tmp_path / "job")
    for path in (tmp_path / "job").glob("node02.*"):
        path.unlink()
    (tmp_path / "grown").mkdir()
    host = Host(tmp_path / "grown", "node01")
    for now_ns in grow(tmp_path / "job", tmp_path / "grown", SECOND):
        host.round(now_ns)
    assert len(host.closed()) > 300
    assert (host.closed()["complete"] == 1).all()
    with pytest.warns(DataLossWarning, match="ranks_missing"):
        assert unequal(host.closed(), afterwards(tmp_path / "job")) == []
    (note,) = host.others.notes()
    assert note == (
        f"this host sees ranks 0,1 of 4: other hosts do not record into {tmp_path / 'grown'}, "
        "so it cannot say for which of their ranks the ranks of this host wait"
    )


@pytest.mark.parametrize("pace", [1, pytest.param(9, marks=pytest.mark.thorough)])
def test_a_stuck_job_is_reported_by_the_host_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: int
) -> None:
    """What others report is some seconds old: by then their ranks seem not to have entered what those here wait in."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=200, hosts=NODES, dead=[(2, 100)], waits=True)
    facts = json.loads((tmp_path / "job" / "run.json").read_text())
    (tmp_path / "job" / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "exit_code"}))

    all_sleep_in_a_read(monkeypatch)
    (tmp_path / "grown").mkdir()
    hosts = [Host(tmp_path / "grown", name) for name in NODES]
    stuck = [StuckTrigger(str(tmp_path / "grown")) for _ in hosts]
    peeks = [(-1, -1, "")]
    for at, now_ns in enumerate(grow(tmp_path / "job", tmp_path / "grown", SECOND, killed=PIDS)):
        for number, (host, trigger) in enumerate(zip(hosts, stuck, strict=True)):
            if at % pace == number % pace:
                found = host.accounts.round(now_ns)
                host.report(now_ns)
                if found.joint is not None and trigger.round(found.joint, now_ns, 0, host.others.spoken_for(now_ns)):
                    peeks.append((at, number, "; ".join(trigger.sentences)))
    now_ns += 8 * SECOND
    for host, trigger in zip(hosts, stuck, strict=True):
        found = host.accounts.round(now_ns)
        assert found.joint is not None
        trigger.round(found.joint, now_ns, 0, host.others.spoken_for(now_ns))
    moving = [(at, number, said) for at, number, said in peeks[1:] if at < 6]
    assert moving == [], "the job gets on for 5 s"
    assert stuck[0].sentences == [], "node02 follows rank 2"
    assert stuck[1].ranks == [2]
    assert stuck[1].sentences[0].startswith("no progress for ")


@pytest.mark.parametrize("dead", [2, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_job_whose_other_hosts_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int) -> None:
    """Each host has a separate directory: ranks that are not seen are never named, whatever the others wait for.

    Of them nobody knows here whether they have entered what is waited for, nor whether they get on.
    """
    write_job(
        tmp_path / "job", ranks_count=4, steps_count=200, hosts=NODES, dead=[(dead, 100)], waits=True, waits_s=50.0
    )
    facts = json.loads((tmp_path / "job" / "run.json").read_text())
    (tmp_path / "job" / "run.json").write_text(json.dumps({k: v for k, v in facts.items() if k != "exit_code"}))
    for path in (tmp_path / "job").glob("node02.*"):
        path.unlink()

    all_sleep_in_a_read(monkeypatch)
    (tmp_path / "grown").mkdir()
    host = Host(tmp_path / "grown", "node01")
    trigger = StuckTrigger(str(tmp_path / "grown"))
    said: list[str] = []
    moments = [0]
    for now_ns in grow(tmp_path / "job", tmp_path / "grown", SECOND, killed=PIDS):
        moments.append(now_ns)
        found = host.accounts.round(now_ns)
        if found.window is not None:
            trigger.round(found.window, now_ns, 0, host.others.spoken_for(now_ns), host.others.known)
            said += [trigger.waits, *trigger.sentences]
    assert [text for text in said if text] == [], "nothing is said while the job gets on, nor of a wait that just began"
    found = host.accounts.round(moments[-1] + 8 * SECOND)
    assert found.window is not None
    trigger.round(found.window, moments[-1] + 8 * SECOND, 0, host.others.spoken_for(moments[-1]), host.others.known)
    said = [text for text in (trigger.waits, *trigger.sentences) if text]
    if dead == 1:
        assert trigger.ranks == [1]
        assert trigger.waits == ""
    else:
        assert trigger.sentences == []
        assert trigger.ranks == []
        assert trigger.waits.startswith("ranks 0,1 wait in all-reduce 100 of default for ")
        assert trigger.waits.endswith(
            "; no rank that is seen from here is missing from it; the ranks of other hosts are not visible from here"
        )
    assert said
    assert not [text for text in said if any(name in text for name in ("rank 2", "rank 3", "1-3", "2,3"))]
    with pytest.warns(DataLossWarning, match="ranks_missing"):
        table = hang(load_trace(tmp_path / "job"))
    assert table["rank"].tolist() == ([1] if dead == 1 else [0, 1])
    assert set(table["reason"].tolist()) == {"not_entered" if dead == 1 else "unseen"}


def test_a_step_that_a_rank_of_another_host_made_slow(tmp_path: Path) -> None:
    """Both hosts see it; the one that only waited says for whom."""
    write_job(tmp_path / "job", ranks_count=4, steps_count=260, hosts=NODES, late_ms={(2, 220): 900.0})
    (tmp_path / "grown").mkdir()
    hosts = [Host(tmp_path / "grown", name) for name in NODES]
    triggers, seen = [SlowStepTrigger() for _ in hosts], [list[SlowStepSeen]() for _ in hosts]
    for now_ns in grow(tmp_path / "job", tmp_path / "grown", SECOND):
        for host, trigger, own in zip(hosts, triggers, seen, strict=True):
            found = host.accounts.round(now_ns)
            host.report(now_ns)
            if len(found.closed) and found.window is not None:
                own += trigger.round(found.closed, found.window)
    (here,), (there,) = seen
    assert (here.step, here.rank) == (there.step, there.rank) == (220, 2)
    assert "rank 2" in here.text
