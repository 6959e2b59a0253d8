"""Tracks of a Perfetto file: who is below whom, in which order, on which lane.

Used by the other perfetto_*.py files. A layer describes slices as `Piece`s (columns with a key that says which line
they belong to); `TrackTree.add` gives each key a track, spreads overlaps over lanes (several tracks of one name and
parent, which the viewer draws as one) and returns what the encoder takes. No knowledge of what the slices mean.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


class Texts:
    """Texts that slices and arguments are named by, with their native twin."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.native = _native.perfetto.TextTable(list(texts))


def coded(values: npt.NDArray[Any], known: Sequence[int]) -> Ints:
    """Position of each value in ``known``; one past the end for values that are not there."""
    lookup = np.full(max(known) + 2, len(known), dtype=np.int64)
    lookup[list(known)] = np.arange(len(known))
    inside = (values >= 0) & (values <= max(known))
    return lookup[np.where(inside, values, len(lookup) - 1)]


def numbered(words: Sequence[str], word: npt.NDArray[Any], number: npt.NDArray[Any]) -> tuple[Ints, Texts]:
    """Codes and texts of names like ``batch 17``: a word and a number, without the number if it is negative.

    Viewers leave digits out when they choose a colour, so all slices of one word have one colour.
    """
    # Damaged files hold numbers of 64 bits, so a word and its number are combined by the number's place.
    numbers, place = np.unique(np.maximum(number, -1).astype(np.int64), return_inverse=True)
    stride = max(len(numbers), 1)
    distinct, codes = np.unique(word.astype(np.int64) * stride + place, return_inverse=True)
    texts = [
        words[code // stride] + (f" {numbers[code % stride]}" if numbers[code % stride] >= 0 else "")
        for code in distinct.tolist()
    ]
    return codes.astype(np.int64), Texts(texts or [""])


@dataclass(frozen=True, slots=True)
class Line:
    """What a key of a piece looks like: name of its track, place among its siblings, explanation."""

    name: str
    order: int
    description: str = ""


#: Of rows on a track that is not what they need: a damaged file may call a thread a device.
_UNKNOWN = Line("unknown", 1 << 30, "What this ran on was not recorded.")


@dataclass(slots=True)
class Piece:
    """Slices with the same arguments.

    Attributes
    ----------
    key : int array
        Which line each slice belongs to.
    begin_ns, end_ns : int array
        Half-open intervals.
    name : int array
        Codes in ``names``.
    ints, doubles, texts : dict
        Arguments by name; ``NO_VALUE``, NaN and negative codes leave one out.
    flows : list of (rows, ids)
        Arrows: slices with the same id are joined in the order of time.
    """

    key: npt.NDArray[Any]
    begin_ns: Ints
    end_ns: Ints
    name: Ints
    names: Texts
    ints: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    doubles: dict[str, Doubles] = field(default_factory=dict)
    texts: dict[str, tuple[npt.NDArray[Any], Texts]] = field(default_factory=dict)
    flows: list[tuple[Ints, Ints]] = field(default_factory=list)
    correlation: tuple[Ints, Texts] | None = None

    def __len__(self) -> int:
        return len(self.begin_ns)

    def slices(self, track: Ints) -> _native.perfetto.Slices:
        """Columns for the encoder, on these tracks."""
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
        """Track of a process; its uuid."""
        self._encoder.process(self._next, pid, name, list(labels), order)
        return self._claim(1)

    def group(self, parent: int, line: Line) -> int:
        """Track that only holds others; its uuid."""
        self._encoder.track(self._next, line.name, parent, line.order, line.description)
        return self._claim(1)

    def counter(self, parent: int, line: Line, unit: str, share_axis: str = "") -> int:
        """Counter track; its uuid."""
        self._encoder.counter_track(self._next, line.name, parent, line.order, line.description, unit, share_axis)
        return self._claim(1)

    def flow_ids(self, count: int) -> Ints:
        """Numbers for ``count`` arrows, not used before."""
        self._flow += count
        return np.arange(self._flow - count, self._flow, dtype=np.int64)

    def add(
        self, parent: int, lines: Mapping[int, Line], pieces: Sequence[Piece], *, nest: bool = True
    ) -> list[_native.perfetto.Slices]:
        """Put pieces on tracks below ``parent``, one line per key.

        With ``nest`` a slice inside another one of its line is drawn below it, and only partial overlaps take
        another lane; without it each slice that overlaps takes another lane.
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
        """Make the tracks that these slices need; the track of each."""
        lane = _native.perfetto.lanes(key, begin_ns, end_ns, nest).astype(np.int64)
        distinct, codes = np.unique(key, return_inverse=True)
        lanes = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(lanes, codes, lane + 1)
        first = np.empty(len(distinct), dtype=np.int64)
        for i, each in enumerate(distinct.tolist()):
            line = lines.get(each, _UNKNOWN)
            first[i] = self._next
            for _ in range(int(lanes[i])):
                self._encoder.track(self._next, line.name, parent, line.order, line.description)
                self._claim(1)
        return first[codes] + lane

    def _claim(self, count: int) -> int:
        self._next += count
        return self._next - count
