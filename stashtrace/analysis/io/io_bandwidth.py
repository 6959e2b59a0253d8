"""io_bandwidth: bytes by time as Darshan defines it, so that its numbers are comparable, and by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.analysis.io import calls
from stashtrace.analysis.io.file_counters import overlap_free, threads_share
from stashtrace.analysis.io.io_tables import IO_BANDWIDTH
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

_FIRST_LAYERS = ("posix", "stdio")


@dataclass(slots=True)
class _Layer:
    """Work of the processes of one layer: path and time of each process, and of rows that stand for all processes."""

    processes: dict[int, list[tuple[Int64, Int64]]] = field(default_factory=dict)
    moved_bytes: int = 0
    paths: set[int] = field(default_factory=set)
    for_all: set[int] = field(default_factory=set)
    for_all_ns: int = 0
    known: bool = True
    imported: bool = False
    begin_ns: int | None = None
    end_ns: int | None = None

    def span(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns = begin_ns if self.begin_ns is None else min(self.begin_ns, begin_ns)
        self.end_ns = end_ns if self.end_ns is None else max(self.end_ns, end_ns)


def io_bandwidth(trace: Trace) -> Table:
    """Divide the bytes of each layer by the time that Darshan would: its ``agg_perf_by_slowest``.

    That time is the longest that one process spent in reads, writes and metadata calls on its own files, and for every
    file that all processes used, that of the slowest of them. Darshan's ranks are the traced processes, workers of a
    DataLoader among them. A file that some but not all of them used counts as each process's own. In a log of Darshan,
    the log itself marks shared files. Columns: table ``io_bandwidth`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls, or sums of them from an imported log.

    Raises
    ------
    MissingDataError
        If no call on a file was recorded.
    """
    layers = {name: _Layer() for name in _FIRST_LAYERS}
    count = len(trace.strings)
    for process, pieces in calls.process_pieces(trace):
        _add_process(layers, process, pieces, count)
    _add_totals(trace, layers)
    rows = [_row(name, layer) for name, layer in layers.items() if layer.paths]
    if not rows:
        raise MissingDataError("no call on a file was recorded", hint="run with the collector posix_io on")
    return Table.from_rows(IO_BANDWIDTH, rows)


def _row(name: str, layer: _Layer) -> tuple[str | int | float, ...]:
    spent = {process: _by_path(parts) for process, parts in layer.processes.items()}
    shared = np.empty(0, dtype=np.int64)
    if len(spent) > 1 and not layer.imported:
        shared = next(iter(spent.values()))[0]
        for paths, _ in spent.values():
            shared = np.intersect1d(shared, paths, assume_unique=True)
    known = np.array(sorted(layer.for_all), dtype=np.int64)
    own_ns, longest = 0, np.zeros(len(shared), dtype=np.int64)
    for paths, time in spent.values():
        common = np.isin(paths, shared, assume_unique=True)
        own_ns = max(own_ns, int(time[~common & ~np.isin(paths, known)].sum()))
        longest = np.maximum(longest, time[common])  # both are sorted by path
    shared_ns = int(longest.sum()) + layer.for_all_ns
    total_ns = own_ns + shared_ns
    wall_ns = -1 if layer.begin_ns is None or layer.end_ns is None else layer.end_ns - layer.begin_ns
    return (
        name,
        len(spent),
        len(layer.paths),
        len(layer.for_all | set(shared.tolist())),
        layer.moved_bytes,
        own_ns,
        shared_ns if layer.known else -1,
        layer.moved_bytes * 1e9 / total_ns if layer.known and total_ns > 0 else -1.0,
        wall_ns,
        layer.moved_bytes * 1e9 / wall_ns if wall_ns > 0 else -1.0,
    )


def _by_path(parts: list[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    """Return paths, ascending, and the time of each."""
    path, time = (np.concatenate(column) for column in zip(*parts, strict=True))
    by_path = GroupBy(path)
    return by_path.values, by_path.sum(time)


def _add_process(layers: dict[str, _Layer], process: int, pieces: calls.Pieces, count: int) -> None:
    shared = threads_share(pieces, count)
    time = {name: np.zeros(count, dtype=np.int64) for name in layers}
    used = {name: np.zeros(count, dtype=bool) for name in layers}
    kept: list[Table] = []
    for piece in pieces():
        kind = calls.time_class(piece)
        chosen = np.flatnonzero((kind != calls.OTHER) & (piece["path_code"] >= 0))
        piece, kind = piece.take(chosen), kind[chosen]
        stdio = calls.of_stdio(piece)
        for name, is_in in (("posix", ~stdio), ("stdio", stdio)):
            if is_in.any():
                _add_calls(layers[name], piece, is_in, used[name])
        alone = ~shared[piece["path_code"]]
        for name, is_in in (("posix", ~stdio & alone), ("stdio", stdio & alone)):
            np.add.at(time[name], piece["path_code"][is_in], (piece["end_ns"] - piece["begin_ns"])[is_in])
        if not alone.all():
            kept.append(piece.take(~alone))
    if kept:
        _add_shared(time, kept)
    for name, layer in layers.items():
        if used[name].any():
            paths = np.flatnonzero(used[name])
            layer.paths.update(paths.tolist())
            layer.processes[process] = [(paths, time[name][paths])]


def _add_calls(layer: _Layer, piece: Table, own: Bools, used: Bools) -> None:
    used[piece["path_code"][own]] = True
    moved = own & (calls.moves(piece) != 0)
    layer.moved_bytes += int(np.maximum(piece["result_bytes"][moved], 0).sum())
    layer.span(int(piece["begin_ns"][own].min()), int(piece["end_ns"][own].max()))


def _add_shared(time: dict[str, Int64], kept: list[Table]) -> None:
    """Add files with several threads; overlapping time counts once, as for Darshan."""
    table = Table.concat(kept[0].schema, kept)
    table = table.take(order_by(table["path_code"], table["begin_ns"]))
    kind, stdio = calls.time_class(table), calls.of_stdio(table)
    for name, layer in (("posix", ~stdio), ("stdio", stdio)):
        for code in (calls.READING, calls.WRITING, calls.METADATA):
            rows = np.flatnonzero(layer & (kind == code))
            path = table["path_code"][rows].astype(np.int64)
            np.add.at(time[name], path, overlap_free(path, table["begin_ns"][rows], table["end_ns"][rows]))


def _add_totals(trace: Trace, layers: dict[str, _Layer]) -> None:
    """Add the sums of an imported log; calls that DXT recorded have already been counted."""
    summed = trace.io_totals
    name_of = {i: trace.text(code) for i, code in trace.processes.lookup("process_id", "name_code").items()}
    for code in np.unique(summed["layer_code"]).tolist():
        rows = summed.take(summed["layer_code"] == code)
        layer = layers.setdefault(trace.text(code) or "posix", _Layer())
        layer.imported = True
        layer.moved_bytes += int((rows["read_bytes"] + rows["write_bytes"]).sum())
        layer.paths.update(rows["path_code"].tolist())
        timed = rows.take(rows["begin_ns"] >= 0)
        if len(timed):
            layer.span(int(timed["begin_ns"].min()), int(timed["end_ns"].max()))
        spent = rows["read_ns"] + rows["write_ns"] + rows["other_ns"]
        for process in np.unique(rows["process_id"]).tolist():
            chosen = rows["process_id"] == process
            if name_of.get(process, "").startswith("all "):
                slowest = rows["slowest_process_ns"][chosen]
                layer.for_all.update(rows["path_code"][chosen].tolist())
                layer.for_all_ns += int(np.maximum(slowest, 0).sum())
                layer.known &= bool((slowest >= 0).all())
            else:
                parts = (rows["path_code"][chosen].astype(np.int64), spent[chosen])
                layer.processes.setdefault(process, []).append(parts)
