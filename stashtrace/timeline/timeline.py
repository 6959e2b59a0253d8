"""The time line of a trace for the Perfetto UI: who writes what in which order, options, compression.

Called through `registry.export`. Above all ranks the critical path; then one process per rank, below it the step track
with its budget, phases, devices, communicators, DataLoader, files, blocking calls, annotations, gc, checkpoints,
counters (perfetto_*.py, one file per layer). Ranks are written one after the other, so memory is that of the largest
rank plus a megabyte of output.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from stashtrace import _native
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.exporters.registry import Exported
from stashtrace.output_files import complete_file
from stashtrace.schema.kinds import ProcessRole, Severity
from stashtrace.schema.trace import Trace
from stashtrace.timeline.collectives import Places, collective_layer
from stashtrace.timeline.counters import counter_layer
from stashtrace.timeline.critical import critical_layer, critical_stretches
from stashtrace.timeline.devices import device_groups, device_layer, device_slices_count
from stashtrace.timeline.files import Bins, bins_for, file_layer
from stashtrace.timeline.host import thread_layers
from stashtrace.timeline.rows import UNRANKED, RankRows, TraceRows, Window
from stashtrace.timeline.steps import Budget, worst_step
from stashtrace.timeline.tracks import TrackTree
from stashtrace.units import duration_text

#: Slices that a viewer takes with ease; docs/guides/timeline.md says what happens above.
BUDGET_SLICES = 2_000_000
#: Level 6 takes three times as long for a file that is a sixth smaller.
GZIP_LEVEL = 2

_COLLECTIVES_SEQUENCE = 1
_CRITICAL_SEQUENCE = 2
_FIRST_RANK_SEQUENCE = 3
# Containers repeat pids, and a viewer would put threads of equal pids together without an error, so ranks are numbered
# from 1 instead; 0 is the idle process.
_FIRST_PID = 1


def export_perfetto(
    trace: Trace,
    path: Path,
    *,
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    window_ns: tuple[int, int] | None = None,
    budget_slices: int = BUDGET_SLICES,
) -> Exported:
    """Write the time line for https://ui.perfetto.dev.

    Parameters
    ----------
    trace : Trace
        What to show.
    path : Path
        File to write: gzip unless the name ends in ``.pftrace``.
    ranks : iterable of int, optional
        Only these ranks.
    steps : (int, int), optional
        Only steps ``first <= step < last``, with everything of all ranks that overlaps them.
    window_ns : (int, int), optional
        Only this part, in ns from the begin of the trace.
    budget_slices : int
        Above it the I/O calls are summed per thread and time bin, and the tracks say so.
    """
    _require_times(trace)
    overlay = Budget(trace)
    window = _window(trace, overlay, steps, window_ns)
    rows = TraceRows(trace, window)
    chosen = rows.ranks(ranks)
    notes: list[str] = []
    with _output(path) as write:
        encoder = _native.perfetto.Encoder(write)
        _first_view(encoder, overlay, trace, chosen, window)
        tree = TrackTree(encoder)
        stretches = critical_stretches(trace)
        if stretches is not None:
            encoder.slices(_CRITICAL_SEQUENCE, critical_layer(rows, tree, stretches, chosen))
        roots = {}
        for order, rank in enumerate(chosen):
            process = _process(tree, RankRows(rows, rank), order)
            roots[rank] = overlay.trunk(tree, process, rank)
        devices = {rank: device_groups(RankRows(rows, rank), tree, root) for rank, root in roots.items()}
        places = {rank: Places(root, devices[rank]) for rank, root in roots.items() if rank != UNRANKED}
        slices, launches = collective_layer(rows, tree, places)
        encoder.slices(_COLLECTIVES_SEQUENCE, slices, batch_first=True)
        written = encoder.slice_count + overlay.slices_count
        device_bins, on_devices = _device_bins(rows, chosen, budget_slices, written)
        bins = _bins(rows, chosen, budget_slices, written + on_devices)
        if device_bins is not None:
            notes.append(
                f"work on devices is summed per stream and {duration_text(device_bins.width_ns)}: "
                f"more than {budget_slices} slices"
            )
        if bins is not None:
            notes.append(
                f"I/O calls are summed per thread and {duration_text(bins.width_ns)}: more than {budget_slices} slices"
            )
        for order, (rank, root) in enumerate(roots.items()):
            own = RankRows(rows, rank)
            layers = overlay.slices(rows, root, rank)
            layers += thread_layers(own, tree, root)
            layers += device_layer(own, tree, root, devices[rank], launches, device_bins)
            layers += file_layer(own, tree, root, bins)
            encoder.slices(_FIRST_RANK_SEQUENCE + 2 * order, layers)
            counter_layer(own, tree, encoder, root, devices[rank], _FIRST_RANK_SEQUENCE + 2 * order + 1)
        encoder.flush()
    return Exported(path, path.stat().st_size, encoder.slice_count, tuple(notes))


def _require_times(trace: Trace) -> None:
    """Raise MissingDataError for files of another tool that have an order and no times."""
    facts, processes = trace.metadata, trace.processes
    reasons = facts["value_code"][facts["key_code"] == trace.strings.find("no_times")]
    if len(reasons) and not (processes["end_ns"] > processes["begin_ns"]).any():
        what, _, instead = trace.text(int(reasons[0])).partition("; ")
        raise MissingDataError(f"{trace.path} has no time line: {what}", hint=instead or None)


def _window(
    trace: Trace, overlay: Budget, steps: tuple[int, int] | None, window_ns: tuple[int, int] | None
) -> Window | None:
    begin, end = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if window_ns is not None:
        origin = int(trace.processes["begin_ns"].min(initial=np.iinfo(np.int64).max)) if len(trace.processes) else 0
        begin, end = origin + window_ns[0], origin + window_ns[1]
    if steps is not None:
        if overlay.steps is None:
            raise MissingDataError("the trace has no steps to cut by", hint="cut by time instead: --window A:B")
        table = overlay.steps.take((overlay.steps["step"] >= steps[0]) & (overlay.steps["step"] < steps[1]))
        if not len(table):
            last = int(overlay.steps["step"].max(initial=-1))
            raise UsageError(f"no step is in {steps[0]}:{steps[1]}", hint=f"the trace holds steps 0 to {last}")
        begin, end = max(begin, int(table["begin_ns"].min())), min(end, int(table["end_ns"].max()))
    if steps is None and window_ns is None:
        return None
    if begin >= end:
        raise UsageError("steps and window have no time in common")
    return Window(begin, end)


def _first_view(
    encoder: _native.perfetto.Encoder, overlay: Budget, trace: Trace, ranks: list[int], window: Window | None
) -> None:
    """Note in the file what `stashtrace view` shows first: the worst step with a margin, and the rank to look at."""
    worst = worst_step(overlay, ranks)
    if worst is None:
        return
    begin, end, rank = worst
    if window is not None and not (window.begin_ns <= begin and end <= window.end_ns):
        return
    margin, every = (end - begin) // 4, overlay.steps
    assert every is not None  # there is a worst step
    # A viewer ignores a range that is not inside the trace, and the steps are what is certainly in it.
    low, high = int(every["begin_ns"].min()), int(every["end_ns"].max())
    encoder.view(max(begin - margin, low), min(end + margin, high), _name(trace, rank))


def _process(tree: TrackTree, own: RankRows, order: int) -> int:
    """Track of a rank; its pid is made up, the real ones are labels."""
    pids = [str(p["pid"]) for p in own.processes.rows() if p["role_code"] != ProcessRole.WORKER]
    labels = [f"pid {', '.join(pids[:3])}{' ...' if len(pids) > 3 else ''}"] if pids else []
    losses = own.trace.losses
    lost = losses.take(
        np.isin(losses["process_id"], own.processes["process_id"]) & (losses["severity_code"] == Severity.DATA_LOSS)
    )
    if lost["lost_count"].sum() > 0:
        labels.append(f"{int(lost['lost_count'].sum())} records lost")
    return tree.process(_FIRST_PID + order, _name(own.trace, own.rank), labels, order)


def _name(trace: Trace, rank: int) -> str:
    """Zero padded, because some viewers sort by text; the host last, because they put a number of their own behind."""
    mine = trace.processes.take(trace.processes["rank"] == rank)
    hosts = sorted({trace.text(code) for code in mine["host_code"].tolist()})
    where = "+".join(hosts) if len(hosts) < 3 else f"{len(hosts)} hosts"
    return f"{'without rank' if rank == UNRANKED else f'rank {rank:03d}'} · {where}"


def _unsummed_count(owned: list[RankRows]) -> int:
    """Slices of these ranks that are written one by one, however many there are."""
    names = ("phases", "batches", "collective_waits", "waits", "spans")
    return sum(len(own.table(name)) for own in owned for name in names)


def _device_bins(rows: TraceRows, chosen: list[int], budget_slices: int, written: int) -> tuple[Bins | None, int]:
    """How work on devices must be summed, None if it fits as it is; and how many slices it then takes."""
    owned = [RankRows(rows, rank) for rank in chosen]
    count = sum(device_slices_count(own) for own in owned)
    left = budget_slices - written - _unsummed_count(owned)
    if count <= left:
        return None, count
    lines, begin, end = 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for own in owned:
        for table in (own.table("device_brackets"), own.table("kernels")):
            timed = table.take(table["begin_ns"] >= 0)
            lines += len(np.unique(timed["track_id"]))
            begin, end = min(begin, timed["begin_ns"].min(initial=begin)), max(end, timed["end_ns"].max(initial=end))
    # I/O has the other half of what is left.
    allowed = max(left // 2, 0)
    return bins_for(count, lines, allowed, int(begin), int(max(end, begin + 1))), allowed


def _bins(rows: TraceRows, chosen: list[int], budget_slices: int, written: int) -> Bins | None:
    """How I/O must be summed so that everything fits, None if it fits as it is."""
    owned = [RankRows(rows, rank) for rank in chosen]
    allowed = budget_slices - written - _unsummed_count(owned)
    if sum(sum(own.io_counts()) for own in owned) <= allowed:
        return None
    # Calls of a window have to be read to be counted.
    counts = [count for own in owned for count in own.io_counts_in_window()]
    if not counts:
        return None
    begin, end = rows.trace.io_span_ns
    if rows.window is not None:
        begin, end = max(begin, rows.window.begin_ns), min(end, rows.window.end_ns)
    return bins_for(sum(counts), len(counts), allowed, begin, max(end, begin + 1))


@contextmanager
def _output(path: Path) -> Iterator[Callable[[memoryview], object]]:
    """What takes the bytes: a plain file or a compressed one."""
    compressor = None if path.suffix == ".pftrace" else zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
    with complete_file(path) as partial, partial.open("wb") as file:
        if compressor is None:
            yield file.write
        else:
            yield lambda part: file.write(compressor.compress(part))
            file.write(compressor.flush())
