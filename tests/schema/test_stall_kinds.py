"""The one table of the kinds of time, and the words that options and pages have for them."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from stashtrace.analysis.stragglers.causes import GROUPS
from stashtrace.errors import UsageError
from stashtrace.replay.changes import Change
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import (
    BUDGET_COLUMNS,
    COLUMN_LABELS,
    COLUMNS,
    KIND_NAMES,
    OPTION_WORDS,
    STALL_KINDS,
    KindOfTime,
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


@pytest.mark.parametrize("kind", STALL_KINDS)
def test_what_people_read_can_be_typed(kind: KindOfTime) -> None:
    for word in (kind.name, kind.words, OPTION_WORDS[kind.name], kind.words.upper()):
        assert kinds_of_word(word) == (kind.name,), word


def hue_of(colour: str) -> float:
    """Hue in degrees, as seen: two colours of one hue differ in lightness alone."""
    linear = [(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in linear)
    cones = (
        0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue,
        0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue,
        0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue,
    )
    long, medium, short = (one ** (1 / 3) for one in cones)
    a = 1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short
    b = 0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short
    return math.degrees(math.atan2(b, a)) % 360


@pytest.mark.parametrize("ground", ["colour", "on_dark"])
def test_a_column_is_one_hue_and_its_kinds_are_shades(ground: str) -> None:
    hues = {
        column: [hue_of(getattr(kind, ground)) for kind in STALL_KINDS if kind.column == column]
        for column in COLUMNS
        if column != "other"  # grey
    }
    assert all(max(own) - min(own) < 8 for own in hues.values()), hues
    middles = sorted(sum(own) / len(own) for own in hues.values())
    assert min(after - before for before, after in pairwise(middles)) > 30
    assert len({getattr(kind, ground) for kind in STALL_KINDS}) == len(STALL_KINDS)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("loader", "data"), ("nccl", "link"), ("ckpt", "save"), ("Disk", "fetch"), ("straglers", "straggler"), ("x", "")],
)
def test_an_unknown_word_is_answered_with_the_right_one(word: str, meant: str) -> None:
    assert nearest_word(word, [*COLUMNS, *KIND_NAMES]) == meant


def test_the_hint_lists_every_word() -> None:
    hint = hint_for("loader", more=["step"])
    assert hint.startswith("did you mean 'data' (storage + prep + hand-off)? Choose from step; ")
    assert set(re.findall(r"\w+", hint.partition("? ")[2])) >= {"step", *COLUMNS, *KIND_NAMES}


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("data=x0.5", ["fetch=x0.5", "prep=x0.5"]),
        ("data=0", ["fetch=0", "prep=0"]),
        ("data: storage=0", ["fetch=0"]),
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
    assert [change.option for change in Change.parse_all(text)] == changes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("loader=0", "did you mean 'data' (storage + prep + hand-off)?"),
        ("handoff=0", "of data, storage and prep can be changed: data=x0.5 changes them together"),
        ("link=x2", "of a link: link.bandwidth or link.latency"),
        ("network=x2", "of a link: network.bandwidth or network.latency"),
        ("data=5ms", "data=x0.5, or a time for one of them: storage=5ms"),
        ("worker=2", "did you mean 'workers'?"),
    ],
)
def test_what_cannot_be_changed_says_what_can(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Change.parse_all(text)
    assert caught.value.hint == hint


def test_the_glossary_has_the_one_table_of_words() -> None:
    expected = []
    for column in BUDGET_COLUMNS:
        kinds = [kind for kind in STALL_KINDS if kind.column == column.name]
        name = kinds[0].name if len(kinds) == 1 else column.name
        expected.append(f"| **{column.name}** | `{name}` | {column.label} |")
        expected += [f"| {kind.words} | `{kind.name}` | {kind.about} |" for kind in kinds if kind.part]
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert "\n".join(["| what you read | id | what it is |", "|---|---|---|", *expected, ""]) in page
