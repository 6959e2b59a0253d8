"""Trackers on the command line: ``run --log`` and ``stashtrace log``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

from stashtrace.cli import say_error
from stashtrace.errors import StashtraceError

if TYPE_CHECKING:
    from stashtrace.analysis.findings import Summary
    from stashtrace.cli.merging import AfterMerge
    from stashtrace.cli.screen import Screen
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace


def read_trackers(text: str | None) -> list[str]:
    """Return the names of a comma list.

    Raises UsageError for a tracker that is unknown or not installed.
    """
    names = list(dict.fromkeys((text or "").split(","))) if text is not None else []
    if names:
        from stashtrace.trackers.names import check_trackers

        check_trackers(names)
    return names


def log_after_merge(names: list[str], screen: Screen, shown: str) -> AfterMerge:
    """Return what adds the answers of a merged run to trackers; ``shown``: the run as a person would type it.

    A tracker that refuses is said: the run is recorded all the same.
    """

    def log(trace: Trace, tables: Summary, first: Table | None) -> None:
        from stashtrace.trackers.answers import log_answers

        for name in names:
            try:
                screen.say(f"stashtrace: logged to {name} run {log_answers(trace, name, shown, (tables, first))}")
            except StashtraceError as error:
                say_error(str(error), error.hint)

    return log
