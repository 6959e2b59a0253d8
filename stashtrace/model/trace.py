"""RawProcess, EventTables and Trace: what flows between the floors."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.model.schemas import TABLES
from stashtrace.model.strings import StringPool
from stashtrace.model.table import Table


@dataclass(frozen=True, slots=True)
class RawRecords:
    """All rows of one record type of one process, grouped by thread in the order written.

    Attributes
    ----------
    rows : structured array
        Fields as in today's ``records.def``, projected by name from the file's own field table.
    tid : uint32 array
        Kernel thread id of each row.
    """

    rows: npt.NDArray[np.void]
    tid: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class RawProcess:
    """One traced process image, still in its own clocks.

    Attributes
    ----------
    name : str
        File name without suffix.
    metadata : dict
        JSON metadata of the file header (see ``csrc/schema/container.h``).
    records : dict
        Record name -> :class:`RawRecords`; missing types are absent.
    strings : dict
        String id -> text, of this process.
    losses : list of (collector, reason, severity, lost_count, advice)
        Found while reading: drops, torn tails, unknown records.
    """

    name: str
    metadata: Mapping[str, Any]
    records: Mapping[str, RawRecords]
    strings: Mapping[int, str]
    losses: list[tuple[str, str, int, int, str]] = field(default_factory=list)


class _Tables:
    """Attribute access to tables by name; absent ones are empty."""

    def __init__(self, strings: StringPool, tables: Mapping[str, Table]) -> None:
        unknown = set(tables) - set(TABLES)
        if unknown:
            raise ValueError(f"unknown tables {sorted(unknown)}")
        self.strings = strings
        self._tables = dict(tables)

    def table(self, name: str) -> Table:
        """Table by name, empty if nothing filled it."""
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = Table.empty(TABLES[name])
        return found

    def __getattr__(self, name: str) -> Table:
        if name.startswith("_") or name not in TABLES:
            raise AttributeError(name)
        return self.table(name)


class EventTables(_Tables):
    """Tables of one process or file, in its own clock (``*_ns`` columns hold that clock's values)."""


class Trace(_Tables):
    """All ranks on one time line.

    Attributes
    ----------
    strings : StringPool
        Texts behind every ``*_code`` column that is not an enumeration.
    path : str
        Where it was loaded from.
    processes, tracks, spans, phases, batches, io, waits, collectives, collective_waits, groups,
    counters, flows, losses, alignment, metadata : Table
        See ``stashtrace/model/schemas.py``.
    """

    def __init__(self, strings: StringPool, tables: Mapping[str, Table], *, path: str = "") -> None:
        super().__init__(strings, tables)
        self.path = path

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """Global ranks present, ascending."""
        ranks = np.unique(self.processes["rank"])
        return ranks[ranks >= 0]

    def replace(self, **tables: Table) -> Trace:
        """Same trace with some tables exchanged."""
        return Trace(self.strings, {**self._tables, **tables}, path=self.path)

    def text(self, code: int) -> str:
        """Text of a ``*_code`` value."""
        return self.strings.text(int(code))
