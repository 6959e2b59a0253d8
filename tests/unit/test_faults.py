"""A fault of ours costs the line that it was to make: every other line of a page stands.

Each part of a page is broken in turn. Elsewhere tests see faults raised (``tests/conftest.py``).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import MS, TraceBuilder
from live_states import made_up_state
from summary.scenes import job

from stashtrace import errors
from stashtrace.analysis.findings import Summary, all_claims
from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.rules.stalls.verdicts import _RULES
from stashtrace.analysis.findings.summary_input import budgets, gather
from stashtrace.analysis.graph import build
from stashtrace.cli import main
from stashtrace.cli.commands.summary import FORMATS
from stashtrace.cli.merging import _write_timeline
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.live.view.text import live_lines
from stashtrace.live.view.watched import merge_states
from stashtrace.replay import single_changes, whatif
from stashtrace.replay.causes import causes_table
from stashtrace.report.document import report_facts
from stashtrace.report.page.page import markdown, page
from stashtrace.schema.trace import Trace
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render, summary

UNSAID = "(a fault of stashtrace; --debug shows the trace)"
FINDINGS, WORDS, REPORT = "stashtrace.analysis.findings", "stashtrace.summary.words", "stashtrace.report"
#: Module, name in it, and what of the summary is lost with it.
OF_THE_SUMMARY = (
    *((f"{FINDINGS}.all_claims", name) for name in ("loss_claims", "contention_claims", "ending_claims", "verdicts")),
    *((f"{FINDINGS}.all_claims", name) for name in ("change_claims", "slow_claims")),
    (f"{FINDINGS}.rules.headline", "steps_claims"),
    *((f"{FINDINGS}.summary_input", name) for name in ("hidden", "changes_of", "spikes_of")),
    *((f"{FINDINGS}.summary_input", name) for name in ("bounds_of_groups", "blocked_calls", "trust")),
    (f"{FINDINGS}.rules.stalls.late", "roots_of"),
    (f"{FINDINGS}.rules.stalls.batches", "making_of"),
    (f"{WORDS}.headline", "_headline_text"),
    ("stashtrace.summary.summary_text", "_next"),
)
OF_THE_PAGE = (
    *((f"{REPORT}.document", name) for name in ("link_facts", "loss_rows", "machine_facts", "_worst", "budget_groups")),
    *((f"{REPORT}.document", name) for name in ("heat_maps", "costliest_waits", "slow_steps", "_headline")),
)


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Faults cost their lines, as they do for a user."""
    with errors.raised(False):
        yield


def slow_job() -> Trace:
    """Rank 1 waits for batches in the making, and rank 0 for rank 1."""
    return job(prep={1: 40}, sleep={0: 3})[1]


def fail(*arguments: Any, **options: Any) -> Any:
    raise KeyError("nobody thought of this")


def budget_lines(text: str) -> list[str]:
    """The rows of bars."""
    return [line for line in text.splitlines() if re.match(r"  \d +\d.* ms +\d+ %", line)]


WHOLE = summary(slow_job(), shown="./run")


@pytest.mark.parametrize(("module", "name"), OF_THE_SUMMARY)
def test_a_part_of_the_summary(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    assert len(budget_lines(WHOLE)) == 2
    monkeypatch.setattr(importlib.import_module(module), name, fail)
    text = summary(slow_job(), shown="./run")
    assert UNSAID in " ".join(text.split())
    assert len(budget_lines(text)) == 2
    kept_lines = set(WHOLE.splitlines()) & set(text.splitlines())
    assert len(kept_lines) > len(set(WHOLE.splitlines())) / 3
    with errors.raised(), pytest.raises(KeyError, match="nobody thought"):
        summary(slow_job(), shown="./run")


def test_each_detector() -> None:
    facts = gather(slow_job())
    kinds = [claim.kind for claim in all_claims.claims_of(facts)]
    for name in all_claims._DETECTORS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(all_claims._DETECTORS, name, fail)
            found = all_claims.claims_of(facts)
        assert [claim.name for claim in found if claim.kind == "not_said"] == [f"not said: {name} {UNSAID}"]
        assert len(found) > len(kinds) / 2
        assert len(budget_lines(render(Summary(budgets(facts), *tables_of(found)), Style(), "./run"))) == 2


def test_what_is_behind_a_stall() -> None:
    facts = gather(slow_job())
    for kind, (_, said) in list(_RULES.items()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(_RULES, kind, (fail, said))
            found = all_claims.claims_of(facts)
        unsaid = [row.text for claim in found for row in claim.evidence if row.code == "not_said"]
        assert len(unsaid) == sum(claim.kind == kind and claim.section == "verdict" for claim in found)
        assert all(text.startswith(f"not said: what is behind '{kind}' of rank") for text in unsaid)
        assert all(claim.text for claim in found if claim.section == "verdict")


@pytest.mark.parametrize("name", ["causes", "causes_of", "ReplayedRun.answer"])
def test_what_to_do_first(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(f"{causes_table.__name__}.{name}", fail)
    text = FORMATS["text"](slow_job(), "./run")
    assert f"causes not said: what to do first {UNSAID}" in " ".join(text.split())
    assert set(WHOLE.splitlines()) <= set(text.splitlines())


def test_without_a_budget_the_rest_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{FINDINGS}.summary_input.find_stalls", fail)
    text = " ".join(FORMATS["text"](slow_job(), "./run").split())
    assert f"not said: where the time of the steps went {UNSAID}" in text
    assert "2 ranks" in text
    assert "own cost" in text
    assert "no training steps" not in text
    assert "Where the time of a step goes" in page(report_facts(slow_job(), ["./run"]))


@pytest.mark.parametrize(("module", "name"), OF_THE_PAGE)
def test_a_part_of_the_page(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setattr(importlib.import_module(module), name, fail)
    facts = report_facts(slow_job(), ["./run"])
    for text in (page(facts), markdown(facts)):
        assert "for batches" in text
        assert "fault of stashtrace" in text
    assert "Machine, versions and command" in page(facts)


def test_a_section_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = report_facts(slow_job(), ["./run"])
    whole = page(facts)
    assert "fault of stashtrace" not in whole + markdown(facts)
    page_module = importlib.import_module("stashtrace.report.page.page")
    titles = [title for *_, title, _ in page_module._PARTS]
    for broken in range(len(titles)):
        parts = [(*part[:-1], fail if at == broken else part[-1]) for at, part in enumerate(page_module._PARTS)]
        with monkeypatch.context() as patch:
            patch.setattr(page_module, "_PARTS", parts)
            text = page(facts)
        assert text.count("fault of stashtrace") == 1
        assert all(title in text for title in titles if title in whole)
    facts["waits"] = {"cut_outs": 5}
    assert "Not said: the costliest waits" in page(facts)
    assert "Not said: the costliest waits" in markdown(facts).replace("\\", "")


def test_one_change_of_a_what_if(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, unsaid = build(slow_job()), list[str]()
    known = [str(answer.changes[0]) for answer in single_changes(graph)]
    assert "late=0" in known
    monkeypatch.setattr(whatif, "_require_peers", fail)
    found = [str(answer.changes[0]) for answer in single_changes(graph, unsaid=unsaid)]
    assert found == [change for change in known if change != "late=0"]
    assert unsaid == [f"not said: what late=0 would save {UNSAID}"]


def test_one_setting_of_what_to_do_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "workers_to_try", fail)
    said = causes_table.what_to_do_first(slow_job())
    assert [line for line in said["reason"].tolist() if line] == [f"not said: what workers would save {UNSAID}"]
    assert said["where"].tolist()[0]


@pytest.mark.parametrize("words", [("summary",), ("report", "--format", "markdown"), ("whatif",)])
def test_a_command_answers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    run = str(tmp_path / "run")
    assert write_synthetic([run, "--ranks", "2", "--steps", "6"]) == 0
    monkeypatch.setattr(f"{FINDINGS}.all_claims.slow_claims", fail)
    monkeypatch.setattr("stashtrace.analysis.graph.critical_path_tables.CriticalPath.of", fail)
    capsys.readouterr()
    assert main([*words, run]) == 0
    assert UNSAID in " ".join(capsys.readouterr().out.split())
    with pytest.raises(KeyError, match="nobody thought"):
        main([*words, run, "--debug"])


def test_a_timeline_that_fails_costs_no_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stashtrace.exporters.registry.export", fail)
    assert _write_timeline(slow_job(), tmp_path / "timeline") == [UNSAID.strip("()")]


def test_a_panel_of_the_live_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_up_state()
    view = merge_states([made], {}, path="run", origin="follower", now_realtime_ns=made.updated_realtime_ns)
    whole = live_lines(view, Style())
    for name in ("_title", "_condition", "_warnings", "_bars", "_verdict_items", "_event_items", "_foot"):
        with monkeypatch.context() as patch:
            patch.setattr(f"stashtrace.live.view.text.{name}", fail)
            lines = live_lines(view, Style())
        assert UNSAID in " ".join(" ".join(lines).split())
        assert len(set(lines) & set(whole)) > len(set(whole)) / 3


def test_what_is_no_fault_is_said_as_such() -> None:
    def lacks() -> str:
        raise MissingDataError("no rank has two steps")

    def asked_wrongly() -> str:
        raise UsageError("a bucket cannot have -1 bytes")

    assert errors.guarded("the path", lacks, str) == "not said: the path: no rank has two steps"
    assert errors.guarded("the path", asked_wrongly, str) == f"not said: the path {UNSAID}"
    for error in (MemoryError(), OSError("the disk is gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            errors.guarded("the path", lambda error=error: (_ for _ in ()).throw(error), str)


def test_tests_see_faults() -> None:
    assert os.environ[errors.FAULTS_VARIABLE] == "raise"
    with errors.raised(), pytest.raises(KeyError):
        errors.guarded("the path", fail, str)


def test_what_a_recording_does_not_hold_is_no_fault() -> None:
    """Without steps, the same is said whether faults are raised or not."""
    build = TraceBuilder()
    build.collective(dict.fromkeys(range(2), (MS, 2 * MS)))
    build.rank(0).io(2 * MS, 3 * MS, path="/data/a.bin")
    said = summary(build.trace())
    with errors.raised():
        assert summary(build.trace()) == said
    assert "not said" not in said
    assert "no training steps seen" in said
