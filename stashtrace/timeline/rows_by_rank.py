"""Rows of a trace by rank, cut to the ranks and the window of an export."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stashtrace.errors import UsageError
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import BatchPhase, ProcessRole, ThreadRole, TrackKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.tracks import Line, Texts

#: Rank of the processes that belong to none (launchers, shells).
UNRANKED = -1


@dataclass(frozen=True, slots=True)
class Window:
    """Half-open interval of time; rows that touch it are kept whole."""

    begin_ns: int
    end_ns: int

    def touches(self, begin_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which intervals share an instant with the window; empty ones count as their instant."""
        return (begin_ns < self.end_ns) & ((end_ns > self.begin_ns) | (begin_ns >= self.begin_ns))


class TraceRows:
    """A trace, indexed by rank."""

    def __init__(self, trace: Trace, window: Window | None) -> None:
        self.trace = trace
        self.window = window
        processes, tracks = trace.processes, trace.tracks
        self.rank_of_process = _by_id(processes["process_id"], processes["rank"])
        self.process_of_track = _by_id(tracks["track_id"], tracks["process_id"])
        self.rank_of_track = self.rank_of_process[self.process_of_track]

    def ranks(self, wanted: Iterable[int] | None) -> list[int]:
        """Return the ranks to write, ascending, the unranked processes last.

        Raises UsageError if the trace has no such rank.
        """
        present = self.trace.ranks.tolist()
        if wanted is None:
            return [*present, UNRANKED] if (self.trace.processes["rank"] < 0).any() else present
        chosen = sorted(set(wanted))
        missing = [r for r in chosen if r not in present]
        if missing:
            raise UsageError(
                f"the trace holds no rank {', '.join(map(str, missing))}",
                hint=f"it holds {', '.join(map(str, present)) or 'no rank'}",
            )
        return chosen

    def cut(self, table: Table) -> Table:
        """Return the rows that touch the window."""
        return table if self.window is None else table.take(self.window.touches(table["begin_ns"], table["end_ns"]))

    @cached_property
    def texts(self) -> Texts:
        """All texts of the trace."""
        return Texts(list(self.trace.strings))

    @cached_property
    def io_bounds(self) -> npt.NDArray[np.int64]:
        """First row of each track in the io table, which is sorted by track."""
        tracks = np.arange(len(self.process_of_track))
        outline = self.trace.io_outline
        if outline is not None:
            # Tracks that were made after the calls were counted, for rows without a track, have no calls.
            counts = np.zeros(len(tracks) - 1, dtype=np.int64)
            counts[: len(outline.counts)] = outline.counts
            return np.append(0, np.cumsum(counts))
        return np.searchsorted(self.trace.io["track_id"], tracks).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of a rank, with its label for people."""

    track_id: int
    process_id: int
    native_id: int
    label: str
    description: str
    is_step: bool
    in_worker: bool
    order: int

    @property
    def is_main(self) -> bool:
        """Whether it is the step thread, or the thread that makes a worker's batches."""
        return self.is_step or (self.in_worker and "·" not in self.label)


class RankRows:
    """Rows of one rank and its workers, cut to the window."""

    def __init__(self, rows: TraceRows, rank: int) -> None:
        self.rank = rank
        self.trace = rows.trace
        self.texts = rows.texts
        self._rows = rows

    def table(self, name: str) -> Table:
        """Return the rows of this rank in a table with a process or a track."""
        table = self.trace.table(name)
        if "process_id" in table:
            own = self._rows.rank_of_process[table["process_id"]] == self.rank
        else:
            own = self._rows.rank_of_track[table["track_id"]] == self.rank
        table = table.take(own)
        return self._rows.cut(table) if "begin_ns" in table else table

    def io_parts(self) -> Iterator[Table]:
        """Yield the I/O of this rank by thread and time: a table per thread, or several if the calls are on disk.

        The tables of a trace in memory and without a window share its memory.
        """
        bounds, streamed = self._rows.io_bounds, self.trace.streamed_io
        parts: Iterator[Table]
        if streamed is None:
            parts = (
                self.trace.io.take(slice(bounds[t], bounds[t + 1]))
                for t in np.flatnonzero(self._rows.rank_of_track[:-1] == self.rank).tolist()
                if bounds[t] < bounds[t + 1]
            )
        else:
            parts = _by_thread(streamed.pieces(self.processes["process_id"].tolist()))
        for part in parts:
            part = self._rows.cut(part)
            if len(part):
                yield part

    def io_counts(self) -> list[int]:
        """Return the number of I/O calls of each thread of this rank with calls, in any window; reads none of them."""
        counts = np.diff(self._rows.io_bounds)[self._rows.rank_of_track[:-1] == self.rank]
        return [int(n) for n in counts if n > 0]

    def io_counts_in_window(self) -> list[int]:
        """Return the same for the calls that touch the window, which are read to count them."""
        if self._rows.window is None:
            return self.io_counts()
        counts: Counter[int] = Counter()
        for part in self.io_parts():
            counts[int(part["track_id"][0])] += len(part)
        return list(counts.values())

    def io(self) -> Table:
        """Return the I/O of this rank, by track and time, without a pass over the other ranks' rows."""
        return Table.concat(TABLES["io"], list(self.io_parts()))

    @cached_property
    def processes(self) -> Table:
        """Processes of this rank: the rank first, then workers."""
        processes = self.trace.processes.take(self.trace.processes["rank"] == self.rank)
        order = np.lexsort((processes["process_id"], processes["role_code"] != ProcessRole.RANK))
        return processes.take(order)

    @cached_property
    def threads(self) -> dict[int, Thread]:
        """Threads of this rank by track, in the order in which they are shown."""
        tracks = self.table("tracks")
        tracks = tracks.take(tracks["kind_code"] == TrackKind.THREAD)
        process = {p["process_id"]: p for p in self.processes.rows()}
        owned = [(row, process[row["process_id"]]) for row in tracks.rows()]
        owned.sort(key=lambda pair: (_importance(pair[0]["role_code"], pair[1]), pair[0]["native_id"]))
        labels = [self._label(row, owner) for row, owner in owned]
        # Viewers draw threads of one process with one name as one line.
        uses = Counter((owner["process_id"], label) for label, (_, owner) in zip(labels, owned, strict=True))
        return {
            row["track_id"]: Thread(
                track_id=row["track_id"],
                process_id=row["process_id"],
                native_id=row["native_id"],
                label=label if uses[owner["process_id"], label] == 1 else f"{label} {row['native_id']}",
                description=f"thread {row['native_id']} of {self._process(owner)}",
                is_step=row["role_code"] == ThreadRole.STEP,
                in_worker=owner["role_code"] == ProcessRole.WORKER,
                order=order,
            )
            for order, (label, (row, owner)) in enumerate(zip(labels, owned, strict=True))
        }

    def thread_lines(
        self, first: int, title: str = "{}", about: str = "{}", step_title: str | None = None
    ) -> dict[int, Line]:
        """Return a line for each thread, by track.

        ``first``: place of the layer; threads follow in the order in which they are shown. ``title``, ``about``: name
        and explanation, in which ``{}`` stands for the thread's label and its description. ``step_title``: name of the
        step thread's line, if it differs.
        """
        return {
            t.track_id: Line(
                step_title if t.is_step and step_title is not None else title.format(t.label),
                first + t.order,
                about.format(t.description),
            )
            for t in self.threads.values()
        }

    def _process(self, owner: dict[str, int]) -> str:
        return f"process {owner['pid']} on {self.trace.text(owner['host_code'])}"

    @cached_property
    def _feeders(self) -> set[int]:
        """Tracks of the threads that pickle a worker's batches."""
        batches = self.table("batches")
        return set(batches["track_id"][batches["phase_code"] == BatchPhase.SERIALIZE].tolist())

    def _label(self, row: dict[str, int], owner: dict[str, int]) -> str:
        name = self.trace.text(row["name_code"]) or str(row["native_id"])
        if owner["role_code"] == ProcessRole.WORKER:
            worker = f"worker {owner['worker_id']}"
            if row["role_code"] == ThreadRole.WORKER:
                return worker
            return f"{worker} · {'queue' if row['track_id'] in self._feeders else name}"
        if row["role_code"] == ThreadRole.STEP:
            return "step thread"
        if row["role_code"] == ThreadRole.PIN_MEMORY:
            return "pin memory"
        process = self.trace.text(owner["name_code"]) or str(owner["pid"])
        return name if owner["role_code"] == ProcessRole.RANK or name == process else f"{process} · {name}"


def _importance(role: int, owner: dict[str, int]) -> tuple[int, int, int]:
    """Return the sort key of a thread: the step thread, its helpers, workers by number, all others."""
    places: dict[int, int] = {ThreadRole.STEP: 0, ThreadRole.PIN_MEMORY: 1, ThreadRole.BACKEND: 2}
    place = places.get(role, 3)
    if owner["role_code"] == ProcessRole.WORKER:
        return 4, owner["worker_id"], 0 if role == ThreadRole.WORKER else 1
    return place if owner["role_code"] == ProcessRole.RANK else 5, 0, 0


def _by_thread(tables: Iterable[Table]) -> Iterator[Table]:
    """Yield the same rows, each table cut where a thread's rows end."""
    for table in tables:
        track = table["track_id"]
        cuts = (np.flatnonzero(track[1:] != track[:-1]) + 1).tolist()
        for begin, end in zip([0, *cuts], [*cuts, len(table)], strict=True):
            yield table.take(slice(begin, end))


def _by_id(ids: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a dense lookup table id -> value. Gaps give -1, and so does the id -1, which finds the last place."""
    table = np.full(int(ids.max()) + 2 if len(ids) else 1, -1, dtype=np.int64)
    table[ids] = values
    return table
