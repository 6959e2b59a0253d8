"""lines_between_runs: which functions a change between two jobs is in, and none where nothing is sure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import MS, ProcessBuilder, TraceBuilder
from stack_rows import FORKED, long_call, sample, stack_of

from stashtrace.analysis.compare.baseline import baseline_text, read_baseline
from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.diff import diff_of_sides
from stashtrace.analysis.compare.function_times import LineTime
from stashtrace.analysis.compare.gate_verdict import Condition, judge
from stashtrace.analysis.compare.steps_of_run import KINDS, StepsOfRun, steps_of_run
from stashtrace.analysis.lines.between_runs import LINES_BETWEEN_RUNS, lines_between_runs, lines_of_diff, lines_of_gate
from stashtrace.analysis.lines.functions_of_run import functions_of_run, line_that_changed
from stashtrace.errors import FormatError
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.between_runs_text import functions_lines, functions_of_gate
from stashtrace.summary.ci import annotation_lines
from stashtrace.summary.diff_text import no_functions_lines

STEPS = 45
#: What the job of these tests does in a step: it sleeps in one function, and computes in four that only samples know.
SLEEPS = {"hook late.py:11": 8.0}
COMPUTES = {"load late.py:5": 15.0, "parse late.py:14": 15.0, "clip late.py:30": 15.0, "log late.py:40": 15.0}


def trains(
    build: TraceBuilder,
    random: np.random.Generator,
    sleeps: Mapping[str, float] = SLEEPS,
    computes: Mapping[str, float] = COMPUTES,
    *,
    rank_number: int = 0,
    root: str = "/jobs/",
    readable: bool = True,
) -> None:
    """A rank whose steps vary by a few percent, with 50 samples a second at random moments."""
    rank, at = build.rank(rank_number), 0
    for _ in range(STEPS):
        begin = at
        for place, mean_ms in computes.items():
            until = at + max(int(mean_ms * (1 + 0.1 * random.standard_normal()) * MS), 1)
            for moment in np.sort(random.integers(at, until, random.poisson((until - at) / (20 * MS)))).tolist():
                sample(rank, moment, at_place(rank, place, root) if readable else 0)
            at = until
        for place, mean_ms in sleeps.items():
            until = at + int(mean_ms * (1 + 0.05 * random.standard_normal()) * MS)
            rank.wait(WaitOp.SLEEP, at, until)
            long_call(rank, at, until, at_place(rank, place, root))
            at = until
        rank.phase("forward", begin, at).phase("optimizer", at, at + MS)
        at += MS


def at_place(rank: ProcessBuilder, place: str, root: str) -> int:
    function, _, where = place.partition(" ")
    return stack_of(rank, f"main {root}{where.partition(':')[0]}:23", f"{function} {root}{where}")


def run_of(trace: Trace) -> StepsOfRun:
    return replace(steps_of_run(trace), functions=functions_of_run(trace))


def run(seed: int, *sleeps_and_computes: Mapping[str, float], **options: Any) -> StepsOfRun:
    build = TraceBuilder()
    trains(build, np.random.default_rng(seed), *sleeps_and_computes, **options)
    return run_of(build.trace())


def sides(before: Sequence[StepsOfRun], after: Sequence[StepsOfRun]) -> tuple[Side, Side]:
    return Side("old", tuple(before)), Side("new", tuple(after))


def differences(before: StepsOfRun, after: StepsOfRun) -> Table:
    old, new = sides([before], [after])
    table = lines_of_diff(old, new, diff_of_sides(old, new))
    assert table is not None
    return table


def named(table: Table | None) -> list[tuple[str, str, str]]:
    return [(row["kind"], row["function"], row["verdict"]) for row in table.rows() if row["verdict"] != "no difference"]


def sentences(before: StepsOfRun, after: StepsOfRun) -> list[str]:
    old, new = sides([before], [after])
    table = diff_of_sides(old, new)
    changes_ns = {row["kind"]: row["change_ns"] for row in table.rows()}
    return functions_lines(lines_of_diff(old, new, table), changes_ns, old, new)


@pytest.mark.parametrize("runs", [1, 3])
def test_of_equal_runs_no_function_is_named(runs: int) -> None:
    """Even where somebody asks for every kind."""
    found = []
    for seed in range(12):
        old, new = sides(*([run(100 * seed + 10 * side + n) for n in range(runs)] for side in (0, 1)))
        found += named(lines_between_runs(old, new, KINDS))
    assert found == []


def test_a_longer_sleep_is_named_by_its_function() -> None:
    table = differences(run(1), run(2, {"hook late.py:11": 18.0}))
    assert named(table) == [("other", "hook", "slower")]
    row = next(iter(table.rows()))
    assert row["low_ns"] < 10 * MS < row["high_ns"]
    assert row["low_ns"] > 5 * MS
    assert (row["line"], row["known_in"]) == (11, "both")


def test_functions_of_a_copied_script_are_compared_by_name() -> None:
    def copied(places: Mapping[str, float]) -> dict[str, float]:
        return {place.replace("late.py", "late2.py"): ms for place, ms in places.items()}

    before, after = run(1), run(2, copied({"hook late.py:11": 18.0}), copied(COMPUTES))
    assert named(differences(before, after)) == [("other", "hook", "slower")]
    (row,) = [row for row in differences(before, after).rows() if row["verdict"] != "no difference"]
    assert (row["path"], row["known_in"]) == ("/jobs/late2.py", "both")
    said, sentence = sentences(before, after)
    assert said == "functions of late.py are compared with those of the same names in late2.py"
    assert re.match(r"other \+9[.\d]* ms a step: hook \(late2.py:11\) ", sentence)
    # Another script is no copy, though both have a `main`.
    other = run(2, {"sleep other.py:11": 18.0}, {"read other.py:5": 60.0})
    assert not any("compared with" in sentence for sentence in sentences(before, other))


def test_a_function_that_only_samples_know_is_named() -> None:
    slower = {**COMPUTES, "parse late.py:14": 45.0}
    table = differences(run(1), run(2, SLEEPS, slower))
    assert named(table) == [("compute", "parse", "slower")]
    row = next(iter(table.rows()))
    assert row["low_ns"] < 30 * MS < row["high_ns"]
    assert named(differences(run(2, SLEEPS, slower), run(1))) == [("compute", "parse", "faster")]


def test_a_function_that_is_seen_on_one_side_alone_is_said_to_be_so() -> None:
    more = {**SLEEPS, "audit late.py:50": 8.0}
    (new,), (gone,) = sentences(run(1), run(2, more)), sentences(run(2, more), run(1))
    grown, shrunk = r"\+[6-8][.\d]* to [\d.]+ ms", r"-[6-8][.\d]* to -[\d.]+ ms"
    assert re.fullmatch(rf"other \+8[.\d]* ms a step: audit \(late.py:50\) {grown}, not seen before", new)
    assert re.fullmatch(rf"other -8[.\d]* ms a step: audit \(late.py:50\) {shrunk}, no longer seen", gone)
    rows = differences(run(1), run(2, more)).rows()
    assert {row["function"]: row["known_in"] for row in rows} == {"audit": "after", "hook": "both"}


def test_a_sleep_that_moved_to_another_line_of_another_folder_is_no_change() -> None:
    moved = {"hook late.py:19": 8.0}
    assert named(lines_between_runs(*sides([run(1)], [run(2, moved, root="/else/")]), KINDS)) == []
    assert sentences(run(1), run(2, moved, root="/else/")) == []


def test_what_other_programs_can_explain_is_named_and_said_to_be_so() -> None:
    """Of two recordings on a busy machine, `diff` still says where the time went."""
    old, new = sides([run(1)], [run(2, {"hook late.py:11": 18.0})])
    table = diff_of_sides(old, new)
    changes_ns = {row["kind"]: row["change_ns"] for row in table.rows()}
    for added_ms, explained in ((50, True), (2, False), (-50, False)):
        (sentence,) = functions_lines(lines_of_diff(old, new, table), changes_ns, old, new, added_ns=added_ms * MS)
        assert sentence.startswith("other +9")
        assert sentence.endswith("; other programs can explain it") == explained


def test_a_kind_within_noise_has_no_functions() -> None:
    """Two functions changed places: no kind of the step did."""
    swapped = {"hook late.py:11": 2.0, "rest late.py:60": 12.0}
    before, after = run(1, {"hook late.py:11": 12.0, "rest late.py:60": 2.0}), run(2, swapped)
    assert sentences(before, after) == []
    assert len(differences(before, after)) == 0


def test_a_changed_kind_without_a_known_function_has_no_sentence() -> None:
    before, after = (run(seed, SLEEPS, {"parse late.py:14": ms}, readable=False) for seed, ms in ((1, 40.0), (2, 80.0)))
    assert sentences(before, after) == []


def test_without_stacks_on_one_side_the_answer_says_so_once() -> None:
    without = replace(run(2, {"hook late.py:11": 18.0}), functions=None)
    assert sentences(run(1), without) == ["by function: not known, as new holds no Python stacks"]
    assert sentences(replace(run(1), functions=None), without) == []
    assert sentences(run(1), replace(run(2), functions=None)) == [], "nothing changed, so nobody asks"


def test_time_whose_function_is_unknown_may_be_in_any() -> None:
    """As with ``--stack-hz 0`` on one side, where long calls alone are known."""
    for old, new in ((run(1), run(2, readable=False)), (run(1, readable=False), run(2))):
        assert named(lines_between_runs(*sides([old], [new]), KINDS)) == []
    longer = run(2, {"hook late.py:11": 18.0}, readable=False)
    assert named(differences(run(1), longer)) == [("other", "hook", "slower")]


def loads(seed: int, decode_ms: int) -> StepsOfRun:
    """A run whose worker decodes, while the step thread waits."""
    random, build = np.random.default_rng(seed), TraceBuilder()
    rank = build.rank(0)
    worker, at = rank.worker(0), 0
    for number in range(STEPS):
        done = at + int((decode_ms + 10) * (1 + 0.05 * random.standard_normal()) * MS)
        rank.batch_wait(number, at, done, worker=0).phase("forward", done, done + 20 * MS)
        rank.phase("optimizer", done + 20 * MS, done + 21 * MS)
        worker.fetch(number, at, done)
        for moment in np.sort(random.integers(at, done, random.poisson((done - at) / (20 * MS)))).tolist():
            function = "augment /jobs/images.py:90" if moment > done - 10 * MS else "decode /jobs/images.py:67"
            sample(worker, moment, stack_of(worker, *FORKED, function))
        sample(rank, done + 5 * MS, stack_of(rank, "main /jobs/train.py:23"))
        at = done + 21 * MS
    return run_of(build.trace())


def test_longer_batches_are_named_by_what_workers_do() -> None:
    (text,) = sentences(loads(1, 30), loads(2, 70))
    assert text.startswith("data: prep +")
    assert " ms a step, in its workers: decode (images.py:67) +" in text
    assert text.endswith(" ms a batch")


def ranks(seed: int, *sleeps_ms: float) -> StepsOfRun:
    """A run whose ranks sleep for different times, and wait for the last one in a collective."""
    random, build = np.random.default_rng(seed), TraceBuilder()
    build.group(range(len(sleeps_ms)))
    at = [0]
    for _ in range(STEPS):
        asleep = [int(ms * (1 + 0.05 * random.standard_normal()) * MS) for ms in sleeps_ms]
        begin, end = max(at), max(at) + max(asleep) + 40 * MS
        build.collective(
            {r: (begin + 20 * MS + ns, end - 2 * MS, begin + 20 * MS + ns, end - 2 * MS) for r, ns in enumerate(asleep)}
        )
        for number, sleep in enumerate(asleep):
            rank = build.rank(number)
            middle = begin + 20 * MS
            rank.phase("forward", begin, middle).phase("backward", middle, end - MS).phase("optimizer", end - MS, end)
            rank.wait(WaitOp.SLEEP, middle, middle + sleep)
            long_call(rank, middle, middle + sleep, stack_of(rank, "main /jobs/late.py:23", "hook /jobs/late.py:11"))
            sample(rank, begin + 5 * MS, stack_of(rank, "main /jobs/late.py:23"))
        at = [end]
    return run_of(build.trace())


def test_waits_for_a_late_rank_are_named_by_what_that_rank_does() -> None:
    old, new = sides([ranks(1, 5, 5, 5)], [ranks(2, 5, 30, 5)])
    table = lines_of_diff(old, new, diff_of_sides(old, new))
    rows = [row for row in table.rows() if row["kind"] == "straggler" and row["verdict"] == "slower"]
    assert [(row["rank"], row["function"]) for row in rows] == [(1, "hook")]
    assert rows[0]["low_ns"] < 25 * MS < rows[0]["high_ns"]
    (of_all,) = (row for row in table.rows() if row["kind"] == "other" and row["verdict"] == "slower")
    assert of_all["change_ns"] == pytest.approx(25 * MS / 3, rel=0.1), "the mean over ranks"
    assert (of_all["most_rank"], of_all["most_rank_change_ns"]) == (1, pytest.approx(25 * MS, rel=0.1))


def test_what_all_ranks_do_longer_makes_no_rank_late() -> None:
    old, new = sides([ranks(1, 5, 5, 5)], [ranks(2, 30, 30, 30)])
    assert named(lines_between_runs(old, new, ["straggler"])) == []


def test_the_spread_of_three_runs_a_side_counts() -> None:
    """Runs whose hook takes 8 to 14 ms on either side do not show that 3 ms more are a change."""
    lengths = [(8.0, 11.0, 14.0), (11.0, 14.0, 17.0)]
    old, new = sides(*([run(n, {"hook late.py:11": ms}) for n, ms in enumerate(side)] for side in lengths))
    assert named(lines_between_runs(old, new, ["other"])) == []
    lengths = [(8.0, 8.2, 8.1), (13.0, 13.1, 13.2)]
    old, new = sides(*([run(n, {"hook late.py:11": ms}) for n, ms in enumerate(side)] for side in lengths))
    assert named(lines_between_runs(old, new, ["other"])) == [("other", "hook", "slower")]


def test_files_of_one_name_are_distinguished_by_their_folders() -> None:
    before = {"forward a/model.py:5": 8.0, "forward b/model.py:5": 8.0}
    after = {"forward a/model.py:5": 8.0, "forward b/model.py:5": 18.0}
    table = differences(run(1, before), run(2, after, root="/else/"))
    assert [(row["path"], row["verdict"]) for row in table.rows()] == [
        ("/else/b/model.py", "slower"),
        ("/else/a/model.py", "no difference"),
    ]


def test_the_line_is_the_one_that_changed_not_the_costliest() -> None:
    before = [LineTime(50, "", 30.0), LineTime(60, "json loads", 4.0)]
    after = [LineTime(53, "", 31.0), LineTime(55, "", 6.0), LineTime(64, "json loads", 4.1)]
    assert line_that_changed(before, after) == (55, "")
    assert line_that_changed(after, before) == (-1, ""), "it is gone"
    assert line_that_changed(before, []) == (50, ""), "all of the function is"
    assert line_that_changed([], after) == (53, "")


def test_check_names_what_grew_and_a_baseline_knows_it() -> None:
    before, after = run(1), run(2, {"hook late.py:11": 18.0})
    text = baseline_text([before], "1")
    (stored,) = read_baseline(text, "main.json", "main")
    for old in (before, stored):
        gate = judge(*sides([old], [after]), [Condition("step", 5)])
        assert gate.verdict == "worse"
        (sentence,) = functions_of_gate(gate)
        assert sentence.startswith("other +9.99 ms a step: hook (late.py:11) +")
        (annotation,) = annotation_lines(gate)
        assert annotation.endswith(f"%0A{sentence}"), "where a reviewer of a change reads it"
    assert stored.functions.seen is None, "so nothing is called new next to a baseline"


def test_check_names_nothing_where_nothing_grew_beyond_doubt() -> None:
    gate = judge(*sides([run(1)], [run(2)]), [Condition("step", 5)])
    assert functions_of_gate(gate) == []
    assert named(lines_of_gate(gate)) == []


def test_a_baseline_stays_small() -> None:
    """Hundreds of functions and a month of steps make it no larger."""
    many = {f"function_{number} job.py:{number + 1}": 1.5 for number in range(100)}
    bare, full = replace(run(1, many), functions=None), run(1, many)
    grown = len(baseline_text([full], "1")) - len(baseline_text([bare], "1"))
    assert grown < 5000
    (stored,) = read_baseline(baseline_text([full], "1"), "main.json", "main")
    (group,) = (one for one in stored.functions.groups if one.kind == "other")
    assert len(group.functions) == 20
    assert group.unknown_ns == pytest.approx(80 * 1.5 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [('"where":"step"', '"where":"moon"'), ('"mean_ns":', '"mean":'), ('"lines":[[', '"lines":[3,[')],
)
def test_a_baseline_with_damaged_functions_is_refused(right: str, wrong: str) -> None:
    text = baseline_text([run(1)], "1")
    assert right in text
    with pytest.raises(FormatError, match=r"main\.json is not a usable baseline"):
        read_baseline(text.replace(right, wrong), "main.json", "main")


def test_why_no_function_is_named() -> None:
    before, after = (run(seed, SLEEPS, {"parse late.py:14": ms}, readable=False) for seed, ms in ((1, 40.0), (2, 80.0)))
    kinds = diff_of_sides(*sides([before], [after]))
    unknown = "by function: none is compared, as no function is known of what changed"
    assert no_functions_lines(Table.empty(LINES_BETWEEN_RUNS), kinds) == [unknown]
    assert no_functions_lines(differences(run(1), run(2, {"hook late.py:11": 18.0})), kinds)[0].startswith(
        "by function: none of the "
    )
    assert (
        no_functions_lines(None, kinds)
        == no_functions_lines(Table.empty(LINES_BETWEEN_RUNS), diff_of_sides(*sides([before], [before])))
        == []
    )
