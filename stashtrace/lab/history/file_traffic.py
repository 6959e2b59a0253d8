"""What a run did with file systems over its time: reads in each part of it, and checkpoints with where they went."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.analysis.io.calls import READING, WRITING, moves
from stashtrace.analysis.io.data_files import data_files
from stashtrace.lab.history.mounts import Mount, file_system_of
from stashtrace.lab.history.sections import RunRows
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: The time of a run is cut into so many equal parts, of a second or more: clocks of hosts agree no better.
_PARTS, _SHORTEST_NS = 512, 1_000_000_000
#: File systems kept of a run, those with the longest reads first.
_FILE_SYSTEMS = 3
#: Checkpoints kept of a run, the longest ones.
_CHECKPOINTS = 200


def add_traffic(
    out: RunRows, trace: Trace, steps: Table | None, mounts: Sequence[Mount], directory: str, origin_ns: int
) -> None:
    """Append reads and checkpoints.

    ``steps``: of all ranks, if there are any. ``mounts``: of the host, empty if they are not known: then there is
    nothing to append, as nobody could tell which runs share a file system. ``directory``: of the job, for paths without
    one. ``origin_ns``: of the trace's clock, since 1970.
    """
    systems = _systems(trace, mounts, directory)
    if not systems:
        return
    begin, end = _span(trace)
    part_ns = max(_SHORTEST_NS, -(-(end - begin) // _PARTS))
    parts_count = max(-(-(end - begin) // part_ns), 1)
    edges = begin + part_ns * np.arange(parts_count + 1)
    points = {mount.name: mount.point for mount in systems.values()}
    names = sorted(points)
    of_path = np.full(len(trace.strings), -1, dtype=np.int64)
    for code, mount in systems.items():
        of_path[code] = names.index(mount.name)
    checkpoints = _checkpoints(trace)
    counts = np.zeros((len(names), parts_count), dtype=np.int64)
    spent = np.zeros_like(counts)
    written = np.zeros((len(names), max(len(checkpoints.begin), 1)), dtype=np.int64)
    is_data = data_files(trace)
    for piece in trace.io_pieces():
        path, move = piece["path_code"], moves(piece)
        system = of_path[path]
        reads = (move == READING) & (system >= 0) & is_data[path]
        at = np.clip((piece["begin_ns"][reads] - begin) // part_ns, 0, parts_count - 1)
        np.add.at(counts, (system[reads], at), 1)
        np.add.at(spent, (system[reads], at), piece["end_ns"][reads] - piece["begin_ns"][reads])
        if len(checkpoints.begin):
            inside = np.searchsorted(checkpoints.begin, piece["begin_ns"], side="right") - 1
            writes = (move == WRITING) & (system >= 0) & (inside >= 0)
            writes &= piece["begin_ns"] < checkpoints.end[np.maximum(inside, 0)]
            np.add.at(written, (system[writes], inside[writes]), np.maximum(piece["result_bytes"][writes], 0))
    ends = _steps_ended(steps, edges)
    longest = [at for at in np.argsort(-spent.sum(axis=1)).tolist() if counts[at].any()][:_FILE_SYSTEMS]
    for at in longest:
        place = {"text": points[names[at]], "begin_ns": origin_ns + begin, "end_ns": origin_ns + int(edges[-1])}
        for section, values in (("reads_count", counts[at]), ("reads_ns", spent[at]), ("steps_count", ends)):
            out.add(section, name=names[at], value=int(values.sum()), values=values.tolist(), **place)
    _add_checkpoints(out, checkpoints, written, names, origin_ns)


def _systems(trace: Trace, mounts: Sequence[Mount], directory: str) -> dict[int, Mount]:
    """Return the file system of each path, by its code; folders are looked up once."""
    found: dict[int, Mount] = {}
    if not mounts:
        return found
    of_folder: dict[str, Mount | None] = {}
    codes: set[int] = set()
    for piece in trace.io_pieces():
        codes.update(np.unique(piece["path_code"]).tolist())
    for code in codes - {0}:
        path = trace.text(code)
        folder = path.rpartition("/")[0] or "/"
        if folder not in of_folder:
            of_folder[folder] = file_system_of(folder, mounts, directory)
        mount = of_folder[folder]
        if mount is not None:
            found[code] = mount
    return found


def _span(trace: Trace) -> tuple[int, int]:
    processes = trace.processes
    begin, end = int(processes["begin_ns"].min()), int(processes["end_ns"].max())
    return begin, max(end, trace.io_span_ns[1], begin + 1)


def _steps_ended(steps: Table | None, edges: Int64) -> Int64:
    """Return how many steps of the lowest rank ended in each part."""
    if steps is None or not len(steps):
        return np.zeros(len(edges) - 1, dtype=np.int64)
    ends = steps["end_ns"][steps["rank"] == steps["rank"].min()]
    return np.histogram(ends, edges)[0].astype(np.int64)


def _checkpoints(trace: Trace) -> TimeSet:
    """Return when any rank wrote a checkpoint."""
    phases = trace.phases
    chosen = (phases["phase_code"] == Phase.CHECKPOINT) & ((phases["phase_flags"] & PhaseFlag.NESTED) == 0)
    chosen &= phases["end_ns"] > phases["begin_ns"]
    return TimeSet.of(phases["begin_ns"][chosen], phases["end_ns"][chosen])


def _add_checkpoints(out: RunRows, checkpoints: TimeSet, written: Int64, names: Sequence[str], origin_ns: int) -> None:
    """Append a row for each checkpoint and file system that it wrote to."""
    longest = np.argsort(checkpoints.begin - checkpoints.end, kind="stable")[:_CHECKPOINTS]
    rows: dict[int, list[int]] = defaultdict(list)
    for at in np.sort(longest).tolist():
        rows[at] = [system for system in range(len(names)) if written[system, at]]
    for at, targets in rows.items():
        for system in targets:
            out.add(
                "checkpoint",
                name=names[system],
                value=int(written[system, at]),
                begin_ns=origin_ns + int(checkpoints.begin[at]),
                end_ns=origin_ns + int(checkpoints.end[at]),
            )
