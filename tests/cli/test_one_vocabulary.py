"""What people read has the words of the summary: ids of kinds of time are for tables, options and programs."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import trace_processor
from corpus import corpus
from made_up_history import fleet_with_three_plants, write_history
from made_up_runs import made_up_run
from trace_processor import TraceProcessor

from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.gate_verdict import Condition, judge
from stashtrace.cli import main
from stashtrace.lab.alternating import Compared
from stashtrace.lab.bisect.commits import Commit
from stashtrace.lab.bisect.find_commit import Found, Judged, bisect_blocks
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.live.metrics.series import SERIES
from stashtrace.live.triggers import Growth
from stashtrace.report.blocks import text_lines
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES, OPTION_WORDS, STALL_KINDS, words_of

#: Ids that are no words. ``prep``, ``network``, ``sync``, ``launch``, ``python``, ``compute`` and ``other`` are both.
IDS = tuple(name for name in KIND_NAMES if OPTION_WORDS[name] != name)
#: What may stand in a text all the same, and why.
EXCEPTIONS = {
    r"\bcheckpoint\b": "the English word: what is written, not the kind of time",
    r"analyze straggler\w*": "names of analyses, to be typed",
    r"\w+(?:_ns|_ratio|_rank)\b": "names of columns and arguments, which end in their unit",
}
JOB = SyntheticJob(steps=40, calls_per_batch=40, spread_ratio=0.02, late_rank=1, late_ns=9_000_000)


def found_ids(text: str) -> list[str]:
    """Ids in a text that are no words of people, but for the exceptions."""
    for exception in EXCEPTIONS:
        text = re.sub(exception, " ", text, flags=re.MULTILINE)
    return re.findall(rf"\b(?:{'|'.join(IDS)})\b", text)


def printed(*words: object) -> str:
    """Stdout of a command."""
    out = StringIO()
    with redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(list(map(str, words)))
    return out.getvalue()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A job in which one rank is late, and the same with longer waits, transfers and hand-off."""
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "before", JOB)
    write(folder / "after", replace(JOB, wait_ns=44_000_000, transfer_ns=22_000_000, late_ns=30_000_000, seed=1))
    return folder / "before", folder / "after"


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of eight GPUs: copies, and devices that wait for their hosts."""
    folder = tmp_path_factory.mktemp("gpus")
    for path in sorted(corpus("kineto/dlrm8_v100").glob("rank*")):
        (folder / path.name).symlink_to(path)
    return folder


COMMANDS: dict[str, Callable[[Path, Path], str]] = {
    "summary": lambda before, after: printed("summary", after) + printed("summary", "--all", after),
    "diff": lambda before, after: printed("diff", before, after),
    "check": lambda before, after: printed(
        *("check", after, "--against", before),
        *("--fail-if", "straggler+1%", "--fail-if", "data+1%", "--fail-if", "h2d+1%", "--fail-if", "handoff+1%"),
    ),
    "whatif": lambda before, after: printed("whatif", after),
    "whatif with ids": lambda before, after: printed("whatif", after, "straggler=0", "interconnect.bandwidth=x2"),
    "status": lambda before, after: printed("status", after),
    "stalls": lambda before, after: printed("analyze", "stalls", after),
    "lines": lambda before, after: printed("analyze", "critical_share", after),
    "late": lambda before, after: printed("analyze", "straggler_roots", after),
    "info": lambda before, after: printed("info", after),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_words(runs: tuple[Path, Path], name: str) -> None:
    text = COMMANDS[name](*runs)
    assert len(text) > 100
    assert found_ids(text) == [], text


@pytest.mark.parametrize("name", ["summary", "whatif", "stalls", "status"])
def test_commands_print_words_of_devices(gpus: Path, name: str) -> None:
    assert found_ids(COMMANDS[name](gpus, gpus)) == []


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_the_report_has_words(runs: tuple[Path, Path], tmp_path: Path, form: str) -> None:
    page = tmp_path / f"report.{form}"
    printed("report", runs[1], "--format", form, "-o", page)
    text = page.read_text(encoding="utf-8").replace("\\_", "_")
    text = re.sub(r"(?s)<(style|script)\b.*?</\1>", " ", text)
    text = re.sub(r"<[^>]*?((?:aria-label|title)=\"[^\"]*\")?[^>]*>", r" \1 ", text)
    assert found_ids(text) == []


def test_words_of_the_summary_are_the_words_of_the_others(runs: tuple[Path, Path]) -> None:
    before, after = runs
    assert "data: prep +" in printed("diff", before, after)
    assert re.search(r"^  link: in-host +10\.", printed("check", after, "--against", before), re.MULTILINE)
    assert re.search(r"^  storage=x0\.5 |^  storage=0 ", printed("whatif", after), re.MULTILINE)
    assert re.search(r" data: hand-off +200 us", printed("analyze", "stalls", after))


def test_ids_stay_where_programs_read(runs: tuple[Path, Path]) -> None:
    _, after = runs
    for form in ("json", "csv"):
        text = printed("analyze", "stalls", after, "--format", form)
        assert re.search(r"\bstraggler\b.*\n[^\n]*\binterconnect\b", text)
    (answer,) = json.loads(printed("whatif", after, "late=0", "--format", "json"))["answers"]
    assert answer["changes"] == ["straggler=0"]
    checked = json.loads(printed("check", after, "--against", after, "--fail-if", "late+1%", "--format", "json"))
    assert {"straggler", "prep"} <= {row["kind"] for row in checked["kinds"]}
    assert json.loads(printed("diff", after, after, "--format", "json"))[0]["kind"] == "step"


def test_sql_shows_the_ids_that_it_compares(runs: tuple[Path, Path]) -> None:
    pytest.importorskip("duckdb")
    text = printed("sql", runs[1], "select distinct kind from stalls where kind = 'straggler'")
    assert "straggler" in text


def test_conditions_in_words_and_ids_are_the_same() -> None:
    assert Condition.of("late+5%").words == Condition.of("straggler+5%").words == "late+5%"
    assert Condition.of("data: hand-off+5%") == Condition.of("handoff+5%")
    assert Condition.of(Condition.of("interconnect+5%").words) == Condition.of("interconnect+5%")


def test_the_timeline_has_words(runs: tuple[Path, Path], gpus: Path, tmp_path: Path) -> None:
    if trace_processor.missing():
        pytest.skip(trace_processor.missing())
    seen: set[str] = set()
    for number, source in enumerate((runs[1], gpus)):
        file = tmp_path / f"{number}.pftrace"
        printed("export", "perfetto", source, "-o", file)
        processor = TraceProcessor.of(file)
        rows = processor.rows("select distinct name from track union select distinct name from slice")
        names = {name for (name,) in rows}
        assert [name for name in names if name and found_ids(name)] == []
        seen |= names
    assert {"compute", "late", "data: storage", "data: prep", "link: in-host", "copy", "host: launch"} <= seen


def test_the_history_has_words(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "history"
    write_history(folder, fleet_with_three_plants(1))
    for words in ((), ("costs",), ("hosts",), ("commits",)):
        assert found_ids(printed("history", folder, *words)) == [], words
    page = tmp_path / "page.html"
    printed("history", folder, "--html", page)
    assert found_ids(re.sub(r"(?s)<style.*?</style>|<[^>]*>", " ", page.read_text(encoding="utf-8"))) == []


def test_bisect_has_words() -> None:
    old, new = (
        Side(name, (made_up_run(np.random.default_rng(seed), {"compute": 40.0, "fetch": fetch, "straggler": 9.0}),))
        for name, fetch, seed in (("before", 10.0, 1), ("after", 22.0, 2))
    )
    gate = judge(old, new, [Condition.of("fetch+5%"), Condition.of("straggler+5%")])
    commit = Commit("0" * 40, "a subject")
    judged = Judged(commit, "bad", "why", Compared(gate, 2, 0), 2)
    conditions = tuple(one.condition for one in gate.judged)
    text = "\n".join(text_lines(bisect_blocks(Found(commit, commit, conditions, True, judged, (), commit), 3)))
    assert "data: storage" in text
    assert found_ids(text) == []


def test_live_and_metrics_have_words() -> None:
    for kind in StallKind:
        grown = Growth(kind.name.lower(), 300, 360, (0, 1), 1e6, 9e6, 60e6, -1)
        assert found_ids(grown.text) == []
        assert grown.text.startswith(words_of(kind.name.lower()))
    help_text = next(one.doc for one in SERIES if "kind" in one.labels)
    for one in STALL_KINDS:
        assert one.name == one.words or f"{one.name} is {one.words}" in help_text


def test_the_exceptions_are_used_for_what_they_say() -> None:
    assert found_ids("straggler=0 and handoff, interconnect or h2d") == ["straggler", "handoff", "interconnect", "h2d"]
    assert found_ids("fetch 12.0 ms") == ["fetch"]
    assert found_ids("straggler_ns, analyze straggler_roots, a checkpoint") == []
