"""Numbers that no run has, under right checksums: their rows are left out and counted, and the rest is shown."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from stash_files import StashWriter, ms, write_run_json

from stashtrace.align.align import load_trace
from stashtrace.errors import DataLossWarning
from stashtrace.exporters.perfetto_tracks import numbered
from stashtrace.exporters.registry import export
from stashtrace.model.kinds import CommEvent, DeviceClock, ThreadRole
from stashtrace.model.trace import Trace

HUGE = 2**63 - 1


@pytest.fixture
def stash(tmp_path: Path) -> StashWriter:
    writer = StashWriter(tmp_path / "run", env={"RANK": "0", "WORLD_SIZE": "1"})
    write_run_json(tmp_path / "run")
    writer.sync(0, 10, 20)
    return writer


def loaded(stash: StashWriter) -> Trace:
    """The run, loaded; it must have a time line too."""
    stash.save()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        trace = load_trace(stash.path.parent)
    export(trace, "perfetto", stash.path.parent.parent / "t.pftrace")
    return trace


def lost(trace: Trace, reason: str) -> int:
    mine = trace.losses["name_code"] == trace.strings.find(reason)
    return int(trace.losses["lost_count"][mine].sum())


def calls(stash: StashWriter, *sizes: int) -> None:
    group = 7
    stash.add("nccl_comm", [stash.row("nccl_comm", begin_ticks=ms(1), end_ticks=ms(2), group_hash=group, group_rank=0,
                                      group_size=1, nodes_count=1, event_code=CommEvent.INIT)])  # fmt: skip
    stash.add(
        "nccl_call",
        [
            stash.row("nccl_call", call_ticks=ms(3 + i), return_ticks=ms(4 + i), group_hash=group, message_bytes=size)
            for i, size in enumerate(sizes)
        ],
    )


def test_a_size_of_64_bits_costs_its_own_call(stash: StashWriter) -> None:
    calls(stash, 1, 2, HUGE)
    trace = loaded(stash)
    assert trace.collectives["message_bytes"].tolist() == [1, 2]
    assert trace.collectives["collective_key"].tolist() == [0, 1]
    assert lost(trace, "impossible_values") == 1


def test_the_keys_of_two_processes_stay_apart_when_rows_are_left_out(stash: StashWriter) -> None:
    calls(stash, HUGE, 2, 3)
    other = StashWriter(stash.path.parent, pid=101, env={"RANK": "1", "WORLD_SIZE": "2"})
    other.sync(0, 10, 20)
    calls(other, 2, 3)
    other.save()
    trace = loaded(stash)
    assert sorted(trace.collectives["message_bytes"].tolist()) == [2, 2, 3, 3]
    assert trace.collectives["collective_key"].tolist() == [0, 1, 2, 3]
    assert lost(trace, "impossible_values") == 1


def test_names_with_numbers_of_64_bits() -> None:
    highest = HUGE - 1
    codes, _ = numbered(["a", "b"], np.array([0, 1, 1, 0]), np.array([highest, highest, -5, highest]))
    assert codes.tolist() == [0, 2, 1, 0]


def test_a_communicator_that_claims_billions_of_members(stash: StashWriter) -> None:
    rows = [stash.row("nccl_comm", begin_ticks=ms(1), end_ticks=ms(2), group_hash=7, group_rank=0, group_size=2**31 - 1,
                      nodes_count=1, event_code=CommEvent.INIT)]  # fmt: skip
    stash.add("nccl_comm", rows)
    trace = loaded(stash)
    assert [trace.text(code) for code in trace.groups["members_code"].tolist()] == [""]


def test_a_device_reading_without_end_is_none(stash: StashWriter) -> None:
    def reading(before: int, after: int, device_ns: int) -> tuple[object, ...]:
        return stash.row("device_clock", before_ticks=before, after_ticks=after, device_ns=device_ns,
                         clock_code=DeviceClock.CUPTI)  # fmt: skip

    stash.add("device_clock", [reading(1, 2**64 - 1, 5), reading(ms(1), ms(1), HUGE)])
    assert len(loaded(stash).device_clocks) == 0


@pytest.mark.parametrize("field", ["ticks", "monotonic_ns", "realtime_ns", "bracket_ticks"])
def test_a_clock_reading_of_64_bits_is_left_out(stash: StashWriter, field: str) -> None:
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(3), duration_ticks=1000, path_id=stash.intern("/a"))])
    row = {"ticks": ms(15), "monotonic_ns": ms(15), "realtime_ns": ms(15), "bracket_ticks": 40}
    limits = np.iinfo(stash.rows("clock_sync", [stash.row("clock_sync")]).dtype[field])
    stash.add("clock_sync", [stash.row("clock_sync", **{**row, field: int(limits.max)})])
    trace = loaded(stash)
    begin = trace.processes["begin_ns"][0]
    assert trace.io["begin_ns"].tolist() == [begin + 3_000_000]


def test_a_thread_of_an_unknown_role_is_drawn(stash: StashWriter) -> None:
    unknown = 60_000
    assert unknown not in list(ThreadRole)
    stash.add("thread_info", [stash.row("thread_info", ticks=ms(1), tid=100, role_code=unknown)])
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(3), duration_ticks=1000, path_id=stash.intern("/a"))])
    assert len(loaded(stash).io) == 1
