"""Kineto: what torch.profiler writes (``export_chrome_trace``, ``tensorboard_trace_handler``), one file per rank.

    traceEvents  --scanner-->  columns   kernels, copies, launches -> kernels, streams, devices   (device)
                                         NCCL's kernels, record_param_comms -> collectives        (collectives)
                                         ProfilerStep#N, Optimizer.step, DataLoader -> steps ...  (host)

``docs/importers/kineto.md`` says what is read and what cannot be known.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.kineto.collectives import add_collectives, add_host_collectives
from stashtrace.importers.kineto.device import DeviceRows, add_device_work
from stashtrace.importers.kineto.events import FileRows, KinetoFile, extent_of, is_rank, read, read_operators
from stashtrace.importers.kineto.host import add_functions, add_host_side, add_operators
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ, FILE_CUT, OPERATORS_RECORDED

#: Texts that only Kineto writes at the beginning of a JSON file; those from the fifth on are also in bare lists.
_MARKS = (
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"computeProperties"',
    b'"distributedInfo"',
    b'"baseTimeNanoseconds"',
    b'"cpu_op"',
    b'"cuda_runtime"',
    b'"gpu_memcpy"',
    b"PyTorch Profiler",
)
#: Work of this part of the launches may be missing: a recording has edges.
_MATTERS_RATIO = 0.01
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)|worker[-_]?(\d+)", re.IGNORECASE)
#: tensorboard_trace_handler: HOST_PID.MILLISECONDS.pt.trace.json
_HOST_IN_NAME = re.compile(r"^(?P<host>.+)_(?P<pid>\d+)\.\d+\.pt\.trace\.json")
#: Top-level values that become facts.
_FACTS = ("schemaVersion", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "cupti_version")
#: Newest tested ``schemaVersion``; it has not been raised since it was introduced.
_NEWEST_SCHEMA = 1
#: Tables that are of no use alone.
_NO_WORK = ("names", "window", "ends")
#: Times before this count from the file's base, not from 1970.
_FIRST_ABSOLUTE_NS = 10**17


def sniff(head: bytes, path: Path) -> bool:
    """Return True for JSON that begins as Kineto writes it."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"{":
        return any(mark in head for mark in _MARKS) and b'"nodes"' not in head[:4096]
    return start == b"[" and b'"ph"' in head and any(mark in head for mark in _MARKS[4:])


def load(source: Source, context: ImportContext) -> None:
    """Read the file of one rank."""
    file = read(source)
    if not any(len(rows) for name, rows in file.rows.items() if name not in _NO_WORK):
        raise ImporterError(
            f"{source.path} holds no kernel, launch, step or annotation",
            hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] and call prof.step()",
        )
    process_id = _process(file, source.path.name, context)
    _refuse_twins(file, source, context, process_id)
    rows = FileRows(file, context, process_id)
    _record_facts(file, context, process_id)
    work = add_device_work(rows)
    steps = add_host_side(rows, work)
    add_collectives(rows, work, steps)
    add_host_collectives(rows, steps)
    if not file.has_device_work:
        operators, functions = read_operators(source, file.base_ns)
        add_operators(rows, operators, steps)
        add_functions(rows, operators, functions)
        context.say(OPERATORS_RECORDED, "all", process_id)
    _report_losses(file, source.path.name, context, process_id)
    _report_unread(file, work, source.path.name, context, process_id)


def _process(file: KinetoFile, name: str, context: ImportContext) -> int:
    """Return the process of this file: its rank is that of ``distributedInfo``, else of the file's name, else 0."""
    info = file.distributed_info
    pid = _host_pid(file)
    in_name = _RANK_IN_NAME.search(name)
    rank, rank_from = _rank_or_unknown(info.get("rank")), "file"
    if rank < 0:
        rank, rank_from = (_rank_or_unknown(int(in_name[1] or in_name[2])), "name") if in_name else (0, "assumed")
    host = _HOST_IN_NAME.match(name)
    process_id = context.process(
        pid=pid,
        rank=rank,
        host=host["host"] if host and int(host["pid"]) == pid else "",
        world_size=_rank_or_unknown(info.get("world_size")),
        rank_from=rank_from,
    )
    relative = file.base_ns is None and _is_relative(file)
    context.count_from(process_id, None if relative else file.base_ns or 0)
    return process_id


def _rank_or_unknown(value: Any) -> int:
    """Return a rank, or a number of ranks; -1 for anything else."""
    return value if is_rank(value) else -1


def _refuse_twins(file: KinetoFile, source: Source, context: ImportContext, process_id: int) -> None:
    """Raise if another file of the load holds the same recording; another cycle of the profiler is welcome."""
    work = [r for name in ("kernels", "talks", "copies", "calls", "notes") if len(r := file.rows[name])]
    if not work:
        return
    begin, end = extent_of(work)
    for first, last, name in context.recordings.setdefault(process_id, []):
        if 2 * (min(end, last) - max(begin, first)) > min(end - begin, last - first):
            raise ImporterError(
                f"{source.path} holds the same time of rank {context.processes[process_id].rank} as {name}"
            )
    context.recordings[process_id].append((begin, end, source.path.name))


def _is_relative(file: KinetoFile) -> bool:
    begins = [int(rows.begin_ns.max()) for rows in file.rows.values() if len(rows)]
    return max(begins, default=0) < _FIRST_ABSOLUTE_NS


def _host_pid(file: KinetoFile) -> int:
    """Return the pid that most calls, operators and annotations came from; 0 if unknown."""
    pids = np.concatenate([file.rows[name].pid for name in ("calls", "notes", "comms", "gradients")])
    if not len(pids):
        return 0
    numbers, counts = np.unique(file.integers(pids, 0), return_counts=True)
    return int(numbers[counts.argmax()])


def _record_facts(file: KinetoFile, context: ImportContext, process_id: int) -> None:
    for key in _FACTS:
        if key in file.top:
            context.say(key, str(file.top[key]), process_id)
    context.not_recorded("files, other processes, how batches are made")
    if "nccl_version" in file.distributed_info:
        context.say("nccl_version", str(file.distributed_info["nccl_version"]), process_id)
    version = file.top.get("schemaVersion")
    if isinstance(version, int) and version > _NEWEST_SCHEMA:
        context.doubt_newer(f"schemaVersion is {version}", str(_NEWEST_SCHEMA), "names", process_id)
    if file.categories.get("python_function") or file.top.get("with_stack") in (1, True):
        context.doubt(
            "python_stacks",
            "recorded with Python stacks (with_stack=True), which slow the host down: host times are too long here;"
            " record again without them to see how long",
            process_id,
        )
    kept = ", ".join(f"{count} {name or 'without category'}" for name, count in sorted(file.categories.items()))
    context.say("events_in_file", f"{file.counts['events']} ({kept})", process_id)


def _report_unread(file: KinetoFile, work: DeviceRows, name: str, context: ImportContext, process_id: int) -> None:
    """Report work of devices that the file holds in a form that is not read, or that it should hold and does not."""
    unread = [f"{count:,} {category or 'without a category'}" for category, count in file.unread.items()]
    if unread:
        advice = f"{name}: events that are not read, and may be work of a device: {', '.join(unread)}"
        context.doubt("device_work_not_read", advice, process_id)
    if work.without_work_count > _MATTERS_RATIO * work.launches_count:
        part = f"{work.without_work_count:,} of {work.launches_count:,} launches"
        advice = f"{name}: what {part} of kernels started on a device is not in the file"
        context.doubt("device_work_missing", advice, process_id)
        unread.append(f"kernels of {part}")
    elif not file.has_device_work and file.described_devices and not unread:
        advice = f"{name} names GPUs of the machine and holds no work of them: if the job used them, it is not seen"
        context.doubt("device_not_recorded", advice, process_id)
        unread.append("work of the GPUs")
    if unread:
        context.say(DEVICE_WORK_NOT_READ, ", ".join(unread), process_id)


def _report_losses(file: KinetoFile, name: str, context: ImportContext, process_id: int) -> None:
    counts = file.counts
    if counts["truncated"]:
        # Kineto writes the host's events first, so a cut removes the work on devices.
        taken = "idle time of its device may be work" if file.has_device_work else "its compute may be waits"
        advice = f"{name} ends early: what stands before is used; {taken} that the cut took"
        context.lose(FILE_CUT, process_id=process_id, advice=advice)
    for key, fault in (
        ("damaged", "are no JSON"),
        ("oversized", "are larger than 64 MiB"),
        ("timeless", "have no time stamp"),
    ):
        if counts[key]:
            advice = f"events of {name} {fault} and were left out"
            context.lose(f"{key}_events", counts[key], process_id=process_id, advice=advice)
    if file.base_ns is None and _is_relative(file):
        context.lose(
            "time_base_unknown",
            process_id=process_id,
            severity=Severity.ERROR,
            advice=f"{name} does not say from when its times count: taken to be the same as in the other files",
        )
