"""One run that is followed: its rounds, and what each leaves in the run directory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError, guarded
from stashtrace.files.run_facts import PEEKS
from stashtrace.format.growing import CLOCKS_NS, GrowingRun
from stashtrace.format.liveness import LiveRings, own_boot_id
from stashtrace.live import times
from stashtrace.live.accounts import CONTEXT_STEPS, LiveAccounts, Round
from stashtrace.live.alarms import Alarms, TriggerCommand
from stashtrace.live.deeper import BUDGET_RATIO, Budget, DeeperSteps
from stashtrace.live.hosts.requests import Request, take_requests
from stashtrace.live.hosts.shared_ranks import OtherHosts, Share, other_launchers
from stashtrace.live.hosts.windows import Windows
from stashtrace.live.idle import ASLEEP, IdleRecording
from stashtrace.live.newest import gpus_of, losses_by_process, recorder_cpu_ns, said_of
from stashtrace.live.state import Event, EventLog, LiveState, job_of, pod_of, read_states
from stashtrace.live.table import GrowingSum, LiveFile, LiveTotals
from stashtrace.live.triggers import GrowthTrigger, LostRankTrigger, SlowStepTrigger, StuckTrigger
from stashtrace.loading.run_tables import WINDOW_FACT, Window
from stashtrace.record.directory import WINDOWS_FOLDER, read_run_file, update_host_facts, write_run_file
from stashtrace.record.peek.stack_samples import StackSampler
from stashtrace.text.prose import count_noun
from stashtrace.text.units import bytes_text

#: A slow step gets a window if it is longer by this part of a usual one.
_WINDOW_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """What is done next to the accounting."""

    #: Steps, and bytes of files, that are kept of the run; 0 for all.
    keep_steps: int = 0
    keep_bytes: int = 0
    #: What the table of closed steps may take of a run of which not all is kept.
    table_bytes: int = 64 << 20
    #: Steps of a window before the step that was asked for, and after it.
    before_steps: int = 20
    after_steps: int = 5
    #: Program and arguments that are called for each trigger; empty for none.
    on_trigger: Sequence[str] = ()
    #: What is also recorded in the steps after a trigger, and the share of an hour's run time that this may cost.
    deeper: Sequence[str] = ()
    deeper_ratio: float = BUDGET_RATIO
    #: The run directory, where processes write to local scratch; None where they write into it.
    shared: Path | None = None


class FollowedRun:
    """A run whose processes write on this host.

    ``records``: where they write: the run directory, or a directory on local scratch. What is known of the run, its
    windows and what is asked for are in the run directory in either case. ``log``: takes the events.
    """

    def __init__(self, records: Path, log: EventLog, options: FollowOptions | None = None) -> None:
        options = options or FollowOptions()
        facts = read_run_file(records)
        boot_id, host, run_id = own_boot_id(), os.uname().nodename, facts.get("run_id")
        directory = options.shared or records

        def is_ours(metadata: Mapping[str, Any]) -> bool:
            if str(metadata.get("boot_id", "")) != boot_id or metadata.get("run_id") != run_id:
                return False
            # Containers of one machine may each have a launcher, or one launcher may have started all of them.
            return metadata.get("host") == host or metadata.get("host") not in other_launchers(directory, host)

        self.directory, self.records = directory, records
        self.log = log
        self.others = OtherHosts(directory, host, str(run_id))
        self.share = Share(directory)
        self.accounts = LiveAccounts(GrowingRun(str(records), is_ours), self.others)
        self.accounts.context_steps = max(CONTEXT_STEPS, options.before_steps + 2)
        waits, before_steps = bool(facts.get("idle")), options.before_steps
        self.windows = Windows(directory, facts, host, waits=waits, others=self.others, before_steps=before_steps)
        self.deeper = DeeperSteps(records, StackSampler(host), self._processes, Budget(options.deeper_ratio))
        command = TriggerCommand(options.on_trigger, directory) if options.on_trigger else None
        self.alarms = Alarms(log, self.windows, command, options.after_steps, self.deeper, options.deeper)
        self.keeper = Keeper(records, options.keep_steps, options.keep_bytes)
        if (options.keep_steps or options.keep_bytes) and int(facts.get("launchers_count") or 1) > 1:
            self.keeper.error = f"all steps are kept: several hosts record into {directory}"
        self.idle = IdleRecording(records) if facts.get("idle") else None
        if self.idle is not None:
            self.accounts.find_begin = self.idle.find_begin
        self.slow_steps = SlowStepTrigger()
        self.growth = GrowthTrigger()
        self.lost_ranks = LostRankTrigger()
        self.stuck = StuckTrigger(str(records))
        self.options = options
        self.totals = LiveTotals()
        self.state = LiveState(host, str(facts.get("run_id", "")), list(facts.get("command", [])))
        self.state.begin_realtime_ns = int(facts.get("begin_realtime_ns", 0))
        self.state.job, self.state.pod = job_of(os.environ, facts), pod_of(os.environ)
        #: Called with the state of each round; returns what becomes notes of it.
        self.publish: Callable[[LiveState], list[str]] = lambda state: []
        table_bytes = options.table_bytes if options.keep_steps or options.keep_bytes else 0
        self._file = LiveFile(directory, host, {"run_id": self.state.run_id}, table_bytes)
        self._verdicts_at_s = time.monotonic()
        self._lost, self._recorder_cpu = GrowingSum(), GrowingSum()
        self._is_asked = False
        #: Slow steps of ranks of other hosts, what a window is for, and when they were found.
        self._left: list[tuple[Event, str, int]] = []
        #: The sentence about ranks that wait for others of which nothing is seen; it has a line when it begins.
        self._waits = ""
        #: When something was last made in the folder of windows, at the last round.
        self._windows_ns = -1
        self._is_gone = False

    def _processes(self) -> dict[int, tuple[int, int]]:
        """Return the number of the process of each rank of this host, as the host and as the process itself see it."""
        ranks, _ = self.accounts.own_files()
        live = LiveRings.now()
        found = {rank: (live.pid_of(file), int(file.metadata.get("pid", -1))) for rank, file in ranks.items()}
        return {rank: (pid, recorded_pid) for rank, (pid, recorded_pid) in found.items() if pid >= 0}

    def ask(self) -> None:
        """Let the next round open a window."""
        self._is_asked = True

    def collect(self) -> bool:
        """Look between two rounds for parts of windows; return whether the next round is to come at once.

        Who asks for a window touches the folder of windows.
        """
        self.alarms.collect(time.monotonic_ns())
        return self._windows_changed_ns() != self._windows_ns

    def _windows_changed_ns(self) -> int:
        with contextlib.suppress(OSError):
            return (self.directory / WINDOWS_FOLDER).stat().st_mtime_ns
        return -1

    def round(self, *, ended: bool = False, interval_s: float = 0.0) -> bool:
        """Take in what was written since the last round, and write what follows from it; return whether steps closed.

        ``ended``: whether the job has ended. ``interval_s``: seconds since the last round. What cannot be read or
        written is a note of the state: the next round tries again.
        """
        notes: list[str] = []
        found = None
        self._windows_ns = self._windows_changed_ns()
        if ended and (self.idle is None or self.idle.is_on):
            self._await_others()
        try:
            if self.idle is None or self.idle.is_on:
                found = self.accounts.round(time.monotonic_ns(), ended=ended)
        except StashtraceError as error:
            notes.append(str(error))
            self._say_gone()
        try:
            self._answer(ended)  # before triggers, which another host may have reported already
            if found is not None:
                self.totals.add(found.closed)
                self._file.append(found.closed)
                usual = replace(found, closed=self.deeper.usual(found.closed))
                for what, part, of in (
                    ("what the newest steps show", self._show, found),
                    ("deeper steps", self._deepen, found),
                    ("what is slow, stuck or lost", self._triggers, usual),
                ):
                    guarded(what, partial(part, of, ended), notes.append)
            self._seal(ended)
        except OSError as error:
            notes.append(f"cannot write to {self.directory}: {error.strerror}")
        if ended:
            self._await_parts()
        self.alarms.settle(ended=ended)
        notes += [*self.others.notes(), *self._share()]
        self._update_state(notes, ended, interval_s)
        try:
            self.state.write(self.directory)
        except OSError as error:
            self.state.notes.append(f"cannot write to {self.directory}: {error.strerror}")
        if ended:
            with contextlib.suppress(OSError):
                self.share.end()
        return found is not None and len(found.closed) > 0

    def _say_gone(self) -> None:
        """Say once that the run directory is gone: its state can be written nowhere."""
        if not self._is_gone and not self.records.exists():
            self._is_gone = True
            text = f"the run is no longer followed: {self.records} is gone, and with it what is recorded from now on"
            self.log.add(Event("directory_gone", text, time.time_ns()))

    def _share(self) -> list[str]:
        """Share what is new of the ranks of this host; return what becomes notes."""
        if not self.others.launchers():
            return []
        try:
            self.share.write(*self.accounts.own_files(), time.monotonic_ns())
        except OSError as error:
            return [f"the ranks of this host cannot be shared with other hosts: {error.strerror}"]
        return []

    def _await_others(self) -> None:
        """Share what is left, and wait a little for what other hosts still have to share."""
        deadline_s = time.monotonic() + times.LAST_WORDS_S
        with contextlib.suppress(StashtraceError):  # the round that follows says it
            while True:
                self.accounts.run.take_in(time.monotonic_ns())
                self._share()
                self.others.round(time.monotonic_ns())
                if not self.others.recording() or time.monotonic() > deadline_s:
                    break
                time.sleep(times.LAST_WORDS_APART_S)

    def _await_parts(self) -> None:
        """Wait a little for the parts of other hosts in windows, as no round comes later."""
        deadline_s = time.monotonic() + times.LAST_PARTS_S
        while self.windows.collecting.parts and time.monotonic() < deadline_s:
            time.sleep(times.ANSWER_POLL_S)
            self.alarms.collect(time.monotonic_ns())
        self.alarms.collect(time.monotonic_ns(), last=True)

    def _deepen(self, found: Round, ended: bool) -> None:
        at_ns, origin_ns = time.monotonic_ns(), self.accounts.origin_ns
        if event := self.deeper.round(found.closed, found.window, origin_ns, at_ns, ended=ended):
            self.log.add(event)

    def _triggers(self, found: Round, ended: bool) -> None:
        """Say what is slow, stuck or lost, and ask for a window of it."""
        if found.window is None:
            return
        at_ns, in_part = time.monotonic_ns(), bool(self.others.lacking())
        slow_steps = self.slow_steps.round(found.closed, found.window, in_part=in_part) if len(found.closed) else []
        for slow in slow_steps:
            event = Event("slow_step", slow.text, time.time_ns(), slow.step, slow.rank, slow.cost_ns)
            what = "slow" if slow.cost_ns >= _WINDOW_RATIO * slow.usual_ns else ""
            if slow.rank in self.others.known and slow.rank not in self.accounts.closed:
                self._left.append((event, what, at_ns))
            else:
                self.alarms.add(event, what, at_ns)
        self._report_what_is_left(at_ns, ended)
        for growth in self.growth.round(found.closed):
            cost_ns = round(growth.now_ns - growth.before_ns)
            rank = growth.ranks[0] if len(growth.ranks) == 1 else growth.cause_rank
            event = Event("stall_grows", growth.text, time.time_ns(), growth.step, rank, cost_ns)
            self.alarms.add(event, growth.kind, at_ns)
        if self.idle is not None:  # its ranks are seen at work only now and then
            return
        last_ns = max((sums.last_end_ns for sums in self.totals.ranks.values()), default=-1) + self.accounts.origin_ns
        joint = found.window if found.joint is None else found.joint
        if not ended and self.stuck.round(
            joint, at_ns, last_ns, self.others.spoken_for(at_ns), self.others.known, in_part=in_part
        ):
            if self.stuck.sentences:
                newest = max(self.accounts.closed.values(), default=-1)
                text = "; ".join(self.stuck.sentences)
                event = Event("stuck", text, time.time_ns(), newest, min(self.stuck.ranks, default=-1))
                self.alarms.add(event, "stuck", at_ns, now=True)
                update_host_facts(self.directory, self.state.host, {PEEKS: self.stuck.peeks})
            else:
                self.alarms.add(Event("moves_again", "the job moves again", time.time_ns()), "", at_ns)
        if self.stuck.waits and not self._waits:
            self.alarms.add(Event("waits", self.stuck.waits, time.time_ns()), "", at_ns)
        self._waits = self.stuck.waits
        if not ended:
            files, closed = self.accounts.run.files, self.accounts.closed
            for lost in self.lost_ranks.round(found.window, files, at_ns, closed, self.stuck.ranks):
                event = Event("rank_lost", lost.text, time.time_ns(), lost.last_step, lost.rank)
                self.alarms.add(event, "lost", at_ns, now=True)
        self.state.stuck, self.state.stuck_ranks = "; ".join(self.stuck.sentences), list(self.stuck.ranks)

    def _report_what_is_left(self, at_ns: int, ended: bool) -> None:
        """Report slow steps that the host of the slow rank has not reported: it knows more, but may see none."""
        due = [one for one in self._left if ended or at_ns - one[2] >= times.LEFT_NS]
        self._left = [one for one in self._left if one not in due]
        reported: set[tuple[str, int]] = set()
        if due:
            with contextlib.suppress(StashtraceError):
                states = [state for state in read_states(self.directory) if state.host != self.state.host]
                reported = {(event.kind, event.step) for state in states for event in state.events}
        for event, what, _ in due:
            if (event.kind, event.step) not in reported:
                self.alarms.add(event, what, at_ns)

    def _answer(self, ended: bool) -> None:
        at_ns = time.monotonic_ns()
        requests = take_requests(self.directory, self.state.host)
        if self._is_asked:
            self._is_asked = False
            requests.append(Request(self.options.after_steps))
        newest = min(self.accounts.closed.values(), default=-1)
        if self.idle is not None:
            requests = self._wake(self.idle, requests, at_ns, ended=ended)
            newest = -1 if self.accounts.window is None else self.accounts.window.first_step - 1
        for request in requests:
            self.alarms.answer(request, newest, at_ns)

    def _seal(self, ended: bool) -> None:
        at_ns = time.monotonic_ns()
        self.alarms.seal_if_ready(self.accounts, at_ns, ended=ended)
        self.accounts.held = self.windows.is_open
        if self.idle is not None and self.idle.is_on and self.accounts.window is not None and not self.accounts.held:
            self._end_period(self.idle, self.accounts.window)
        if not ended:
            self.keeper.drop(self.accounts)

    def _wake(self, idle: IdleRecording, requests: list[Request], at_ns: int, *, ended: bool) -> list[Request]:
        """Record for requests; return those that can be answered, as their first step is known."""
        if requests and not idle.is_on:
            self.accounts.begin_again(at_ns)
            idle.begin(at_ns)
        idle.requests += requests
        if self.accounts.window is not None:
            ready, idle.requests = idle.requests, []
            return ready
        if idle.requests and (ended or at_ns - idle.since_ns > times.PATIENCE_NS):
            for request in idle.requests:
                self.alarms.refuse(request, "the job has ended" if ended else idle.why_not())
            idle.end()
        return []

    def _end_period(self, idle: IdleRecording, begun: Window) -> None:
        """Record no longer: the window is written. The run itself is the last period."""
        idle.end()
        if self.others.launchers():  # each of them reports its ranks
            update_host_facts(self.directory, self.state.host, self.accounts.window_facts())
            return
        last = replace(begun, last_step=min(self.accounts.closed.values(), default=begun.first_step))
        write_run_file(self.records, {**read_run_file(self.records), WINDOW_FACT: last.fact(self.accounts.origin_ns)})

    def _show(self, found: Round, ended: bool) -> None:
        if found.window is None:
            return
        self.state.lost_records_count = self._lost.update(losses_by_process(found.window))
        self.state.recorder_cpu_ns = self._recorder_cpu.update(recorder_cpu_ns(found.window))
        self.state.gpus |= gpus_of(found.window)
        if self.accounts.closed and (ended or time.monotonic() - self._verdicts_at_s >= times.VERDICTS_S):
            self._verdicts_at_s = time.monotonic()
            self.state.verdicts, self.state.lines = said_of(found.window)

    def _update_state(self, notes: list[str], ended: bool, interval_s: float) -> None:
        state = self.state
        state.updated_realtime_ns = time.time_ns()
        zero_ns = time.time_ns() - time.monotonic_ns() + self.accounts.origin_ns
        state.take_totals(self.totals, zero_ns)
        state.own_cpu_ns = time.process_time_ns()
        state.rounds_count += 1
        notes += [self.keeper.error] if self.keeper.error else []
        if self._file.dropped_rows_count:
            most = bytes_text(self._file.most_bytes)
            notes.append(f"the table of closed steps holds only the later ones: it takes at most {most}")
        notes += [*([self._waits] if self._waits and not ended else []), *self.alarms.notes]
        if self.idle is not None and not self.idle.is_on and not ended:
            notes.append(ASLEEP)
        if self.log.unwritten_count:
            notes.append(f"{count_noun(self.log.unwritten_count, 'event')} could not be written to {self.directory}")
        state.interval_s, state.ended, state.notes = interval_s, ended, notes
        state.notes += self.publish(state)
        state.events = list(self.log.events)


@dataclass(slots=True)
class Keeper:
    """Drops what is older than the steps to keep from the files of a run while it records.

    The processes of the job append to their files as ever; what is dropped becomes a hole, which takes no space. The
    run then begins in the middle of the job, and the fact ``window`` in its ``run.json`` says where. ``steps``: how
    many closed steps stay, 0 for no such limit. ``most_bytes``: what the files may take, 0 for no limit.
    """

    directory: Path
    steps: int = 0
    most_bytes: int = 0
    #: Where the run on disk begins; None while all of it is there.
    window: Window | None = None
    dropped_bytes: int = 0
    #: Why nothing can be dropped; empty while it can.
    error: str = ""

    def drop(self, accounts: LiveAccounts) -> None:
        """Drop what need not stay. If the file system cannot, ``error`` says so, and nothing is dropped."""
        wanted = self._wanted(accounts)
        if self.error or wanted is None or (self.window is not None and wanted.first_step <= self.window.first_step):
            return
        before_ns = min(wanted.begins_ns.values()) + accounts.origin_ns - CLOCKS_NS
        # First where the run begins, then the holes: a run that is cut off in between has too many rows, not too few.
        content = read_run_file(self.directory)
        write_run_file(self.directory, {**content, WINDOW_FACT: wanted.fact(accounts.origin_ns)})
        try:
            self.dropped_bytes += accounts.run.drop(before_ns)
            self.window = wanted
        except OSError as error:
            if not self.dropped_bytes:  # then all rows are there, whatever was noted before
                content.pop(WINDOW_FACT, None)
            write_run_file(self.directory, content)
            reason = error.strerror or str(error)
            self.error = f"no more steps are dropped: the file system of {self.directory} refuses it ({reason})"

    def _wanted(self, accounts: LiveAccounts) -> Window | None:
        """Return where the run on disk is to begin, None if all of it may stay."""
        closed = min(accounts.closed.values(), default=-1)
        found = None
        if self.steps:
            old = (w for w in reversed(accounts.windows) if w.first_step <= closed + 1 - self.steps)
            found = next(old, None)
        if self.most_bytes and accounts.windows and accounts.run.bytes_on_disk() > self.most_bytes:
            # A quarter of the steps more, until the files are small enough; what is in memory stays.
            known = [w for w in accounts.windows if self.window is None or w.first_step > self.window.first_step]
            if known:
                further = known[(len(known) - 1) // 4]
                found = further if found is None or further.first_step > found.first_step else found
        return found
