"""Blocks of an answer: made once, and whole on a terminal, as HTML and as Markdown."""

from __future__ import annotations

import pytest

from stashtrace.report.blocks import (
    Bar,
    Bars,
    Block,
    Code,
    Command,
    Facts,
    Fold,
    Listing,
    Paragraph,
    Part,
    Picture,
    Table,
    html_of,
    markdown_of,
    page_of,
    text_lines,
)

NASTY = "a|b <c> `d"
TABLE = Table("times", ("name", "time", "never"), [("x", ("1.5 ms", 1500), ""), (NASTY, "2 ms", "-")], (0,), note="all")


def test_one_table_in_three_ways() -> None:
    assert text_lines([TABLE]) == [
        "times",
        "  name          time",
        "  x           1.5 ms",
        "  a|b <c> `d    2 ms",
        "  all",
    ]
    (made,) = html_of([TABLE])
    assert '<td class="n" data-key="1500">1.5 ms</td>' in made
    assert "a|b &lt;c&gt; `d" in made
    assert "never" not in made, "a column in which no row says anything"
    head, rule, *rows = markdown_of([TABLE]).split("\n\n")[1].splitlines()
    assert (head, rule) == ("| name | time |", "|---|---:|")
    assert rows[1] == "| a\\|b &lt;c&gt; \\`d | 2 ms |"


@pytest.mark.parametrize(
    "block",
    [
        Table("times", ("name",), []),
        Listing([], "nothing"),
        Picture(""),
        Fold("more", [None, Listing([])]),
        Part("p", "Part", [Listing([])]),
        Bars([]),
        Facts([]),
    ],
    ids=lambda block: type(block).__name__,
)
def test_what_holds_nothing_shows_nothing(block: Block) -> None:
    assert text_lines([block]) == []
    assert html_of([block]) == []
    assert markdown_of([block]) == ""


def test_sentences_below_a_claim() -> None:
    claim = Listing([("use `lr=2`", ["why", ""])], "because", "claim")
    assert text_lines([claim], 40) == ["because:", "  ▶ use `lr=2`", "      why"]
    assert markdown_of([claim]) == "because:\n\n- **use `lr=2`**\n  - why"
    assert '<p class="claim">use <code>lr=2</code></p><ul><li>why</li></ul>' in html_of([claim])[0]


def test_a_picture_has_words_where_nothing_is_drawn() -> None:
    picture = Picture("<svg></svg>", [Paragraph("a rises")])
    assert (text_lines([picture]), html_of([picture]), markdown_of([picture])) == (
        ["a rises"],
        ["<svg></svg>"],
        "a rises",
    )
    bars = Bars([Bar("one", [("compute", 0.5, "50 %"), ("data", 0.0, "0 %")]), Bar("two", [("compute", 1.0, "100 %")])])
    assert "| two | 100 % | - |" in markdown_of([bars])
    assert html_of([bars])[0].count('class="k-compute"') == 4, "a bar and its key, twice"


def test_folds_that_follow_each_other_stand_in_one_line() -> None:
    folds = [Fold(name, [Paragraph("x")]) for name in "abc"]
    first, middle, last = html_of([*folds[:2], Paragraph("y"), folds[2]])
    assert first.count("<details>") == 2
    assert (first.startswith('<div class="folds">'), middle, last.startswith("<details>")) == (True, "<p>y</p>", True)


def test_how_something_is_known_is_no_separate_part() -> None:
    fold = Fold("How do you know?", [Paragraph("x")])
    assert markdown_of([Part("p", "Part", [Picture("<svg></svg>"), fold])]) == ""
    assert markdown_of([Part("p", "Part", [Paragraph("y"), fold])]).startswith("### Part\n\ny\n\n<details>")
    # What stands in an element of HTML is no Markdown.
    assert "<summary>a_b &lt;c&gt;</summary>" in markdown_of([Fold("a_b <c>", [Paragraph("x")])])


def test_commands_stay_whole() -> None:
    command = "stashtrace run --staged " + "x" * 90
    assert text_lines([Facts([("use", Command(command))])], 40) == [f"  use          {command}"]
    assert markdown_of([Code("", ["a  b"])]) == "```\na  b\n```"
    assert text_lines([Code("do", ["a  b"])]) == ["do:", "  a  b"]
    assert markdown_of([Code("do", ["echo ```"])]) == "do:\n\n````\necho ```\n````"


def test_a_page_has_parts_below_all_else() -> None:
    made = page_of("T", [Part("p", "Part", [Paragraph("inside")]), Paragraph("above"), None], Paragraph("made by"))
    above, _, below = made.partition('<main id="main">')
    assert "above" in above
    assert "inside" in below
    assert "<footer><p>made by</p></footer>" in below
