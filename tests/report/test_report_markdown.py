"""The report as Markdown: what a pull request shows, with names that stay text."""

from __future__ import annotations

import re

import pytest
from builders import MS, TraceBuilder
from summary.scenes import job
from test_report_flames import late_job

from stashtrace.report.blocks import said
from stashtrace.report.document import report_facts
from stashtrace.report.page.page import markdown
from stashtrace.report.page.page_words import claims_of, finding_how
from stashtrace.text.visible import markdown_code, markdown_text


@pytest.fixture(scope="module")
def made() -> str:
    return markdown(report_facts(job(ranks=3, prep={0: 13}, fetch={0: 44})[1], ["./stash-0412"]))


def test_the_verdict_is_first_and_the_parts_follow(made: str) -> None:
    said = "the workers of rank 0 prepare batches 53.0 ms a step longer than the others"
    assert made.startswith("## Where the time of run `./stash-0412` went\n\n3 ranks on 1 host")
    assert made.count(said) == 1, "the headline is the first cause"
    assert re.search(r"\n  - Without it: may save \d\.\d+ ms a step", made)
    assert made.index("- **the workers of rank 0") < made.index("### Where the time of a step goes")
    assert re.findall(r"^### (.*)$", made, re.M) == [
        "What slows it down",
        "Where the time of a step goes",
        "How long each step takes",
        "The costliest waits",
        "Slow steps",
        "Links",
        "What was lost, and own cost",
        "Machine, versions and command",
    ]


def test_the_rows_of_the_budget_add_up_to_a_hundred(made: str) -> None:
    part = made.partition("### Where the time of a step goes")[2].partition("<details>")[0]
    rows = [line for line in part.splitlines() if line.startswith("| rank")]
    shown = [re.findall(r"([\d.]+) %", row) for row in rows]
    assert shown
    for shares in shown:
        assert sum(map(float, shares)) == pytest.approx(100.0)


def test_every_table_has_as_many_cells_in_each_line(made: str) -> None:
    for block in made.split("\n\n"):
        if block.startswith("|"):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_what_is_folded_in_is_closed_again(made: str) -> None:
    assert made.count("<details>") == made.count("</details>") > 2
    assert "How do you know?" in made


def test_commands_show_the_waits(made: str) -> None:
    assert re.search(r"`stashtrace view ./stash-0412 --window [\d.]+:[\d.]+ --ranks 0-2`", made)


def test_the_command_of_the_bounds_names_the_run(made: str) -> None:
    assert "`stashtrace analyze stalls ./stash-0412`" in made


def test_commands_about_parts_of_a_job_say_what_run_stands_for() -> None:
    made = markdown(report_facts(job(ranks=3, prep={0: 13})[1], ["node0", "node1"]))
    assert "`stashtrace view RUN" in made
    assert "\n\nRUN stands for all parts: node0 node1" in made


def test_only_of_several_ranks_one_is_hit_hardest() -> None:
    one, several = (
        " ".join(" ".join(finding_how(each, facts["budget"]["steps_counts"])) for each in claims_of(facts, "verdict"))
        for facts in (
            report_facts(job(ranks=1, prep={0: 13})[1], ["./x"]),
            report_facts(job(ranks=2, prep={0: 13, 1: 14})[1], ["./x"]),
        )
    )
    assert "counted steps on rank 0 (" in one
    assert "most affected" not in one
    assert "on rank 1, the most affected (" in several


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a|b", "a\\|b"),
        ("<img src=x>", "&lt;img src=x&gt;"),
        ("@someone #1", "@&#8203;someone #&#8203;1"),
        ("cost $x and $y", "cost <span>$</span>x and <span>$</span>y"),
        ("see https://evil.example or WWW.evil.example", "see https:&#8203;//evil.example or WWW&#8203;.evil.example"),
        ("[a](b) *c* _d_ `e`", "\\[a\\](b) \\*c\\* \\_d\\_ \\`e\\`"),
        ("line\nbreak\u202e", "line\\\\u000abreak\\\\u202e"),
    ],
)
def test_names_stay_text(name: str, shown: str) -> None:
    assert markdown_text(name) == shown


def test_commands_in_sentences_are_code() -> None:
    assert said("see `stashtrace info` of a_b") == "see `stashtrace info` of a\\_b"
    assert said("a ` alone") == "a \\` alone"


def test_what_puts_all_figures_in_doubt_stands_at_the_head(made: str) -> None:
    facts = report_facts(job(ranks=3, prep={0: 13})[1], ["./x"])
    doubted = markdown({**facts, "warnings": ["LOW CONFIDENCE: 12 % unexplained"]})
    assert "\n\n**LOW CONFIDENCE: 12 % unexplained.**\n\n### What slows it down\n\n- **" in doubted
    assert "LOW CONFIDENCE" not in made


def test_evidence_stands_below_its_finding() -> None:
    facts = report_facts(job(ranks=3, prep={0: 13})[1], ["./x"])
    facts["findings"] = [
        {**each, "section": "machine", "text": "files first", "evidence_text": ["one", "two"]}
        for each in facts["findings"][:1]
    ]
    assert "files first\n\n- one\n- two" in markdown(facts)


def test_code_with_backticks_has_a_longer_fence() -> None:
    assert markdown_code("a `b` ``c``") == "``` a `b` ``c`` ```"


def test_a_run_without_steps_says_why_there_is_no_budget() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, 5 * MS, path="/data/a|b")
    made = markdown(report_facts(build.trace("./x")))
    assert "No rank has a step, so there is no budget to show. Run with the collectors torch\\_step" in made
    assert "/data/a\\|b" in made
    assert "###" in made
    assert "## Where the time" not in made.replace("###", "")


def test_the_costliest_lines_stand_in_place_of_flame_graphs() -> None:
    made = markdown(report_facts(late_job(loads=True), ["./x"]))
    part = made.partition("### Which of your functions it goes to\n\n")[2].partition("\n\n### ")[0]
    table, longer, _, reported = part.split("\n\n")[:4]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert ["hook (late.py:11)", "other (blocked or asleep)", "6.67 ms a step", "6.67 ms", "7 %"] in rows
    made = "data: prep (batches are being made)"
    assert ["Images.\\_\\_getitem\\_\\_ (data.py:7)", made] in [row[:2] for row in rows]
    assert longer.startswith("- rank 1 spends 20.0 ms (")
    assert longer.endswith(" a step longer in `hook (late.py:11)` than the others")
    assert "`stashtrace analyze lines ./x`" in reported


def test_without_stacks_no_lines_are_shown(made: str) -> None:
    assert "Which of your functions" not in made
