"""A Kineto file as columns: which of its events are kept, and what of them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import parse_json
from stashtrace.importers.context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.schema.kernel_names import communicates

Int64 = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

#: In a column of integers: the event has no such argument.
ABSENT: int = _native.importers.ABSENT

_GROUP_TEXTS = ("Collective name", "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks")
_GROUP_INTS = ("In msg nelems", "Group size", "Seq", "Src Rank", "Dst Rank", "Global rank start", "Global rank stride")
_PLACE = ("correlation", "device", "stream")
#: Table -> (integers, texts) of its arguments.
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kernels": ((*_PLACE, "graph node id"), ()),
    "talks": ((*_PLACE, "graph node id", *_GROUP_INTS), _GROUP_TEXTS),
    "copies": ((*_PLACE, "bytes"), ()),
    "memsets": ((*_PLACE, "bytes"), ()),
    "calls": (("correlation",), ()),
    "comms": (_GROUP_INTS, (*_GROUP_TEXTS, "Input Dims", "Input type")),
    "notes": ((), ()),
    "gradients": ((), ()),
    "window": ((), ()),
    "ends": ((), ()),
    "names": ((), ("name", "labels")),
}
#: What a top-level value must be to mean what its key says.
_SHAPES: dict[str, type] = {"distributedInfo": dict, "deviceProperties": list, "computeProperties": list}
#: Two such times add up to one that fits 64 bits; the year 2116.
_LATEST_NS = 1 << 62
_MOST_RANKS = 1 << 20
#: Beginnings of the names of most kernels that move bytes between ranks; the others are known by ``communicates``.
_TALKING = ("nccl", "rccl", "msccl", "void nccl")
#: Operators worth keeping: what torch records around a step, a batch, an update, a collective.
_NOTED = (
    "ProfilerStep",
    "enumerate(DataLoader)",
    "Optimizer.",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
)
_COMMUNICATING = ("record_param_comms", "nccl:", "gloo:", "mpi:", "ucc:", "xccl:")
_GRADIENTS = ("autograd::engine::evaluate_function",)
#: Spellings of each category, today's first; 2021's had capitals.
_RULES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("kernel", "Kernel"), _TALKING, "talks"),
    (("kernel", "Kernel"), ("",), "kernels"),
    (("gpu_memcpy", "Memcpy"), ("",), "copies"),
    (("gpu_memset", "Memset"), ("",), "memsets"),
    (("cuda_runtime", "Runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime"), ("",), "calls"),
    (("cpu_op", "Operator", "user_annotation", "User_annotation"), _COMMUNICATING, "comms"),
    (("cpu_op", "Operator"), _GRADIENTS, "gradients"),
    (("cpu_op", "Operator"), _NOTED, "notes"),
    (("user_annotation", "User_annotation"), ("",), "notes"),
    (("Trace",), ("",), "window"),
)


@dataclass(frozen=True, slots=True)
class EventRows:
    """Events of one table. ``name``, ``pid``, ``tid`` and the texts are numbers into the file's texts, -1 if absent."""

    begin_ns: Int64
    end_ns: Int64
    name: Codes
    pid: Codes
    tid: Codes
    ints: dict[str, Int64]
    texts: dict[str, Codes]

    def __len__(self) -> int:
        return len(self.begin_ns)

    def take(self, index: npt.NDArray[Any]) -> EventRows:
        """Rows chosen by a mask or an index."""
        return EventRows(
            self.begin_ns[index],
            self.end_ns[index],
            self.name[index],
            self.pid[index],
            self.tid[index],
            {k: v[index] for k, v in self.ints.items()},
            {k: v[index] for k, v in self.texts.items()},
        )


class KinetoFile:
    """What one file holds.

    Attributes
    ----------
    rows : dict of str to EventRows
        By the names of ``TABLES``.
    texts : list of str
    top : dict
        Top-level values beside the events, parsed; those that are no JSON are absent.
    counts : dict of str to int
        Of the scanner: events, kept, damaged, oversized, timeless, truncated (the text or its compression was cut).
    categories : dict of str to int
        Events with a duration by category, kept or not.
    """

    def __init__(self, scanner: _native.importers.TraceEvents, cut: bool) -> None:
        self.texts = scanner.texts()
        self.top = _parsed(scanner.top())
        self.counts = scanner.counts()
        self.counts["truncated"] |= int(cut)
        self.categories = scanner.categories()
        self.base_ns = _base_ns(self.top)
        self.rows = {
            name: self._rows(columns, *TABLES[name])
            for name, columns in zip(TABLES, scanner.take_tables(), strict=True)
        }
        self._sort_out_talks()
        self._integers: dict[int, int] = {}

    def _rows(self, columns: dict[str, Any], ints: tuple[str, ...], texts: tuple[str, ...]) -> EventRows:
        begin, duration = columns["begin_ns"], columns["duration_ns"]
        timed = (begin > -_LATEST_NS) & (begin < _LATEST_NS)
        begin = np.where(timed, begin + (self.base_ns or 0), ABSENT)
        longest = np.iinfo(np.int64).max - np.maximum(begin, 0)
        end = np.where(timed, begin + np.clip(duration, 0, longest), ABSENT)
        return EventRows(
            begin,
            end,
            columns["name"],
            columns["pid"],
            columns["tid"],
            dict(zip(ints, columns["ints"], strict=True)),
            dict(zip(texts, columns["texts"], strict=True)),
        )

    def _sort_out_talks(self) -> None:
        """Move kernels that communicate, by names whose beginnings do not tell, from ``kernels`` to ``talks``."""
        kernels, talks = self.rows["kernels"], self.rows["talks"]
        distinct, inverse = np.unique(kernels.name, return_inverse=True)
        moved = np.array([communicates(self.text(n)) for n in distinct.tolist()], dtype=np.bool_)[inverse]
        if not moved.any():
            return
        found = kernels.take(moved)
        unknown = np.full(len(found), ABSENT)
        nameless = np.full(len(found), -1, dtype=np.int32)
        self.rows["kernels"] = kernels.take(~moved)
        self.rows["talks"] = EventRows(
            np.concatenate([talks.begin_ns, found.begin_ns]),
            np.concatenate([talks.end_ns, found.end_ns]),
            np.concatenate([talks.name, found.name]),
            np.concatenate([talks.pid, found.pid]),
            np.concatenate([talks.tid, found.tid]),
            {k: np.concatenate([v, found.ints.get(k, unknown)]) for k, v in talks.ints.items()},
            {k: np.concatenate([v, nameless]) for k, v in talks.texts.items()},
        )

    @property
    def recorded_until_ns(self) -> int | None:
        """When the recording ended, None if the file does not say.

        An annotation that was open then ends when the recording was processed, which may be much later.
        """
        marks = self.rows["ends"].begin_ns
        marks = marks[marks != ABSENT]
        if len(marks):
            return int(marks.max())
        window = self.rows["window"].end_ns
        return int(window.max()) if len(window) else None

    def text(self, number: int) -> str:
        """Text by its number, empty for -1."""
        return self.texts[number] if number >= 0 else ""

    def integers(self, numbers: Codes, default: int = -1) -> Int64:
        """The first whole number in each text (``7``, ``stream 7``), ``default`` where there is none."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        found = [_integer_in(self.text(n), default) for n in distinct.tolist()]
        return np.array(found, dtype=np.int64)[inverse]

    def matching(self, numbers: Codes, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
        """Where the text fits a pattern."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        found = [bool(pattern.search(self.text(n))) for n in distinct.tolist()]
        return np.array(found, dtype=np.bool_)[inverse]


def read(source: Source) -> KinetoFile:
    """Read a file front to back.

    Raises
    ------
    ImporterError
        If there is no event in it.
    """
    order = {name: at for at, name in enumerate(TABLES)}
    rules = [("X", cat, start, order[table]) for cats, starts, table in _RULES for cat in cats for start in starts]
    rules += [("M", "", "", order["names"]), ("M", "__metadata", "", order["names"])]
    rules += [("i", "", "Record Window End", order["ends"])]
    scanner = _native.importers.TraceEvents(["traceEvents"], list(TABLES.values()), rules)
    cut = False
    try:
        for chunk in source.chunks():
            scanner.feed(chunk)
    except (EOFError, zlib.error):
        cut = True  # what stands before was given
    scanner.finish()
    file = KinetoFile(scanner, cut)
    if not file.counts["events"]:
        raise ImporterError(
            f"{source.path} holds no event", hint="export it again: prof.export_chrome_trace(path) writes traceEvents"
        )
    return file


def read_operators(source: Source, base_ns: int | None) -> dict[int, tuple[Int64, Int64]]:
    """Begins and ends of the operators of each thread, by its number; a second pass over the file.

    Operators that only start, carry or await a collective are left out: they are no work of the thread.
    """
    communicating = (*_COMMUNICATING, "c10d::", "_c10d_functional::", "c10d_functional::")
    rules = [("X", cat, start, 1) for cat in ("cpu_op", "Operator") for start in communicating]
    rules += [("X", cat, "", 0) for cat in ("cpu_op", "Operator")]
    scanner = _native.importers.TraceEvents(["traceEvents"], [((), ()), ((), ())], rules)
    with suppress(EOFError, zlib.error):  # what stands before was given, and the first pass said that it is cut
        for chunk in Source(source.path).chunks():
            scanner.feed(chunk)
    scanner.finish()
    texts, (columns, _) = scanner.texts(), scanner.take_tables()
    begin, duration, tid = columns["begin_ns"], columns["duration_ns"], columns["tid"]
    kept = np.flatnonzero((begin > -_LATEST_NS) & (begin < _LATEST_NS) & (duration > 0) & (tid >= 0))
    begin = begin[kept] + (base_ns or 0)
    end = begin + np.minimum(duration[kept], _LATEST_NS)
    numbers, inverse = np.unique(tid[kept], return_inverse=True)
    by_thread = ((_integer_in(texts[n], 0), inverse == at) for at, n in enumerate(numbers.tolist()))
    return {number: (begin[rows], end[rows]) for number, rows in by_thread}


def is_rank(value: object) -> bool:
    """Whether it can be a rank, or a number of them; all else is damage."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS


def _parsed(top: dict[str, str]) -> dict[str, Any]:
    out = {}
    for key, text in top.items():
        try:
            value = parse_json(text, strict=False)
        except ValueError:  # damaged, or cut: nobody depends on it
            continue
        if isinstance(value, _SHAPES.get(key, object)):
            out[key] = value
    return out


def _base_ns(top: dict[str, Any]) -> int | None:
    base = top.get("baseTimeNanoseconds")
    return base if isinstance(base, int) and 0 <= base < _LATEST_NS else None


def _integer_in(text: str, default: int) -> int:
    found = re.search(r"-?\d+", text)
    return int(found[0]) if found and len(found[0]) < 19 else default


# The file that is being imported, with tracks for its threads and streams.

#: Native id of a stream: the device above, CUPTI's number of the stream below.
_STREAM_BITS = 32


class FileRows:
    """One file with its process.

    Attributes
    ----------
    file : KinetoFile
    context : ImportContext
    process_id : int
    """

    def __init__(self, file: KinetoFile, context: ImportContext, process_id: int) -> None:
        self.file = file
        self.context = context
        self.process_id = process_id
        self._threads: dict[int, int] = {}
        self._name_threads()

    def _name_threads(self) -> None:
        names = self.file.rows["names"]
        chosen = np.array([self.file.text(n) == "thread_name" for n in names.name.tolist()], dtype=bool)
        named = names.take(chosen)
        of_host = self.file.integers(named.pid, -1) == self.context.processes[self.process_id].pid
        for tid, text in zip(named.tid[of_host].tolist(), named.texts["name"][of_host].tolist(), strict=True):
            self._threads[tid] = text

    def threads(self, tids: Codes) -> Int64:
        """Track of the thread of each row."""
        distinct, inverse = np.unique(tids, return_inverse=True)
        return np.array([self._thread(t) for t in distinct.tolist()], dtype=np.int64)[inverse]

    def _thread(self, tid: int) -> int:
        number = int(self.file.integers(np.array([tid], dtype=np.int32), 0)[0])
        track = self.context.tracks.thread(self.process_id, number)
        name = self.file.text(self._threads.get(tid, -1))
        if name:
            self.context.tracks.describe_thread(self.process_id, number, name=name)
        return track

    def devices(self, rows: EventRows) -> Int64:
        """Ordinal of the device of each row."""
        device = rows.ints["device"]
        return np.where(device == ABSENT, self.file.integers(rows.pid, 0), device)

    def streams(self, rows: EventRows, device: Int64) -> Int64:
        """Track of the stream of each row."""
        stream = rows.ints["stream"]
        stream = np.where(stream == ABSENT, self.file.integers(rows.tid, 0), stream)
        key = (device << _STREAM_BITS) | (stream & ((1 << _STREAM_BITS) - 1))
        distinct, inverse = np.unique(key, return_inverse=True)
        tracks = [self._stream(k) for k in distinct.tolist()]
        return np.array(tracks, dtype=np.int64)[inverse]

    def _stream(self, key: int) -> int:
        device, stream = key >> _STREAM_BITS, key & ((1 << _STREAM_BITS) - 1)
        return self.context.tracks.stream(self.process_id, key, f"stream {stream} · GPU {device}")

    def codes(self, numbers: Codes, text_of: Callable[[str], str] = str) -> Int64:
        """String codes of texts of the file, each changed by ``text_of`` first."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return self.context.codes([text_of(self.file.text(n)) for n in distinct.tolist()])[inverse]

    def coded(self, numbers: Codes, code_of: Callable[[str], int]) -> Int64:
        """A number for each text of the file, found once per distinct text."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return np.array([code_of(self.file.text(n)) for n in distinct.tolist()], dtype=np.int64)[inverse]
