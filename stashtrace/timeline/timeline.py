"""The timeline of a trace for the Perfetto UI: order of the layers, options, compression; queries of it in Python.

Above all ranks stands the critical path; then one process per rank, below it the step track with its budget, phases,
functions, devices, communicators, DataLoader, files, blocking calls, annotations, gc, checkpoints, counters, and stack
samples. Ranks are written one after the other, so the memory needed is that of the largest rank plus a megabyte of
output.

:func:`trace_processor` answers PerfettoSQL. The package ``perfetto`` is a client of the program
``trace_processor_shell``, which it downloads when it is first used; without a network, a file of it can be named.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stashtrace import _native
from stashtrace.errors import MissingDataError, StashtraceError, UsageError, one_line
from stashtrace.exporters.registry import Exported, check_options
from stashtrace.files.whole_files import complete_file
from stashtrace.schema.kinds import ProcessRole, Severity
from stashtrace.schema.trace import Trace
from stashtrace.text.units import duration_text
from stashtrace.timeline.collective_tracks import Places, collective_layer
from stashtrace.timeline.device_tracks import device_groups, device_layer, device_slices_count
from stashtrace.timeline.host_tracks import Bins, bins_for, file_layer, thread_layers
from stashtrace.timeline.rows_by_rank import UNRANKED, RankRows, TraceRows, Window
from stashtrace.timeline.sample_tracks import Functions, StackSamples, counter_layer
from stashtrace.timeline.step_tracks import Budget, critical_layer, critical_stretches, worst_step
from stashtrace.timeline.tracks import TrackTree

if TYPE_CHECKING:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

#: Slices that viewers take with ease; docs/guides/timeline.md says what happens above.
BUDGET_SLICES = 2_000_000
#: Level 6 takes three times as long for a file that is a sixth smaller.
GZIP_LEVEL = 2

_COLLECTIVES_SEQUENCE = 1
_CRITICAL_SEQUENCE = 2
_FIRST_RANK_SEQUENCE = 3
# Containers repeat pids, and viewers silently merge threads of equal pids, so ranks are numbered from 1 instead; 0 is
# the idle process.
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
    """Write the timeline for https://ui.perfetto.dev.

    ``path``: file to write: gzip unless the name ends in ``.pftrace``. ``ranks``: only these ranks. ``steps``: only
    steps ``first <= step < last``, with everything of all ranks that overlaps them. ``window_ns``: only this part, in
    ns from the begin of the trace. ``budget_slices``: above this number, I/O calls and work on devices are summed per
    line and time bin, and the tracks say so. Raises MissingDataError if the trace has no times, or no steps to cut by.
    Raises UsageError if a rank or a step is not in the trace, the window is after its end, or steps and window have no
    time in common.
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
        owned = [RankRows(rows, rank) for rank in chosen]
        left = budget_slices - encoder.slice_count - overlay.slices_count - _unsummed_count(owned)
        stacks, functions = StackSamples(rows, budget_slices), Functions(rows, chosen, left // 2)
        left -= functions.count
        if functions.are_left_out:
            notes.append(f"functions are left out: more than {budget_slices} slices")
        if stacks.every > 1:
            notes.append(f"of {stacks.every} stack samples one is written: more than {budget_slices}")
        sequences = itertools.count(_FIRST_RANK_SEQUENCE + 2 * len(chosen))
        device_bins, on_devices = _device_bins(owned, left)
        bins = _bins(rows, owned, left - on_devices)
        for sums, work in (
            (device_bins, "work on devices is summed per stream"),
            (bins, "I/O calls are summed per thread"),
        ):
            if sums is not None:
                notes.append(f"{work} and {duration_text(sums.width_ns)}: more than {budget_slices} slices")
        for order, (rank, root) in enumerate(roots.items()):
            rank_rows = RankRows(rows, rank)
            layers = overlay.slices(rows, root, rank)
            layers += thread_layers(rank_rows, tree, root)
            layers += functions.slices(rank_rows, tree, root)
            layers += device_layer(rank_rows, tree, root, devices[rank], launches, device_bins)
            layers += file_layer(rank_rows, tree, root, bins)
            encoder.slices(_FIRST_RANK_SEQUENCE + 2 * order, layers)
            counter_layer(rank_rows, tree, encoder, root, devices[rank], _FIRST_RANK_SEQUENCE + 2 * order + 1)
            stacks.write(rank_rows, tree, _FIRST_PID + order, sequences)
        encoder.flush()
    return Exported(path, path.stat().st_size, encoder.slice_count, tuple(notes))


def _require_times(trace: Trace) -> None:
    """Raise MissingDataError for files of another tool that have an order and no times."""
    facts, processes = trace.metadata, trace.processes
    reasons = facts["value_code"][facts["key_code"] == trace.strings.find("no_times")]
    if len(reasons) and not (processes["end_ns"] > processes["begin_ns"]).any():
        reason, _, hint = trace.text(int(reasons[0])).partition("; ")
        raise MissingDataError(f"{trace.path} has no timeline: {reason}", hint=hint or None)


def _window(
    trace: Trace, overlay: Budget, steps: tuple[int, int] | None, window_ns: tuple[int, int] | None
) -> Window | None:
    begin, end = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if window_ns is not None:
        begin, end = trace.origin_ns + window_ns[0], trace.origin_ns + window_ns[1]
        last = int(trace.processes["end_ns"].max(initial=trace.origin_ns))
        if begin >= last:
            lasts = f"{(last - trace.origin_ns) / 1e9:g} s"
            raise UsageError(
                f"the window begins after the end of the run, which lasts {lasts}", hint="as in --window 0:1"
            )
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
    """Write into the file what `stashtrace view` shows first: the window, else the worst step with a margin.

    With it comes the rank to show, if there are several: that of the worst step, or of the worst one that touches the
    window.
    """
    worst = worst_step(overlay, ranks, window)
    if worst is None:
        return
    begin, end, rank = worst
    margin, steps = (end - begin) // 4, overlay.steps
    assert steps is not None  # there is a worst step
    begin, end = (begin - margin, end + margin) if window is None else (window.begin_ns, window.end_ns)
    # Viewers ignore a range that is not inside the trace. The steps certainly are.
    low, high = int(steps["begin_ns"].min()), int(steps["end_ns"].max())
    encoder.view(max(begin, low), min(end, high), _name(trace, rank) if len(ranks) > 1 else "")


def _process(tree: TrackTree, rows: RankRows, order: int) -> int:
    """Add the track of a rank. Its pid is made up, the real ones are labels."""
    pids = [str(p["pid"]) for p in rows.processes.rows() if p["role_code"] != ProcessRole.WORKER]
    labels = [f"pid {', '.join(pids[:3])}{' ...' if len(pids) > 3 else ''}"] if pids else []
    losses = rows.trace.losses
    lost = losses.take(
        np.isin(losses["process_id"], rows.processes["process_id"]) & (losses["severity_code"] == Severity.DATA_LOSS)
    )
    if lost["lost_count"].sum() > 0:
        labels.append(f"{int(lost['lost_count'].sum())} records lost")
    return tree.process(_FIRST_PID + order, _name(rows.trace, rows.rank), labels, order)


def _name(trace: Trace, rank: int) -> str:
    """Return the name of a rank's process.

    The rank is zero padded, because some viewers sort by text; the host is last, because they append a number.
    """
    processes = trace.processes.take(trace.processes["rank"] == rank)
    hosts = sorted({trace.text(code) for code in processes["host_code"].tolist()})
    place = "+".join(hosts) if len(hosts) < 3 else f"{len(hosts)} hosts"
    return f"{'without rank' if rank == UNRANKED else f'rank {rank:03d}'} · {place}"


def _unsummed_count(owned: list[RankRows]) -> int:
    """Return the number of slices of these ranks that are never summed."""
    names = ("phases", "batches", "collective_waits", "waits", "spans")
    return sum(len(rows_of_rank.table(name)) for rows_of_rank in owned for name in names)


def _device_bins(owned: list[RankRows], left: int) -> tuple[Bins | None, int]:
    """Return the bins for work on devices, None if it fits into the slices that are left; and the slices it takes."""
    count = sum(device_slices_count(rows_of_rank) for rows_of_rank in owned)
    if count <= left:
        return None, count
    lines, begin, end = 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for rows_of_rank in owned:
        for table in (rows_of_rank.table("device_brackets"), rows_of_rank.table("kernels")):
            timed = table.take(table["begin_ns"] >= 0)
            lines += len(np.unique(timed["track_id"]))
            begin, end = min(begin, timed["begin_ns"].min(initial=begin)), max(end, timed["end_ns"].max(initial=end))
    # The other half is for I/O.
    allowed = max(left // 2, 0)
    return bins_for(count, lines, allowed, int(begin), int(max(end, begin + 1))), allowed


def _bins(rows: TraceRows, owned: list[RankRows], allowed: int) -> Bins | None:
    """Return the bins for I/O, None if it fits into the allowed slices."""
    if sum(sum(rows_of_rank.io_counts()) for rows_of_rank in owned) <= allowed:
        return None
    # Calls in a window must be read to be counted.
    counts = [count for rows_of_rank in owned for count in rows_of_rank.io_counts_in_window()]
    if not counts:
        return None
    begin, end = rows.trace.io_span_ns
    if rows.window is not None:
        begin, end = max(begin, rows.window.begin_ns), min(end, rows.window.end_ns)
    return bins_for(sum(counts), len(counts), allowed, begin, max(end, begin + 1))


@contextmanager
def _output(path: Path) -> Iterator[Callable[[memoryview], object]]:
    """Give a function that writes bytes to a plain or compressed file."""
    compressor = None if path.suffix == ".pftrace" else zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
    with complete_file(path) as partial, partial.open("wb") as file:
        if compressor is None:
            yield file.write
        else:
            yield lambda part: file.write(compressor.compress(part))
            file.write(compressor.flush())


_NO_PROGRAM = (
    "perfetto downloads the program trace_processor_shell when it is first used; where it cannot, name a file of it:"
    " trace.perfetto(bin_path=FILE)"
)


def trace_processor(
    trace: Trace,
    *,
    bin_path: str | os.PathLike[str] | None = None,
    config: TraceProcessorConfig | None = None,
    **options: Any,
) -> TraceProcessor:
    """Start a trace processor on the timeline; :meth:`stashtrace.Trace.perfetto` says what it takes and raises."""
    check_options("perfetto", export_perfetto, options)
    if bin_path is not None and config is not None:
        raise UsageError("bin_path and config cannot both be given", hint="TraceProcessorConfig(bin_path=FILE)")
    if bin_path is not None and not Path(bin_path).is_file():
        raise UsageError(f"{os.fspath(bin_path)} is no file", hint=_NO_PROGRAM)
    if find_spec("perfetto") is None:
        raise StashtraceError(
            "this needs the package perfetto, which is not installed", hint="`pip install 'stashtrace[perfetto]'`"
        )
    try:
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
    except Exception as error:  # ImportError, or what protobuf raises of code made by another version
        raise StashtraceError(
            f"the package perfetto cannot be imported: {one_line(error)}",
            hint="its newest version needs `pip install 'protobuf>=6.31'`",
        ) from error
    if config is None:
        config = TraceProcessorConfig(bin_path=None if bin_path is None else os.fspath(bin_path))
    with tempfile.TemporaryDirectory(prefix="stashtrace-") as folder:
        timeline = Path(folder) / "timeline.pftrace"
        export_perfetto(trace, timeline, **options)
        try:
            return TraceProcessor(trace=str(timeline), config=config)
        except Exception as error:  # perfetto raises plain Exception, and what a download raises, of many kinds
            raise StashtraceError(
                f"Perfetto's trace processor does not start: {one_line(error)}", hint=_NO_PROGRAM
            ) from error
