"""The terminal summary of small runs with one thing wrong: text snapshots, and what must hold of every one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from builders import MS, TraceBuilder, trace_from_text
from scenes import job, verdicts

from stashtrace.analysis.findings import Summary, summarize
from stashtrace.analysis.findings.claim_rows import Claim
from stashtrace.analysis.findings.stall_claims import confidence, phrases_of
from stashtrace.analysis.findings.summary_input import RankFacts, gather
from stashtrace.analysis.steps.step_time import STEP_KINDS
from stashtrace.schema.kinds import BatchPhase, IoFlag, IoOp, ProcessRole, WaitOp
from stashtrace.schema.table import Table
from stashtrace.summary.bars import _percents
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render, summary

SCENES: dict[str, dict[str, Any]] = {
    "quiet": {"transfer": 0},
    "prep": {"prep": {0: 44}, "fetch": {0: 13}},
    "own_batches": {"prep": {0: 44}, "ranks": 1},
    "sleep": {"sleep": {0: 20}},
    "network": {"transfer": 15, "hosts": ("node00", "node01")},
    "many": {"ranks": 12, "prep": {3: 44}, "sleep": {7: 10}},
    "very_many": {"ranks": 64, "prep": {r: 20 + r for r in range(1, 60, 6)}},
}

PREP = """\
rank 0 is input bound: 57.1 ms a step (63 %) waiting for batches

stashtrace  2 ranks, 1 host, 7 steps of 90.1 ms (first 5 left out)

  rank     step   compute      data             link    late             other
  0     90.1 ms   35 % █████▏  63 % █████████▌   2 % ▍   0 %              0 %
  1     90.1 ms   35 % █████▏  0.1%              2 % ▍  63 % █████████▌   0 %

  ▶ rank 0 is input bound: 57.1 ms a step (63 %) waiting for batches
      its worker takes 57.0 ms to make a batch: 44.0 ms of it on the CPU
        (decoding, transforming, collating), 13.0 ms blocked in storage
      blocked reads moved 40.0 MB/s, mostly from train-0117.tar; one takes 13.0
        ms on average
  ▶ rank 1 waits 57.0 ms a step (63 %) for other ranks in all-reduce, all of it
    for rank 0
"""

QUIET = """\
no stall above 3 %: compute bound

stashtrace  2 ranks, 1 host, 7 steps of 31.1 ms (first 5 left out)

  rank     step   compute                    data    link   late   other
  0     31.1 ms  100 % ███████████████████▉  0.3% ▏   0 %    0 %    0 %
  1     31.1 ms  100 % ███████████████████▉  0.3% ▏   0 %    0 %    0 %

  no stall above 3 %: compute bound
"""


def text(scene: str, **style: Any) -> str:
    return summary(job(**SCENES[scene])[1], style=Style(**style))


@pytest.mark.parametrize("style", [{}, {"utf8": False}, {"colour": True}], ids=["plain", "ascii", "colour"])
@pytest.mark.parametrize("scene", SCENES)
def test_fits_80_columns_in_every_look(scene: str, style: dict[str, Any]) -> None:
    shown = text(scene, **style)
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
    assert shown.isascii() or style.get("utf8", True)
    assert ("\x1b" in shown) == style.get("colour", False)
    assert all(line == line.rstrip() for line in lines)
    assert sum("▶" in line or line.startswith("  > ") for line in lines) <= 3
    if style.get("colour"):
        assert lines == text(scene).splitlines(), "colour adds nothing but colour"


@pytest.mark.parametrize(("scene", "expected"), [("prep", PREP), ("quiet", QUIET)])
def test_snapshot(scene: str, expected: str) -> None:
    assert text(scene).startswith(expected)


def test_the_step_is_the_mean_so_that_its_parts_add_up_to_it() -> None:
    facts = gather(job(prep={0: 44})[1])
    for rank in facts.ranks:
        assert rank.step_ns * rank.steps_count == pytest.approx(rank.wall_ns, rel=1e-6)
        assert sum(rank.per_step_ns(kind) for kind in rank.kinds) == pytest.approx(rank.step_ns, rel=1e-6)


def test_a_few_long_steps_are_reported_in_the_first_line() -> None:
    facts = gather(job()[1])
    assert "median" not in render(Summary.of(facts), Style(), "x")
    kinds = facts.tables["step_kinds"]
    skewed = replace(facts, tables={**facts.tables, "step_kinds": kinds.replace(mean_ns=kinds["mean_ns"] + 57 * MS)})
    first = " ".join(render(Summary.of(skewed), Style(), "x").split("\n\n")[1].split())
    assert first.endswith("stashtrace 2 ranks, 1 host, 7 steps, mean 90.1 ms, median 33.1 ms (first 5 left out)")


def test_batches_before_the_counted_steps_do_not_count() -> None:
    build, trace = job(prep={0: 44})
    before = [line for f in verdicts(trace) for line in f.evidence if " to make a batch" in line]
    first = min((r for r in build.rows["batches"] if r["phase_code"] == BatchPhase.FETCH), key=lambda r: r["begin_ns"])
    first["begin_ns"] -= 2000 * MS  # the first batch of a cold data set
    after = [line for f in verdicts(build.trace()) for line in f.evidence if " to make a batch" in line]
    assert before
    assert after == before


def test_the_end_says_what_to_trust_and_what_to_type() -> None:
    end = text("prep").partition("  measured")[2].splitlines()
    assert end[0].startswith(": data, link, late")
    assert "invisible here: GPU" in " ".join(end[:2])
    assert any("lost records 0" in line for line in end[:3])
    assert end[-3:] == [
        "  timeline   stashtrace view ./stash-0412",
        "  report     stashtrace report ./stash-0412",
        "  details    stashtrace analyze stalls ./stash-0412 --by step",
    ]


def test_straggler_names_the_late_rank() -> None:
    found = verdicts(job(sleep={1: 20})[1])
    late = next(f for f in found if f.kind == "late")
    assert late.text == "rank 0 waits 20.0 ms a step (38 %) for other ranks in all-reduce, all of it for rank 1"


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_differ_are_given_as_a_range(ranks: int) -> None:
    found = verdicts(job(ranks=ranks, prep={rank: 44 - 20 * (rank > 0) for rank in range(ranks)})[1])
    data = next(f for f in found if f.kind == "data")
    named = {2: "0,1", 3: "0-2"}[ranks]
    assert data.text == f"ranks {named} are input bound: 24.1 ms to 44.1 ms a step (31 to 57 %) waiting for batches"


def test_a_sleep_is_called_one() -> None:
    build, _ = job()
    for step, mark in enumerate([r["begin_ns"] for r in build.rows["phases"] if r["phase_code"] == 2][::2]):
        build.rank(0).wait(WaitOp.SLEEP, mark - step, mark - step + 5 * MS)
    facts = gather(build.trace())
    other = next(f for f in verdicts(facts) if f.kind == "other")
    assert re.fullmatch(r"rank 0 spends .* a step \(.*\) asleep \(time\.sleep, usleep or the like\)", other.text)


def test_checkpoints_stop_one_rank_as_they_stop_several() -> None:
    facts = gather(job()[1])
    saving = []
    for rank in facts.ranks:
        spent = 6 * MS * rank.steps_count
        moved = {**rank.kinds, "compute": rank.kinds["compute"] - spent, "checkpoint": spent}
        saving.append(replace(rank, kinds=moved, low=moved, high=moved, exact={}))
    one = next(f for f in verdicts(replace(facts, ranks=(saving[0], *facts.ranks[1:]))) if f.kind == "save")
    both = next(f for f in verdicts(replace(facts, ranks=tuple(saving))) if f.kind == "save")
    assert one.text.startswith("checkpoints stop rank 0 for 6.00 ms a step on average")
    assert both.text.startswith("checkpoints stop ranks 0,1 for 6.00 ms a step on average")


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [
        ("gggggggg", "rank 0 waits 8.00 ms a step (50 %) for the GIL, which another thread holds"),
        ("gggggg..", "rank 0 is blocked 8.00 ms a step (50 %), 6.00 ms of it waiting for the GIL"),
        ("ssssss..", "rank 0 is blocked 8.00 ms a step (50 %), 6.00 ms of it asleep (time.sleep, usleep or the"),
        (
            "jjjjjjjj",
            "rank 0 is blocked 8.00 ms a step (50 %) waiting for a thread or a process to end (join, waitpid)",
        ),
        (
            "mmmmmm..",
            "rank 0 is blocked 8.00 ms a step (50 %), 6.00 ms of it waiting for a lock, a condition or a semaphore",
        ),
        (
            "mm.jjpp.",
            "rank 0 is blocked 8.00 ms a step (50 %) with no known cause",
        ),
        (
            "gg......",
            "rank 0 is blocked 8.00 ms a step (50 %) with no known cause",
        ),
    ],
)
def test_what_a_thread_was_blocked_in_is_named(waits: str, verdict: str) -> None:
    trace = trace_from_text(
        f"""
        rank 0 phase  : {"FFBB........OOOO" * 8}
        rank 0 cpu    : {"xxxx........xxxx" * 8}
        rank 0 wait   : {f"....{waits}...." * 8}
        """
    )
    other = next(f for f in verdicts(gather(trace)) if f.kind == "other")
    assert other.text.startswith(verdict)


def test_a_sleep_while_a_batch_is_made_is_no_cause_of_other() -> None:
    trace = trace_from_text(
        f"""
        rank 0 loader : 0000............1111............2222............3333............
        rank 0 fetch  : 0000............1111............2222............3333............
        rank 0 phase  : {"....FFBB...OOOOO" * 4}
        rank 0 cpu    : {"....xxxx...xxxxx" * 4}
        rank 0 wait   : {"ssss............" * 4}
        """
    )
    (facts,) = gather(trace).ranks
    assert facts.kinds["other"] > 0
    assert facts.blocked_ns == {}


def test_a_sleep_is_not_unexplained() -> None:
    facts = gather(job(sleep={1: 20})[1])
    slept = [
        replace(r, kinds={**r.kinds, "other": r.wall_ns // 5}, blocked_ns={"asleep": r.wall_ns // 5})
        for r in facts.ranks
    ]
    assert "LOW CONFIDENCE" not in render(Summary.of(replace(facts, ranks=tuple(slept))), Style(), "x")


def test_steps_that_are_no_updates_are_counted_in_the_first_line() -> None:
    facts = gather(job()[1])
    rows = [
        (-1, "train", 56, 4, 215 * MS, 215 * MS, 0, 56, 0),
        (-1, "skipped_update", 1, 0, 33 * MS, 33 * MS, 0, 1, 0),
        (-1, "validation", 40, 0, 59 * MS, 59 * MS, 0, 0, 0),
    ]
    mixed = replace(facts, tables={**facts.tables, "step_kinds": Table.from_rows(STEP_KINDS, rows)})
    first = " ".join(render(Summary.of(mixed), Style(), "x").split("\n\n")[1].split())
    assert first.endswith(
        "stashtrace 2 ranks, 1 host, 56 training steps of 215 ms, 1 skipped (by the scaler) step of 33.0 ms,"
        " 40 validation steps of 59.0 ms (first 5 left out)"
    )


@pytest.mark.parametrize(
    ("passes", "said"), [(56, "56 steps of 215 ms"), (224, "56 optimizer steps of 215 ms, 4 backward passes each")]
)
def test_a_step_of_several_passes_is_said_to_be_one_of_the_optimizer(passes: int, said: str) -> None:
    """A log that counts micro-batches has four of these steps where we have one."""
    facts = gather(job()[1])
    rows = [(rank, "train", 56, 4, 215 * MS, 215 * MS, 0, passes, 0) for rank in (-1, 0, 1)]
    accumulating = replace(facts, tables={**facts.tables, "step_kinds": Table.from_rows(STEP_KINDS, rows)})
    assert f"stashtrace 2 ranks, 1 host, {said} (first 5" in " ".join(
        render(Summary.of(accumulating), Style(), "x").split()
    )


def test_several_optimizers_are_no_optimizer_step() -> None:
    """Two models take turns on each batch, as in an adversarial network."""
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now = step * 50 * MS
        rank.batch_wait(step, now, now + 2 * MS)
        for at, name in ((now + 2 * MS, "Adam of critic"), (now + 26 * MS, "Adam of generator")):
            rank.phase("forward", at, at + 8 * MS).phase("backward", at + 8 * MS, at + 20 * MS)
            rank.phase("optimizer", at + 20 * MS, at + 24 * MS, name=name)
    assert " steps of 50.0 ms, 2 backward passes each" in " ".join(summary(build.trace("./x")).split())
    assert "optimizer steps" not in summary(build.trace("./x"))


def test_batches_made_in_time_are_not_called_uneven() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now = step * 50 * MS
        for micro in range(4):
            at, index = now + micro * 10 * MS, 4 * step + micro
            rank.worker(0).fetch(index, at - 5 * MS, at - 4 * MS)
            rank.batch_wait(index, at, at + 3 * MS, worker=0)
            rank.phase("forward", at + 3 * MS, at + 5 * MS).phase("backward", at + 5 * MS, at + 9 * MS)
        rank.phase("optimizer", now + 40 * MS, now + 50 * MS)
    found = verdicts(build.trace())[0]
    assert found.kind == "data"
    assert found.evidence == ("its worker takes 1.00 ms to make a batch (a step uses 4 batches)",)


def test_micro_batches_are_reported() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now = step * 100 * MS
        for micro in range(4):
            at, index = now + micro * 24 * MS, 4 * step + micro
            rank.worker(0).fetch(index, at, at + 20 * MS)
            rank.batch_wait(index, at, at + 20 * MS, worker=0)
            rank.phase("forward", at + 20 * MS, at + 21 * MS).phase("backward", at + 21 * MS, at + 24 * MS)
        rank.phase("optimizer", now + 96 * MS, now + 100 * MS)
    (found,) = verdicts(build.trace())
    assert found.evidence == ("its worker takes 20.0 ms to make a batch (a step uses 4 batches)",)


def test_a_file_is_blamed_only_for_calls_of_the_workers_that_make_batches() -> None:
    build, _ = job(ranks=1, fetch={0: 40})
    build.rank(0).io(0, 5000 * MS, path="/usr/lib/import.py", blocked=True, result_bytes=100)
    worker = build.rank(0).worker(0)
    worker.io(0, 5000 * MS, path="listener-x", blocked=True, result_bytes=1, flags=IoFlag.SOCKET)
    (found,) = verdicts(build.trace())
    assert any("mostly from train-0117.tar" in sentence for sentence in found.evidence), found.evidence


def test_page_faults_are_reported_where_no_read_explains_the_storage() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now = step * 50 * MS
        rank.worker(0).fetch(step, now, now + 20 * MS, cpu=2 * MS, runqueue=0, major_faults=6)
        rank.worker(0).io(now, now + 10_000, path="", blocked=True)
        rank.batch_wait(step, now, now + 20 * MS, worker=0)
        rank.phase("forward", now + 20 * MS, now + 30 * MS).phase("backward", now + 30 * MS, now + 45 * MS)
        rank.phase("optimizer", now + 45 * MS, now + 50 * MS)
    (found,) = verdicts(build.trace())
    assert "18.0 ms of it waiting for page faults from storage" in found.evidence[0]
    assert "without a name" not in " ".join(found.evidence)


def test_workers_that_left_no_records_are_still_workers() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now = step * 50 * MS
        if step == 0:
            rank.batch(BatchPhase.WAIT, -1, now, now + MS, worker=-1)  # making the iterator
        rank.batch_wait(step, now + MS, now + 20 * MS, worker=step % 2)
        rank.phase("forward", now + 20 * MS, now + 30 * MS).phase("backward", now + 30 * MS, now + 45 * MS)
        rank.phase("optimizer", now + 45 * MS, now + 50 * MS)
    (found,) = verdicts(build.trace())
    assert "num_workers=0" not in " ".join(found.evidence)
    assert found.evidence[0] == "its workers left no records of their own"


def test_findings_come_worst_first() -> None:
    found = verdicts(job(prep={0: 44}, transfer=10)[1])
    assert [f.kind for f in found] == ["data", "late", "link"]
    assert [f.share for f in found] == sorted((f.share for f in found), reverse=True)


def test_many_ranks_are_folded_and_outliers_named() -> None:
    rows = text("many").split("\n\n")[2].splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["0-2,4-6,8-11", "3", "7"]
    shown = text("very_many").splitlines()
    table = shown[shown.index("", shown.index("") + 1) + 2 :]
    assert table[0].split()[:2] == ["58", "others"]
    assert len([line for line in table if re.match(r"  \d", line)]) == 7


def test_low_confidence_stands_in_the_first_line() -> None:
    facts = gather(job()[1])
    vague = replace(facts, ranks=tuple(replace(r, kinds={**r.kinds, "other": r.wall_ns // 5}) for r in facts.ranks))
    assert "LOW CONFIDENCE: 20 % unexplained" in render(Summary.of(vague), Style(), "x").splitlines()[0]
    assert "LOW CONFIDENCE" not in render(Summary.of(facts), Style(), "x")


def said_amount(rank: RankFacts, *kinds: str) -> str:
    point, (low, high) = rank.per_step_ns(*kinds), rank.bounds_ns(*kinds)
    figures = {"stall_ns": point, "low_ns": low, "high_ns": high, "least_ns": point, "items_count": 1}
    claim = Claim("verdict", "data", confidence=confidence(point, low, high), **figures)
    return str(phrases_of(claim, {"a_step": ""})["amount"])


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (57, 57, "57.0 ms"),
        (56, 58, "57.0 ms"),
        (57, 80, "at least 57.0 ms"),
        (0, 57, "up to 57.0 ms"),
        (20, 57, "between 20.0 ms and 57.0 ms"),
        (30, 90, "between 30.0 ms and 90.0 ms"),
    ],
)
def test_words_are_no_surer_than_the_bounds(low: int, high: int, words: str) -> None:
    rank = gather(job()[1]).ranks[0]
    count = rank.steps_count
    rest = {"compute": 100 * MS * count}
    given = replace(
        rank,
        exact={},
        wall_ns=157 * MS * count,
        kinds={**rest, "prep": 57 * MS * count},
        low={"compute": (157 - high) * MS * count, "prep": low * MS * count},
        high={"compute": (157 - low) * MS * count, "prep": high * MS * count},
    )
    assert said_amount(given, "prep") == words


def test_a_doubt_between_two_kinds_is_none_about_their_sum() -> None:
    rank = gather(job()[1]).ranks[0]
    count = rank.steps_count
    given = replace(
        rank,
        exact={},
        wall_ns=100 * MS * count,
        kinds={"compute": 70 * MS * count, "prep": 30 * MS * count},
        low={"compute": 70 * MS * count, "prep": 0, "fetch": 0},
        high={"compute": 70 * MS * count, "prep": 30 * MS * count, "fetch": 30 * MS * count},
    )
    assert said_amount(given, "fetch", "prep", "handoff") == "30.0 ms"
    assert said_amount(given, "prep") == "up to 30.0 ms"


def test_contention_steal_and_losses_are_said_when_they_matter() -> None:
    build, _ = job()
    build.loss("lane_full_rows", 1200, collector="posix_io", advice="rows came faster than they could be written")
    for name, share in (("user", 60), ("system", 10), ("idle", 20), ("iowait", 0), ("steal", 10)):
        build.counter(0, f"host_{name}_ns_total", {second * 10**8: second * share * MS for second in range(3)})
    facts = gather(build.trace())
    crowded = replace(facts, ranks=(replace(facts.ranks[0], contention_ratio=0.2), *facts.ranks[1:]))
    shown = " ".join(render(Summary.of(crowded), Style(), "x").split())
    assert "rank 0's step thread waited for a CPU for 20 % of the step" in shown
    assert "the hypervisor took 10 % of the CPU time of node00" in shown
    assert "lost records 1200" in shown
    assert shown.startswith("stashtrace RECORDS LOST: 1,200 of 1,383 (87 %), most of them because of records")
    assert "! 1,200 records lost (posix_io): records that came faster than they could be written" in shown


def test_a_loss_that_is_no_number_of_rows_is_said_without_one() -> None:
    build, _ = job()
    build.loss("no_device", 0, collector="cupti", advice="the job has no CUDA device")
    shown = render(summarize(build.trace()), Style(), "x")
    assert "  ! no device (cupti): the job has no CUDA device" in shown.splitlines()


@pytest.mark.parametrize("reason", ["negative_times", "impossible_numbers", "hashes_ambiguous"])
def test_a_record_with_an_unknown_value_is_not_lost(reason: str) -> None:
    build, _ = job()
    build.loss(reason, 1000, collector="darshan", advice="x.darshan: taken as unknown")
    shown = " ".join(render(summarize(build.trace()), Style(), "x").split())
    assert "RECORDS LOST" not in shown
    assert "lost records 0" in shown
    assert "x.darshan: taken as unknown" in shown


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("lost_lane_rows", "too many threads at once"),
        ("no_space_rows", "no space left in the run directory"),
        ("no_space", "no space left in the run directory"),
        ("not_written", "errors while writing to the run directory"),
    ],
)
def test_steps_may_be_among_the_records_that_were_lost(reason: str, cause: str) -> None:
    build = TraceBuilder(("node00",))
    build.rank(0)
    build.loss(reason, 1200, collector="core", advice="what the recorder said")
    shown = " ".join(render(summarize(build.trace()), Style(), "x").split())
    assert f"RECORDS LOST: 1,200 of 1,200 (100 %), most of them because of {cause}" in shown
    assert "steps are seen where" not in shown  # there may have been updates among the lost records
    assert "no training steps among the records that are left" in shown


def test_losses_for_one_cause_are_one_line() -> None:
    """The recorder counts them where it found no room, and the reader those whose count it finds in the ring."""
    build, _ = job()
    build.loss("no_space", 1200, collector="core", advice="what the recorder said")
    build.loss("no_space_rows", 30, collector="core", advice="what the reader found")
    shown = render(summarize(build.trace()), Style(), "x")
    assert [line.strip() for line in shown.splitlines() if "records lost (" in line] == [
        "! 1,230 records lost (core): no space left in the run directory"
    ]


def test_a_run_without_steps() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS)
    shown = summary(build.trace("./x"))
    assert shown.splitlines()[0] == "stashtrace  1 rank, 1 host  no training steps seen"
    assert "stashtrace view ./x" in shown


def test_a_run_without_the_collector_of_steps_says_so() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS)
    build.say("collectors", "posix_io waits")
    assert "no step can be seen: --collectors left out torch_step and annotations" in summary(build.trace("./x"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("/usr/bin/python3 -I train.py", True),
        ("python -BE -m train", True),
        ("python train.py -I", False),
        ("python -c -I", False),
        ("tool -I x", False),
    ],
)
def test_a_python_that_loads_no_probes_says_so(argv: str, said: bool) -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS)
    build.say("argv", argv, 0)
    assert ("ignores PYTHONPATH, so its steps cannot be seen" in " ".join(summary(build.trace("./x")).split())) is said


def test_only_some_steps_were_wanted() -> None:
    build, _ = job()
    build.say("steps", "5:17")
    assert "only steps 5:17 of the job were recorded, counted in optimizer updates" in summary(build.trace("./x"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [(IoFlag.STAGED, "staged: 2 opens served by copies"), (0, "! no open was served by a copy")],
)
def test_opens_served_by_copies(flags: int, said: str) -> None:
    build, _ = job()
    build.rank(2).io(0, MS, op=IoOp.OPEN, flags=flags).io(MS, MS, op=IoOp.FOPEN, flags=flags).io(MS, MS, flags=flags)
    assert "copies" not in summary(build.trace("./x"))
    build.say("staged", "/fast/staged.list")
    assert said in summary(build.trace("./x"))


def test_a_second_job_is_not_passed_over() -> None:
    trace = job()[1]
    processes = trace.processes
    roles = processes["role_code"].copy()
    roles[processes["rank"] == 1] = ProcessRole.OTHER
    shown = " ".join(summary(trace.replace(processes=processes.replace(role_code=roles))).split())
    assert "these numbers leave out other training: " in shown
    assert "12 updates); record each job by itself" in shown


def test_missing_ranks_are_asked_for() -> None:
    facts = replace(gather(job()[1]), missing_ranks=(2, 3))
    assert "stashtrace merge ./x OTHER_DIR   (of ranks 2,3)" in render(Summary.of(facts), Style(), "./x")


def test_percents_of_a_row_add_up() -> None:
    assert _percents([0.346, 0.395, 0.166, 0.086, 0.007]) == ["33 %", "40 %", "17 %", "9 %", "0.7%"]
    assert _percents([0.0, 0.995, 0.005]) == ["0 %", "100 %", "0.5%"]
    assert _percents([0.9903, 0.0097, 0.0]) == ["99 %", "1 %", "0 %"]


@pytest.mark.parametrize("utf8", [True, False])
def test_a_bar_is_never_longer_than_the_whole(utf8: bool) -> None:
    """Whatever a damaged file makes of a share: not the amount of memory that the number says."""
    style = Style(utf8=utf8)
    assert len(style.bar(1.0, 20)) == len(style.bar(1e12, 20)) == 20
    assert len(style.bar(float("inf"), 20)) == 20
    assert style.bar(-3.0, 20) == style.bar(float("nan"), 20) == style.bar(0.0, 20) == ""
    assert style.bar(0.005, 20) != ""
