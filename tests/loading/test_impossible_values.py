"""Numbers that no run has, under right checksums: their rows are left out and counted, and the rest is shown."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from lost_rows import write_with
from stash_files import StashWriter, ms, write_run_json

from stashtrace.analysis.registry import analyze
from stashtrace.errors import DataLossWarning
from stashtrace.exporters.registry import export
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import CommEvent, DeviceClock, Phase, ThreadRole
from stashtrace.schema.trace import Trace
from stashtrace.timeline.tracks import numbered

HUGE = 2**63 - 1
GOLDEN = Path(__file__).resolve().parents[1] / "data/golden"


@pytest.fixture
def stash(tmp_path: Path) -> StashWriter:
    writer = StashWriter(tmp_path / "run", env={"RANK": "0", "WORLD_SIZE": "1"})
    write_run_json(tmp_path / "run")
    writer.sync(0, 10, 20)
    return writer


def loaded(stash: StashWriter) -> Trace:
    """The run, loaded; it must have a timeline too."""
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
    stash.add(
        "nccl_comm",
        [
            stash.row(
                "nccl_comm",
                begin_ticks=ms(1),
                end_ticks=ms(2),
                group_hash=group,
                group_rank=0,
                group_size=1,
                nodes_count=1,
                event_code=CommEvent.INIT,
            )
        ],
    )
    stash.add(
        "nccl_call",
        [
            stash.row("nccl_call", call_ticks=ms(3 + i), return_ticks=ms(4 + i), group_hash=group, message_bytes=size)
            for i, size in enumerate(sizes)
        ],
    )


def test_a_size_of_64_bits_costs_only_its_call(stash: StashWriter) -> None:
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
    rows = [
        stash.row(
            "nccl_comm",
            begin_ticks=ms(1),
            end_ticks=ms(2),
            group_hash=7,
            group_rank=0,
            group_size=2**31 - 1,
            nodes_count=1,
            event_code=CommEvent.INIT,
        )
    ]
    stash.add("nccl_comm", rows)
    trace = loaded(stash)
    assert [trace.text(code) for code in trace.groups["members_code"].tolist()] == [""]


def test_a_device_reading_without_end_is_none(stash: StashWriter) -> None:
    def reading(before: int, after: int, device_ns: int) -> tuple[object, ...]:
        return stash.row(
            "device_clock", before_ticks=before, after_ticks=after, device_ns=device_ns, clock_code=DeviceClock.CUPTI
        )

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


@pytest.mark.parametrize("code", [0x8000, 0xC000, 0xFFFF])
@pytest.mark.parametrize("kept_rows", [10**6, 1])
def test_a_call_of_no_operation_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kept_rows: int
) -> None:
    """Codes of 16 bits that do not fit the column; also in calls that stay on disk, which are read several times."""
    monkeypatch.setattr("stashtrace.loading.io_calls.KEPT_ROWS", kept_rows)
    source, target = GOLDEN / "v1/merged.stash", tmp_path / "merged.stash"
    write_with(source, target, "io_op", op_code=code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        whole, trace = load_trace(source), load_trace(target)
    assert (trace.streamed_io is not None) == (kept_rows == 1)
    export(trace, "perfetto", tmp_path / "t.pftrace")
    assert len(trace.io) == len(whole.io) - 1
    assert lost(trace, "impossible_values") == 1


@pytest.mark.parametrize("field", ["begin_ticks", "end_ticks", "result_bytes"])
def test_a_call_beyond_all_moments_costs_itself(stash: StashWriter, field: str) -> None:
    usual = {"begin_ticks": ms(3), "end_ticks": ms(4), "op_code": 1}
    odd = usual | {field: HUGE}
    stash.add("io_op_long", [stash.row("io_op_long", **usual), stash.row("io_op_long", **odd)])
    trace = loaded(stash)
    assert len(trace.io) == 1
    assert lost(trace, "impossible_values") == 1


def test_any_position_may_be_passed_to_a_call(stash: StashWriter) -> None:
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(3), duration_ticks=9, op_code=1, offset_bytes=HUGE)])
    assert loaded(stash).io["offset_bytes"].tolist() == [HUGE]


def test_a_collective_with_codes_of_a_later_version_is_drawn(stash: StashWriter) -> None:
    call = {"call_ticks": ms(3), "collective_id": 1, "group_hash": 7, "peer_rank": -1, "op_code": 60_000}
    done = {"return_ticks": ms(4), "begin_ticks": ms(3), "end_ticks": ms(5), "collective_id": 1, "status_code": 60_000}
    stash.add("collective_call", [stash.row("collective_call", **call)])
    stash.add("collective_done", [stash.row("collective_done", **done)])
    assert len(loaded(stash).collectives) == 1


@pytest.mark.parametrize(
    "variables", [{"RANK": "0", "WORLD_SIZE": "20000000"}, {"RANK": "20000000"}, {"RANK": "²"}, {"RANK": "9" * 5_000}]
)
def test_a_rank_or_world_that_no_job_has_is_unknown(tmp_path: Path, variables: dict[str, str]) -> None:
    writer = StashWriter(tmp_path / "run", env=variables)
    writer.sync(0, 10)
    trace = loaded(writer)
    assert trace.processes["world_size"].tolist() == [-1]
    assert trace.ranks.tolist() == [0]


def test_steps_of_any_number_are_drawn(stash: StashWriter) -> None:
    """Recorded from a step on whose number asks for more memory than there is."""
    stash.add(
        "phase_span",
        [
            stash.row("phase_span", begin_ticks=ms(i), end_ticks=ms(i + 1), phase_code=int(code), phase_flags=1)
            for i, code in enumerate([Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER] * 3)
        ],
    )
    write_run_json(stash.path.parent, steps="900000000000:")
    trace = loaded(stash)
    assert analyze(trace, "steps")["step"].min() >= 900_000_000_000
