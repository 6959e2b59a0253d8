"""The sentence about the critical path: what it names is true of the rows that it is made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stashtrace.analysis.graph.critical_path_tables import CRITICAL_PATH, CriticalPath
from stashtrace.replay.whatif_text import critical_lines, critical_sentence
from stashtrace.schema.table import Table

#: Rank, kind, name, length; then the rival if there is one.
Stretch = tuple[int, str, str, int] | tuple[int, str, str, int, tuple[int, str]]


def path_of(steps: Sequence[Sequence[Stretch]]) -> CriticalPath:
    """A path of these stretches, every step of which counts."""
    rows: list[tuple[object, ...]] = []
    now = 0
    for step, stretches in enumerate(steps):
        for stretch in stretches:
            rank, kind, name, length = stretch[:4]
            rival = stretch[4] if len(stretch) > 4 else (-1, "")
            resource = "transfer" if rank < 0 else "" if name == "gap" else "step_thread"
            doubt = int(len(stretch) > 4)
            rows.append(
                (len(rows), step, rank, resource, kind, name, now, now + length, length, 0, doubt, *rival, doubt - 1)
            )
            now += length
    return CriticalPath(Table.from_rows(CRITICAL_PATH, rows), np.arange(len(steps)))


def test_largest_stretches_in_the_order_of_the_path() -> None:
    step: list[Stretch] = [
        (3, "prep", "worker 0", 41),
        (3, "compute", "forward", 6),
        (3, "compute", "backward", 10),
        (-1, "network", "all_reduce 0", 22),
        (0, "compute", "optimizer", 5),
        (0, "other", "gap", 9),
        (0, "other", "sleep", 7),
    ]
    assert critical_sentence(path_of([step] * 4)) == (
        "critical path: 41 % rank 3 data: prep -> 16 % rank 3 compute -> 22 % all-reduce 0"
    )
    # Without an order that most steps have it is by size.
    turned = [*step[3:], *step[:3]]
    assert critical_sentence(path_of([step, step, turned, turned])) == (
        "critical path: 41 % rank 3 data: prep, 22 % all-reduce 0, 16 % rank 3 compute"
    )
    assert " -> " in critical_sentence(path_of([step, step, step, turned]))


def test_an_order_needs_all_of_them_in_most_steps() -> None:
    one: list[Stretch] = [(0, "compute", "forward", 60), (-1, "network", "all_reduce 0", 40)]
    other: list[Stretch] = [(0, "compute", "forward", 100)]
    assert (
        critical_sentence(path_of([one, one, one, other])) == "critical path: 70 % rank 0 compute -> 30 % all-reduce 0"
    )
    assert critical_sentence(path_of([one, other, other])) == "critical path: 87 % rank 0 compute, 13 % all-reduce 0"


def test_ranks_that_take_turns_are_one() -> None:
    steps: list[list[Stretch]] = [
        [(rank, "compute", "forward", 90), (-1, "interconnect", f"all_reduce {rank}", 10)] for rank in range(4)
    ]
    assert critical_sentence(path_of(steps)) == ("critical path: 90 % compute of 4 ranks in turn -> 10 % link: in-host")


def test_a_sleep_is_distinguished_from_what_nothing_explains() -> None:
    step: list[Stretch] = [(0, "other", "gap", 70), (0, "other", "sleep", 30)]
    assert critical_sentence(path_of([step])) == "critical path: 70 % rank 0 unexplained -> 30 % rank 0 other"


def test_no_small_share_is_named() -> None:
    step: list[Stretch] = [(0, "compute", "forward", 995), (-1, "network", "all_reduce 0", 5)]
    assert critical_sentence(path_of([step])) == "critical path: 100 % rank 0 compute"


@pytest.mark.parametrize(
    ("rivals", "reported"),
    [
        ([(1, "compute"), (1, "compute")], "rank 1 compute"),
        ([(1, "compute"), (2, "prep")], "mostly rank 1 compute"),
        ([(-1, "network"), (-1, "network")], "link: network"),
    ],
)
def test_what_the_clocks_cannot_decide_is_said(rivals: list[tuple[int, str]], reported: str) -> None:
    step: list[Stretch] = [
        (0, "compute", "forward", 25, rivals[0]),
        (0, "compute", "backward", 15, rivals[1]),
        (-1, "network", "all_reduce 0", 60),
    ]
    path = path_of([step, step])
    assert critical_sentence(path) == (
        f"critical path: 40 % rank 0 compute -> 60 % all-reduce 0; for 40 % of it another path is"
        f" as long within the clocks' error: {reported}"
    )
    assert max(map(len, critical_lines(path))) < 80


def test_of_no_step_nothing_is_said() -> None:
    path = CriticalPath(Table.empty(CRITICAL_PATH), np.arange(3))
    assert critical_lines(path) == []
