"""What the summary advises can be asked of whatif, and both give one answer."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import MS
from replay.loader_jobs import Job

from stashtrace.analysis.findings import finding_evidence
from stashtrace.analysis.graph import build
from stashtrace.cli import main
from stashtrace.errors import MissingDataError
from stashtrace.exporters.registry import export
from stashtrace.replay import Change, advised_workers, single_changes, what_if
from stashtrace.schema.trace import Trace

#: Workers of a job, and what it does: all of these wait for batches, and more workers would help.
JOBS: tuple[tuple[int, dict[str, Any]], ...] = (
    (0, {}),
    (0, {"wait_ns": 20 * MS, "batch_ns": 2 * MS}),
    (0, {"batch_ns": 60 * MS}),
    (0, {"batch_ns": 60 * MS, "cpus": 4.0}),
    (1, {}),
    (1, {"wait_ns": 20 * MS, "batch_ns": 2 * MS}),
    (1, {"batch_ns": 30 * MS, "cpus": 16.0}),
    (2, {"batch_ns": 30 * MS}),
)


def job(workers: int, **options: Any) -> Job:
    return Job(workers, **{"batch_ns": 9 * MS, "step_ns": 4 * MS, "steps": 90, **options}).run()


def promised(trace: Trace) -> tuple[int, float]:
    """Number of workers that the summary advises, and the step in ns that it promises with them."""
    rows = {row["code"]: row for row in finding_evidence(trace).rows()}
    advice = rows.get("use_workers") or rows["more_workers"]
    step_ns = max(rows["cpus"]["amount_ns"], advice["amount_ns"])
    return advice["items_count"], step_ns


@pytest.mark.parametrize(("workers", "options"), JOBS)
def test_what_is_advised_can_be_asked_and_gives_what_was_promised(workers: int, options: dict[str, Any]) -> None:
    trace = job(workers, **options).trace()
    count, step_ns = promised(trace)
    assert advised_workers(trace) == [Change.parse(f"workers={count}")]
    answer = what_if(build(trace), advised_workers(trace))
    assert answer.middle_ns == pytest.approx(step_ns, rel=0.1)
    assert answer.middle_ns == pytest.approx(job(count, **options).step_ms() * MS, rel=0.1)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("cpus", [1.0, 2.0, 64.0])
def test_batches_of_the_step_thread_move_to_workers(count: int, cpus: float) -> None:
    answer = what_if(build(job(0, cpus=cpus).trace()), [Change.parse(f"workers={count}")])
    truth = job(count, cpus=cpus).step_ms() * MS
    assert answer.low_ns * 0.98 <= truth <= answer.high_ns * 1.02


def test_other_changes_of_such_a_run_are_as_before() -> None:
    graph = build(job(0).trace())
    assert what_if(graph, []).error_ratio == pytest.approx(0, abs=0.001)
    assert what_if(graph, [Change.parse("prep=x0.5")]).middle_ns == pytest.approx((9 / 2 + 4) * MS, rel=0.01)
    both = [Change.parse("prep=x0.5"), Change.parse("workers=1")]
    assert what_if(graph, both).middle_ns == pytest.approx(4.5 * MS, rel=0.02)
    assert what_if(graph, both[::-1]).middle_ns == pytest.approx(4.5 * MS, rel=0.02)


def test_a_multiple_of_no_workers_is_none() -> None:
    with pytest.raises(MissingDataError, match=r"workers=x2: the step threads make their batches themselves") as caught:
        what_if(build(job(0).trace()), [Change.parse("workers=x2")])
    assert caught.value.hint == "give the number itself, as in workers=2"


def test_the_advised_number_is_among_the_ranked_changes() -> None:
    trace = job(0).trace()
    ranked = single_changes(build(trace), advised=advised_workers(trace))
    assert [str(change) for change in ranked[0].changes] == [f"workers={promised(trace)[0]}"]


@pytest.mark.parametrize("form", ["--set workers={}", "workers={}"])
def test_the_command_takes_what_the_summary_says(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(job(0).trace(), "store", str(tmp_path / "run.store"))
    run = str(tmp_path / "run.store")
    assert main(["summary", run, "--format", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    (claim,) = [finding for finding in findings if finding["advice_code"] == "use_workers"]
    (row,) = [row for row in claim["evidence"] if row["code"] == "use_workers"]
    assert any(f"{row['items_count']} workers would keep up" in text for text in claim["evidence_text"])
    assert main(["whatif", run, *form.format(row["items_count"]).split(), "--format", "json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer["changes"] == [f"workers={row['items_count']}"]
    assert answer["high_ns"] == pytest.approx(row["amount_ns"], rel=0.1)


def test_a_file_with_such_a_name_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["synth", "workers=2", "--ranks", "1", "--steps", "8"]) == 0
    assert main(["whatif", "workers=2"]) == 0
    assert main(["whatif", "workers=3"]) == 4  # a change, and no run is here
