"""The file of closed steps: what is appended is read, whatever else happens to the file; and what steps add up to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS
from stashtrace.errors import FormatError, UnsupportedVersionError
from stashtrace.live.state import Event, LiveState, read_states
from stashtrace.live.table import LIVE_STEPS, STEP_BOUNDS_S, LiveFile, LiveTotals, read_live
from stashtrace.schema.table import Table

MS = 1_000_000


def made_steps(ranks: list[int], numbers: list[int], **times_ms: float) -> Table:
    """Steps of 80 ms; the given kinds take the given time, and compute the rest."""
    rank, step = (np.repeat(ranks, len(numbers)), np.tile(numbers, len(ranks)))
    columns = {name: np.zeros(len(rank), dtype=np.int64) for name in LIVE_STEPS.names}
    columns |= {"rank": rank, "step": step, "cause_rank": np.full(len(rank), -1), "complete": np.ones(len(rank), int)}
    columns["step_kind"] = np.full(len(rank), "train")
    columns["begin_ns"] = step * 80 * MS
    columns["end_ns"] = columns["begin_ns"] + 80 * MS
    for kind, length in times_ms.items():
        columns[KIND_COLUMNS[kind]] = np.full(len(rank), round(length * MS))
    columns["compute_ns"] = np.full(len(rank), round((80 - sum(times_ms.values())) * MS))
    return Table(LIVE_STEPS, columns)


def test_appended_rows_are_read(tmp_path: Path) -> None:
    file = LiveFile(tmp_path, "node1", {})
    first, second = made_steps([0, 1], [0, 1, 2], fetch=20), made_steps([0, 1], [3])
    file.append(first)
    file.append(second)
    read, written = read_live(tmp_path), Table.concat(LIVE_STEPS, [first, second]).sort_by("step", "rank")
    assert {name: read[name].tolist() for name in LIVE_STEPS.names} == {
        name: written[name].tolist() for name in LIVE_STEPS.names
    }


def test_hosts_are_read_together(tmp_path: Path) -> None:
    LiveFile(tmp_path, "node1", {}).append(made_steps([0], [0, 1]))
    LiveFile(tmp_path, "node2", {}).append(made_steps([1], [0, 1]))
    assert read_live(tmp_path)["rank"].tolist() == [0, 1, 0, 1]


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    """The disk has filled up, or the machine has stopped, while a round was written."""
    file = LiveFile(tmp_path, "node1", {})
    file.append(made_steps([0], [0, 1]))
    whole = file.path.stat().st_size
    file.append(made_steps([0], [2, 3]))
    with open(file.path, "r+b") as raw:
        raw.truncate(whole + 50)
    assert read_live(tmp_path)["step"].tolist() == [0, 1]


def test_rows_that_were_changed_are_left_out(tmp_path: Path) -> None:
    file = LiveFile(tmp_path, "node1", {})
    file.append(made_steps([0], [0]))
    at = file.path.stat().st_size
    file.append(made_steps([0], [1]))
    data = bytearray(file.path.read_bytes())
    data[at + 60] ^= 0xFF
    file.path.write_bytes(bytes(data))
    assert read_live(tmp_path)["step"].tolist() == [0]


def test_a_table_with_a_limit_holds_the_later_steps(tmp_path: Path) -> None:
    file = LiveFile(tmp_path, "node1", {}, most_bytes=20_000)
    for step in range(400):
        file.append(made_steps([0, 1], [step]))
        assert file.path.stat().st_size <= 20_000
    steps = read_live(tmp_path)["step"]
    assert steps.tolist() == [step for step in range(steps[0], 400) for _ in range(2)]
    assert file.dropped_rows_count == 2 * steps[0] > 0


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "live-node1.rows").write_bytes(b"not ours")
    with pytest.raises(FormatError, match="not a stashtrace file"):
        read_live(tmp_path)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    file = LiveFile(tmp_path, "node1", {})
    data = bytearray(file.path.read_bytes())
    data[8:10] = (99).to_bytes(2, "little")
    file.path.write_bytes(bytes(data))
    with pytest.raises(UnsupportedVersionError, match=r"format 99\.0"):
        read_live(tmp_path)


def test_totals_are_sums_of_the_rows() -> None:
    totals = LiveTotals()
    first = made_steps([0, 1], list(range(40)), fetch=20, straggler=10)
    late = Table(LIVE_STEPS, {**{n: first[n] for n in LIVE_STEPS.names}, "cause_rank": 1 - first["rank"]})
    late = late.replace(cause_ns=np.full(len(late), 4 * MS))
    totals.add(late)
    totals.add(made_steps([0], [40]))
    zero = totals.ranks[0]
    assert (zero.steps_count, zero.wall_ns) == (41, 41 * 80 * MS)
    assert zero.stall_ns["fetch"] == 40 * 20 * MS
    assert zero.stall_ns["compute"] == 40 * 50 * MS + 80 * MS
    assert zero.caused_wait_ns == totals.ranks[1].caused_wait_ns == 40 * 4 * MS
    assert zero.last_step == 40
    assert zero.lengths_count[STEP_BOUNDS_S.index(0.1)] == 41
    assert sum(zero.lengths_count) == 41
    assert len(zero.newest) == 30
    assert zero.newest[-1] == (80 * MS, dict.fromkeys(KIND_COLUMNS, 0) | {"compute": 80 * MS})


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    totals = LiveTotals()
    totals.add(made_steps([0, 1], [0, 1], fetch=20))
    state = LiveState("node1", "id", ["python", "x.py"], events=[Event("slow_step", "step 3 was slow", 5, step=3)])
    state.take_totals(totals, 1000)
    state.write(tmp_path)
    (read,) = read_states(tmp_path)
    assert read == state
    assert read.ranks["1"]["newest_stall_ns"]["fetch"] == 2 * 20 * MS
    assert read.ranks["1"]["last_end_realtime_ns"] == 2 * 80 * MS + 1000


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "1"}'])
def test_a_damaged_state_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "live-node1.json").write_text(text)
    with pytest.raises(FormatError, match=r"live-node1\.json is damaged"):
        read_states(tmp_path)


def test_a_newer_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "live-node1.json").write_text('{"format": 2, "host": "a"}')
    with pytest.raises(FormatError, match="newer stashtrace"):
        read_states(tmp_path)
