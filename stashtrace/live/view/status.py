"""The view of a followed run as the lines of ``stashtrace status``: where each rank is, without reading its records."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from stashtrace.errors import FormatError
from stashtrace.live.view.merged import RankView
from stashtrace.live.view.sources import view_of_states
from stashtrace.summary.status_text import Newest, newest_text
from stashtrace.text import count_noun
from stashtrace.units import duration_text
from stashtrace.visible import visible_line

#: Conditions in which what the followers say is enough; in all others the records are read.
_CLEAR = ("begins", "moves", "stuck")


def followed_status(path: Path, run_id: str | None) -> list[str]:
    """Return where a run is by what those say who follow it; nothing where nobody does, or they do not know."""
    try:
        view = view_of_states(path, run_id or "")
    except FormatError:
        return []
    if view is None or view.condition not in _CLEAR or any(host.is_old for host in view.hosts):
        return []
    begun = f", begun {duration_text(view.now_realtime_ns - view.begin_realtime_ns)} ago"
    ranks, hosts = count_noun(len(view.ranks), "rank"), count_noun(len(view.hosts), "host")
    lines = [f"running{begun if view.begin_realtime_ns else ''}: {ranks} on {hosts} with steps, as followed", ""]
    lines += [f"rank {own.rank}: {newest_text(_newest(own))}" for own in view.ranks] or ["no step has ended yet"]
    lines += ["", visible_line(view.stuck) or "the job moves: no rank is known to keep the others waiting"]
    lines += [f"{host.host}: {visible_line(note)}" for host in view.hosts for note in host.notes]
    return [*lines, f"as of {duration_text(round(max(host.age_s for host in view.hosts) * 1e9))} ago"]


def _newest(own: RankView) -> Newest:
    newest = own.newest
    wall_ns = max(newest.wall_ns, 1)
    shares = {kind: spent / wall_ns for kind, spent in newest.stall_ns.items()}
    return Newest(own.steps_count, newest.steps_count, newest.wall_ns // max(newest.steps_count, 1), shares)
