"""Where the view of a run comes from: states that its hosts write, what its ranks write, or its recording.

A run that nobody follows is followed in memory, as long as somebody looks.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.errors import FormatError
from stashtrace.live.state import LiveState, read_states
from stashtrace.live.view.merged import LiveView, merge_states
from stashtrace.record.directory import read_run_file, scratch_of

if TYPE_CHECKING:
    from stashtrace.live.view.unfollowed import FollowedHere


def _states(path: Path, run_id: str) -> list[LiveState]:
    """Return the states of the wanted run, one a host."""
    try:
        states = read_states(path)
    except FormatError:
        if path.exists():
            raise
        states = []
    if not path.exists():
        raise FormatError(f"{path} is gone: it was renamed or removed")
    found = [state for state in states if state.run_id.startswith(run_id.partition(".")[0])]
    if len({state.run_id for state in found}) > 1:
        listed = ", ".join(sorted({state.run_id for state in found}))
        raise FormatError(f"{path} holds several runs: {listed}", hint="choose one with `--run ID`")
    return found


class Watched:
    """A run that is looked at again and again.

    ``path``: run directory, or a file of it. ``run_id``: begin of the id of the run, where a directory holds several.
    """

    def __init__(self, path: Path, run_id: str | None = None) -> None:
        self._path, self._run_id = path, run_id or ""
        self._here: FollowedHere | None = None
        self._recorded: list[LiveState] = []
        self._again_s = 0.0

    def look(self) -> LiveView:
        """Return what is known of the run now.

        Raises FormatError if the directory is gone, or holds something damaged or from a newer stashtrace. Raises
        MissingDataError if it is no run.
        """
        facts, states = read_run_file(self._path), _states(self._path, self._run_id)
        if states:
            self._here = None
            return self._view(states, facts, "follower")
        if self._here is not None and self._here.has_ended(facts):
            self._here = None  # a merge rewrites the files: they are read anew
        ended = bool(self._recorded) and self._recorded[0].ended
        is_due = not self._recorded or (not ended and time.monotonic() >= self._again_s)
        if self._here is None and is_due:
            # What this loads is not needed for states.
            from stashtrace.live.view.unfollowed import AGAIN_S, find_unfollowed

            self._again_s = time.monotonic() + AGAIN_S
            self._here, self._recorded = find_unfollowed(scratch_of(self._path) or self._path, self._run_id, facts)
        if self._here is not None:
            return self._view([self._here.state()], facts, "viewer")
        return self._view(self._recorded, facts, "recording")

    def _view(self, states: Sequence[LiveState], facts: Mapping[str, Any], origin: str) -> LiveView:
        return merge_states(states, facts, path=str(self._path), origin=origin, now_realtime_ns=time.time_ns())
