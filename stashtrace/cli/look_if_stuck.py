"""Look at the processes of a live run that stands still: for `analyze hang` and `status`."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stashtrace.schema.trace import Trace


def look_if_stuck(trace: Trace, paths: Sequence[str], run_id: str | None) -> Trace:
    """Return the trace, and where its job lives and stands still, with a look at the ranks that the others wait for."""
    from stashtrace.analysis.findings.ending.hang_table import ranks_to_look_at, threads_to_look_at
    from stashtrace.loading.looks import look_at

    for path in paths if lives(paths, run_id) else ():
        ranks = ranks_to_look_at(trace)
        wanted = {process: tid for rank in ranks for process, tid in threads_to_look_at(trace, rank)}
        trace = look_at(trace, path, wanted, run_id=run_id)
        if wanted:
            _keep(trace, path)
    return trace


def _keep(trace: Trace, path: str) -> None:
    """Keep what was seen in the run, as followers do: who reads it when the processes are gone knows it, too."""
    from stashtrace.loading.looks import facts_of_looks
    from stashtrace.record.directory import update_host_facts
    from stashtrace.run_facts import LOOKS

    with contextlib.suppress(OSError):  # the run of another user, or of a file system that is full
        update_host_facts(Path(path), socket.gethostname(), {LOOKS: facts_of_looks(trace)})


def lives(paths: Sequence[str], run_id: str | None) -> bool:
    """Return whether a process still records into a run; False for what is no run directory of our own."""
    from stashtrace.format.liveness import LiveRings
    from stashtrace.format.reader import open_run
    from stashtrace.loading.load import is_own_run

    live = LiveRings.look()
    return any(live.holds(p) for path in paths if is_own_run(path) for p in open_run(path, run_id=run_id).processes)


def hang_lines(paths: Sequence[str], run_id: str | None) -> list[str]:
    """Return the sentences of `analyze hang`."""
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.summary.status_text import describe_stuck

    trace = look_if_stuck(read_runs(list(paths), run_id=run_id), paths, run_id)
    return describe_stuck(trace, lives=lives(paths, run_id)) or [NOBODY_WAITS]


#: What is said of a job that gets on.
NOBODY_WAITS = "no rank has waited in a collective for more than a second"
