"""Tracks of a Perfetto file: parents, order, lanes.

A layer describes slices as `Piece`s: columns with a key that names their line. `TrackTree.add` gives each key a track,
spreads overlaps over lanes (several tracks of one name and parent, which the viewer draws as one) and returns the
encoder's columns. `Order` says which layer stands above which; ranks are ordered in ``timeline``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.analysis.intervals import Bools
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

#: Argument that a slice does not have.
NO_VALUE: int = _native.perfetto.NO_VALUE


#: Viewers merge threads with processes of an equal number, and processes are numbered from 1.
_FIRST_TID = 1_000_000


class Order(enum.IntEnum):
    """Place of a layer below the step track of its rank; lines of a layer count on from it."""

    PHASES = 1000
    FUNCTIONS = 1300
    DEVICE_CALLS = 1500
    DEVICES = 1800
    COMMUNICATORS = 2000
    LOADER = 3000
    FILES = 4000
    WAITS = 5000
    ANNOTATIONS = 6000
    STACKS = 6500
    GC = 7000
    CHECKPOINT = 8000
    TRACER = 9000
    COUNTERS = 10000


class Texts:
    """Texts of slices and arguments, as the encoder takes them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.native = _native.perfetto.TextTable(list(texts))


def value_where(condition: Bools, values: npt.NDArray[Any] | int) -> Ints:
    """Return the values of an argument that only some slices have."""
    return np.where(condition, values, NO_VALUE)


def code_where(condition: Bools, codes: npt.NDArray[Any] | int) -> Ints:
    """Return the codes of a text argument that only some slices have."""
    return np.where(condition, codes, -1).astype(np.int64)


def coded(values: npt.NDArray[Any], known: Sequence[int]) -> Ints:
    """Return the position of each value in ``known``; one past the end for other values."""
    lookup = np.full(max(known) + 2, len(known), dtype=np.int64)
    lookup[list(known)] = np.arange(len(known))
    inside = (values >= 0) & (values <= max(known))
    return lookup[np.where(inside, values, len(lookup) - 1)]


def numbered(words: Sequence[str], word: npt.NDArray[Any], number: npt.NDArray[Any]) -> tuple[Ints, Texts]:
    """Return codes and texts of names like ``batch 17``: a word and a number, without the number if it is negative.

    Viewers ignore digits when they choose a colour, so all slices of one word have one colour.
    """
    names = GroupBy(word.astype(np.int64), np.maximum(number, -1).astype(np.int64))
    pairs = zip(*(column.tolist() for column in names.keys), strict=True)
    texts = [f"{words[at]} {value}" if value >= 0 else words[at] for at, value in pairs]
    return names.number, Texts(texts or [""])


@dataclass(frozen=True, slots=True)
class Line:
    """The track of a key: its name, its place among its siblings, its explanation."""

    name: str
    order: int
    description: str = ""


#: Line of rows whose track is of another kind: a damaged file may call a thread a device.
_UNKNOWN = Line("unknown", 1 << 30, "What this ran on was not recorded.")


@dataclass(slots=True)
class Piece:
    """Slices with the same arguments."""

    #: Line of each slice.
    key: npt.NDArray[Any]
    #: Half-open intervals.
    begin_ns: Ints
    end_ns: Ints
    #: Codes in ``names``.
    name: Ints
    names: Texts
    #: Arguments by name; ``NO_VALUE``, NaN and negative codes leave one out.
    ints: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    doubles: dict[str, Doubles] = field(default_factory=dict)
    texts: dict[str, tuple[npt.NDArray[Any], Texts]] = field(default_factory=dict)
    #: Arrows: slices with the same id are joined in the order of time.
    flows: list[tuple[Ints, Ints]] = field(default_factory=list)
    #: Correlation ids, by which viewers colour slices.
    correlation: tuple[Ints, Texts] | None = None

    @classmethod
    def from_rows(cls, table: Table, name: npt.NDArray[Any], names: Texts) -> Piece:
        """Return slices for the rows of a table, on their tracks."""
        return cls(table["track_id"], table["begin_ns"], table["end_ns"], name, names)

    def __len__(self) -> int:
        return len(self.begin_ns)

    def slices(self, track: Ints) -> _native.perfetto.Slices:
        """Return the columns for the encoder, on these tracks."""
        slices = _native.perfetto.Slices(track, self.begin_ns, self.end_ns, self.name, self.names.native)
        for name, values in self.ints.items():
            slices.arg_int(name, values)
        for name, numbers in self.doubles.items():
            slices.arg_double(name, numbers)
        for name, (codes, texts) in self.texts.items():
            slices.arg_text(name, codes, texts.native)
        for rows, ids in self.flows:
            order = np.argsort(rows, kind="stable")
            slices.flow(rows[order], ids[order])
        if self.correlation is not None:
            slices.correlation(self.correlation[0], self.correlation[1].native)
        return slices


class TrackTree:
    """Numbers tracks and describes them to the encoder."""

    def __init__(self, encoder: _native.perfetto.Encoder) -> None:
        self._encoder = encoder
        self._next = 1
        self._flow = 1

    def process(self, pid: int, name: str, labels: Sequence[str], order: int) -> int:
        """Add the track of a process; return its uuid."""
        self._encoder.process(self._next, pid, name, list(labels), order)
        return self._claim()

    def group(self, parent: int, line: Line) -> int:
        """Add a track that only holds others; return its uuid."""
        self._encoder.track(self._next, line.name, parent, line.order, line.description)
        return self._claim()

    def counter(self, parent: int, line: Line, unit: str, share_axis: str = "") -> int:
        """Add a counter track; return its uuid."""
        self._encoder.counter_track(self._next, line.name, parent, line.order, line.description, unit, share_axis)
        return self._claim()

    def samples(
        self, sequence: int, pid: int, name: str, frames: _native.perfetto.Frames, ts_ns: Ints, frame: Ints
    ) -> None:
        """Write the stack samples of a thread; viewers make the track, below the process of that pid."""
        self._encoder.stack_samples(sequence, self._next, pid, _FIRST_TID + self._next, name, frames, ts_ns, frame)
        self._claim()

    def flow_ids(self, count: int) -> Ints:
        """Return unused numbers for ``count`` arrows."""
        self._flow += count
        return np.arange(self._flow - count, self._flow, dtype=np.int64)

    def add(
        self, parent: int, lines: Mapping[int, Line], pieces: Sequence[Piece], *, nest: bool = True
    ) -> list[_native.perfetto.Slices]:
        """Put pieces on tracks below ``parent``, one line per key; return them for the encoder.

        With ``nest`` a slice inside another one of its line is drawn below it, and only partial overlaps take another
        lane; without it each slice that overlaps takes another lane.
        """
        pieces = [piece for piece in pieces if len(piece)]
        if not pieces:
            return []
        key = np.concatenate([piece.key for piece in pieces]).astype(np.int64)
        begin = np.concatenate([piece.begin_ns for piece in pieces])
        end = np.concatenate([piece.end_ns for piece in pieces])
        track = self.place(parent, lines, key, begin, end, nest=nest)
        cuts = np.cumsum([len(piece) for piece in pieces])[:-1]
        return [piece.slices(part) for piece, part in zip(pieces, np.split(track, cuts), strict=True)]

    def place(
        self, parent: int, lines: Mapping[int, Line], key: Ints, begin_ns: Ints, end_ns: Ints, *, nest: bool = True
    ) -> Ints:
        """Make the tracks that these slices need; return the track of each slice."""
        lane = _native.perfetto.lanes(key, begin_ns, end_ns, nest).astype(np.int64)
        by_key = GroupBy(key)
        first = np.empty(len(by_key), dtype=np.int64)
        for at, (value, lanes_count) in enumerate(
            zip(by_key.values.tolist(), by_key.max(lane + 1).tolist(), strict=True)
        ):
            line = lines.get(value, _UNKNOWN)
            first[at] = self._next
            for _ in range(lanes_count):
                self._encoder.track(self._next, line.name, parent, line.order, line.description)
                self._claim()
        return first[by_key.number] + lane

    def _claim(self) -> int:
        self._next += 1
        return self._next - 1
