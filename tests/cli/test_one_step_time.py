"""All commands print one step time for a run, and the snippets of the pages agree with the summary's shares."""

from __future__ import annotations

import re
import tarfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ROOT
from corpus import corpus
from stash_files import StashWriter, ms

import stashtrace
from stashtrace.analysis.compare.steps_of_run import STEP, steps_of_run
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.steps.step_time import StepTime, step_lengths, step_time, step_time_steps
from stashtrace.cli import main
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.schema.kinds import BatchPhase, Phase, PhaseFlag, ThreadRole
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.trace import Trace
from stashtrace.text.units import duration_text

Print = Callable[..., str]
_CLOCKS = dict.fromkeys(("begin_cpu_ns", "end_cpu_ns", "begin_runqueue_ns", "end_runqueue_ns"), -1)


def validating(directory: Path) -> None:
    """Two ranks: 30 training steps of 20 ms, one of 80 ms, and 4 validation steps of 5 ms after each ten of them."""
    for rank in (0, 1):
        writer = StashWriter(directory, pid=100 + rank, env={"RANK": str(rank), "WORLD_SIZE": "2"})
        at = 0.0
        for step in range(30):
            longer = 60 if step == 17 else rank
            _wait(writer, step, at, at + 5 + longer, loader=1)
            at += 5 + longer
            for code, begin, end in ((Phase.FORWARD, 0, 5), (Phase.BACKWARD, 5, 14), (Phase.OPTIMIZER, 14, 15)):
                _phase(writer, code, at + begin, at + end)
            at += 15
            for number in range(4 if step % 10 == 9 else 0):
                _wait(writer, number, at, at + 2, loader=2 + step)
                _phase(writer, Phase.FORWARD, at + 2, at + 5, flags=PhaseFlag.NO_GRAD)
                at += 5
        name = writer.intern("main")
        thread = writer.row("thread_info", ticks=ms(0), tid=100 + rank, name_id=name, role_code=ThreadRole.STEP)
        writer.add("thread_info", [thread])
        writer.save()


def _wait(writer: StashWriter, number: int, begin: float, end: float, *, loader: int) -> None:
    times = {"begin_ticks": ms(begin), "end_ticks": ms(end), "cpu_ns": -1, "runqueue_ns": -1}
    which = {"loader_id": loader, "batch_index": number, "worker_id": -1, "phase_code": BatchPhase.WAIT}
    writer.add("batch", [writer.row("batch", **times, **which)])


def _phase(writer: StashWriter, code: Phase, begin: float, end: float, flags: int = 2) -> None:
    times = {"begin_ticks": ms(begin), "end_ticks": ms(end), **_CLOCKS}
    writer.add("phase_span", [writer.row("phase_span", phase_code=code, phase_flags=flags, **times)])


def made_up(directory: Path) -> None:
    write(directory, SyntheticJob(steps=24, calls_per_batch=0, spread_ratio=0.08, late_rank=1, late_ns=9_000_000))


def short(directory: Path) -> None:
    write(directory, SyntheticJob(steps=7, calls_per_batch=0, spread_ratio=0.02, ranks=3))


def recorded_before(directory: Path) -> None:
    with tarfile.open(ROOT / "tests/data/recorded/0.1.0/run.tar.xz") as archive:
        archive.extractall(directory, filter="data")


def eight_gpus(directory: Path) -> None:
    files = sorted(corpus("kineto/dlrm8_v100").glob("rank*"))
    directory.mkdir()
    for path in files:
        (directory / path.name).symlink_to(path)


RUNS = {run.__name__: run for run in (made_up, short, validating, recorded_before, eight_gpus)}


@pytest.fixture(scope="module", params=RUNS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("a path with spaces") / request.param
    RUNS[request.param](folder)
    return str(folder / "run" if (folder / "run").is_dir() else folder)


def printed(*words: str) -> str:
    """Stdout of a command, as one line."""
    out = StringIO()
    with redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(list(words))
    return " ".join(out.getvalue().split())


def loaded(path: str) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stashtrace.load(path)


def test_all_commands_print_one_step_time(made: str, tmp_path: Path) -> None:
    step = step_time(stashtrace.analyze(loaded(made), "steps"))
    length, count = re.escape(duration_text(step.mean_ns)), step.steps_count
    headline = rf"\b{count} (\w+ )?steps?( of|, mean) {length}"
    assert re.search(headline, printed("summary", made))
    printed("report", made, "--format", "markdown", "-o", str(tmp_path / "report.md"))
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.search(headline, report)
    assert not re.search(r"(?<!, )median \d", report), "a median without its mean could be taken for the step time"
    assert re.search(
        rf"a step takes {length} in A and {length} in B on average, over {count} steps?", printed("diff", made, made)
    )
    assert re.search(rf"step\+5% {length} {length} ", printed("check", made, "--against", made))
    assert re.search(rf"1 run of {count} steps?\b", printed("check", made, "--against", made))
    takes = rf"a step takes {length} on average over {count} steps" if count > 1 else f"the only step takes {length}"
    assert re.search(takes, printed("whatif", made))


def test_every_figure_rests_on_one_function(made: str) -> None:
    trace = loaded(made)
    steps = stashtrace.analyze(trace, "steps")
    step, facts, run = step_time(steps), gather(trace), steps_of_run(trace)
    assert np.allclose(run.of(STEP), step_lengths(step_time_steps(steps)), atol=1)
    assert run.steps_count == facts.steps_count == step.steps_count
    assert np.mean([rank.step_ns for rank in facts.ranks]) == pytest.approx(step.mean_ns, rel=1e-6)


def test_which_steps_count(tmp_path: Path) -> None:
    validating(tmp_path / "run")
    steps = stashtrace.analyze(loaded(str(tmp_path / "run")), "steps")
    assert set(step_time_steps(steps)["kind"].tolist()) == {"train"}
    # 24 steps of 20 and 21 ms, one of 80: the first five are left out, the others count however long they are.
    assert step_time(steps) == StepTime(pytest.approx((24 * 20.5 + 80) / 25 * 1e6, rel=0.001), 20.5e6, 25)
    quiet = steps.take(steps["kind"] == "validation")
    assert set(step_time_steps(quiet)["kind"].tolist()) == {"validation"}


def shares_of_summary(trace: Trace) -> dict[tuple[int, str], float]:
    """(rank, column) -> share, of the steps that train."""
    rows = stashtrace.analyze(trace, "budgets").rows()
    return {(row["rank"], row["column"]): row["share_ratio"] for row in rows if row["step_kind"] == ""}


def by_column(sums: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], float]:
    """Sums of kinds by rank -> shares of columns by rank."""
    found: dict[tuple[int, str], float] = {}
    whole: dict[int, float] = {}
    for (rank, kind), ns in sums.items():
        key = rank, COLUMN_OF[kind]
        found[key] = found.get(key, 0.0) + ns
        whole[rank] = whole.get(rank, 0.0) + ns
    return {(rank, column): ns / whole[rank] for (rank, column), ns in found.items()}


def check_shares(trace: Trace, sums: Mapping[tuple[int, str], float]) -> None:
    expected = {key: share for key, share in shares_of_summary(trace).items() if share > 0}
    found = {key: share for key, share in by_column(sums).items() if share > 0}
    assert found == pytest.approx(expected, abs=1e-9)


def snippets(page: str) -> list[str]:
    """Lines of the page's Python and SQL that sum the time of stalls."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if re.search(r"stall_ns\.sum|sum\(stall_ns\)", line)]


PAGES = (
    *("README.md", "docs/getting-started.md", "docs/guides/sql.md", "docs/reference/api.md"),
    "stashtrace/cli/commands/sql.py",
)


def test_no_other_page_sums_stalls() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "stashtrace").rglob("*.py"), ROOT / "README.md"]
    found = {str(page.relative_to(ROOT)) for page in pages if snippets(str(page.relative_to(ROOT)))}
    # The reference of the commands is generated from their help.
    assert found - {"docs/reference/cli.md"} == set(PAGES)


@pytest.mark.parametrize("name", ["made_up", "recorded_before"])
@pytest.mark.parametrize("page", PAGES)
def test_snippets_agree_with_the_summary(name: str, page: str, tmp_path: Path) -> None:
    RUNS[name](tmp_path / "run")
    inner = tmp_path / "run" / "run"
    trace = loaded(str(inner if inner.is_dir() else tmp_path / "run"))
    for line in snippets(page):
        if ".groupby(" in line:
            pytest.importorskip("pandas")
            code = re.sub(r"^print\((.*)\)\s+#.*$", r"\1", line)
            answer = eval(code, {"stalls": stashtrace.analyze(trace, "stalls")})
            check_shares(trace, answer.to_dict())
        elif "from stalls" in line:
            pytest.importorskip("duckdb")
            query = re.search(r'"(select .*?)"', line)
            assert query is not None
            check_query(trace, query[1])


def check_query(trace: Trace, query: str) -> None:
    answer: Any = trace.sql(query)
    names = [column.lower() for column in answer.columns]
    rows = answer.fetchall()
    if "rank" in names:
        check_shares(trace, {(row[0], row[1]): row[2] for row in rows})
        return
    whole = sum(row[1] for row in rows)
    budgets = stashtrace.analyze(trace, "budgets")
    main_rows = budgets.take(budgets["step_kind"] == "")
    columns: dict[str, float] = {}
    for kind, ns in rows:
        columns[COLUMN_OF[kind]] = columns.get(COLUMN_OF[kind], 0.0) + ns / whole
    for column, share in columns.items():
        spent = main_rows["stall_ns"][main_rows["column"] == column].sum() / main_rows["stall_ns"].sum()
        assert share == pytest.approx(spent, abs=1e-9)


def test_kinds_of_steps_apart_agree_with_the_summary(tmp_path: Path) -> None:
    validating(tmp_path / "run")
    trace = loaded(str(tmp_path / "run"))
    rows = stashtrace.analyze(trace, "stalls", by="step_kind").rows()
    check_shares(trace, {(row["rank"], row["kind"]): row["stall_ns"] for row in rows if row["step_kind"] == "train"})
