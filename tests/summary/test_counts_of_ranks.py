"""How many ranks, processes and hosts a summary counts: none twice, and none that has no name."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.schema.trace import PROCESSES
from stashtrace.summary.summary_text import summary


def _first_line(hosts: list[str], *, stated: int = 0, launcher: str | None = None) -> str:
    build = TraceBuilder(hosts=hosts)
    for rank in range(len(hosts)):
        build.rank(rank).phase("forward", 0, 5 * MS).phase("optimizer", 5 * MS, 6 * MS)
    if launcher is not None:
        process = build.rank(0).worker(0)
        build.rows["processes"][process.process_id]["host_code"] = build.strings.code(launcher)
    if stated:
        codes = {"key_code": build.strings.code(PROCESSES), "value_code": build.strings.code(str(stated))}
        build.add("metadata", process_id=-1, **codes)
    return next(line for line in summary(build.trace()).splitlines() if line.startswith("stashtrace  "))


@pytest.mark.parametrize(
    ("hosts", "launcher", "said"),
    [
        (["a", "a", "b"], None, "3 ranks, 2 hosts"),
        (["a", "a", "b"], "", "3 ranks, 2 hosts"),  # a process that names no host is on one of them, or not
        (["a", "", ""], None, "3 ranks, "),  # and ranks that name none may be on any number of them
        (["", "", ""], None, "3 ranks, "),
    ],
)
def test_hosts_without_a_name_are_not_counted(hosts: list[str], launcher: str | None, said: str) -> None:
    line = _first_line(hosts, launcher=launcher)
    assert line.startswith(f"stashtrace  {said}")
    assert ("host" in line) is ("host" in said)


@pytest.mark.parametrize(("stated", "said"), [(0, "1 rank,"), (1, "1 rank,"), (128, "128 processes,")])
def test_processes_that_share_their_records_are_all_counted(stated: int, said: str) -> None:
    assert _first_line(["a"], stated=stated).startswith(f"stashtrace  {said}")
