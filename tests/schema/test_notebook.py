"""What a notebook shows of tables, traces and sentences: small, escaped, with units."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import ANALYSES, analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.events import COUNTERS, TABLES
from stashtrace.schema.notebook import Words
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e\"'&\n"
#: What a page could run, load, or change outside the element.
_ACTIVE = re.compile(r"<(script|style|link|img|iframe|a)\b|\bon\w+=|javascript:|url\(|@import|https?:", re.IGNORECASE)


def parsed(html: str) -> ElementTree.Element:
    """The element, which must be whole, and do nothing."""
    assert not _ACTIVE.search(re.sub(r">[^<]*<", "><", html))
    return ElementTree.fromstring(html)


def texts(element: ElementTree.Element, tag: str) -> list[str]:
    return ["".join(found.itertext()) for found in element.iter(tag)]


def test_first_rows_and_how_many_more() -> None:
    own = np.arange(1_234_567)
    html = Table(COUNTERS, {"ts_ns": own * 1000, "track_id": own, "value": own / 3})._repr_html_()
    element = parsed(html)
    assert len(html) < 8000
    assert "".join(element.itertext()).endswith("1,234,557 more rows")
    assert "1,234,567 rows" in html
    assert texts(element, "td")[:6] == ["0", "0", "0", "1,000", "1", "0.333333"]
    assert len(texts(element, "tr")) == 1 + 10


def test_heads_have_units_and_meanings() -> None:
    element = parsed(Table.from_rows(COUNTERS, [(1, 2, 0.5)])._repr_html_())
    heads = {next(iter(head.itertext())): head for head in element.iter("th")}
    assert list(heads) == ["ts_ns", "track_id", "value"]
    assert "".join(heads["ts_ns"].itertext()) == "ts_nsns"
    assert heads["track_id"].attrib["title"] == "tracks.track_id"
    assert "text-align:right" in heads["value"].attrib["style"]
    assert "more row" not in "".join(element.itertext())


@pytest.mark.parametrize("count", [0, 1])
def test_small_tables(count: int) -> None:
    element = parsed(Table.from_rows(COUNTERS, [(1, 2, 0.5)] * count)._repr_html_())
    words = "".join(element.itertext())
    assert f"{count} row{'s' * (count != 1)}. " in words
    assert len(texts(element, "table")) == count


def test_names_of_strangers_are_text() -> None:
    odd = schema("odd", HOSTILE, Column("name", "U200", HOSTILE, HOSTILE), Column(HOSTILE, "i8", "", ""))
    element = parsed(Table(odd, {"name": [HOSTILE], HOSTILE: [1]})._repr_html_())
    shown = HOSTILE.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e").replace("\n", "\\u000a")
    assert shown in texts(element, "th")[0]
    assert texts(element, "td")[0][:20] == shown[:20]
    trace = Trace(StringPool(), {}, path=HOSTILE)
    assert shown in "".join(parsed(trace._repr_html_()).itertext())
    assert texts(ElementTree.fromstring(Words(HOSTILE)._repr_html_()), "pre") == [shown[:-6] + "\n"]


def test_a_long_text_is_cut_and_many_columns_are_named() -> None:
    wide = schema("wide", "x", *(Column(f"c{number}", "U500", "", "") for number in range(30)))
    element = parsed(Table(wide, {name: ["a" * 500] for name in wide.names})._repr_html_())
    assert max(map(len, texts(element, "td"))) == 60
    assert len(texts(element, "th")) == 20
    assert "".join(element.itertext()).endswith("columns not shown: " + ", ".join(wide.names[20:]))


def two_ranks() -> Trace:
    build = TraceBuilder()
    for rank in (0, 1):
        build.rank(rank).phase("forward", 0, MS).phase("backward", MS, 2 * MS).phase("optimizer", 2 * MS, 3 * MS)
        build.rank(rank).io(0, MS, path="/d/a")
    return build.trace(path="./first")


def test_a_trace_shows_its_tables_and_computes_nothing() -> None:
    trace = two_ranks()
    element = parsed(trace._repr_html_())
    assert "./first: 2 ranks (0,1)" in "".join(element.itertext())
    rows = [[*row] for row in element.iter("tr")][1:]
    shown = {"".join(name.itertext()): "".join(count.itertext()) for name, count, _ in rows}
    assert shown["phases"] == "6"
    assert shown["io"] == "2"
    assert "kernels" not in shown
    assert trace.kept == {}
    assert "no rows" in Trace(StringPool(), {})._repr_html_()


def test_every_table_and_answer_is_shown() -> None:
    trace = two_ranks()
    for name in TABLES:
        parsed(trace.table(name)._repr_html_())
    for name, _, _ in ANALYSES:
        try:
            parsed(analyze(trace, name)._repr_html_())
        except MissingDataError:
            continue


def test_the_summary_is_shown_as_lines() -> None:
    from stashtrace.replay.causes import summary

    words = two_ranks().summary()
    assert words == summary(two_ranks())
    assert repr(words) == str(words)
    assert "\nstashtrace  2 ranks, " in words
    assert "\n  ▶ compute bound: " in words
    assert texts(parsed(words._repr_html_()), "pre") == [str(words)]
