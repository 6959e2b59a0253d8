"""Links in the report: what they did next to what they can do, or why that is not known."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from builders import MS, TraceBuilder
from summary.scenes import job

from stashtrace.calibration.file import Calibration, Link, Points, calibration_text, host_hash
from stashtrace.calibration.fit_link import Fit, Piece
from stashtrace.report.document import link_facts, report_facts
from stashtrace.report.page.page import markdown, page
from stashtrace.report.policy import POLICY

SIZE = 1 << 20


def calibrated(folder: Path, host: str = "node00") -> None:
    """Write a calibration: an all-reduce of two ranks takes 1 ms + 1 ns a byte, known to 1 %."""
    piece = Piece(1024, 4 << 20, 1e6, 0.0, 1.0, 0.0, 0.0, 0.01, 3, 0)
    sizes = (1024, SIZE, 4 << 20)
    times = tuple(1e6 + size for size in sizes)
    points = Points(sizes, times, times, times, (9,) * 3)
    link = Link("collective", "gloo", "all_reduce", 2, Fit((piece,)), points)
    made = Calibration("2026-11-21", "", {"cpu": "x", "host_hash": host_hash(host)}, {}, (link,))
    (folder / "calibration.toml").write_text(calibration_text(made), encoding="utf-8")


def build() -> TraceBuilder:
    """Three all-reduces of 1 MiB; rank 1 enters 1 ms late; transfers of 2, 3 and 4 ms."""
    made = TraceBuilder(("node00",))
    made.group(range(2), backend="gloo")
    for number, length in enumerate((2, 3, 4)):
        at = 100 * number * MS
        made.collective({r: (at + (r == 1) * MS, at + (1 + length) * MS) for r in range(2)}, message_bytes=SIZE)
    return made


def test_a_transfer_stands_next_to_what_the_calibration_expects(tmp_path: Path) -> None:
    calibrated(tmp_path)
    trace = build().trace(str(tmp_path))
    (row,) = link_facts(trace)["transfers"]
    assert (row["transfer_ns"], row["method"]) == (3 * MS, "calibration")
    assert row["efficiency_ratio"] == pytest.approx((1e6 + SIZE) / 3e6)
    assert row["best_bus_bytes_per_s"] == pytest.approx(SIZE / 2e-3)
    facts = report_facts(trace)
    made = page(facts)
    assert "What the links can do is known from a calibration." in made
    assert re.search(r'data-key="0\.68\d+">68 % ± 0\.7 %</td>', made)
    assert "the calibration of this machine" in made
    assert "| 68 % ± 0.7 % |" in markdown(facts)


def test_a_calibration_of_another_machine_is_said_to_be_that(tmp_path: Path) -> None:
    calibrated(tmp_path, host="elsewhere")
    facts = link_facts(build().trace(str(tmp_path)))
    assert len(facts["notes"]) == 1
    assert "another machine" in facts["notes"][0]


def test_a_calibration_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    calibrated(tmp_path / "a folder")
    trace = build().trace("./x")
    assert link_facts(trace)["transfers"][0]["method"] == "none"
    path = str(tmp_path / "a folder" / "calibration.toml")
    facts = report_facts(trace, ["./x"], calibration=path)
    assert facts["links"]["transfers"][0]["method"] == "calibration"
    expected = ["stashtrace", "analyze", "link_efficiency", "./x", "--calibration", path]
    assert shlex.split(facts["commands"]["links"]) == expected


def test_without_a_calibration_the_best_call_stands_there() -> None:
    trace = job(ranks=2)[1]
    made = page(report_facts(trace))
    assert "`stashtrace calibrate`" not in made, "what is to be typed is shown as code"
    assert "<code>stashtrace calibrate</code>" in made
    assert "best call of any size" in made
    assert "Which way the bytes went is not known" in made


def test_the_longest_transfers_are_listed_and_the_others_counted() -> None:
    made = TraceBuilder()
    for number in range(POLICY.listed_transfers_count + 5):
        at = 100 * number * MS
        made.collective(dict.fromkeys(range(2), (at, at + (1 + number) * MS)), message_bytes=1000 + number)
    facts = link_facts(made.trace())
    sizes = [row["message_bytes"] for row in facts["transfers"]]
    assert sizes == [1000 + number for number in range(POLICY.listed_transfers_count + 4, 4, -1)]
    assert facts["rows_count"] == POLICY.listed_transfers_count + 5
    assert (facts["begin_ns"], facts["end_ns"]) == (
        100 * (POLICY.listed_transfers_count + 4) * MS,
        (100 * (POLICY.listed_transfers_count + 4) + POLICY.listed_transfers_count + 5) * MS,
    )


def page_without_collectives(ranks: int) -> str:
    trace = job(ranks=ranks)[1]
    return page(report_facts(trace.replace(collectives=trace.collectives.take(slice(0, 0)))))


def test_ranks_without_collectives_have_no_links_and_a_hint() -> None:
    made = page_without_collectives(2)
    assert 'id="links"' not in page_without_collectives(1), "a rank alone moves nothing"
    part = made.partition('<section id="links"')[2].partition("</section>")[0]
    assert "<p>No collective was recorded. Run more than one rank with the collector torch_distributed on.</p>" in part
