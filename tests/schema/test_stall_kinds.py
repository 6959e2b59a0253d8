"""The one table of the kinds of time, and the words that options and pages have for them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest

from stashtrace.analysis.stragglers.surplus import GROUPS
from stashtrace.errors import UsageError
from stashtrace.replay.changes import Change
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import (
    COLUMN_LABELS,
    COLUMNS,
    KIND_NAMES,
    STALL_KINDS,
    hint_for,
    kinds_of_word,
    nearest_word,
)

ROOT = Path(__file__).resolve().parents[2]


def test_each_kind_is_in_one_column() -> None:
    assert sorted(kind.code for kind in STALL_KINDS) == sorted(StallKind)
    assert sorted(name for kinds in COLUMNS.values() for name in kinds) == sorted(KIND_NAMES)
    assert all(COLUMNS.values())
    assert COLUMNS.keys() == COLUMN_LABELS.keys()
    # A word that were a column and a kind of another one would have two meanings.
    assert all(name in kinds for name, kinds in COLUMNS.items() if name in KIND_NAMES)
    assert sorted(kind for kinds in GROUPS.values() for kind in kinds if kind in KIND_NAMES) == sorted(KIND_NAMES)


def test_words_stand_for_kinds() -> None:
    assert kinds_of_word("data") == ("fetch", "prep", "handoff")
    assert kinds_of_word("late") == ("straggler",)
    assert kinds_of_word("prep") == ("prep",)
    assert kinds_of_word("loader") == kinds_of_word("step") == ()


@pytest.mark.parametrize(
    ("word", "meant"),
    [("loader", "data"), ("nccl", "link"), ("ckpt", "save"), ("Disk", "fetch"), ("straglers", "straggler"), ("x", "")],
)
def test_an_unknown_word_is_answered_with_the_right_one(word: str, meant: str) -> None:
    assert nearest_word(word, [*COLUMNS, *KIND_NAMES]) == meant


def test_the_hint_lists_every_word() -> None:
    hint = hint_for("loader", more=["step"])
    assert hint.startswith("did you mean 'data' (fetch + prep + handoff)? Choose from step; ")
    assert set(re.findall(r"\w+", hint.partition("? ")[2])) >= {"step", *COLUMNS, *KIND_NAMES}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("data=x0.5", ["fetch=x0.5", "prep=x0.5"]),
        ("data=0", ["fetch=0", "prep=0"]),
        ("late=0", ["straggler=0"]),
        ("copy=5ms", ["h2d=5ms"]),
        ("save=0", ["checkpoint=0"]),
        ("host=x0.5", ["launch=x0.5", "python=x0.5"]),
        ("link.bandwidth=x2", ["network.bandwidth=x2", "interconnect.bandwidth=x2"]),
        ("compute=x0.5", ["compute=x0.5"]),
        ("prep=5ms", ["prep=5ms"]),
        ("workers=8", ["workers=8"]),
    ],
)
def test_a_column_changes_all_its_kinds(text: str, changes: list[str]) -> None:
    assert [str(change) for change in Change.parse_all(text)] == changes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("loader=0", "did you mean 'data' (fetch + prep + handoff)?"),
        ("handoff=0", "of data, fetch and prep can be changed: data=x0.5 changes them together"),
        ("link=x2", "of a link: link.bandwidth or link.latency"),
        ("network=x2", "of a link: network.bandwidth or network.latency"),
        ("data=5ms", "data=x0.5, or a time for one of them: fetch=5ms"),
        ("worker=2", "did you mean 'workers'?"),
    ],
)
def test_what_cannot_be_changed_says_what_can(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Change.parse_all(text)
    assert caught.value.hint == hint


def table_of(page: str) -> list[tuple[str, list[str]]]:
    """(column, kinds) of each row of the page's table of columns."""
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", (ROOT / page).read_text(encoding="utf-8"), re.M)
    return [(column, re.findall(r"`(\w+)`", kinds)) for column, kinds in rows]


@pytest.mark.parametrize("page", ["docs/concepts/stalls.md", "docs/glossary.md"])
def test_pages_have_the_same_table(page: str) -> None:
    assert table_of(page) == [(column, list(kinds)) for column, kinds in COLUMNS.items()]
