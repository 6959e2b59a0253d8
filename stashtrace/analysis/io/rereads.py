"""The time that reads of batches which waited for storage would have taken from memory.

It follows from reads of similar size that did not wait: those of the same threads or, if these are few, those of all
processes, which may have read into fresh memory and so vary more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.rows_by_thread import IO_WAITED, READ_OPS, TraceIndex
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import IoFlag

#: Least number of reads of a size that give bounds.
_ENOUGH = 20
#: Bounds: these parts of the reads of a size took less time per byte.
_QUICK_RATIO, _SLOW_RATIO = 0.1, 0.75
#: Reads whose sizes are at most so many powers of two apart are similar.
_OCTAVES = 1
#: At most so many calls of a run are examined.
_MOST_ROWS = 8_000_000
_NOT_FILES = int(IoFlag.SOCKET | IoFlag.PIPE | IoFlag.DIRECT)


def memory_bounds_ns(
    index: TraceIndex, process: Int64, begin: Int64, end: Int64
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the least and largest time that the waiting reads of each batch would have taken from memory.

    ``process``, ``begin``, ``end``: of batches that workers made. A process makes one batch at a time. Returns in ns,
    of each batch; 0 and infinity where there are no similar reads.
    """
    calls, batch = _waiting_reads(index, process, begin, end)
    if not len(calls):
        return np.zeros(len(begin)), np.full(len(begin), np.inf)
    size = index.io.result[calls]
    quick, slow = _by_size(index, size, np.unique(index.io.track[calls]))
    by_batch = GroupBy.numbered(batch, len(begin))
    # A batch with a read of unknown bounds has no upper bound.
    return by_batch.sum(quick * size), np.where(by_batch.sizes > 0, by_batch.sum(slow * size), np.inf)


def _waiting_reads(index: TraceIndex, process: Int64, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return rows of ``index.io`` that read and waited for storage inside a batch, and the batch of each."""
    rows, batches = [], []
    for number, mine in GroupBy(process).items():
        mine = mine[np.argsort(begin[mine], kind="stable")]
        own = index.io_by_process.rows(number)
        own = own[index.io.is_storage[own] & index.io.is_read[own] & (index.io.result[own] > 0)]
        at = np.searchsorted(begin[mine], index.io.begin[own], side="right") - 1
        inside = (at >= 0) & (index.io.end[own] <= end[mine][at])
        rows.append(own[inside])
        batches.append(mine[at[inside]])
    none = np.empty(0, dtype=np.int64)
    return np.concatenate([none, *rows]), np.concatenate([none, *batches])


def _by_size(
    index: TraceIndex, size: Int64, tracks: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the least and largest time in ns that a byte of each read takes from memory."""
    octaves = GroupBy(_octave(size))
    read_octave, per_byte, own = _quiet_reads(index, octaves.values, tracks)
    quick, slow = np.zeros(len(octaves)), np.full(len(octaves), np.inf)
    for number, octave in enumerate(octaves.values.tolist()):
        similar = np.abs(read_octave - octave) <= _OCTAVES
        chosen = similar & own if np.count_nonzero(similar & own) >= _ENOUGH else similar
        if np.count_nonzero(chosen) >= _ENOUGH:
            quick[number], slow[number] = np.quantile(per_byte[chosen], (_QUICK_RATIO, _SLOW_RATIO))
    return quick[octaves.number], slow[octaves.number]


def _quiet_reads(
    index: TraceIndex, octaves: Int64, tracks: npt.NDArray[np.int32]
) -> tuple[Int64, npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return octave of size, ns per byte and a mask of reads by these threads, of file reads that did not wait."""
    columns = [(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=bool))]
    looked = 0
    for piece in index.trace.io_pieces():
        read = np.isin(piece["op_code"], READ_OPS) & (piece["result_bytes"] > 0)
        rows = np.flatnonzero(read & ((piece["io_flags"] & (IO_WAITED | _NOT_FILES)) == 0))
        octave = _octave(piece["result_bytes"][rows])
        similar = (octave >= octaves[0] - _OCTAVES) & (octave <= octaves[-1] + _OCTAVES)
        rows, octave = rows[similar], octave[similar]
        took = (piece["end_ns"] - piece["begin_ns"])[rows] / piece["result_bytes"][rows]
        columns.append((octave, took, np.isin(piece["track_id"][rows], tracks)))
        looked += len(piece)
        if looked >= _MOST_ROWS:
            break
    octave, took, own = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return octave, took, own


def _octave(size: Int64) -> Int64:
    return np.frexp(np.maximum(size, 1).astype(np.float64))[1].astype(np.int64)
