"""The log of what happened to a run: one JSON object a line in the run directory, and a line of text for people.

A storm of events of one kind has so many lines a minute; the others are counted, and one line says how many there were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
from collections import Counter, deque
from pathlib import Path
from typing import TextIO

from stashtrace.errors import FormatError
from stashtrace.live import times
from stashtrace.live.state import EVENTS_KEPT, Event
from stashtrace.live.table import open_own
from stashtrace.text import count_noun
from stashtrace.visible import visible_line
from stashtrace.whole_files import read_text

EVENTS_FILE = "events-{host}.jsonl"
#: Lines of one kind in a minute.
STORM_COUNT = 20


class EventLog:
    """Takes events, each once. ``directory``: of the run. ``stream``: where people read; None for nowhere."""

    def __init__(self, directory: str | os.PathLike[str], stream: TextIO | None) -> None:
        self._path = Path(directory) / EVENTS_FILE.format(host=os.uname().nodename)
        self._stream = stream
        #: The newest ones.
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        #: Events that could not be written.
        self.unwritten_count = 0
        #: Kind -> when its newest lines were written, and events without a line since.
        self._written_ns: dict[str, deque[int]] = {}
        self._withheld: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Write an event. What cannot be written is counted: the job goes on."""
        written = self._written_ns.setdefault(event.kind, deque(maxlen=STORM_COUNT))
        if len(written) == STORM_COUNT and event.realtime_ns - written[0] < times.MINUTE_NS:
            self._withheld[event.kind] += 1
            return
        written.append(event.realtime_ns)
        self._write(event)

    def settle(self, realtime_ns: int, *, ended: bool = False) -> None:
        """Say how many events had no line, once the storm of their kind is over for a minute or the job has ended."""
        for kind, count in list(self._withheld.items()):
            if ended or realtime_ns - self._written_ns[kind][-1] >= times.MINUTE_NS:
                del self._withheld[kind]
                text = f"{count_noun(count, 'event')} of the kind {kind} had no line: {STORM_COUNT} a minute have one"
                self._write(Event(kind, text, realtime_ns))

    def _write(self, event: Event) -> None:
        self.events.append(event)
        if self._stream is not None:
            window = "" if not event.window or event.window in event.text else f"; window {event.window}"
            with contextlib.suppress(OSError, ValueError):  # the terminal was closed
                self._stream.write(f"stashtrace: {visible_line(event.text + window)}\n")
                self._stream.flush()
        try:
            with open(self._path, "a", encoding="utf-8", opener=open_own) as file:
                file.write(json.dumps(dataclasses.asdict(event)) + "\n")
        except OSError:
            self.unwritten_count += 1


def read_events(directory: str | os.PathLike[str], host: str = "*") -> list[Event]:
    """Return the events of a host of a run, by default of all, by time; a line that was cut is left out.

    Raises FormatError if a file cannot be read.
    """
    events = []
    for path in sorted(Path(directory).glob(EVENTS_FILE.format(host=host if host == "*" else glob.escape(host)))):
        try:
            lines = read_text(path, errors="replace").splitlines()
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error.strerror}") from error
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                events.append(Event(**json.loads(line)))
    return sorted(events, key=lambda event: event.realtime_ns)
