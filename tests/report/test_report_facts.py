"""The document of a report: plain values, moments that commands can name, and a line why a part is missing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from builders import MS, TraceBuilder, trace_from_text
from summary.scenes import job

from stashtrace.analysis.findings import summarize
from stashtrace.cli.option_values import read_ranks, read_window
from stashtrace.errors import MissingDataError
from stashtrace.report.document import Commands, machine_facts, report_facts
from stashtrace.report.page.page import page
from stashtrace.schema.events import TABLES
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document


def commands_in(value: Any) -> list[str]:
    """Every command to view something that the document holds."""
    if isinstance(value, dict):
        return [found for part in value.values() for found in commands_in(part)]
    if isinstance(value, list):
        return [found for part in value for found in commands_in(part)]
    return [value] if isinstance(value, str) and value.startswith("stashtrace view") else []


def test_the_document_holds_plain_values_alone() -> None:
    facts = report_facts(job(prep={0: 44}, ranks=3)[1], ["./stash-0412"])
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_the_claims_are_those_of_the_summary() -> None:
    trace = job(prep={0: 44})[1]
    assert report_facts(trace)["findings"] == document(summarize(trace))["findings"]


def test_every_part_names_a_window_that_view_can_show() -> None:
    trace = job(prep={0: 13}, fetch={0: 44}, ranks=3)[1]
    facts = report_facts(trace, ["./stash-0412"])
    found = commands_in(facts)
    assert len(found) > 5
    last = int(trace.processes["end_ns"].max()) - trace.origin_ns
    for command in found:
        words = shlex.split(command)
        assert words[:3] == ["stashtrace", "view", "./stash-0412"]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        if "--window" in options:
            begin, end = read_window(options["--window"])
            assert 0 <= begin < end
            assert begin <= last
        if "--ranks" in options:
            assert set(read_ranks(options["--ranks"])) <= {0, 1, 2}
    cut = facts["waits"]["cut_outs"][0]
    options = shlex.split(cut["command"])
    begin, end = read_window(options[options.index("--window") + 1])
    assert begin <= cut["begin_ns"] <= cut["end_ns"] <= end
    assert end - begin <= 1.05 * (cut["end_ns"] - cut["begin_ns"])


@pytest.mark.parametrize("begin", [0, 1, 999, 12_345_678_901, 86_400_000_000_123])
@pytest.mark.parametrize("length", [1, 57, 40_000, 2_000_000, 57_100_000, 1_000_000_000, 3_600_000_000_000])
def test_a_window_is_rounded_outwards_by_little(begin: int, length: int) -> None:
    text = Commands(("R",), origin_ns=7).window(begin + 7, begin + 7 + length)
    low, high = read_window(text)
    assert low <= begin + 1e-6 * begin
    assert high >= begin + length
    assert high - low <= length * 1.05 + 2


def test_names_of_runs_are_quoted_in_commands() -> None:
    commands = Commands(("./a run; rm -rf x",), 0)
    assert shlex.split(commands.view(0, 10)) == ["stashtrace", "view", "./a run; rm -rf x", "--window", "0:0.00000001"]
    assert commands.command("info") == "stashtrace info './a run; rm -rf x'"
    parts = Commands(("a", "b c"), 0)
    assert "RUN" in parts.view(0, 10), "many paths are named once"
    assert parts.note == "RUN stands for all parts: a 'b c'"


def test_a_run_without_steps_says_what_there_is_and_why_there_is_no_budget() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, 5 * MS, path="/data/a")
    facts = report_facts(build.trace("./x"))
    assert facts["budget"]["missing"] == "no rank has a step, so there is no budget to show"
    assert "torch_step" in facts["budget"]["hint"]
    assert (facts["heat"], facts["waits"], facts["slow"]) == (None, None, None)
    assert any("/data/a" in said for each in facts["findings"] for said in each["evidence_text"])
    assert "no training steps seen" in facts["headline"]
    assert "worst" not in facts["commands"]


@pytest.mark.parametrize("name", ["spans", "io", "batches", "collectives", "waits", "counters", "alignment"])
def test_any_table_may_be_empty(name: str) -> None:
    trace = job(prep={0: 44})[1]
    facts = report_facts(trace.replace(**{name: trace.table(name).take(slice(0, 0))}))
    assert facts["budget"]["groups"]


def test_a_recording_of_nothing_has_no_page() -> None:
    with pytest.raises(MissingDataError, match="no process was recorded"):
        report_facts(TraceBuilder().trace("x"))


def test_validation_has_separate_bars() -> None:
    trace: Trace = trace_from_text(
        """
        rank 0 phase : FFBBOFFBBOFFBBOFFBBOFFBBOFFBBOFFBBOVVVVVVVVVVVVVVVVVVVVVVVVFFBBO
        """
    )
    facts = report_facts(trace)
    kinds = {group["step_kind"]: group for group in facts["budget"]["groups"]}
    assert set(kinds) == {"", "validation"}
    assert {kind: group["steps_count"] for kind, group in kinds.items()} == facts["budget"]["steps_counts"]
    assert "validation step of" in page(facts)


def test_gpus_of_equal_hosts_are_one_row(tmp_path: Path) -> None:
    inventory = {"driver": "580.1", "devices": [{"index": 0, "name": "H200 <b>", "memory_bytes": 150754820096}]}
    parts = [{"host": f"node{n}", "gpu_inventory": inventory} for n in range(3)]
    (tmp_path / "run.json").write_text(json.dumps({"format": 1, "run_id": "a", "parts": parts}), encoding="utf-8")
    trace = job(prep={0: 44})[1]
    reported = Trace(trace.strings, {name: trace.table(name) for name in TABLES}, path=str(tmp_path))
    (row,) = [row for row in machine_facts(reported) if row["name"].startswith("GPUs")]
    assert row["name"] == "GPUs of node0, node1, node2"
    assert row["value"].startswith("driver 580.1; GPU 0  H200 <b>, 140 GiB")
    assert "<b>" not in page(report_facts(reported)).split('id="facts"')[0]
