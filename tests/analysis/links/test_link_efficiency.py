"""link_efficiency: transfers next to what a calibration expects, and why there is no expectation."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.links.bandwidth import expected_transfers, link_efficiency
from stashtrace.analysis.registry import analyze
from stashtrace.calibration.file import Calibration, Link, Points, calibration_of, calibration_text, host_hash
from stashtrace.calibration.fit_link import Fit, Piece
from stashtrace.errors import ForeignCalibrationWarning, MissingDataError
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.strings import StringPool
from stashtrace.schema.trace import Trace

SIZE = 1 << 20


def calibration(host: str = "node00", *, backend: str = "gloo", ranks: int = 2) -> Calibration:
    """An all-reduce of 1 MiB takes 1 ms + 1 ns a byte, known to 1 %."""
    piece = Piece(1024, 4 << 20, 1e6, 0.0, 1.0, 0.0, 0.0, 0.01, 3, 0)
    sizes = (1024, SIZE, 4 << 20)
    times = tuple(1e6 + s for s in sizes)
    link = Link("collective", backend, "all_reduce", ranks, Fit((piece,)), Points(sizes, times, times, times, (9,) * 3))
    return Calibration("2026-11-21", "", {"cpu": "x", "host_hash": host_hash(host)}, {}, (link,))


def build(*, hosts: tuple[str, ...] = ("node00",), ranks: int = 2, backend: str = "gloo") -> TraceBuilder:
    """Three all-reduces; rank 1 enters 1 ms late; transfers of 2, 3 and 4 ms."""
    made = TraceBuilder(hosts)
    made.group(range(ranks), backend=backend)
    for number, length in enumerate((2, 3, 4)):
        at = 100 * number * MS
        made.collective({r: (at + (r == 1) * MS, at + (1 + length) * MS) for r in range(ranks)}, message_bytes=SIZE)
    return made


def only(table, name: str):
    assert len(table) == 1
    return table[name][0]


def test_median_transfer_next_to_the_expected_time() -> None:
    table = link_efficiency(build().trace(), calibration=calibration())
    assert only(table, "transfer_ns") == 3 * MS
    assert only(table, "expected_ns") == 1_000_000 + SIZE
    assert only(table, "error_ns") == pytest.approx(0.01 * (1_000_000 + SIZE), abs=1)
    assert only(table, "efficiency_ratio") == pytest.approx((1e6 + SIZE) / 3e6)
    assert only(table, "bus_bytes_per_s") == pytest.approx(SIZE / 3e-3)
    assert (only(table, "rank"), only(table, "step"), only(table, "calls_count")) == (-1, -1, 6)
    assert (only(table, "op"), only(table, "group_size"), only(table, "method")) == ("all_reduce", 2, "calibration")


def test_rows_per_rank_and_step() -> None:
    trace = build().trace()
    by_rank = link_efficiency(trace, calibration=calibration(), by="rank")
    assert by_rank["rank"].tolist() == [0, 1]
    assert by_rank["calls_count"].tolist() == [3, 3]
    assert link_efficiency(trace, by="step")["step"].tolist() == [-1, -1]


def test_sizes_and_operations_are_kept_apart() -> None:
    made = build()
    made.collective({0: (MS, 2 * MS), 1: (MS, 2 * MS)}, message_bytes=64)
    made.collective({0: (MS, 2 * MS), 1: (MS, 2 * MS)}, message_bytes=SIZE, op=CollectiveOp.BROADCAST, peer_rank=0)
    made.collective({0: (MS, 2 * MS), 1: (MS, 2 * MS)}, message_bytes=0, op=CollectiveOp.BARRIER)
    table = link_efficiency(made.trace(), calibration=calibration())
    rows = list(zip(table["op"], table["message_bytes"], table["method"], strict=True))
    assert rows == [
        ("all_reduce", 64, "extrapolated"),
        ("all_reduce", SIZE, "calibration"),
        ("broadcast", SIZE, "not_calibrated"),
    ]


def test_without_a_calibration_there_are_bus_rates_only() -> None:
    table = analyze(build().trace(), "link_efficiency")
    assert only(table, "bus_bytes_per_s") > 0
    assert (only(table, "expected_ns"), only(table, "efficiency_ratio"), only(table, "method")) == (-1, -1.0, "none")


@pytest.mark.parametrize(
    ("run", "given", "method"),
    [
        ({"hosts": ("node00", "node01")}, {}, "crosses_hosts"),
        ({"ranks": 3}, {}, "not_calibrated"),
        ({"backend": "nccl"}, {}, "not_calibrated"),
        ({}, {"backend": "nccl"}, "not_calibrated"),
        ({"backend": "cpu:gloo,cuda:nccl"}, {}, "calibration"),
        ({"backend": "cpu:gloo,cuda:nccl"}, {"backend": "nccl"}, "not_calibrated"),
    ],
)
def test_why_nothing_is_expected(run: dict, given: dict, method: str) -> None:
    table = link_efficiency(build(**run).trace(), calibration=calibration(**given))
    assert only(table, "method") == method
    assert (only(table, "expected_ns") > 0) == (method == "calibration")


def test_another_machine_is_said_to_be_one() -> None:
    with pytest.warns(ForeignCalibrationWarning, match="measured on another machine"):
        table = link_efficiency(build().trace(), calibration=calibration("elsewhere"))
    assert only(table, "expected_ns") > 0


def test_the_file_in_the_run_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "calibration.toml").write_text(calibration_text(calibration()))
    made = build().trace()
    trace = Trace(made.strings, {n: made.table(n) for n in ("processes", "collectives", "groups")}, path=str(tmp_path))
    assert only(link_efficiency(trace), "method") == "calibration"


def test_row_by_row_for_other_analyses() -> None:
    trace = build().trace()
    found = expected_transfers(trace, calibration_of(trace, calibration()))
    assert found.expected_ns.tolist() == [1e6 + SIZE] * 6
    assert set(expected_transfers(trace, None).method.tolist()) == {4}


def test_no_collective() -> None:
    with pytest.raises(MissingDataError, match="no collective was recorded"):
        link_efficiency(Trace(StringPool(), {}))
