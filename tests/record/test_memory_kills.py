"""Processes that the kernel ends for want of memory: counted while a job runs, with the limit that was reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from stashtrace.analysis.findings.rules.ending.failures import memory_kills_text
from stashtrace.record.host import MEMORY_KILLS, MEMORY_LIMIT, MemoryKills


class Cgroups:
    """A tree of cgroups, and the file that names those of a process."""

    def __init__(self, folder: Path, line: str) -> None:
        self.root, self.own = folder / "cgroup", folder / "own"
        self.own.write_text(f"3:cpuset:/\n{line}\n")

    def write(self, group: str, **numbers: str) -> None:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in numbers.items():
            (folder / f"memory.{name}").write_text(text)

    def watch(self) -> MemoryKills:
        return MemoryKills(self.root, self.own)


def test_the_limit_of_a_cgroup_above_is_the_one_that_was_reached(tmp_path: Path) -> None:
    groups = Cgroups(tmp_path, "0::/pod/job")
    groups.write("pod", events="oom 0\noom_kill 4\n", max="4000000000\n")
    groups.write("pod/job", events="low 0\noom 0\noom_kill 4\noom_group_kill 0\n", max="max\n")
    watch = groups.watch()
    assert watch.facts() == {}
    groups.write("pod/job", events="low 0\noom 0\noom_kill 6\noom_group_kill 0\n")
    assert watch.facts() == {MEMORY_KILLS: 2}, "no limit was reached: the host had no memory left"
    groups.write("pod", events="oom 1\noom_kill 6\n")
    assert watch.facts() == {MEMORY_KILLS: 2, MEMORY_LIMIT: 4_000_000_000}


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    groups = Cgroups(tmp_path, "4:memory:/job")
    groups.write("memory/job", oom_control="under_oom 0\noom_kill 0\n", failcnt="7\n", limit_in_bytes="1048576\n")
    watch = groups.watch()
    groups.write("memory/job", oom_control="under_oom 0\noom_kill 1\n", failcnt="9\n")
    assert watch.facts() == {MEMORY_KILLS: 1, MEMORY_LIMIT: 1 << 20}


@pytest.mark.parametrize("line", ["", "0::/job", "nonsense"])
def test_where_nothing_is_known_nothing_is_said(tmp_path: Path, line: str) -> None:
    assert Cgroups(tmp_path, line).watch().facts() == {}


def test_words() -> None:
    assert memory_kills_text(1, -1) == "the kernel ended 1 process of the job's cgroup for want of memory"
    reached = "the kernel ended 2 processes of the job's cgroup, whose memory limit of 4.00 GB was reached"
    assert memory_kills_text(2, 4e9) == reached
