"""The page of a history: what matters first, runs on an axis of dates, tables in words and within the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_up_history import Fleet, fleet_with_three_plants, write_history

from stashtrace.lab.history.answers import answers, history_page
from stashtrace.lab.history.gather import read_history
from stashtrace.lab.history.run_files import Place
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.recommend.instance_catalog import load_catalog

pytest.importorskip("pyarrow")
QUESTIONS = ("fleet", "hosts", "commits", "interference", "costs", "runs")


def page_of(folder: Path, fleet: Fleet, questions: tuple[str, ...] = QUESTIONS) -> str:
    write_history(folder, fleet)
    totals = RunTotals(read_history(Place(str(folder))), load_catalog())
    return history_page(totals, answers(totals, questions, by="job", limit_percent=5.0))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("fleet") / "h", fleet_with_three_plants(1))


def test_the_headline_is_what_matters_most_and_is_said_once(made: str) -> None:
    (headline,) = re.findall(r'<p class="claim">(.*?)</p>', made)
    assert headline.startswith("node07 late in ")
    assert made.count("late in ") == 1 + made.count('data-title="late in runs"') + made.count(">late in runs<")
    assert re.search(r'<p class="soft">60 runs of 2 jobs on 12\shosts from ', made.replace("\u00a0", " "))


def test_without_a_late_host_or_a_slow_commit_the_headline_is_what_most_time_went_to(tmp_path: Path) -> None:
    made = page_of(tmp_path / "h", Fleet(seed=3, runs=12))
    assert re.search(r'<p class="claim">[\w (),-]+: [\d.]+ machine hours \(', made.replace("\u00a0", " "))


def test_runs_stand_on_an_axis_of_dates(made: str) -> None:
    picture = made.partition('<svg class="dates"')[2].partition("</svg>")[0]
    assert picture.count("<circle") == 60
    dates = re.findall(r">(\d{4}-\d\d-\d\d|\d\d-\d\d \d\d:\d\d)</text>", picture)
    assert len(dates) == 5
    assert dates == sorted(dates)
    assert "0303030303" in picture, "the commit that slowed a job is a line"
    places = [float(x) for x in re.findall(r'cx="([\d.]+)%"', picture)]
    assert 0 < min(places) < max(places) < 100


def test_tables_speak_words_and_no_names_of_columns(made: str) -> None:
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', made)
    assert "mean step" in heads
    assert not [head for head in heads if "_" in head]
    assert "straggler" not in made.partition("<body>")[2]


def test_tables_break_their_lines_and_name_their_cells_in_a_narrow_window(made: str) -> None:
    assert made.count("<table") == made.count('<table class="wraps"')
    assert '<td class="short" data-title="machine hours">' in made


def test_one_question_alone_has_a_page(tmp_path: Path) -> None:
    made = page_of(tmp_path / "h", Fleet(seed=3, runs=4), ("hosts",))
    assert "no host is late more often than chance explains" in made
