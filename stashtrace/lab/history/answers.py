"""The questions that a history answers: each with its table and its sentences."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from stashtrace.lab.history import sentences
from stashtrace.lab.history.questions.fleet import BY, costs, fleet_view, run_list
from stashtrace.lab.history.questions.interference import interference
from stashtrace.lab.history.questions.late_hosts import late_hosts
from stashtrace.lab.history.questions.slow_commits import DEFAULT_LIMIT, slow_commits
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.schema.table import Table


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    #: Its word on the command line, and what it asks.
    name: str
    title: str
    table: Table
    sentences: list[str]


#: Question -> its title, its table, its sentences.
_QUESTIONS: dict[str, tuple[str, Callable[[RunTotals], Table], Callable[[Table, RunTotals], list[str]]]] = {
    "fleet": ("the fleet", fleet_view, sentences.fleet_sentences),
    "hosts": ("hosts that are late again and again", late_hosts, sentences.hosts_sentences),
    "commits": ("commits that changed a job's step", slow_commits, sentences.commits_sentences),
    "interference": ("jobs that slowed each other's reads", interference, sentences.interference_sentences),
    "costs": ("what the time went to", costs, sentences.costs_sentences),
    "runs": ("the runs", run_list, sentences.runs_sentences),
}


def answer(totals: RunTotals, name: str, *, by: str = BY[0], limit_percent: float = DEFAULT_LIMIT) -> Answer:
    """Answer one question.

    ``by``: what ``fleet`` groups runs by. ``limit_percent``: growth of the step that ``commits`` allows.
    """
    title, ask, say = _QUESTIONS[name]
    if name == "fleet":
        ask = partial(fleet_view, by=by)
    elif name == "commits":
        ask = partial(slow_commits, limit_percent=limit_percent)
    table = ask(totals)
    return Answer(name, title, table, say(table, totals))


def answers(totals: RunTotals, names: Sequence[str], *, by: str, limit_percent: float) -> list[Answer]:
    """Answer several questions."""
    return [answer(totals, name, by=by, limit_percent=limit_percent) for name in names]
