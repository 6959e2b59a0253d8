"""Traces for tests, made by hand: TraceBuilder row by row, trace_from_text() from a drawn timeline.

Used by the tests of analyses, reports and exporters, so that none of them needs a file or a traced job.
`import builders` works in every test (pytest's pythonpath). Times are ns; nothing here reads a clock.

Fluent, one object per rank:

    build = TraceBuilder()
    rank = build.rank(0)
    rank.batch_wait(0, 0, 5 * MS, worker=0)
    rank.worker(0).fetch(0, 0, 4 * MS).io(0, 2 * MS, path="/data/a.jpg", blocked=True)
    rank.phase("forward", 5 * MS, 9 * MS).phase("backward", 9 * MS, 20 * MS).phase("optimizer", 20 * MS, 21 * MS)
    build.collective({0: (10 * MS, 19 * MS), 1: (14 * MS, 19 * MS)})
    trace = build.trace()

Devices: device_rows.py. Drawn, one character per unit (see trace_from_text for the letters):

    trace = trace_from_text('''
        rank 0 loader : 000.......111
        rank 0 phase  : ...FFBBBBO...FFBBBBO
        rank 0 wait   : ......cc........cc..
        rank 0 coll   : .....000.......111..
        rank 0 worker 0: 00011111
        rank 0 worker 0 io: bb......
        rank 1 phase  : FFFFBBBBBO
        rank 1 coll   : ......000.
    ''')
"""

from __future__ import annotations

from device_rows import GpuBuilder, StreamBuilder
from trace_rows import MS, US, WORLD, ProcessBuilder, S, TraceBuilder
from trace_text import trace_from_text

__all__ = ["MS", "US", "WORLD", "GpuBuilder", "ProcessBuilder", "S", "StreamBuilder", "TraceBuilder", "trace_from_text"]
