"""Reads a Kineto file into columns: which of its events are kept, with which of their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.errors import ImporterError
from stashtrace.importers.import_context import Bools, ImportContext, ImportedProcess, Int64, per_distinct
from stashtrace.importers.import_limits import HIGHEST, integer_or, parse_json
from stashtrace.importers.source import Source
from stashtrace.schema.kernel_names import communicates

Codes = npt.NDArray[np.int32]

#: In a column of integers: the event has no such argument.
ABSENT: int = _native.importers.ABSENT

_GROUP_TEXTS = ("Collective name", "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks")
_GROUP_INTS = ("In msg nelems", "Group size", "Seq", "Src Rank", "Dst Rank", "Global rank start", "Global rank stride")
_PLACE = ("correlation", "device", "stream")
#: Table -> (integers, texts) of its arguments. ``talks`` are kernels that communicate, ``comms`` the host's side of
#: collectives, ``messages`` the operators that send or receive, ``notes`` annotations and operators of interest.
TABLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kernels": ((*_PLACE, "graph node id"), ()),
    "talks": ((*_PLACE, "graph node id", *_GROUP_INTS), _GROUP_TEXTS),
    "copies": ((*_PLACE, "bytes"), ()),
    "memsets": ((*_PLACE, "bytes"), ()),
    "calls": (("correlation",), ()),
    "comms": (_GROUP_INTS, (*_GROUP_TEXTS, "Input Dims", "Input type")),
    "messages": ((), ("Concrete Inputs",)),
    "notes": ((), ()),
    "gradients": ((), ()),
    "window": ((), ()),
    "ends": ((), ()),
    "names": ((), ("name", "labels")),
}
_DEVICE_WORK = ("kernels", "talks", "copies", "memsets")
#: Types of top-level values; a value of another type is damage.
_TOP_TYPES: dict[str, type] = {"distributedInfo": dict, "deviceProperties": list, "computeProperties": list}
_MOST_RANKS = 1 << 20
#: Beginnings of the names of most kernels that move bytes between ranks; ``communicates`` knows the others.
_TALKING = ("nccl", "rccl", "msccl", "void nccl")
#: Operators worth keeping: what torch records around a step, a batch, an update, a collective.
_NOTED = (
    "ProfilerStep",
    "enumerate(DataLoader)",
    "Optimizer.",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
    "_compile",
    "backward._backward_impl",
)
_COMMUNICATING = ("record_param_comms", "nccl:", "gloo:", "mpi:", "ucc:", "xccl:")
_MESSAGES = ("c10d::send", "c10d::recv")
_GRADIENTS = ("autograd::engine::evaluate_function",)
#: Categories of each kind of event. The files of 2021 write them with capitals.
_OPERATORS = ("cpu_op", "Operator")
_ANNOTATIONS = ("user_annotation", "User_annotation")
_CALLS = (
    *("cuda_runtime", "Runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver"),
    *("privateuse1_runtime", "privateuse1_driver", "mtia_runtime", "glow_runtime"),
)
#: Categories without work of a device that the tables lack: Python functions, marks, notes on the timeline of a device.
_WITHOUT_WORK = frozenset(
    ("python_function", "cpu_instant_event", "overhead", "Trace", "gpu_user_annotation", "external_correlation")
    + ("cuda_sync", "cuda_event", "xpu_sync", "gpu_pm_counter")
)
#: (categories, beginnings of names, table); the first rule that fits an event decides.
_RULES: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("kernel", "Kernel"), _TALKING, "talks"),
    (("kernel", "Kernel"), ("",), "kernels"),
    (("gpu_memcpy", "Memcpy"), ("",), "copies"),
    (("gpu_memset", "Memset"), ("",), "memsets"),
    (_CALLS, ("",), "calls"),
    ((*_OPERATORS, *_ANNOTATIONS), _COMMUNICATING, "comms"),
    (_OPERATORS, _MESSAGES, "messages"),
    (_OPERATORS, _GRADIENTS, "gradients"),
    (_OPERATORS, _NOTED, "notes"),
    (_ANNOTATIONS, ("",), "notes"),
    (("Trace",), ("",), "window"),
)
_READ = frozenset(category for categories, _, _ in _RULES for category in categories)


@dataclass(frozen=True, slots=True)
class EventRows:
    """Events of one table. ``name``, ``pid``, ``tid`` and the texts are places in the file's texts, -1 if absent."""

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
        """Return the rows chosen by a mask or an index."""
        return EventRows(
            self.begin_ns[index],
            self.end_ns[index],
            self.name[index],
            self.pid[index],
            self.tid[index],
            {k: v[index] for k, v in self.ints.items()},
            {k: v[index] for k, v in self.texts.items()},
        )

    def timed(self) -> EventRows:
        """Return the rows with a usable time."""
        return self.take(self.begin_ns != ABSENT)


def extent_of(tables: Sequence[EventRows]) -> tuple[int, int]:
    """Return the first begin and the last end of tables with rows."""
    return min(int(rows.begin_ns.min()) for rows in tables), max(int(rows.end_ns.max()) for rows in tables)


class KinetoFile:
    """Content of one file.

    ``rows``: by the names of ``TABLES``. ``top``: top-level values other than the events, parsed; those that are no
    JSON are absent. ``counts``: counts of the scanner: events, kept, damaged, oversized, timeless, truncated (text or
    compression is cut). ``categories``: number of events with a duration by category, kept or not. ``base_ns``: from
    when the file's times count; None if it does not say.
    """

    def __init__(self, scanner: _native.importers.TraceEvents, cut: bool) -> None:
        self.texts = scanner.texts()
        self.top = _parse(scanner.top())
        self.counts = scanner.counts()
        self.counts["truncated"] |= int(cut)
        self.categories = scanner.categories()
        base_ns = integer_or(self.top.get("baseTimeNanoseconds"), -1)
        self.base_ns = base_ns if base_ns >= 0 else None
        self.rows = {
            name: self._rows(columns, *TABLES[name])
            for name, columns in zip(TABLES, scanner.take_tables(), strict=True)
        }
        self._move_talks()

    def _rows(self, columns: dict[str, Any], ints: tuple[str, ...], texts: tuple[str, ...]) -> EventRows:
        begin, duration = columns["begin_ns"], columns["duration_ns"]
        timed = _is_time(begin)
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

    def _move_talks(self) -> None:
        """Move kernels that communicate, but whose names begin like others, from ``kernels`` to ``talks``."""
        kernels, talks = self.rows["kernels"], self.rows["talks"]
        is_talk = self.matching(kernels.name, communicates)
        if not is_talk.any():
            return
        moved = kernels.take(is_talk)
        unknown = np.full(len(moved), ABSENT)
        nameless = np.full(len(moved), -1, dtype=np.int32)
        self.rows["kernels"] = kernels.take(~is_talk)
        self.rows["talks"] = EventRows(
            np.concatenate([talks.begin_ns, moved.begin_ns]),
            np.concatenate([talks.end_ns, moved.end_ns]),
            np.concatenate([talks.name, moved.name]),
            np.concatenate([talks.pid, moved.pid]),
            np.concatenate([talks.tid, moved.tid]),
            {k: np.concatenate([v, moved.ints.get(k, unknown)]) for k, v in talks.ints.items()},
            {k: np.concatenate([v, nameless]) for k, v in talks.texts.items()},
        )

    @property
    def distributed_info(self) -> dict[str, Any]:
        """What the file says of the job: rank, world size, groups; empty if nothing."""
        return self.top.get("distributedInfo") or {}

    @property
    def described_devices(self) -> list[Any]:
        """Descriptions of the devices that the process sees; empty if the file has none."""
        return self.top.get("deviceProperties") or self.top.get("computeProperties") or []

    @property
    def recorded_until_ns(self) -> int | None:
        """End of the recording; None if the file does not say.

        An annotation that was open then ends, in the file, when the recording was processed, which may be much later.
        Of a file that was cut it is the end of the last work of a device that is still there, if there is any: what the
        host launched for later is lost.
        """
        marks = self.rows["ends"].begin_ns
        marks = marks[marks != ABSENT]
        if len(marks):
            return int(marks.max())
        window = self.rows["window"].end_ns
        if len(window):
            return int(window.max())
        work = [self.rows[name].end_ns for name in _DEVICE_WORK if self.counts["truncated"] and len(self.rows[name])]
        return int(np.concatenate(work).max()) if work else None

    @property
    def unread(self) -> dict[str, int]:
        """Number of events with a duration by category, of those that may be work of a device and are not read."""
        return {name: n for name, n in sorted(self.categories.items()) if n and name not in _READ | _WITHOUT_WORK}

    @property
    def has_device_work(self) -> bool:
        """Whether anything that ran on a device was read."""
        return any(len(self.rows[name]) for name in _DEVICE_WORK)

    def text(self, number: int) -> str:
        """Return the text at a place, empty for -1."""
        return self.texts[number] if number >= 0 else ""

    def coded(self, numbers: Codes, code_of: Callable[[str], int]) -> Int64:
        """Return a number for each text, found once per distinct text."""
        return per_distinct(numbers, lambda number: code_of(self.text(number)))

    def integers(self, numbers: Codes, default: int = -1) -> Int64:
        """Return the first whole number in each text (``7``, ``stream 7``), ``default`` where there is none."""
        return self.coded(numbers, lambda text: _integer_in(text, default))

    def matching(self, numbers: Codes, is_match: Callable[[str], object]) -> Bools:
        """Return where the text fulfils a condition."""
        return self.coded(numbers, lambda text: bool(is_match(text))).astype(np.bool_)


def read(source: Source) -> KinetoFile:
    """Read a file front to back. Raises ImporterError if it has no event."""
    order = {name: at for at, name in enumerate(TABLES)}
    rules = [("X", cat, start, order[table]) for cats, starts, table in _RULES for cat in cats for start in starts]
    rules += [("M", "", "", order["names"]), ("M", "__metadata", "", order["names"])]
    rules += [("i", "", "Record Window End", order["ends"])]
    scanner = _scanned(source, list(TABLES.values()), rules)
    file = KinetoFile(scanner, source.cut_reason is not None)
    if not file.counts["events"] and source.cut_reason is not None:
        raise ImporterError(
            f"{source.path} is cut before its first event ({source.cut_reason})",
            hint="copy it again from where it was written",
        )
    if not file.counts["events"]:
        raise ImporterError(
            f"{source.path} holds no event", hint="export it again: prof.export_chrome_trace(path) writes traceEvents"
        )
    return file


@dataclass(frozen=True, slots=True)
class ThreadEvents:
    """Events of one thread of a file: times, and the names as places in ``texts``."""

    begin_ns: Int64
    end_ns: Int64
    name: Codes
    texts: Sequence[str]


def read_operators(source: Source, base_ns: int | None) -> tuple[dict[int, ThreadEvents], dict[int, ThreadEvents]]:
    """Return the operators and the Python functions of each thread, by its native id; a second pass over the file.

    Operators that only start, carry or await a collective are left out: they are not work of the thread. So is what
    stands around others: a step, an update, a wait for a batch.
    """
    left_out = (*_NOTED, *_COMMUNICATING, "c10d::", "_c10d_functional::", "c10d_functional::")
    rules = [("X", category, start, 1) for category in _OPERATORS for start in left_out]
    rules += [("X", category, "", 0) for category in _OPERATORS]
    rules += [("X", "python_function", "", 2)]
    scanner = _scanned(Source(source.path), [((), ()), ((), ()), ((), ())], rules)
    texts, (operators, _, functions) = scanner.texts(), scanner.take_tables()
    return _by_thread(operators, texts, base_ns or 0), _by_thread(functions, texts, base_ns or 0)


def _by_thread(columns: dict[str, Any], texts: Sequence[str], base_ns: int) -> dict[int, ThreadEvents]:
    begin, duration, tid, name = (columns[key] for key in ("begin_ns", "duration_ns", "tid", "name"))
    kept = np.flatnonzero(_is_time(begin) & (duration > 0) & (tid >= 0))
    begin, name = begin[kept] + base_ns, name[kept]
    end = begin + np.minimum(duration[kept], HIGHEST)
    numbers, inverse = np.unique(tid[kept], return_inverse=True)
    chosen = ((_integer_in(texts[n], 0), inverse == at) for at, n in enumerate(numbers.tolist()))
    return {number: ThreadEvents(begin[rows], end[rows], name[rows], texts) for number, rows in chosen}


def _scanned(
    source: Source,
    tables: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
    rules: Sequence[tuple[str, str, str, int]],
) -> _native.importers.TraceEvents:
    """Return the scanner after it has read a file, up to a cut if there is one."""
    scanner = _native.importers.TraceEvents(["traceEvents"], list(tables), list(rules))
    for chunk in source.chunks():
        scanner.feed(chunk)
    scanner.finish()
    return scanner


def _is_time(stamps_ns: Int64) -> Bools:
    """Return which stamps leave room for a base: the sum of two such numbers fits 64 bits."""
    return (stamps_ns > -HIGHEST) & (stamps_ns < HIGHEST)


def is_rank(value: object) -> bool:
    """Return True for what can be a rank or a number of ranks; all else is damage."""
    return 0 <= integer_or(value, -1) < _MOST_RANKS


def ranks_in(value: object) -> tuple[int, ...]:
    """Return the ranks of a list in a document; none if it is something else."""
    return tuple(value) if isinstance(value, list) and all(map(is_rank, value)) else ()


def _parse(top: dict[str, str]) -> dict[str, Any]:
    out = {}
    for key, text in top.items():
        try:
            value = parse_json(text, strict=False)
        except ValueError:  # damaged or cut: nothing depends on it
            continue
        if isinstance(value, _TOP_TYPES.get(key, object)):
            out[key] = value
    return out


def _integer_in(text: str, default: int) -> int:
    match = re.search(r"-?\d+", text)
    return int(match[0]) if match and len(match[0]) < 19 else default


# Tracks and codes of the file that is being imported.

#: Native id of a stream: the device above, CUPTI's number of the stream below.
_STREAM_BITS = 32


class FileRows:
    """One file with its process."""

    def __init__(self, file: KinetoFile, context: ImportContext, process_id: int) -> None:
        self.file = file
        self.context = context
        self.process_id = process_id
        self._threads: dict[int, int] = {}
        self._name_threads()

    @property
    def process(self) -> ImportedProcess:
        """The process of the file."""
        return self.context.processes[self.process_id]

    def _name_threads(self) -> None:
        names = self.file.rows["names"]
        named = names.take(self.file.matching(names.name, "thread_name".__eq__))
        of_host = self.file.integers(named.pid, -1) == self.process.pid
        for tid, text in zip(named.tid[of_host].tolist(), named.texts["name"][of_host].tolist(), strict=True):
            self._threads[tid] = text

    def threads(self, tids: Codes) -> Int64:
        """Return the track of the thread of each row."""
        return per_distinct(tids, self._thread)

    def _thread(self, tid: int) -> int:
        native_id = _integer_in(self.file.text(tid), 0)
        self.context.tracks.describe_thread(self.process_id, native_id, name=self.file.text(self._threads.get(tid, -1)))
        return self.context.tracks.thread(self.process_id, native_id)

    def devices(self, rows: EventRows) -> Int64:
        """Return the ordinal of the device of each row."""
        device = rows.ints["device"]
        return np.where(device == ABSENT, self.file.integers(rows.pid, 0), device)

    def streams(self, rows: EventRows, device: Int64) -> Int64:
        """Return the track of the stream of each row."""
        stream = rows.ints["stream"]
        stream = np.where(stream == ABSENT, self.file.integers(rows.tid, 0), stream)
        return per_distinct((device << _STREAM_BITS) | (stream & ((1 << _STREAM_BITS) - 1)), self._stream)

    def _stream(self, key: int) -> int:
        device, stream = key >> _STREAM_BITS, key & ((1 << _STREAM_BITS) - 1)
        return self.context.tracks.stream(self.process_id, key, f"stream {stream} · GPU {device}")

    def codes(self, numbers: Codes, text_of: Callable[[str], str] = str) -> Int64:
        """Return the string codes of texts of the file, each changed by ``text_of`` first."""
        return self.file.coded(numbers, lambda text: self.context.code(text_of(text)))
