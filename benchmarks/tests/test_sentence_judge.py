"""The judge of benchmarks/bench_sentences.py: made-up claims against made-up truth, false ones found to be false."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

MS = 1e6


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    from sentences import check as module

    return module


@pytest.fixture
def truth(check: ModuleType) -> ModuleType:
    from sentences import truth as module

    return module


def claim(kind: str, stall_ms: float, *, step_ms: float = 100, section: str = "verdict", **more: Any) -> dict[str, Any]:
    """A row of ``findings``; exact, of rank 0 alone, where nothing else is said."""
    row = {
        "finding_id": 0,
        "section": section,
        "kind": kind,
        "name": "",
        "ranks": "0",
        "rank": 0,
        "items_count": 1,
        "share_ratio": stall_ms / step_ms,
        "least_ratio": stall_ms / step_ms,
        "stall_ns": stall_ms * MS,
        "low_ns": stall_ms * MS,
        "high_ns": stall_ms * MS,
        "least_ns": stall_ms * MS,
        "cause_kind": "",
        "cause_rank": -1,
        "file": "",
        "call": "",
        "confidence": "exact",
        "method": "host",
    }
    if "low_ms" in more:
        row["low_ns"], row["high_ns"] = more.pop("low_ms") * MS, more.pop("high_ms") * MS
    return row | more


def evidence(code: str, **more: Any) -> dict[str, Any]:
    """A row of ``finding_evidence`` of the claim."""
    return {
        "finding_id": 0,
        "code": code,
        "rank": -1,
        "amount_ns": -1,
        "items_count": -1,
        "kind": "",
        "name": "",
    } | more


def known(truth: ModuleType, rank: int = 0, *, step_ms: float = 100, **columns_ms: Any) -> Any:
    """Truth of a rank whose step is compute but for the columns, which are amounts or ranges in ms."""
    columns = {}
    for name, amount in columns_ms.items():
        low, high = amount if isinstance(amount, tuple) else (amount, amount)
        columns[name] = truth.Amount(low * MS, high * MS)
    low, high = (sum(getattr(a, bound) for a in columns.values()) for bound in ("low_ns", "high_ns"))
    columns["compute"] = truth.Amount(step_ms * MS - high, step_ms * MS - low)
    return truth.RankTruth(rank, 20, step_ms * MS, columns, {})


def run(truth: ModuleType, *ranks: Any, **more: Any) -> Any:
    return truth.Truth({r.rank: r for r in ranks}, len(ranks), steps={"train": (25, 100 * MS)}, cpus_count=2, **more)


def judged(check: ModuleType, row: dict[str, Any], facts: Any, rows: list[Any] | None = None, **expected: Any) -> str:
    (found,) = check.check([row], rows or [], facts, check.Expected(**expected))
    return str(found.result)


@pytest.mark.parametrize(
    ("stall_ms", "result"), [(40, "true"), (41.9, "true"), (43, "false"), (37, "false"), (0, "false")]
)
def test_an_exact_amount_is_true_only_near_the_truth(
    check: ModuleType, truth: ModuleType, stall_ms: float, result: str
) -> None:
    facts = run(truth, known(truth, data=40))
    assert judged(check, claim("data", stall_ms), facts) == result


@pytest.mark.parametrize(
    ("sure", "point", "low", "high", "own", "result"),
    [
        ("at_least", 10, 10, 30, 20, "within bounds"),
        ("at_least", 10, 10, 30, 5, "false"),
        ("up_to", 30, 0, 30, 10, "within bounds"),
        ("up_to", 30, 0, 30, 40, "false"),
        ("between", 20, 15, 25, 16, "within bounds"),
        ("between", 20, 15, 25, 20, "true"),
        ("between", 20, 15, 25, 30, "false"),
        ("between", 20, 15, 25, 10, "false"),
        ("up_to", 30, 0, 30, (0, 30), "within bounds"),
        ("exact", 30, 30, 30, (0, 30), "false"),
    ],
)
def test_bounds_hold_the_truth_or_the_claim_is_false(
    check: ModuleType, truth: ModuleType, sure: str, point: float, low: float, high: float, own: Any, result: str
) -> None:
    facts = run(truth, known(truth, link=own))
    row = claim("link", point, confidence=sure, low_ms=low, high_ms=high)
    assert judged(check, row, facts) == result


def test_every_rank_that_is_named_loses_what_is_said(check: ModuleType, truth: ModuleType) -> None:
    row = claim("host", 30, ranks="0,1", items_count=2, least_ns=20 * MS)
    assert judged(check, row, run(truth, known(truth, host=30), known(truth, 1, host=21))) == "true"
    assert judged(check, row, run(truth, known(truth, host=30), known(truth, 1, host=45))) == "false"
    assert judged(check, row, run(truth, known(truth, host=30), known(truth, 1, host=5))) == "false"
    assert judged(check, row, run(truth, known(truth, host=30))) == "false"


def test_a_share_is_of_the_true_step(check: ModuleType, truth: ModuleType) -> None:
    facts = run(truth, known(truth, data=40))
    assert judged(check, claim("data", 40, step_ms=50), facts) == "false"


def test_compute_bound_needs_compute(check: ModuleType, truth: ModuleType) -> None:
    row = claim("compute_bound", 97, least_ratio=0.97)
    assert judged(check, row, run(truth, known(truth))) == "true"
    assert judged(check, row, run(truth, known(truth, data=10))) == "false"
    assert judged(check, row, run(truth, known(truth, other=(0, 10)))) == "within bounds"
    assert judged(check, claim("compute_bound", 97), run(truth, known(truth), known(truth, 1, late=30))) == "false"
    between = claim("not_told", 90, low_ms=20, high_ms=90)
    assert judged(check, between, run(truth, known(truth, other=(0, 40)))) == "within bounds"
    assert judged(check, between, run(truth, known(truth, step_ms=100))) == "false"


def test_a_cause_of_waits_is_what_the_makers_did(check: ModuleType, truth: ModuleType) -> None:
    rank = known(truth, data=40)
    rank.making = {"cpu": 3 * MS, "queue": 2 * MS, "waiting": 35 * MS}
    causes = {"data": frozenset({"asleep"})}
    facts = run(truth, rank)
    assert judged(check, claim("data", 40, cause_kind="asleep"), facts, causes=causes) == "true"
    assert judged(check, claim("data", 40, cause_kind="cpu"), facts, causes=causes) == "false"
    assert judged(check, claim("data", 40, cause_kind="network"), facts, causes=causes) == "false"
    rank.handed_ns = 5 * MS
    assert judged(check, claim("data", 40, cause_kind="handoff"), facts, causes=causes) == "false"
    rank.handed_ns = 30 * MS
    assert judged(check, claim("data", 40, cause_kind="handoff"), facts, causes=causes) == "true"


def test_a_file_that_is_blamed_is_one_of_the_job(check: ModuleType, truth: ModuleType) -> None:
    facts, files = run(truth, known(truth, data=40)), frozenset({"ballast"})
    assert judged(check, claim("data", 40, file="/tmp/ballast.bin"), facts, files=files) == "true"
    assert judged(check, claim("data", 40, file="/usr/lib/os.py"), facts, files=files) == "false"


def late_facts(truth: ModuleType, **surplus_ms: float) -> Any:
    waiting, late = known(truth, late=30), known(truth, 1, other=28)
    waiting.late_ns = {1: 28 * MS, 2: 2 * MS}
    wait = truth.LateWait(0, 1, 0, 40_000_000, 0, 0, {k: v * MS for k, v in surplus_ms.items()})
    return run(truth, waiting, late, known(truth, 2), waits=[wait])


def test_a_late_rank_is_the_one_that_was_waited_for(check: ModuleType, truth: ModuleType) -> None:
    facts = late_facts(truth)
    assert judged(check, claim("late", 30, cause_rank=1), facts) == "true"
    assert judged(check, claim("late", 30, cause_rank=2), facts) == "false"


def test_all_had_arrived_needs_all_ranks(check: ModuleType, truth: ModuleType) -> None:
    row, rows = claim("link", 20), [evidence("all_arrived")]
    assert judged(check, row, run(truth, known(truth, link=20)), rows) == "true"
    assert judged(check, row, run(truth, known(truth, link=20), missing=(1,)), rows) == "false"


def test_the_headline_counts_what_the_job_did(check: ModuleType, truth: ModuleType) -> None:
    facts = run(truth, known(truth))
    steps = claim("steps", 100, section="headline", name="train", items_count=20)
    warmup = claim("warmup", 0, section="headline", items_count=5)

    def result(row: dict[str, Any]) -> str:
        return str(check.check([row, warmup], [], facts, check.Expected())[0].result)

    assert result(steps) == "true"
    assert result(steps | {"items_count": 19}) == "false"
    assert result(steps | {"items_count": 26}) == "false"
    assert result(steps | {"name": "validation"}) == "false"
    assert result(steps | {"stall_ns": 120 * MS}) == "false"
    assert result(claim("ranks", 0, section="headline", items_count=1)) == "true"
    assert result(claim("ranks", 0, section="headline", items_count=2)) == "false"
    assert result(claim("ranks_missing", 0, section="headline", ranks="1-3")) == "false"
    assert result(claim("records_lost", 0, section="headline")) == "false"
    assert result(claim("no_steps", 0, section="headline")) == "false"


def test_the_first_verdict_is_the_largest_stall(check: ModuleType, truth: ModuleType) -> None:
    facts = run(truth, known(truth, data=30, other=10), known(truth, 1, late=50))
    assert check.first_verdict([claim("late", 50), claim("data", 30)], facts) == ""
    assert "late is 50.0%" in check.first_verdict([claim("data", 30), claim("late", 50)], facts)
    assert "no verdict" in check.first_verdict([], facts)
    assert "compute_bound first" in check.first_verdict([claim("compute_bound", 90)], facts)
    quiet = run(truth, known(truth))
    assert check.first_verdict([claim("compute_bound", 98)], quiet) == ""
    assert "data first" in check.first_verdict([claim("data", 20)], quiet)
    assert check.missed([claim("late", 50, ranks="1")], facts) == ["rank 0: data 30.0%", "rank 0: other 10.0%"]


def test_waits_follow_from_when_each_rank_arrived(tmp_path: Path, truth: ModuleType) -> None:
    """Two ranks, three steps of 100 ms: rank 1 sleeps 40 ms and arrives 40 ms after rank 0; the transfer takes 10."""
    for rank, (arrives, sleeps) in enumerate([(20, 0), (60, 40)]):
        with open(tmp_path / f"rank-{rank}.jsonl", "w", encoding="utf-8") as file:
            for step in range(3):
                at = step * 100
                laps = [
                    ["wait", at, at + 5, 0],
                    ["sleep", at + 5, at + 5 + sleeps, 0],
                    ["collective", at + arrives, at + 70, 0],
                ]
                laps = [[name, int(begin * MS), int(end * MS), queued] for name, begin, end, queued in laps]
                row = {"rank": rank, "step": step, "kind": "train", "begin_ns": int(at * MS), "laps": laps}
                file.write(json.dumps(row | {"end_ns": int((at + 100) * MS), "idle_ns": 0, "queued_ns": 0}) + "\n")
    window = [(int(100 * MS), int(200 * MS)), (int(200 * MS), int(300 * MS))]
    facts = truth.of_clock(tmp_path, {0: window, 1: window})
    assert facts.steps == {"train": (3, 100 * MS)}
    first, second = facts.ranks[0], facts.ranks[1]
    assert first.steps_count == 2
    assert first.columns["late"] == truth.Amount.of(40 * MS)
    assert first.late_ns == {1: 40 * MS}
    assert first.columns["link"] == second.columns["link"] == truth.Amount(10 * MS, 10 * MS, rough=True)
    assert first.columns["data"] == truth.Amount.of(5 * MS)
    assert second.columns["late"] == truth.NOTHING
    assert second.asleep_ns == 40 * MS
    assert second.columns["compute"] == truth.Amount.of(45 * MS)
    assert facts.waits[0].surplus["other"] == 40 * MS


def test_steps_of_another_kind_have_a_separate_truth(check: ModuleType, truth: ModuleType) -> None:
    facts = run(truth, known(truth, data=10))
    row = claim("data", 30, step_ms=50, name="validation")
    assert judged(check, row, facts) == "false"
    facts.beside["validation"] = run(truth, known(truth, step_ms=50, data=30))
    assert judged(check, row, facts) == "true"
    assert judged(check, claim("data", 30, step_ms=50), facts) == "false"
    assert check.first_verdict([row, claim("data", 10)], facts) == ""
    facts.beside["validation"] = run(truth, known(truth, step_ms=50, link=45))
    assert "link is 45.0%" in check.first_verdict([claim("data", 10), row], facts)


def test_steps_that_were_not_seen_are_missed_all_the_same(check: ModuleType, truth: ModuleType) -> None:
    row = claim("no_steps", 0, section="headline", items_count=0)
    unseen = truth.Truth({}, 1, steps={"train": (40, 0.0)})
    assert judged(check, row, unseen) == "false"
    assert check.first_verdict([row], unseen) == "no verdict"
    assert judged(check, row, truth.Truth({})) == "true"
    assert check.first_verdict([row], truth.Truth({})) == ""


def test_ranks_alternate_only_where_each_waits_about_as_long(check: ModuleType, truth: ModuleType) -> None:
    a, b = known(truth, late=36), known(truth, 1, late=30)
    a.late_ns, b.late_ns = {1: 36 * MS}, {0: 30 * MS}
    row = claim("late", 30, rank=1, ranks="1", cause_rank=-1, cause_kind="alternates")
    assert judged(check, row, run(truth, a, b)) == "true"
    b.late_ns, b.columns["late"] = {0: 6 * MS}, truth.Amount.of(6 * MS)
    assert (
        judged(check, row | {"stall_ns": 6 * MS, "share_ratio": 0.06, "least_ns": 6 * MS}, run(truth, a, b)) == "false"
    )


def test_of_two_ranks_that_wait_by_chance_the_one_that_is_named_waits_longer(
    check: ModuleType, truth: ModuleType
) -> None:
    a, b = known(truth, late=6), known(truth, 1, late=36)
    a.late_ns, b.late_ns = {1: 6 * MS}, {0: 36 * MS}
    row = claim("late", 36, rank=1, ranks="1", cause_rank=-1, cause_kind="chance")
    assert judged(check, row, run(truth, a, b)) == "true"
    assert (
        judged(
            check,
            row | {"rank": 0, "ranks": "0", "stall_ns": 6 * MS, "share_ratio": 0.06, "least_ns": 6 * MS},
            run(truth, a, b),
        )
        == "false"
    )


def test_waiting_for_a_cpu_is_judged_by_the_thread_itself(check: ModuleType, truth: ModuleType) -> None:
    a, b = known(truth), known(truth, 1)
    a.waited_for_cpu_ns, b.waited_for_cpu_ns = 30 * MS, 10 * MS
    row = claim("contention", 30, section="machine", ranks="0,1", items_count=2)
    assert judged(check, row, run(truth, a, b)) == "true"
    assert judged(check, row | {"share_ratio": 0.4}, run(truth, a, b)) == "false"
    b.waited_for_cpu_ns = 0.0
    assert judged(check, row, run(truth, a, b)) == "false"


def test_lost_records_are_those_of_the_case(check: ModuleType, truth: ModuleType) -> None:
    row = claim("lost_records", 0, section="trust", items_count=0)
    assert judged(check, row, run(truth, known(truth))) == "true"
    assert judged(check, row | {"items_count": 3}, run(truth, known(truth))) == "false"
    assert judged(check, row | {"items_count": 3}, run(truth, known(truth)), lost=True) == "true"


def _row(kind: str, **more: Any) -> dict[str, Any]:
    return claim(kind, 0, **({"section": "machine"} | more))


@pytest.mark.parametrize(
    ("kind", "rows", "result"),
    [
        ("measured", ["files", "data", "link, late"], "true"),
        ("measured", ["files", "data"], "false"),
        ("measured", ["files", "data", "link, late", "GPU by kernels"], "false"),
        ("inferred", ["begin of gloo's transfers"], "true"),
        ("inferred", [], "false"),
        ("invisible", ["GPU (no driver)"], "true"),
        ("invisible", ["GPU (no driver)", "MPI calls"], "false"),
        ("invisible", [], "false"),
    ],
)
def test_what_was_to_be_seen_is_named(
    check: ModuleType, truth: ModuleType, kind: str, rows: list[str], result: str
) -> None:
    facts = run(truth, known(truth, 0, data=5), known(truth, 1, data=5), ours=True)
    assert judged(check, _row(kind, section="trust"), facts, [evidence("source", name=name) for name in rows]) == result


@pytest.mark.parametrize(
    ("reported", "expected", "result"),
    [
        ([(0, 1, "SIGKILL")], {(0, 1, "SIGKILL")}, "true"),
        ([(0, 0, "SIGKILL")], {(0, 1, "SIGKILL")}, "false"),
        ([(0, 1, "SIGSEGV")], {(0, 1, "SIGKILL")}, "false"),
        ([(0, 1, "SIGKILL")], set(), "false"),
    ],
)
def test_who_was_killed(check: ModuleType, truth: ModuleType, reported: Any, expected: Any, result: str) -> None:
    rows = [evidence("killed", rank=rank, worker_id=worker, name=name) for rank, worker, name in reported]
    facts = run(truth, known(truth), ours=True)
    assert judged(check, _row("killed"), facts, rows, killed=frozenset(expected)) == result


@pytest.mark.parametrize(("code", "result"), [("3", "true"), ("1", "false")])
def test_how_a_job_ended(check: ModuleType, truth: ModuleType, code: str, result: str) -> None:
    facts = run(truth, known(truth), ours=True)
    assert judged(check, _row("ended_with_code", name=code), facts, ending="ended_with_code 3") == result
    (unsaid,) = check.check([], [], facts, check.Expected(ending="ended_with_code 3"))
    assert unsaid.result == "false"


def test_what_did_not_happen_is_false(check: ModuleType, truth: ModuleType) -> None:
    facts = run(truth, known(truth), ours=True)
    for row in (_row("hung"), _row("outlived"), _row("torch_step", section="loss", name="dropped"), _row("no_files")):
        assert judged(check, row, facts) == "false"
    assert check.check([_row("own_cost", section="trust")], [], facts, check.Expected()) == []


@pytest.mark.parametrize(("said_ms", "result"), [(20, "true"), (26, "true"), (30, "false"), (5, "false")])
def test_loading_that_is_hidden(check: ModuleType, truth: ModuleType, said_ms: float, result: str) -> None:
    rank = known(truth)
    rank.loading_ns = 20 * MS
    rows = [evidence("hidden", kind="loading", amount_ns=said_ms * MS)]
    assert judged(check, _row("hidden", section="beside"), run(truth, rank, ours=True), rows) == result


@pytest.mark.parametrize(("calls", "moved", "result"), [(84, 4096, "true"), (70, 4096, "false"), (84, 1000, "false")])
def test_files_of_a_job_without_steps(
    check: ModuleType, truth: ModuleType, calls: int, moved: int, result: str
) -> None:
    facts = truth.Truth({}, 1, files={"/d/large": (82, 4096)}, ours=True)
    rows = [
        evidence("io_calls", items_count=100, moved_bytes=moved),
        evidence("file_calls", name="/d/large", items_count=calls),
    ]
    assert judged(check, _row("files", section="files"), facts, rows) == result


def test_a_transfer_that_one_rank_leaves_later_counts_for_the_next_wait(truth: ModuleType, tmp_path: Path) -> None:
    """Rank 0 leaves the first collective 10 ms after rank 1 and comes 10 ms later to the second."""
    laps = {0: [(10, 30), (50, 55)], 1: [(10, 20), (40, 55)]}
    for rank, own in laps.items():
        rows = [
            {
                "begin_ns": n * 35 * MS,
                "end_ns": (n + 1) * 35 * MS,
                "laps": [["collective", int(begin * MS), int(end * MS), 0]],
            }
            for n, (begin, end) in enumerate(own)
        ]
        (tmp_path / f"rank-{rank}.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    found = truth.of_clock(tmp_path, {rank: [(0, 70 * MS)] for rank in laps})
    (late,) = [w for w in found.waits if w.rank == 1 and w.for_rank == 0 and w.moment_ns == 40 * MS]
    assert late.surplus["link"] == 10 * MS
