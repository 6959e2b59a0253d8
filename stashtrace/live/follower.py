"""Follow a run while it records: ``python -m stashtrace.live.follower DIR``, started by the launcher of each host.

A separate process, so that a fault here costs the job nothing. It ends when its standard input is
closed, after one more round: the launcher closes it when the job has ended, and the system does if the launcher dies.
A byte in it asks for a window (``record.follower``). The time between rounds grows with what a round costs, so that the
CPU time stays bounded: not by a low priority, with which a follower on a busy host reports nothing for a minute.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stashtrace.live import times
from stashtrace.live.deeper import BUDGET_RATIO
from stashtrace.live.followed import FollowedRun, FollowOptions
from stashtrace.live.metrics.outlets import Outlets, add_outlet_arguments, outlets_of
from stashtrace.live.state import Event, EventLog
from stashtrace.record.launchers import own_place
from stashtrace.record.run import FORWARDED

#: The share of one core that all rounds may take.
_CPU_RATIO = 0.02


def main(argv: Sequence[str] | None = None) -> int:
    """Follow a run until the launcher says that it has ended."""
    parser = argparse.ArgumentParser(prog="stashtrace.live.follower", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shared", type=Path, help="run directory, where the processes write to scratch")
    parser.add_argument("--quiet", action="store_true", help="write no line when something happens")
    parser.add_argument("--keep-steps", type=int, default=0, help="steps that stay on disk")
    parser.add_argument("--keep-bytes", type=int, default=0, help="bytes that the files may take")
    parser.add_argument("--on-trigger", metavar="CMD", default="", help="command that is called for each trigger")
    parser.add_argument("--deeper", default="", help="what is also recorded in steps after a trigger, by commas")
    parser.add_argument("--deeper-ratio", type=float, default=BUDGET_RATIO, help="what that may cost, of each hour")
    add_outlet_arguments(parser)
    arguments = parser.parse_args(argv)
    # What the terminal sends is meant for the job; we end with it. A handler, since programs that we start would
    # inherit that a signal is ignored.
    for number in FORWARDED:
        if number != signal.SIGCONT:
            signal.signal(number, lambda *_: None)
    try:
        _follow(arguments)
    except Exception as error:  # a fault of ours: one line, and the recording goes on without us
        why = f"{type(error).__name__}: {error}"
        sys.stderr.write(f"stashtrace: the run is no longer followed ({why}); it is recorded all the same\n")
        return 1
    return 0


def _follow(arguments: argparse.Namespace) -> None:
    """Make a round again and again, until standard input is closed."""
    log = EventLog(arguments.shared or arguments.directory, None if arguments.quiet else sys.stderr)
    options = FollowOptions(
        keep_steps=arguments.keep_steps,
        keep_bytes=arguments.keep_bytes,
        on_trigger=shlex.split(arguments.on_trigger),
        deeper=tuple(filter(None, arguments.deeper.split(","))),
        deeper_ratio=arguments.deeper_ratio,
        shared=arguments.shared,
    )
    run = FollowedRun(arguments.directory, log, options)
    run.state.follower_pid, run.state.follower_place = os.getpid(), own_place()
    outlets = outlets_of(arguments, run.state)
    run.publish = Outlets(outlets, lambda text: log.add(Event("metrics", text, time.time_ns()))).publish
    interval_s, ended = times.LEAST_ROUND_S, False
    while not ended:
        asked, ended = _wait_for_round(run, sys.stdin.fileno(), interval_s)
        if asked:
            run.ask()
        before_s = time.process_time()
        closed = run.round(ended=ended, interval_s=interval_s)
        most_s = times.ROUND_S if closed else times.QUIET_ROUND_S
        interval_s = min(max(times.LEAST_ROUND_S, (time.process_time() - before_s) / _CPU_RATIO), most_s)


def _wait_for_round(run: FollowedRun, descriptor: int, interval_s: float) -> tuple[bool, bool]:
    """Wait as :func:`_wait` does until it is time for the next round; other hosts may want it sooner."""
    begin_s = time.monotonic()
    while True:
        left_s = interval_s - (time.monotonic() - begin_s)
        asked, ended = _wait(descriptor, min(left_s, times.LEAST_ROUND_S))
        if asked or ended or left_s <= times.LEAST_ROUND_S or run.collect():
            return asked, ended


def _wait(descriptor: int, timeout_s: float) -> tuple[bool, bool]:
    """Wait until something comes through a pipe, it is closed, or the time is over.

    Returns whether something came, and whether it was closed. What comes shortens the time to that between two rounds.
    """
    begin_s = time.monotonic()
    asked = False
    while True:
        left_s = (min(timeout_s, times.LEAST_ROUND_S) if asked else timeout_s) - (time.monotonic() - begin_s)
        readable, _, _ = select.select([descriptor], [], [], max(left_s, 0.0))
        if not readable:
            return asked, False
        if os.read(descriptor, 1 << 16) == b"":
            return asked, True
        asked = True


if __name__ == "__main__":
    sys.exit(main())
