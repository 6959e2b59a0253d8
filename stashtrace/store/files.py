"""Read a store, or some of its ranks, as a Trace; and write one. ``loading`` and ``fleet`` call this.

Tracks and processes are numbered from 0 again, and keys that each partition counts from 0 become unique. So a trace of
a few ranks needs the memory of these ranks only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stashtrace.errors import FormatError, OutputError, UsageError
from stashtrace.files.bounded_parquet import damage_errors, parquet_file, read_parquet
from stashtrace.files.whole_files import new_file, write_whole
from stashtrace.schema.columns import Schema
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import Severity
from stashtrace.schema.order import SORT_KEYS, in_order_of, number_collectives
from stashtrace.schema.possible import without_impossible
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, GrowingTable, Table
from stashtrace.schema.trace import LossRow, Trace
from stashtrace.store import layout
from stashtrace.store.restore_rows import Reinstated, add_losses

if TYPE_CHECKING:
    import pyarrow

#: Threads that decode files, and packets of files that may wait to become tables.
_READERS, _PACKETS_AHEAD = 2, 4
_HINT = "choose another folder with -o"
#: Most files and, beyond one file, most bytes of a packet: what is done once per packet is long for one small file.
_PACKET_FILES, _PACKET_BYTES = 64, 1 << 20

#: Tables that are always read.
ALWAYS_READ = ("processes", "tracks", "losses", "alignment", "metadata")
#: Tables that the export derived from all ranks together.
DERIVED = ("numbered_steps", "matched_collectives")
#: Tables in which any number is possible: losses are shown as they are, and an unknown end is later than any moment.
_ANY_NUMBERS = ("losses", "matched_collectives")
#: Key that each partition counts from 0, and the tables that refer to it.
_COUNTED = "collectives.collective_key"
_COUNTED_IN = tuple(
    name for name, schema in TABLES.items() if _COUNTED in schema.keys.values() and name != "collectives"
)


def store_ranks(path: str | Path) -> list[int]:
    """Ranks of a store, ascending."""
    ranks: list[int] = layout.read_facts(Path(path))["ranks"]
    return ranks


def load_store(
    path: str | Path, *, tables: Collection[str] | None = None, ranks: Collection[int] | None = None
) -> tuple[Trace, dict[str, Array]]:
    """Load a store with the parameters of ``load_trace``.

    Gives the trace and, for each key (``tracks.track_id``), the numbers that its rows have in the whole store. Raises
    FormatError if it is damaged. Raises UsageError if a rank is not there.
    """
    layout.require_pyarrow()
    folder = Path(path)
    facts = layout.read_facts(folder)
    stored: list[int] = facts["ranks"]
    missing = sorted(set(ranks or ()) - set(stored))
    if missing:
        raise UsageError(
            f"{path} has no rank {', '.join(map(str, missing))}", hint=f"it has {', '.join(map(str, stored))}"
        )
    wanted = [layout.NO_RANK, *(stored if ranks is None else sorted(ranks))]
    strings = StringPool()
    joined: dict[str, Table] = {}
    counts: list[int] = []
    reinstated, impossible = Reinstated(strings), Counter[str]()
    for name, schema in TABLES.items():
        if tables is not None and name not in tables and name not in ALWAYS_READ:
            continue
        packets = _read_packets(folder, name, wanted, strings)
        if name == "collectives":
            packets = _count_rows(packets, counts)  # keys are places among all rows of a partition
        joined[name] = _join(schema, _unique(name, packets, counts))
        if not reinstated.has_all(joined[name]) or _possible(joined[name], Counter()) is not joined[name]:
            again = zip(wanted, read_partitions(folder, name, wanted, strings), strict=True)  # few stores are damaged
            sound = (reinstated.add(rank, _possible(part, impossible)) for rank, part in again)
            joined[name] = _join(schema, _unique(name, (_Packet(part, [len(part)]) for part in sound), counts))
        reinstated.note(name, joined[name])
    import pyarrow

    pyarrow.default_memory_pool().release_unused()  # in which files were decoded: the columns are copies
    reinstated.complete(joined)
    written: dict[str, int] = facts["rows"]
    _count_impossible(joined, impossible, strings)
    if ranks is None:
        _count_lost(joined, written, impossible, strings)
    _drop_overlapping_steps(joined, written, strings)
    numbers = _make_dense(joined)
    steps_count = str(written.get("numbered_steps", 0))
    fact = (-1, strings.code("numbered_steps"), strings.code(steps_count))
    joined["metadata"] = Table.concat(
        TABLES["metadata"], [joined["metadata"], Table.from_rows(TABLES["metadata"], [fact])]
    )
    joined = {name: in_order_of(table, SORT_KEYS.get(name, ())) for name, table in joined.items()}
    if "spans" in joined:
        joined["spans"] = joined["spans"].replace(span_id=np.arange(len(joined["spans"]), dtype=np.int64))
    if "collectives" in joined:
        joined.update(number_collectives(joined["collectives"], *(joined.get(name) for name in _COUNTED_IN)))
    return Trace(strings, joined, path=str(path)), numbers


class _Packet(NamedTuple):
    """Rows of several partitions of a table, one partition after another, and the number of rows of each."""

    table: Table
    counts: list[int]


def _count_rows(packets: Iterable[_Packet], counts: list[int]) -> Iterator[_Packet]:
    """Pass the packets on, and append the number of rows of each partition to ``counts``."""
    for packet in packets:
        counts += packet.counts
        yield packet


def _join(schema: Schema, parts: Iterable[Table]) -> Table:
    """Rows of all parts; the memory of a part is free once its rows are copied."""
    whole = GrowingTable(schema)
    for part in parts:
        if len(part):
            whole.add(part, len(part))
    return whole.table()


def read_partition(path: Path, rank: int, tables: Collection[str]) -> Trace:
    """Rows of one rank, with the numbers of tracks and processes of the whole store.

    Unlike :func:`load_store` it also reads an unfinished store, and it leaves out rows that belong to no rank.
    """
    strings = StringPool()
    names = [name for name in TABLES if name in tables or name in ("processes", "tracks")]
    own = {name: next(read_partitions(path, name, [rank], strings)) for name in names}
    return Trace(strings, own, path=str(path))


def read_partitions(folder: Path, name: str, ranks: Sequence[int], strings: StringPool) -> Iterator[Table]:
    """One table for each of these ranks, in their order; texts get their codes in this order."""
    for packet in _read_packets(folder, name, ranks, strings):
        begin = 0
        for count in packet.counts:
            yield packet.table.take(slice(begin, begin + count))
            begin += count


def _read_packets(folder: Path, name: str, ranks: Sequence[int], strings: StringPool) -> Iterator[_Packet]:
    """Rows of these ranks, in their order, in packets of bounded size.

    Threads read packets ahead, since Parquet is decoded without the GIL.
    """
    if not (folder / name).is_dir():
        yield _Packet(Table.empty(TABLES[name]), [0] * len(ranks))
        return
    with ThreadPoolExecutor(_READERS) as pool:
        ahead: deque[tuple[list[int], Future[list[pyarrow.Table | None]]]] = deque()
        for some in _in_packets(folder / name, ranks):
            ahead.append((some, pool.submit(_decode, folder, name, some)))
            if len(ahead) > _PACKETS_AHEAD:
                yield _packet_of(folder, name, *ahead.popleft(), strings)
        while ahead:
            yield _packet_of(folder, name, *ahead.popleft(), strings)


def _in_packets(folder: Path, ranks: Sequence[int]) -> Iterator[list[int]]:
    """The ranks in packets of files."""
    some: list[int] = []
    whole = 0
    for rank in ranks:
        try:
            size = os.stat(layout.partition_of(folder, rank)).st_size
        except OSError:
            size = 0  # a rank without this table; what else is wrong is seen when the file is read
        if some and (whole + size > _PACKET_BYTES or len(some) == _PACKET_FILES):
            yield some
            some, whole = [], 0
        some.append(rank)
        whole += size
    if some:
        yield some


def _packet_of(
    folder: Path, name: str, ranks: list[int], decoded: Future[list[pyarrow.Table | None]], strings: StringPool
) -> _Packet:
    """The packet of some decoded files."""
    import pyarrow

    contents = decoded.result()
    counts = [0 if content is None else len(content) for content in contents]
    there = [content for content in contents if content is not None and len(content)]
    if not there:
        return _Packet(Table.empty(TABLES[name]), counts)
    try:
        whole = pyarrow.concat_tables(there).unify_dictionaries()
        of_rank = np.repeat(np.array(ranks, dtype=np.int64), counts)
        return _Packet(layout.from_arrow(whole, TABLES[name], of_rank, strings), counts)
    except damage_errors():
        return _Packet(_one_by_one(folder, name, dict(zip(ranks, contents, strict=True)), strings), counts)


def _one_by_one(folder: Path, name: str, contents: Mapping[int, pyarrow.Table | None], strings: StringPool) -> Table:
    """Rows of files whose columns differ, or that hold what cannot be read: then the error names the file."""
    parts = []
    for rank, content in contents.items():
        if content is not None and len(content):
            with _naming(folder, name, rank):
                parts.append(layout.from_arrow(content, TABLES[name], np.full(len(content), rank), strings))
    return Table.concat(TABLES[name], parts)


def _decode(folder: Path, name: str, ranks: Sequence[int]) -> list[pyarrow.Table | None]:
    """Content of the files of one table, None for ranks that have none."""
    found = []
    for rank in ranks:
        with _naming(folder, name, rank):
            found.append(_arrow_of(layout.partition_of(folder / name, rank)))
    return found


@contextmanager
def _naming(folder: Path, name: str, rank: int) -> Iterator[None]:
    """Turn errors of the system and of Arrow into one that names the file."""

    try:
        yield
    except damage_errors() as error:
        reason = str(error).partition("\n")[0]
        file = layout.partition(folder, name, rank)
        raise FormatError(f"{file} cannot be read: {reason}", hint="export the run again") from error


def _arrow_of(file: str) -> pyarrow.Table | None:
    """Content of one file, None if the rank has none."""
    if not os.path.exists(file):
        return None
    # Read as a file, not as a data set: that would add a second column of the rank, from the path.
    with parquet_file(file) as opened:
        return read_parquet(opened, os.path.getsize(file))


def _possible(part: Table, left_out: Counter[str]) -> Table:
    """Rows of a partition without impossible numbers; the others are counted in ``left_out``."""
    name = part.schema.name
    if name in _ANY_NUMBERS:
        return part
    part, count = without_impossible(part)
    left_out[name] += count
    return part


def _count_impossible(tables: dict[str, Table], left_out: Mapping[str, int], strings: StringPool) -> None:
    lost: list[LossRow] = [
        (
            "format",
            "impossible_values",
            int(Severity.DATA_LOSS),
            count,
            f"rows of {name} hold numbers that no run has; they are left out",
        )
        for name, count in left_out.items()
        if count
    ]
    add_losses(tables, lost, strings)


def _drop_overlapping_steps(tables: dict[str, Table], written: dict[str, int], strings: StringPool) -> None:
    """Drop the stored steps if those of a rank overlap or lack numbers: the export did not write them so."""
    steps = tables.get("numbered_steps")
    if steps is None or not len(steps):
        return
    order = np.lexsort((steps["begin_ns"], steps["rank"]))
    rank, begin, end = (steps[name][order] for name in ("rank", "begin_ns", "end_ns"))
    overlap = (rank[1:] == rank[:-1]) & (begin[1:] < end[:-1])
    if not (overlap.any() or (begin > end).any() or (steps["step"] < 0).any()):
        return
    text = "steps of the store overlap or have no number; they are found again, among the ranks that are loaded"
    add_losses(tables, [("format", "impossible_values", int(Severity.DATA_LOSS), len(steps), text)], strings)
    _derive_again(tables, written)


def _derive_again(tables: dict[str, Table], written: dict[str, int]) -> None:
    for name in DERIVED:
        tables[name] = Table.empty(TABLES[name])
    written["numbered_steps"] = 0


def _count_lost(
    tables: dict[str, Table], written: dict[str, int], known_losses: Mapping[str, int], strings: StringPool
) -> None:
    """Add rows that are missing since the export to ``losses``; drop derived tables that lack rows."""
    lost: list[LossRow] = []
    for name, table in tables.items():
        count = written.get(name, 0) - len(table) - known_losses.get(name, 0)
        if count > 0 and name not in ("processes", "tracks"):  # those were reinstated and counted already
            text = f"the store lacks {count} of {written[name]} rows of {name}; export the run again to have them"
            lost.append(("format", "rows_lost", int(Severity.DATA_LOSS), count, text))
    if any(written.get(name, 0) > len(tables[name]) for name in DERIVED if name in tables):
        _derive_again(tables, written)
    add_losses(tables, lost, strings)


def _unique(name: str, packets: Iterable[_Packet], counts: Sequence[int]) -> Iterator[Table]:
    """Rows of the packets; keys of the partitions are made unique.

    ``collectives`` comes before the tables that refer to it. ``counts`` is the number of keys of each partition; for
    ``collectives`` it grows while the packets are read.
    """
    keyed = [column for column, key in TABLES[name].keys.items() if key == _COUNTED]
    at = first = 0
    for table, rows in packets:
        changed = {}
        if keyed and len(table) and counts:
            keys = np.array(counts[at : at + len(rows)], dtype=np.int64)
            begin, size = np.repeat(first + np.cumsum(keys) - keys, rows), np.repeat(keys, rows)
            at, first = at + len(rows), first + int(keys.sum())
            for column in keyed:
                known = (table[column] >= 0) & (table[column] < size)
                changed[column] = np.where(known, table[column] + begin, -1)
        elif counts:
            first, at = first + sum(counts[at : at + len(rows)]), at + len(rows)
        yield table.replace(**changed) if changed else table


def _make_dense(tables: dict[str, Table]) -> dict[str, Array]:
    """Number tracks and processes from 0, also where tables refer to them; return the old numbers, by the new."""
    numbers = {}
    for owner, key in (("processes", layout.PROCESS), ("tracks", layout.TRACK)):
        rows = tables[owner].sort_by(key)
        tables[owner], numbers[f"{owner}.{key}"] = rows, rows[key]
    for name, table in tables.items():
        changed = dict(_renumber(table, numbers))
        if changed:
            tables[name] = table.replace(**changed)
    return numbers


def _renumber(table: Table, numbers: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    for column, key in table.schema.keys.items():
        known, values = numbers.get(key), table[column]
        if known is None:
            continue
        if not len(known):
            yield column, np.full(len(values), -1, dtype=np.int64)
            continue
        at = np.minimum(np.searchsorted(known, values), len(known) - 1)
        yield column, np.where(known[at] == values, at, -1)


# StoreWriter: partitions of a store, one rank at a time, so that memory is that of a rank.
#
# The store's file is written last: a store without it was not finished.


class StoreWriter:
    """Writes a store into a folder.

    ``path``: folder to make. One that holds a store is replaced, any other that is not empty is refused. ``strings``:
    behind the text codes of all tables. Left by an error, as a context, it removes what it has written. Raises
    StashtraceError if pyarrow is missing, or the folder cannot be made or holds something else.
    """

    def __init__(self, path: Path, strings: StringPool) -> None:
        layout.require_pyarrow()
        self.path = path
        self.file_bytes = 0
        self.rows: Counter[str] = Counter()
        self.ranks: set[int] = set()
        self._strings = strings
        self._is_new = not path.exists()
        try:
            if layout.is_store(path):
                shutil.rmtree(path)
            elif path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise OutputError(f"cannot write {path}: it is there and holds no store", hint=_HINT)
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for name in os.listdir(self.path):  # it was empty before
            shutil.rmtree(self.path / name, ignore_errors=True)
        if self._is_new:
            with contextlib.suppress(OSError):  # somebody else has put something into it
                self.path.rmdir()

    def write(self, rank: int, tables: Mapping[str, Table]) -> None:
        """Write tables of one rank (-1: of none); empty ones leave no file."""
        import pyarrow.parquet

        for name, table in tables.items():
            if not len(table):
                continue
            file = layout.partition(self.path, name, rank)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                rows = layout.to_arrow(table, self._strings)
                with open(new_file(file, 0o666), "wb") as out:
                    pyarrow.parquet.write_table(rows, out, **layout.parquet_options(table.schema, len(table)))
            except OSError as error:
                raise self._refused(error) from error
            self.file_bytes += file.stat().st_size
            self.rows[name] += len(table)
            if rank >= 0:
                self.ranks.add(rank)

    def finish(self, **facts: Any) -> None:
        """Write the store's file; from now on it is one."""
        content = {
            "format": "stashtrace-store",
            "version": layout.VERSION,
            "ranks": sorted(self.ranks),
            "rows": dict(sorted(self.rows.items())),
            **facts,
        }
        try:
            write_whole(self.path / layout.STORE_FILE, json.dumps(content) + "\n")
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> OutputError:
        reason = error.strerror or str(error)
        return OutputError(f"cannot write {self.path}: {reason}", hint=_HINT)
