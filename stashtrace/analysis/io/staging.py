"""io_staging: the files to put on a fast tier of a given size, and the largest gain from that."""

from __future__ import annotations

import os

import numpy as np

from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.analysis.io.data_files import FILES_HINT, Files, data_files, is_pseudo_file
from stashtrace.analysis.io.file_counters import count_files
from stashtrace.analysis.io.files import groups
from stashtrace.analysis.io.io_tables import IO_STAGING
from stashtrace.calibration.file import Calibration, calibration_of
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.groupby import order_by
from stashtrace.schema.kinds import OPENS, IoFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_named
from stashtrace.text.units import bytes_of, bytes_per_s_of, ns_of

_READ = "random_read"


def io_staging(
    trace: Trace,
    *,
    tier_size: str | int | None = None,
    tier_latency: str | float | None = None,
    tier_bandwidth: str | float | None = None,
    source_latency: str | float | None = None,
    source_bandwidth: str | float | None = None,
    under: str | None = None,
    files: Files = "data",
    calibration: Calibration | str | os.PathLike[str] | None = None,
) -> Table:
    """Choose files for a fast tier: most time saved by byte first, as long as they fit.

    The present cost of a file is the measured time that its reads, opens and other metadata calls waited for storage;
    with a stated source, it is calls * latency + bytes / bandwidth of all calls. The cost on the tier follows the same
    formula, with stated figures or those of ``random_read`` in the calibration. With neither, the tier takes no time,
    and the gain is the largest that any tier could give.

    Files are chosen by gain per byte; a file that does not fit is skipped. If the single best file that fits gains more
    than all of these, it is chosen alone, so the choice gains at least half of the best choice. ``bound_ns`` is the
    gain if the first file that does not fit could be cut: no choice gains more.

    Times are inside calls, added over all threads: a job that waits with four workers at once ends sooner by a quarter
    of it at most, and not at all where it does not wait for its batches. Files that were also written, and those that
    cannot be staged (sockets, pipes, /proc), are left out; by default, so are files that are not of a data set.
    Columns: table ``io_staging`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs I/O calls.
    tier_size : str or int, optional
        As ``"100G"``; room for everything if left out.
    tier_latency, source_latency : str or float, optional
        Time of an empty request, as ``"80us"``, or in ns.
    tier_bandwidth, source_bandwidth : str or float, optional
        As ``"2GB/s"``.
    under : str, optional
        Only files below this directory.
    files : {"data", "all"}
        By default files of the kernel, the system, Python and its packages, and programs are left out; ``all`` counts
        every one but those of the kernel.
    calibration : Calibration or path, optional
        Made on the fast tier by ``stashtrace calibrate --disk``; by default ``calibration.toml`` in the run directory.

    Raises
    ------
    MissingDataError
        If no call was recorded, or none on a file that could be staged.
    UsageError
        If only one of latency and bandwidth is stated, or a figure or ``files`` makes no sense.
    """
    room = None if tier_size is None else bytes_of(tier_size, "--tier-size")
    source = _device_rates(source_latency, source_bandwidth, "source")
    tier = _device_rates(tier_latency, tier_bandwidth, "tier")
    tier_method = "stated"
    if tier is None:
        tier, tier_method = _calibrated_rates(trace, calibration)
    counters = count_files(trace)
    names, _, used = groups(trace, counters, "file", under)
    sums = {name: values[used] for name, values in counters.sums.items()}
    fits = (sums["read_bytes"] > 0) & (sums["write_bytes"] == 0) & (names != "")
    fits &= data_files(trace, files, under)[used]
    fits &= np.array([not is_pseudo_file(name) for name in names.tolist()], dtype=bool)
    if not fits.any():
        raise MissingDataError(
            "no file was only read",
            hint="record a run with its data in place: what it writes is left out" + FILES_HINT * (files == "data"),
        )
    names, sums = names[fits], {name: values[fits] for name, values in sums.items()}
    if source is None:
        requests, moved, source_ns = sums["blocked_count"], sums["blocked_read_bytes"], sums["blocked_read_ns"]
    else:
        requests, moved = sums["opens_count"] + sums["reads_count"], sums["read_bytes"]
        source_ns = _cost(requests, moved, source)
    # Streams have no offsets: the bytes read from one opening to the next are about the size of the file.
    by_open = -(-sums["read_bytes"] // np.maximum(sums["opens_count"], 1))
    size = np.where(sums["extent_bytes"] > 0, sums["extent_bytes"], by_open)
    tier_ns = _cost(requests, moved, tier)
    gain = np.maximum(source_ns - tier_ns, 0)
    order = order_by(-(gain / size), size)
    size, gain = size[order], gain[order]
    staged, bound = choose(size, gain, room)
    table = Table(
        IO_STAGING,
        {
            "path": names[order],
            "staged": staged.astype(np.int64),
            "size_bytes": size,
            "requests_count": requests[order],
            "request_bytes": moved[order],
            "source_ns": source_ns[order],
            "tier_ns": tier_ns[order],
            "gain_ns": gain,
            "sum_bytes": np.cumsum(np.where(staged, size, 0)),
            "sum_gain_ns": np.cumsum(np.where(staged, gain, 0)),
            "bound_ns": np.full(len(size), bound),
            "method": np.full(len(size), f"{'measured' if source is None else 'stated'}, {tier_method}"),
        },
    )
    return table.take(np.argsort(~staged, kind="stable"))


def choose(size: Int64, gain: Int64, room: int | None) -> tuple[Bools, int]:
    """Return (mask of chosen files, all with a gain; bound on any choice's gain), for files by falling gain per byte.

    >>> staged, bound = choose(np.array([4, 5, 3]), np.array([8, 9, 3]), 8)
    >>> staged.tolist(), bound
    ([True, False, True], 15)
    """
    if room is None:
        return gain > 0, int(gain.sum())
    staged = np.zeros(len(size), dtype=bool)
    ends = np.cumsum(size)
    whole = int(np.searchsorted(ends, room, side="right"))  # these fit together
    left = room - (int(ends[whole - 1]) if whole else 0)
    staged[:whole] = gain[:whole] > 0
    bound = int(gain[:whole].sum())
    if whole < len(size):
        bound += int(gain[whole]) * left // int(size[whole])  # gains are whole ns, so the best gain is as well
    rest = np.flatnonzero((gain > 0) & (np.arange(len(size)) > whole) & (size <= left))
    for index in rest.tolist():  # each fits into the first remainder, so few are examined before it is full
        if size[index] <= left:
            staged[index] = True
            left -= int(size[index])
        if left <= 0:
            break
    single = np.where(size <= room, gain, -1)
    best = int(np.argmax(single))
    if single[best] > gain[staged].sum():
        staged[:] = False
        staged[best] = True
    return staged, bound


def _cost(requests: Int64, moved: Int64, device: tuple[float, float]) -> Int64:
    latency_ns, bytes_per_s = device
    return np.rint(requests * latency_ns + moved * 1e9 / bytes_per_s).astype(np.int64)


def _device_rates(latency: str | float | None, bandwidth: str | float | None, which: str) -> tuple[float, float] | None:
    """Return (latency in ns, bytes per second) of a device; None if nothing is stated."""
    if latency is None and bandwidth is None:
        return None
    if latency is None or bandwidth is None:
        raise UsageError(
            f"half of the {which} is stated", hint=f"as in --{which}-latency 80us --{which}-bandwidth 2GB/s"
        )
    return ns_of(latency, f"--{which}-latency"), bytes_per_s_of(bandwidth, f"--{which}-bandwidth")


def _calibrated_rates(
    trace: Trace, calibration: Calibration | str | os.PathLike[str] | None
) -> tuple[tuple[float, float], str]:
    measured = calibration_of(trace, calibration)
    link = measured.link(_READ) if measured is not None else None
    if link is None:
        if calibration is not None:
            raise MissingDataError(
                "the calibration has no disk", hint="`stashtrace calibrate --disk DIR` measures that of a folder"
            )
        return (0.0, float("inf")), "no cost"
    return (max(link.fit.alpha_ns, 0.0), link.fit.bandwidth_bytes_per_s), "calibration"


# How often copies were opened in the place of files: the effect of `stashtrace run --staged`.


def staged_opens(trace: Trace) -> int:
    """Return the number of opens of a run that a copy served."""
    return sum(
        int((np.isin(piece["op_code"], OPENS) & ((piece["io_flags"] & IoFlag.STAGED) != 0)).sum())
        for piece in trace.io_pieces()
    )


def used_copies(trace: Trace) -> bool:
    """Return True if a run was given a list of copies."""
    return any(process == -1 for process, _ in facts_named(trace, "staged"))
