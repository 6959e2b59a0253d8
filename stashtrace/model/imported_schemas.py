"""The tables that importers alone fill; ``schemas`` adds them to the others."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import schema

IO_TOTALS = schema(
    "io_totals",
    "Calls of a process on a file of which only the sum was recorded; none of them has a row in io",
    ("begin_ns", "i8", "ns", "the first of them began, -1 if unknown"),
    ("end_ns", "i8", "ns", "the last of them ended, -1 if unknown"),
    ("process_id", "i8", "", "processes.process_id"),
    ("path_code", "i8", "", "string: path, empty if unknown"),
    ("layer_code", "i8", "", "string: posix, stdio or mpi-io"),
    ("opens_count", "i8", "", "opens"),
    ("reads_count", "i8", "", "read calls"),
    ("writes_count", "i8", "", "write calls"),
    ("read_bytes", "i8", "bytes", "bytes read"),
    ("write_bytes", "i8", "bytes", "bytes written"),
    ("read_ns", "i8", "ns", "time inside read calls"),
    ("write_ns", "i8", "ns", "time inside write calls"),
    ("other_ns", "i8", "ns", "time inside other calls"),
    ("consecutive_reads_count", "i8", "", "reads that began where the last one ended, -1 if unknown"),
)

#: Part of ``schemas.TABLES``.
IMPORTED_TABLES = (IO_TOTALS,)
