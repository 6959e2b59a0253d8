"""Makes tiny exports as Nsight Systems writes them: only the tables and columns that a test names."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

EPOCH_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def pid_of(pid: int) -> int:
    """A serialized process."""
    return (1 << 48) | (pid << 24)


def tid_of(pid: int, tid: int = 0) -> int:
    """A serialized thread, the main one by default."""
    return pid_of(pid) | (tid or pid)


class Export:
    """An export being made. Tables appear with their first row, with the columns that it names."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.path = path
        self._connection = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS)
        self.row("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node01")
        if environment:
            text = ";".join(f"{k}={v}" for k, v in environment.items())
            self.row("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=text)

    def row(self, table: str, **values: Any) -> None:
        there = {r[1] for r in self._connection.execute(f'PRAGMA table_info("{table}")')}
        if not there:
            columns = ", ".join(f'"{n}"' + (" INTEGER" if isinstance(v, int) else "") for n, v in values.items())
            self._connection.execute(f'CREATE TABLE "{table}" ({columns})')
        else:
            for name in set(values) - there:
                self._connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}"')
        names = ", ".join(f'"{n}"' for n in values)
        marks = ", ".join("?" for _ in values)
        self._connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(values.values()))

    def text(self, text: str) -> int:
        """Id of a text in ``StringIds``."""
        found = self._strings.get(text)
        if found is None:
            found = self._strings[text] = 100 + len(self._strings)
            self.row("StringIds", id=found, value=text)
        return found

    def kernel(self, pid: int, name: str, begin: int, end: int, *, call: int = 0, stream: int = 7, **more: Any) -> None:
        """A kernel, launched by the call with this correlation id."""
        self.row(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=begin,
            end=end,
            deviceId=more.pop("device", 0),
            contextId=1,
            streamId=stream,
            correlationId=call,
            globalPid=pid_of(pid),
            demangledName=self.text(name),
            shortName=self.text(name.partition("(")[0]),
            **more,
        )

    def call(self, pid: int, name: str, begin: int, end: int, *, call: int, tid: int = 0) -> None:
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=begin,
            end=end,
            eventClass=0,
            globalTid=tid_of(pid, tid),
            correlationId=call,
            nameId=self.text(name),
            returnValue=0,
        )

    def range(
        self, pid: int, name: str, begin: int, end: int | None, *, kind: int = 59, tid: int = 0, **more: Any
    ) -> None:
        """An NVTX range or mark; its text in the row."""
        self.row("NVTX_EVENTS", start=begin, end=end, eventType=kind, globalTid=tid_of(pid, tid), text=name, **more)

    def close(self) -> Path:
        self._connection.commit()
        self._connection.close()
        return self.path
