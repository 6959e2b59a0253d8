"""The state of a run that nobody follows: followed in memory while it runs, or made of its recording."""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import DataLossWarning, MissingDataError, StashtraceError
from stashtrace.files.run_facts import PEEKS
from stashtrace.format.growing import GrowingRun
from stashtrace.format.liveness import LiveRings, own_boot_id
from stashtrace.format.reader import open_run
from stashtrace.format.stash_file import StashFile
from stashtrace.live import times
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.newest import lost_count, said_of
from stashtrace.live.state import LiveState
from stashtrace.live.table import LiveTotals, wide_rows
from stashtrace.live.triggers import StuckTrigger
from stashtrace.loading.load import is_foreign, load_trace
from stashtrace.record.directory import trace_files, update_host_facts
from stashtrace.record.launchers import own_place
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import describe_stuck
from stashtrace.text.prose import list_some

#: Share of one core that looking at a run may take which is followed in memory; rounds are further apart if need be.
_CPU_RATIO = 0.1


class FollowedHere:
    """A run that this process follows in memory.

    ``notes``: what to say of that. ``sees_all``: whether all processes of the run are on this host. Only the accounting
    is done, and the search for a job that is stuck: no window is sealed, and nothing is written but what was seen of
    the processes of such a job.
    """

    def __init__(
        self, directory: Path, run_id: str, facts: Mapping[str, Any], notes: Sequence[str], *, sees_all: bool = True
    ) -> None:
        boot_id = own_boot_id()

        def is_ours(metadata: Mapping[str, Any]) -> bool:
            return metadata.get("boot_id") == boot_id and metadata.get("run_id") == run_id

        self._sees_all = sees_all
        self._directory, self._stuck = directory, StuckTrigger(str(directory))
        self._accounts = LiveAccounts(GrowingRun(str(directory), is_ours))
        self._totals, self._notes = LiveTotals(), list(notes)
        self._state = LiveState(os.uname().nodename, run_id, list(facts.get("command", [])))
        self._state.begin_realtime_ns = int(facts.get("begin_realtime_ns", 0))
        self._next_s = self._verdicts_s = -math.inf

    def has_ended(self, facts: Mapping[str, Any]) -> bool:
        """Return whether the run has ended; ``facts``: of its ``run.json``."""
        return _has_ended(facts, self._accounts.run.files)

    def state(self) -> LiveState:
        """Take in what was written, unless that was done just now, and return what is known."""
        if time.monotonic() >= self._next_s:
            before_s = time.process_time()
            self._round()
            self._state.interval_s = max(times.LEAST_ROUND_S, (time.process_time() - before_s) / _CPU_RATIO)
            self._next_s = time.monotonic() + self._state.interval_s
        return self._state

    def _round(self) -> None:
        state, at_realtime_ns = self._state, time.time_ns()
        with _ignore_losses():
            try:
                found = self._accounts.round(time.monotonic_ns())
            except StashtraceError as error:
                state.notes = [*self._notes, str(error)]
                return
            self._totals.add(found.closed)
            if found.window is not None:
                self._find_stuck(found.window)
                state.lost_records_count = lost_count(found.window)
                if self._accounts.closed and time.monotonic() >= self._verdicts_s:
                    state.verdicts, state.lines = said_of(found.window)
                    self._verdicts_s = time.monotonic() + times.VERDICTS_S
        state.updated_realtime_ns = at_realtime_ns  # what was written after it is not known
        state.take_totals(self._totals, time.time_ns() - time.monotonic_ns() + self._accounts.origin_ns)
        state.own_cpu_ns = time.process_time_ns()
        waits = [text] if (text := self._stuck.waits or "; ".join(self._stuck.awaited)) else []
        state.notes = [*self._notes, *waits] if self._accounts.run.files else ["nothing was recorded yet"]
        state.start = self._accounts.start
        state.rounds_count += 1

    def _find_stuck(self, window: Trace) -> None:
        last_ns = max((rank.last_end_ns for rank in self._totals.ranks.values()), default=-1)
        at_ns, last_ns = time.monotonic_ns(), last_ns + self._accounts.origin_ns
        if self._stuck.round(window, at_ns, last_ns, in_part=not self._sees_all) and self._stuck.sentences:
            with contextlib.suppress(OSError):  # the run of another user, or of a file system that is full
                update_host_facts(self._directory, self._state.host, {PEEKS: self._stuck.peeks})
        self._state.stuck = "; ".join(self._stuck.sentences)
        self._state.stuck_ranks = list(self._stuck.ranks)


def find_unfollowed(path: Path, run_id: str, facts: Mapping[str, Any]) -> tuple[FollowedHere | None, list[LiveState]]:
    """Return a run that still records as one to follow in memory, else the states of its recording.

    Of one that other hosts record that is what its files hold. ``facts``: of its ``run.json``. Raises MissingDataError
    if it is no run.
    """
    notes = ["no process follows this run (`stashtrace run --live` starts one): this command reads it from the start"]
    is_folder = path.is_dir()
    if is_folder and facts and not trace_files(path):
        if _has_ended(facts, ()):
            raise MissingDataError(f"nothing was recorded in {path}")
        return FollowedHere(path, str(facts.get("run_id", "")), facts, notes), []
    if is_foreign(str(path)):
        raise MissingDataError(
            f"{path} holds no run of stashtrace",
            hint="give the directory of `stashtrace run --out DIR -- CMD`; `stashtrace summary` reads other files too",
        )
    if not is_folder or not trace_files(path):  # a file of a run, or a store
        return None, _states_of_recording(path, run_id, facts)
    raw = open_run(path, run_id=run_id or None)
    if _has_ended(facts, raw.processes):
        return None, _states_of_recording(path, run_id, facts)
    here = [file for file in raw.processes if file.metadata.get("boot_id") == own_boot_id()]
    hosts = sorted({str(file.metadata.get("host", "")) for file in raw.processes if file not in here})
    if not here:
        return None, _states_elsewhere(path, run_id, facts, hosts)
    notes += [f"processes on {list_some(hosts, 3)} are not seen from here"] if hosts else []
    return FollowedHere(path, raw.run_id, facts, notes, sees_all=not hosts), []


def _has_ended(facts: Mapping[str, Any], files: Iterable[StashFile]) -> bool:
    """Return whether a run has ended, as far as is known here; ``facts``: of ``run.json``; ``files``: of processes."""
    if "end_realtime_ns" in facts:
        return True
    rings = LiveRings.now()
    if any(rings.holds(file) for file in files):
        return False
    launcher = facts.get("launcher_pid")
    if launcher is None:
        return True
    is_ours = facts.get("place", own_place()) == own_place()  # the process ids of other hosts mean nothing here
    return is_ours and not os.path.exists(f"/proc/{launcher}")


def _states_elsewhere(path: Path, run_id: str, facts: Mapping[str, Any], hosts: Sequence[str]) -> list[LiveState]:
    """Return the states of a run that others may still record, by what its files hold now."""
    written_ns = max((file.stat().st_mtime_ns for file in trace_files(path)), default=0)
    states = _states_of_recording(path, run_id, facts, lives=True)
    states[0].notes = [
        f"recorded on {list_some(hosts, 3)}, where no process follows it: the figures come from what its files hold"
        " (`stashtrace live` there says more, and `stashtrace run --live` shows it on every host)"
    ]
    for state in states:
        state.ended, state.updated_realtime_ns, state.interval_s = False, written_ns, times.AGAIN_S
    return states


def _states_of_recording(path: Path, run_id: str, facts: Mapping[str, Any], *, lives: bool = False) -> list[LiveState]:
    """Return the state that each host of a run would have written last; ``lives``: whether the run may go on."""
    with _ignore_losses():
        trace = load_trace(path, run_id=run_id or None)
    totals, notes = LiveTotals(), ["no process followed this run: the figures come from its recording"]
    try:
        table = steps(trace)
        complete = np.ones(len(table), dtype=np.bool_)
        totals.add(wide_rows(stalls(trace, by="step", warmup=True), table, start=0, complete=complete))
    except MissingDataError as error:
        notes.append(str(error))
    host_of = {
        row["rank"]: trace.text(row["host_code"])
        for row in trace.processes.rows()
        if row["role_code"] == ProcessRole.RANK
    }
    own, states = str(facts.get("host", "")), list[LiveState]()
    zero_ns = _realtime_of_zero(trace)
    for host in sorted(set(host_of.values())) or [own]:
        ranks = {rank: sums for rank, sums in totals.ranks.items() if host_of.get(rank, own) == host}
        state = LiveState(host, str(facts.get("run_id", "")), list(facts.get("command", [])), ended=True)
        state.begin_realtime_ns = int(facts.get("begin_realtime_ns", 0))
        state.updated_realtime_ns = int(facts.get("end_realtime_ns", 0))
        state.take_totals(LiveTotals(ranks), zero_ns)
        states.append(state)
    states[0].notes = notes
    states[0].stuck = "; ".join(line.strip() for line in describe_stuck(trace, lives=lives))
    states[0].verdicts, states[0].lines = said_of(trace)
    states[0].lost_records_count = lost_count(trace)
    return states


def _realtime_of_zero(trace: Trace) -> int:
    for row in trace.metadata.rows():
        if row["process_id"] == -1 and trace.text(row["key_code"]) == "origin_realtime_ns":
            return int(trace.text(row["value_code"]))
    return 0


@contextlib.contextmanager
def _ignore_losses() -> Iterator[None]:
    """Show no warning of losses: the view counts them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        yield
