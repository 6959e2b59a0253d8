"""Stacks of Python code for a TraceBuilder: frames, samples and long calls of a thread.

stack_of(rank, "main /jobs/train.py:9", "hook /jobs/train.py:4")     the number of a stack, outermost call first
sample(rank, 3 * MS, stack)                                           what the thread was executing then
long_call(rank, 2 * MS, 8 * MS, stack, StackCause.WAIT)               a call that took long
"""

from __future__ import annotations

from trace_rows import ProcessBuilder

from stashtrace.schema.kinds import StackCause

TORCH = "/venv/lib/python3.11/site-packages/torch"
#: How a worker of DataLoader comes to its main loop, in a process that was forked.
FORKED = (
    "<module> /jobs/train.py:90",
    "main /jobs/train.py:80",
    "BaseProcess.run /usr/lib/python3.11/multiprocessing/process.py:108",
    f"_worker_loop {TORCH}/utils/data/_utils/worker.py:374",
    f"_MapDatasetFetcher.fetch {TORCH}/utils/data/_utils/fetch.py:54",
)


def stack_of(process: ProcessBuilder, *calls: str) -> int:
    """Return the number of a stack, ``function path:line`` for each call; its frames are added once."""
    key = 0
    for call in calls:
        name, _, where = call.partition(" ")
        path, _, line = where.rpartition(":")
        columns = {
            "process_id": process.process_id,
            "caller_key": key,
            "name_code": process.build.strings.code(name),
            "path_code": process.build.strings.code(path),
            "line": int(line),
            "first_line": int(line) - 1,
        }
        rows = process.build.rows["frames"]
        known = [row["frame_key"] for row in rows if {**row, "frame_key": 0} == {**columns, "frame_key": 0}]
        key = known[0] if known else len(rows) + 1
        if not known:
            process.build.add("frames", frame_key=key, **columns)
    return key


def sample(process: ProcessBuilder, ts_ns: int, stack: int, *, track_id: int | None = None, flags: int = 0) -> None:
    """Add a sample of a thread; ``stack`` is 0 where it could not be read."""
    process.build.add(
        "stack_samples",
        ts_ns=ts_ns,
        track_id=process.track_id if track_id is None else track_id,
        process_id=process.process_id,
        frame_key=stack,
        sample_flags=int(flags),
    )


def long_call(
    process: ProcessBuilder, begin_ns: int, end_ns: int, stack: int, cause: StackCause = StackCause.WAIT
) -> None:
    process.build.add(
        "stack_spans",
        begin_ns=begin_ns,
        end_ns=end_ns,
        track_id=process.track_id,
        process_id=process.process_id,
        frame_key=stack,
        cause_code=int(cause),
    )
