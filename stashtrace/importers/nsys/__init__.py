"""Imports reports of Nsight Systems that were exported to SQLite (``nsys export --type sqlite``).

    CUPTI_ACTIVITY_KIND_*   kernels, device_calls, streams, devices         (device)
    NVTX_EVENTS             spans, step marks, phases, waits for batches    (nvtx)
    both                    collectives, groups                             (collectives)
    OSRT_API                waits, io                                       (osrt)

Versions of the schema differ in tables and columns; a missing one costs only the rows it would hold.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.nsys import device, nvtx, osrt
from stashtrace.importers.nsys.collectives import add_collectives
from stashtrace.importers.nsys.database import MAGIC, Database, Processes, opened
from stashtrace.importers.nsys.device import Work
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.trace import WHOLE_RECORDING

#: Tables that are read.
_READ = (
    device.KERNELS,
    device.COPIES,
    device.SETS,
    device.GRAPHS,
    device.WAITS,
    device.CALLS,
    nvtx.EVENTS,
    osrt.CALLS,
)
#: Tables with measurements that are not read, and are reported.
_UNREAD = ("GPU_METRICS", "NET_NIC_METRIC", "CUDA_GPU_MEMORY_USAGE_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS")
#: Major and minor number of the newest tested schema.
_NEWEST_SCHEMA = (3, 25)


def sniff(head: bytes, path: Path) -> bool:
    """Return True for SQLite files; ``load`` finds out if it is an export of Nsight Systems."""
    return head.startswith(MAGIC)


def load(source: Source, context: ImportContext) -> None:
    """Read one export."""
    with opened(source, _READ) as database:
        present = [name for name in _READ if database.has(name)]
        if not present and not database.has("TARGET_INFO_SESSION_START_TIME"):
            raise ImporterError(
                f"{source.path} is an SQLite file, but no export of Nsight Systems",
                hint="nsys export --type sqlite REPORT.nsys-rep",
            )
        if not any(database.rows_count(table) for table in present):
            raise ImporterError(
                f"{source.path} holds no kernel, call or range",
                hint="record with nsys profile --trace=cuda,nvtx,osrt, and export without --tables",
            )
        processes = Processes(database, source.path, context)
        calls = device.read_calls(database, processes)
        work = device.add_work(database, calls, processes, context)
        device.add_calls(calls, processes, context)
        ranges, with_steps = nvtx.add_ranges(database, processes, context)
        _whole_recording(work, processes, with_steps, context)
        add_collectives(ranges, work, processes, source.path.name, context)
        osrt.add_library_calls(database, processes, context)
        _report(database, source.path.name, context)


def _whole_recording(work: Work, processes: Processes, with_steps: set[int], context: ImportContext) -> None:
    """Add step marks around all the work of each process whose ranges name no step."""
    for process, extent in work.extents.items():
        if process in with_steps:
            continue
        process_id = int(processes.ids[process])
        marks = np.array(extent, dtype=np.int64)
        context.add(
            "spans",
            begin_ns=marks,
            end_ns=marks,
            track_id=context.tracks.thread(process_id, processes.pids[process] & 0xFFFFFF),
            kind_code=int(SpanKind.STEP_MARK),
            name_code=context.codes([WHOLE_RECORDING, "end of the recording"]),
        )
        context.say("nsys.steps", "no NVTX range names a step: the recording counts as one", process_id)


def _report(database: Database, name: str, context: ImportContext) -> None:
    for table in dict.fromkeys(database.damaged):
        context.lose("table_damaged", advice=f"{name} is cut or damaged: {table} was read up to the damage")
    exported = database.pairs("META_DATA_EXPORT") or database.pairs("EXPORT_META_DATA")
    context.say("nsys.version", exported.get("EXPORT_PRODUCT_VERSION", "unknown"))
    schema = exported.get("EXPORT_SCHEMA_VERSION", "unknown")
    context.say("nsys.schema", schema)
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", schema)
    if numbers and (int(numbers[1]), int(numbers[2])) > _NEWEST_SCHEMA:
        context.doubt_newer(f"{name} has schema {schema}", ".".join(map(str, _NEWEST_SCHEMA)), "columns")
    unread = [table for table in _UNREAD if database.rows_count(table)]
    if unread:
        context.say("nsys.not_read", ", ".join(unread))
