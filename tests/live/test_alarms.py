"""What follows from a trigger: a line with the path of its window, the window, and the call of the user's command."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from growing_files import grow
from made_job import write_job

from stashtrace.files.run_facts import STACKS, read_host_facts
from stashtrace.format.growing import GrowingRun
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.alarms import Alarms, TriggerCommand
from stashtrace.live.hosts.requests import Request
from stashtrace.live.hosts.windows import Limits, Windows
from stashtrace.live.state import STORM_COUNT, Event, EventLog, read_events
from stashtrace.loading.load import load_trace

SECOND = 1_000_000_000


class Calls(TriggerCommand):
    """Remembers for which events the command would be called."""

    def __init__(self) -> None:
        super().__init__(["true"], Path())
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)


class Deeper:
    """Records which steps are asked for; they are open until a test ends them, and then have one process' stacks."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[str], int, int]] = []
        self.is_open = self.is_given_up = False
        self.why = ""

    def ask(self, kinds: Sequence[str], newest: int, count: int, at_ns: int) -> tuple[int, str]:
        if self.why:
            return -1, self.why
        self.asked.append((kinds, newest, count))
        self.is_open = True
        return newest + count, ""

    def take_stacks(self) -> list[dict[str, Any]]:
        return [{"host": "here", "pid": 7, "functions": [], "rows": []}] if self.asked else []

    def give_up(self) -> None:
        self.is_given_up = True


class Followed:
    """A made job of 100 steps, all closed, and what takes its triggers."""

    def __init__(self, folder: Path, limits: Limits | None = None, kinds: Sequence[str] = ()) -> None:
        write_job(folder / "job", steps_count=100)
        self.run = folder / "run"
        self.accounts = LiveAccounts(GrowingRun(str(self.run)))
        for moment_ns in grow(folder / "job", self.run, SECOND):
            self.accounts.round(moment_ns)
        self.accounts.round(moment_ns, ended=True)
        self.stream, self.calls = io.StringIO(), Calls()
        self.windows = Windows(self.run, {"run_id": "x"}, "node01", limits=limits)
        log, self.deeper = EventLog(self.run, self.stream), Deeper()
        self.alarms = Alarms(log, self.windows, self.calls, 5, cast(Any, self.deeper), kinds)

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


def slow(step: int, cost_ns: int = 10) -> Event:
    return Event("slow_step", f"step {step} took 3 s", SECOND, step, 1, cost_ns)


def test_the_line_and_the_event_name_the_window(tmp_path: Path) -> None:
    """Also of a second trigger that the same window holds; the command is called once the window is there."""
    followed = Followed(tmp_path)
    path = followed.run / "windows" / "step-000098-slow"
    followed.accounts.closed = dict.fromkeys((0, 1), 98)
    followed.alarms.add(slow(98), "slow", 0)
    followed.alarms.add(slow(99), "slow", 1)
    followed.alarms.seal_if_ready(followed.accounts, 2, ended=False)
    said = [f"stashtrace: step {step} took 3 s; window {path}" for step in (98, 99)]
    assert followed.lines() == said
    assert followed.calls.events == [], "its last steps are still to come"
    followed.alarms.seal_if_ready(followed.accounts, 3, ended=True)
    assert [event.window for event in read_events(followed.run)] == [str(path)] * 3
    assert [(event.step, event.window) for event in followed.calls.events] == [(98, str(path)), (99, str(path))]
    assert load_trace(path).processes["rank"].max() == 1


def test_a_trigger_without_a_window_calls_at_once(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    followed.alarms.add(slow(50), "", 0)
    assert [(event.step, event.window) for event in followed.calls.events] == [(50, "")]
    assert followed.alarms.notes == []


def test_a_stuck_job_gets_its_window_at_once(tmp_path: Path) -> None:
    """Though one waits for steps that will not come: it is made longer and sealed."""
    followed = Followed(tmp_path)
    followed.alarms.add(slow(99), "slow", 0)
    followed.alarms.add(Event("stuck", "rank 1 is waited for", SECOND, 99, 1), "stuck", 1, now=True)
    followed.alarms.seal_if_ready(followed.accounts, 1, ended=False)
    path = str(followed.run / "windows" / "step-000099-slow")
    assert [(event.kind, event.window) for event in followed.calls.events] == [("slow_step", path), ("stuck", path)]


def test_what_was_asked_for_is_answered_by_name(tmp_path: Path) -> None:
    """An open window is made longer for those who ask meanwhile, and answers all of them."""
    followed = Followed(tmp_path)
    followed.alarms.answer(Request(0, "first"), 99, 0)
    followed.alarms.answer(Request(0, "second"), 99, 1)
    followed.alarms.seal_if_ready(followed.accounts, 2, ended=False)
    (event,) = read_events(followed.run)
    assert event.request.split() == ["first", "second"]
    assert event.window == str(followed.run / "windows" / "step-000099-asked")
    assert [call.kind for call in followed.calls.events] == ["capture"]


def test_what_is_asked_for_beyond_the_limit_is_refused_in_a_line(tmp_path: Path) -> None:
    followed = Followed(tmp_path, Limits(folders_count=0))
    followed.alarms.answer(Request(0, "first"), 99, 0)
    followed.alarms.answer(Request(0, "second", unlimited=True), 99, 1)
    followed.alarms.seal_if_ready(followed.accounts, 2, ended=False)
    refused, sealed = read_events(followed.run)
    assert refused.request == "first"
    assert refused.text == (
        f"no window is sealed as asked: {followed.run / 'windows'} holds 0 windows; "
        "remove some, or ask with `stashtrace capture --no-limit`"
    )
    assert sealed.request == "second"
    assert Path(sealed.window).is_dir()


def test_a_storm_seals_few_windows_and_has_few_lines(tmp_path: Path) -> None:
    """1,000 slow steps within a minute: few have a line, and the last one counts the others."""
    followed = Followed(tmp_path, Limits(windows_count=2, pause_ns=0))
    for at in range(1000):
        followed.alarms.add(slow(99, cost_ns=10), "slow", at)
        followed.alarms.seal_if_ready(followed.accounts, at, ended=True)
    followed.alarms.settle(ended=True)
    assert len(list((followed.run / "windows").iterdir())) == 2
    assert followed.alarms.notes == ["no window was sealed for 998 triggers; the last: the run has 2 windows"]
    assert len(followed.calls.events) == 1000
    events = read_events(followed.run)
    assert sum(event.kind == "slow_step" for event in events) == STORM_COUNT + 1
    assert events[-1].text == f"980 events of the kind slow_step had no line: {STORM_COUNT} a minute have one"
    assert len(followed.lines()) == len(events)


def test_a_storm_that_is_over_is_said(tmp_path: Path) -> None:
    log = EventLog(tmp_path, None)
    for _ in range(STORM_COUNT + 7):
        log.add(slow(3))
    log.add(Event("stuck", "rank 1 is waited for", SECOND))
    log.settle(2 * SECOND)
    assert len(read_events(tmp_path)) == STORM_COUNT + 1, "other kinds have their lines"
    log.settle(62 * SECOND)
    log.settle(63 * SECOND)
    assert read_events(tmp_path)[-1].text.startswith("7 events of the kind slow_step had no line")
    log.add(Event("slow_step", "step 900 took 3 s", 63 * SECOND))
    assert read_events(tmp_path)[-1].text == "step 900 took 3 s"


def test_no_room_for_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trigger has its line, the loss another one, and the command is called without a window."""
    followed = Followed(tmp_path)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("stashtrace.live.hosts.windows.write_packed", refuse)
    followed.alarms.add(slow(99), "slow", 0)
    followed.alarms.seal_if_ready(followed.accounts, 1, ended=True)
    assert followed.lines()[1:] == [
        "stashtrace: the window step-000099-slow could not be written: No space left on device"
    ]
    assert [event.window for event in followed.calls.events] == [""]
    assert list((followed.run / "windows").iterdir()) == []


@pytest.mark.parametrize("between", [False, True])
def test_a_run_directory_that_vanishes(tmp_path: Path, between: bool) -> None:
    """Before the trigger, or before its window is sealed: said, counted, and the directory is not made again."""
    followed = Followed(tmp_path)
    if not between:
        shutil.rmtree(followed.run)
    followed.alarms.add(slow(99), "slow", 0)
    shutil.rmtree(followed.run, ignore_errors=True)
    followed.alarms.seal_if_ready(followed.accounts, 1, ended=True)
    assert [event.window for event in followed.calls.events] == [""]
    if between:
        assert "could not be written: its folder is gone" in followed.lines()[-1]
    else:
        (note,) = followed.alarms.notes
        assert note.startswith("no window was sealed for 1 trigger; the last: cannot write to ")
    assert not followed.run.exists()


def test_events_of_an_older_log_are_read(tmp_path: Path) -> None:
    old = {"kind": "capture", "text": "kept", "realtime_ns": 3, "step": 1, "rank": -1, "cost_ns": 0, "window": "w"}
    (tmp_path / "events-host.jsonl").write_text(json.dumps(old) + "\n{\n")
    assert read_events(tmp_path) == [Event("capture", "kept", 3, 1, window="w")]


def test_the_steps_after_a_trigger_are_asked_for_deeper_and_waited_for(tmp_path: Path) -> None:
    followed = Followed(tmp_path, kinds=["stacks"])
    followed.alarms.add(slow(90), "slow", 0)
    assert followed.deeper.asked == [(("stacks",), 90, 5)]
    followed.alarms.seal_if_ready(followed.accounts, 0, ended=False)
    assert followed.windows.is_open, "their rows are not there yet"
    followed.deeper.is_open = False
    followed.alarms.seal_if_ready(followed.accounts, 0, ended=False)
    assert not followed.windows.is_open
    (facts,) = read_host_facts(followed.run / "windows/step-000090-slow")
    assert facts[STACKS] == [{"host": "here", "pid": 7, "functions": [], "rows": []}]


def test_a_refusal_is_said_and_the_window_is_sealed_all_the_same(tmp_path: Path) -> None:
    followed = Followed(tmp_path, kinds=["stacks"])
    followed.deeper.why = "0 ns are left"
    followed.alarms.add(slow(90), "slow", 0)
    followed.alarms.seal_if_ready(followed.accounts, 0, ended=False)
    assert not followed.windows.is_open
    texts = [event.text for event in read_events(followed.run) if event.kind == "deeper"]
    assert texts == ["the next steps are recorded as usual: 0 ns are left"]


def test_a_stuck_job_waits_for_no_deeper_steps(tmp_path: Path) -> None:
    followed = Followed(tmp_path, kinds=["stacks"])
    followed.alarms.add(slow(90), "slow", 0)
    followed.alarms.add(Event("stuck", "it stands", SECOND, 99), "stuck", 1, now=True)
    assert followed.deeper.is_given_up
    assert len(followed.deeper.asked) == 1
