"""NVTX ranges of an Nsight Systems export: annotations, steps, phases, waits for batches.

"step 12" "step 13"     step marks where each begins, and where the last ends
"forward" "backward"    phases;  "Optimizer.step#Adam.step" too, as torch's emit_nvtx names it
ncclAllReduce           kept for ``collectives``, with the payload if the export holds it
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.importers.collective_names import CHECKPOINT
from stashtrace.importers.import_context import Bools, ImportContext, Int64, is_nested
from stashtrace.importers.import_limits import MOST_DIGITS, parse_json
from stashtrace.importers.nsys.database import Database, Processes
from stashtrace.schema.kinds import BatchPhase, Phase, PhaseFlag, Severity, SpanKind

EVENTS = "NVTX_EVENTS"
_NCCL = "nccl"
#: A range that ends later than this after the session was open when the session ended.
_SLACK_NS = 100_000
_MARKS = (34, 65)
_RANGES = (59, 60, 70, 71)
#: "step 12", "iteration=3", "train_step#7", "ProfilerStep#5"; the text before the number is the family.
_NUMBERED = re.compile(r"^((?:\w+[ _./:-])*(?:profiler)?(?:step|iteration|iter))[ _#:=-]*(\d+)$", re.IGNORECASE)
_PLAIN = re.compile(r"^(?:(?:train|training|global)[ _-]?)?(?:step|iteration|iter)$", re.IGNORECASE)
_OTHER_STEPS = re.compile(r"val|eval|test|optim|sched|lr", re.IGNORECASE)
_PHASES = (
    (re.compile(r"^(forward|fwd|forward[ _-]?pass)$", re.IGNORECASE), Phase.FORWARD),
    (re.compile(r"^(backward|bwd|backward[ _-]?pass)$", re.IGNORECASE), Phase.BACKWARD),
    (re.compile(r"^(optimizer|optim|opt)([ _.-]?step)?$|^Optimizer\.step#", re.IGNORECASE), Phase.OPTIMIZER),
    (CHECKPOINT, Phase.CHECKPOINT),
)
_BATCH_WAIT = re.compile(
    r"^enumerate\(DataLoader\)|^(data[ _-]?load(er|ing)?|(load|get|next|fetch)[ _-]?(data|batch)|batch[ _-]?wait)$",
    re.IGNORECASE,
)
#: The number of the call, which torch's emit_nvtx adds to the name of an operator, so that no two names are equal.
_OPERATION = re.compile(r"(?:, seq = \d+)?, op_id = (\d{1,18})(?=, |$)")


@dataclass(frozen=True, slots=True)
class CollectiveRanges:
    """Ranges of NCCL's own domain, ordered by begin."""

    begin: Int64
    end: Int64
    process: Int64
    tid: Int64
    names: list[str]
    payloads: list[Payload]


def add_ranges(database: Database, processes: Processes, context: ImportContext) -> tuple[CollectiveRanges, set[int]]:
    """Fill ``spans``, ``phases`` and ``batches``; return NCCL's calls, and the processes whose ranges show steps."""
    rows, names, number, attached = _read(database)
    operation = rows["operation"]
    latest = processes.until_ns + _SLACK_NS if processes.session_ends else np.iinfo(np.int64).max
    ended = (rows["end"] >= rows["start"]) & (rows["end"] <= latest)
    whole = ended | np.isin(rows["eventType"], _MARKS)
    begin = rows["start"] + processes.base_ns
    end = np.where(rows["end"] >= 0, np.maximum(rows["end"], rows["start"]), rows["start"]) + processes.base_ns
    process = processes.of(rows["globalTid"])
    tid = rows["globalTid"] & 0xFFFFFF
    if not whole.all():
        context.lose(
            "ranges_without_end",
            int(np.count_nonzero(~whole)),
            severity=Severity.INFO,
            advice="the recording stopped inside these NVTX ranges",
        )
    codes = context.codes(names)
    kept = np.flatnonzero(whole)
    context.add(
        "spans",
        begin_ns=begin[kept],
        end_ns=end[kept],
        track_id=processes.threads(process[kept], tid[kept]),
        kind_code=int(SpanKind.USER),
        name_code=codes[number[kept]],
        correlation_id=operation[kept],
    )
    table = _Ranges(begin, end, process, tid, number, whole, names, codes)
    with_steps = _add_phases(table, processes, context) | _add_steps(table, processes, context)
    return _collective_ranges(database, table, rows["jsonTextId"], attached), with_steps


@dataclass(frozen=True, slots=True)
class _Ranges:
    """All ranges. ``number`` is the place of a range's name in ``names``; ``whole`` shows if the range has an end."""

    begin: Int64
    end: Int64
    process: Int64
    tid: Int64
    number: Int64
    whole: Bools
    names: list[str]
    codes: Int64

    def of(self, numbers: list[int]) -> Int64:
        """Return the rows with these names that have an end."""
        return np.flatnonzero(self._named(numbers) & self.whole)

    def cut(self, numbers: list[int]) -> Int64:
        """Return the rows with these names that were open when the recording ended."""
        return np.flatnonzero(self._named(numbers) & ~self.whole)

    def _named(self, numbers: list[int]) -> Bools:
        return np.isin(self.number, np.array(numbers, dtype=np.int64))


def _read(database: Database) -> tuple[dict[str, Int64], list[str], Int64, dict[int, tuple[Any, Any]]]:
    """Read ranges and marks: columns, distinct names, the place of each row's name, and NCCL's payloads by row.

    A row has a text or the id of one. Only distinct texts are kept, because they are few.
    """
    wanted = {"start": 0, "end": -1, "eventType": 0, "globalTid": 0, "textId": -1, "jsonTextId": -1}
    pieces: list[dict[str, Int64]] = []
    places: dict[str, int] = {}
    by_id: dict[int, int] = {}
    of_nccl: set[int] = set()
    numbers: list[Int64] = []
    operations = array("q")
    attached: dict[int, tuple[Any, Any]] = {}
    total = 0
    for rows, others in database.blocks(EVENTS, ("text", "jsonText", "binaryData"), **wanted):
        ranges = np.flatnonzero(np.isin(rows["eventType"], (*_MARKS, *_RANGES)))
        ids = rows["textId"][ranges]
        new = np.setdiff1d(ids[ids >= 0], np.fromiter(by_id, dtype=np.int64, count=len(by_id)))
        for number, text in database.texts(new).items():
            by_id[number] = places.setdefault(text, len(places))
            if text.startswith(_NCCL):
                of_nccl.add(by_id[number])
        unnamed = places.setdefault("", len(places))
        number_of_row = np.empty(len(ranges), dtype=np.int64)
        for at, (row, number) in enumerate(zip(ranges.tolist(), ids.tolist(), strict=True)):
            text, *payload = others[row]
            operation = _OPERATION.search(text) if isinstance(text, str) and ", op_id = " in text else None
            if operation is not None:
                text = text[: operation.start()]
            operations.append(int(operation.group(1)) if operation is not None else 0)
            place = by_id.get(number, unnamed) if text is None else places.setdefault(str(text), len(places))
            number_of_row[at] = place
            if payload != [None, None] and (place in of_nccl if text is None else str(text).startswith(_NCCL)):
                attached[total + at] = (payload[0], payload[1])
        total += len(ranges)
        numbers.append(number_of_row)
        pieces.append({name: values[ranges] for name, values in rows.items()})
    empty = np.empty(0, dtype=np.int64)
    columns = {name: np.concatenate([p[name] for p in pieces]) if pieces else empty for name in wanted}
    columns["operation"] = np.array(operations, dtype=np.int64)
    return columns, list(places), np.concatenate(numbers) if numbers else empty, attached


def _add_phases(table: _Ranges, processes: Processes, context: ImportContext) -> set[int]:
    codes = [next((int(p) for pattern, p in _PHASES if pattern.match(name)), 0) for name in table.names]
    code = np.array([*codes, 0], dtype=np.int64)[table.number]
    rows = np.flatnonzero((code > 0) & table.whole)
    rows = rows[np.lexsort((-table.end[rows], table.begin[rows], table.tid[rows], table.process[rows]))]
    track = processes.threads(table.process[rows], table.tid[rows])
    context.add(
        "phases",
        begin_ns=table.begin[rows],
        end_ns=table.end[rows],
        track_id=track,
        process_id=processes.ids[table.process[rows]],
        phase_code=code[rows],
        phase_flags=is_nested(track, table.begin[rows], table.end[rows]) * int(PhaseFlag.NESTED),
        name_code=table.codes[table.number[rows]],
    )
    with_phases = set(table.process[rows].tolist())
    rows = table.of([n for n, name in enumerate(table.names) if _BATCH_WAIT.match(name)])
    context.add(
        "batches",
        begin_ns=table.begin[rows],
        end_ns=table.end[rows],
        track_id=processes.threads(table.process[rows], table.tid[rows]),
        process_id=processes.ids[table.process[rows]],
        batch_index=-1,
        worker_id=-1,
        phase_code=int(BatchPhase.WAIT),
    )
    return with_phases | set(table.process[rows].tolist())


def _add_steps(table: _Ranges, processes: Processes, context: ImportContext) -> set[int]:
    """Add the step marks of each process, from the family of ranges that covers most of its time."""
    families: dict[str, list[int]] = {}
    ordinal: dict[int, int] = {}
    for place, name in enumerate(table.names):
        numbered = _NUMBERED.match(name)
        family = numbered.group(1) if numbered else name if _PLAIN.match(name) else ""
        if family and not _OTHER_STEPS.search(family):
            families.setdefault(family.lower(), []).append(place)
            ordinal[place] = int(numbered.group(2)) if numbered else -1
    firsts = []
    best: dict[int, tuple[int, Int64, str]] = {}
    for family, places in families.items():
        rows = table.of(places)
        owner = (table.process[rows] << 24) | table.tid[rows]
        for thread in np.unique(owner).tolist():
            chosen = rows[owner == thread]
            covered = int((table.end[chosen] - table.begin[chosen]).sum())
            if covered > best.get(thread >> 24, (0,))[0]:
                best[thread >> 24] = (covered, chosen, family)
    for _, chosen, family in best.values():
        chosen = chosen[np.argsort(table.begin[chosen], kind="stable")]
        marks = np.append(table.begin[chosen], table.end[chosen].max())
        first = ordinal[int(table.number[chosen[0]])]
        firsts.append((first, len(chosen)))
        _report_cut_step(table, families[family], chosen, ordinal, processes, context)
        names = np.append(table.codes[table.number[chosen]], context.code(f"end of {family}"))
        context.add(
            "spans",
            begin_ns=marks,
            end_ns=marks,
            track_id=np.repeat(processes.threads(table.process[chosen[:1]], table.tid[chosen[:1]]), len(marks)),
            kind_code=int(SpanKind.STEP_MARK),
            name_code=names,
            value=np.append(np.arange(len(chosen)) + max(first, 0), -1),
        )
    numbers = {first for first, _ in firsts}
    if len(numbers) == 1 and min(numbers) > 0:
        first = numbers.pop()
        context.say("steps", f"{first}:{first + max(count for _, count in firsts)}")
    return set(best)


def _report_cut_step(
    table: _Ranges, places: list[int], own: Int64, ordinal: dict[int, int], processes: Processes, context: ImportContext
) -> None:
    """Report a step after the whole ones ``own`` that was open when the recording ended."""
    process, tid = int(table.process[own[-1]]), int(table.tid[own[-1]])
    cut = table.cut(places)
    cut = cut[(table.process[cut] == process) & (table.tid[cut] == tid) & (table.begin[cut] > table.begin[own[-1]])]
    if not len(cut):
        return
    first = cut[int(table.begin[cut].argmin())]
    number = ordinal[int(table.number[first])]
    elapsed_ns = max(processes.until_ns + processes.base_ns - int(table.begin[first]), 0)
    step = f"step {number if number >= 0 else len(own)}: that step is not counted"
    context.doubt_cut_step(int(processes.ids[process]), elapsed_ns, step)


def _collective_ranges(
    database: Database, table: _Ranges, json_ids: Int64, attached: dict[int, tuple[Any, Any]]
) -> CollectiveRanges:
    places = [n for n, name in enumerate(table.names) if name.startswith(_NCCL)]
    rows = table.of(places)
    rows = rows[np.argsort(table.begin[rows], kind="stable")]
    registered = database.texts(json_ids[rows][json_ids[rows] >= 0])
    payloads = [attached.get(row, (None, None)) for row in rows.tolist()]
    texts = [p[0] or registered.get(i) for p, i in zip(payloads, json_ids[rows].tolist(), strict=True)]
    blobs = [p[1] for p in payloads]
    return CollectiveRanges(
        table.begin[rows],
        table.end[rows],
        table.process[rows],
        table.tid[rows],
        [table.names[n] for n in table.number[rows].tolist()],
        read_payloads(database, texts, blobs),
    )


# Payloads that NCCL attaches to its NVTX ranges: communicator, bytes, peer.
#
# An export holds them as JSON (``nsys export --include-json true``) or as bytes (``--include-blobs true``): a head of
# 32 bytes with the number of the schema and the length, then the fields at the offsets that the schema gives.

_HEAD = struct.Struct("<QQQQ")
#: NVTX's predefined types of fields that are whole numbers, in their order from 1, as formats of ``struct``.
_TYPES = {**dict(enumerate("bBhHiIqQqQbBhHiIqQ", start=1)), 22: "Q"}
_FIELDS = {
    "NCCL communicator ID": "communicator",
    "Message size [bytes]": "size_bytes",
    "Bytes": "size_bytes",
    "Peer rank": "peer",
    "Peer": "peer",
    "Root": "root",
    "Rank": "rank",
    "No. of ranks": "ranks",
    "No. of channels": "channels",
}


@dataclass(frozen=True, slots=True)
class Payload:
    """Fields of one range; -1 where it has none."""

    communicator: int = -1
    size_bytes: int = -1
    peer: int = -1
    root: int = -1
    rank: int = -1
    ranks: int = -1
    channels: int = -1


def read_payloads(database: Database, texts: Sequence[object], blobs: Sequence[object]) -> list[Payload]:
    """Return the payload of each range, from its text or else its bytes."""
    schemas = _schemas(database) if any(isinstance(blob, bytes) for blob in blobs) else {}
    payloads = []
    for text, blob in zip(texts, blobs, strict=True):
        if isinstance(text, str):
            payloads.append(_from_text(text))
        else:
            payloads.append(_from_bytes(blob, schemas) if isinstance(blob, bytes) else Payload())
    return payloads


def _from_text(text: str) -> Payload:
    try:
        fields = parse_json(text)
    except ValueError:
        return Payload()
    return _payload(fields) if isinstance(fields, dict) else Payload()


def _from_bytes(blob: bytes, schemas: Mapping[int, list[tuple[str, str, int]]]) -> Payload:
    if len(blob) < _HEAD.size:
        return Payload()
    _, schema, length, _ = _HEAD.unpack_from(blob)
    content = blob[_HEAD.size : _HEAD.size + length]
    fields: dict[str, object] = {}
    for name, kind, offset in schemas.get(schema, ()):
        if 0 <= offset <= len(content) - struct.calcsize(f"<{kind}"):
            (fields[name],) = struct.unpack_from(f"<{kind}", content, offset)
    return _payload(fields)


def _payload(fields: Mapping[str, object]) -> Payload:
    values: dict[str, int] = {}
    for name, value in fields.items():
        attribute = _FIELDS.get(name)
        number = _number(value)
        if attribute is not None and number is not None:
            values[attribute] = number
    return Payload(**values)


def _number(value: object) -> int | None:
    if isinstance(value, str):
        plain = value.replace(",", "").strip()
        try:
            value = int(plain, 0) if len(plain) <= MOST_DIGITS else -2
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -1 <= value < 1 << 64 else None


def _schemas(database: Database) -> dict[int, list[tuple[str, str, int]]]:
    """Return (name, format, offset) of the fields that are used here, by schema."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not database.has(table, "schemaId", "type", "name", "offset"):
        return {}
    schemas: dict[int, list[tuple[str, str, int]]] = {}
    query = f"SELECT DISTINCT schemaId, idx, type, name, ifnull(offset, 0) FROM {table}"
    for schema, _, kind, name, offset in database.small(query, table):
        if name in _FIELDS and kind in _TYPES and isinstance(schema, int) and isinstance(offset, int):
            schemas.setdefault(schema, []).append((name, _TYPES[kind], offset))
    return schemas
