"""Sentences of advice say what their rows say, with all conditions; every code has words and a place in the guide."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import MS

from stashtrace.replay.advice import Advice, named_advice
from stashtrace.replay.advice.advice_table import OVERLAP_ADVICE
from stashtrace.replay.advice.advice_text import LIMITS, SWITCHES, advice_lines, advice_row, advice_text
from stashtrace.schema.table import Table

ROOT = Path(__file__).resolve().parents[2]
ADVICE = ROOT / "stashtrace" / "replay" / "advice"
GUIDE = (ROOT / "docs" / "guides" / "overlap.md").read_text(encoding="utf-8")

SPLIT = Advice(
    "split_reorder",
    "sharded_optimizer",
    "default_pg",
    "all_reduce",
    "update",
    4,
    (80_000_000,),
    80e6,
    100 * MS,
    -1.0,
    50 * MS,
    50 * MS,
    70 * MS,
    75 * MS,
    0.25,
    8,
    False,
    ("halves_unmeasured",),
)


def row(**changed: object) -> tuple[object, ...]:
    values = {
        "transformation": "split_reorder",
        "communicator": "a",
        "op": "all_reduce",
        "position": "backward",
        "message_bytes": 8 << 20,
        "elements_count": 2 << 20,
        "ranks_count": 2,
        "calls_count": 2.0,
        "work": "update",
        "work_ns": 10,
        "gap_ns": 1,
        "transfer_ns": 20,
        "exposed_ns": 5,
        "chunks_count": 0,
        "contention_ratio": -1.0,
        "saving_low_ns": 3,
        "saving_high_ns": 4,
        "share_ratio": 0.03,
        "validity": "estimate",
        "limits": "",
        "switch": "sharded_optimizer",
    }
    return tuple((values | changed)[name] for name in OVERLAP_ADVICE.names)


def named(*rows: tuple[object, ...]) -> list[Advice]:
    return named_advice(Table.from_rows(OVERLAP_ADVICE, rows))


def test_rows_of_one_remedy_are_one_sentence() -> None:
    (found,) = named(
        row(), row(message_bytes=1 << 20, calls_count=1.0, limits="gather_exposed", validity="bound", gap_ns=-1)
    )
    assert found.moved_bytes == 17 << 20
    assert (found.work_ns, found.saving_low_ns, found.saving_high_ns) == (20, 6, 8)
    assert found.share_ratio == pytest.approx(0.06)
    assert (found.gap_ns, found.is_bound, found.limits) == (-1, True, ("gather_exposed",))


def test_of_several_communicators_the_largest_is_named() -> None:
    (found,) = named(row(), row(communicator="b", saving_high_ns=9), row(communicator="c"))
    assert (found.communicator, found.saving_high_ns) == ("b", 9)


@pytest.mark.parametrize(
    "changed",
    [
        {"share_ratio": 0.019},
        {"saving_low_ns": -1},
        {"validity": "none", "limits": "too_small"},
        {"switch": "fused_collective", "transformation": "fuse"},
    ],
)
def test_what_is_not_worth_a_sentence(changed: dict[str, object]) -> None:
    assert named(row(**changed)) == []


def test_no_more_than_three() -> None:
    rows = [
        row(transformation="overlap", switch=switch, saving_high_ns=ns)
        for ns, switch in enumerate(
            ("smaller_buckets", "ddp_overlap", "async_tensor_parallel", "fsdp_smaller_units"), 4
        )
    ]
    assert [a.saving_high_ns for a in named(*rows)] == [7, 6, 5]


def test_an_estimate_is_a_range_with_its_condition() -> None:
    text = advice_text(SPLIT)
    assert text == (
        "on the recorded ranks the update after all-reduces of 80.0 MB a step takes 100 ms; instead, a"
        " reduce-scatter, the update of one of 4 slices and an all-gather would save 70.0 ms to 75.0 ms a"
        " step (up to 25 %); if a reduce-scatter and an all-gather together take as long as the all-reduce. Switch:"
        " fully_shard, DeepSpeed's ZeRO stage 1, Megatron's distributed optimizer"
    )
    assert "70.0 ms a step (25 %)" in advice_text(replace(SPLIT, saving_high_ns=70 * MS))


def test_a_bound_says_up_to() -> None:
    assert "would save up to 75.0 ms a step (25 %)" in advice_text(replace(SPLIT, is_bound=True, saving_low_ns=0))
    assert "at least 70.0 ms and up to 75.0 ms" in advice_text(replace(SPLIT, is_bound=True))


def test_a_fused_update_never_takes_nothing() -> None:
    fuse = replace(SPLIT, transformation="fuse", switch="fused_optimizer", limits=("size_between",), gap_ns=5 * MS)
    for bound in (True, False):
        text = advice_text(replace(fuse, is_bound=bound, saving_high_ns=105 * MS))
        assert "takes 100 ms and leaves gaps of 5.00 ms between its kernels;" in text
        assert "would save less than 105 ms a step (25 %). Switch" in text
    assert "gaps" not in advice_text(replace(fuse, gap_ns=-1.0))


def test_times_of_one_rank_and_savings_of_another_are_distinguished() -> None:
    """Times are the median rank's, savings the least and the most of any; where these are equal, nobody has to know."""
    fuse = replace(
        SPLIT, transformation="fuse", switch="fused_optimizer", limits=(), gap_ns=5 * MS, saving_high_ns=120 * MS
    )
    assert "takes 100 ms and leaves gaps of 5.00 ms between its kernels on the median rank; as" in advice_text(fuse)
    assert "would save less than 120 ms a step (25 %), the most of any rank. Switch" in advice_text(fuse)
    overlap = replace(SPLIT, transformation="overlap", work="backward", exposed_ns=40 * MS, is_bound=True, limits=())
    assert "all-reduces of 80.0 MB a step take on the median rank; in" in advice_text(overlap)
    assert "up to 75.0 ms a step (25 %), the most of any rank. Switch" in advice_text(overlap)
    split = replace(SPLIT, saving_high_ns=90 * MS, limits=())
    assert "takes 100 ms on the median rank; instead, a reduce-scatter" in advice_text(split)
    assert "save 70.0 ms to 90.0 ms a step (up to 25 %), the least and the most of any rank. Switch" in advice_text(
        split
    )
    # What a replay allows is not a rank's.
    assert "any rank" not in advice_text(replace(fuse, limits=("pace",)))
    for equal in (SPLIT, replace(fuse, saving_high_ns=105 * MS), replace(overlap, saving_high_ns=40 * MS)):
        assert " rank" not in advice_text(equal).replace("recorded ranks", "")


def test_what_was_exposed_is_said() -> None:
    overlap = replace(
        SPLIT,
        transformation="overlap",
        switch="smaller_buckets",
        work="backward",
        exposed_ns=20 * MS,
        is_bound=True,
        saving_low_ns=0,
        saving_high_ns=15 * MS,
        limits=("peers_unseen",),
    )
    text = advice_text(overlap)
    assert text.startswith("nothing is computed during 20.0 ms of the 50.0 ms that all-reduces of 80.0 MB a step take;")
    assert "not all ranks were recorded" in text
    assert "during the 50.0 ms that" in advice_text(replace(overlap, exposed_ns=50 * MS))
    assert "in 8 chunks during the backward before them they would save up to" in text
    assert "matrix products" in advice_text(replace(overlap, work="gemm"))


def test_lines_fit_a_terminal() -> None:
    lines = advice_lines([SPLIT, SPLIT])
    assert lines[0] == ""
    assert sum(line.startswith("advice: ") for line in lines) == 2
    assert max(map(len, lines)) < 80
    assert advice_lines([]) == []


def test_json_has_the_numbers_and_the_sentence() -> None:
    found = advice_row(SPLIT)
    assert (found["saving_low_ns"], found["saving_high_ns"], found["validity"]) == (70 * MS, 75 * MS, "estimate")
    assert found["limits"] == ["halves_unmeasured"]
    assert found["text"] == advice_text(SPLIT)


def codes_in_the_advice() -> set[str]:
    """Texts with an underscore that the patterns put into rows."""
    tree = ast.parse((ADVICE / "patterns.py").read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    columns = set(OVERLAP_ADVICE.names)
    codes = {t for t in texts if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", t) and not t.endswith(("_ns", "_code"))}
    return codes - columns


def test_every_code_has_words_and_stands_in_the_guide() -> None:
    explained = set(re.findall(r"`([a-z0-9_]+)`", GUIDE))
    fatal = {"no_payload", "too_small", "no_kernels", "sharded"}
    assert set(LIMITS) | set(SWITCHES) | fatal <= explained
    operations = {"all_reduce", "all_gather", "reduce_scatter"}
    transformations = {"split_reorder"}
    assert codes_in_the_advice() - operations - transformations <= set(LIMITS) | set(SWITCHES) | fatal
