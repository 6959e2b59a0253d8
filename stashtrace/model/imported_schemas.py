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
    ("slowest_process_ns", "i8", "ns", "a row of all processes: time of the slowest of them, -1 if unknown"),
)

EXECUTION_NODES = schema(
    "execution_nodes",
    "Nodes of execution traces in the order written: what was called with how much data, without times",
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if unknown"),
    ("node_id", "i8", "", "unique in the process"),
    ("parent_node_id", "i8", "", "node_id of the caller, -1 if unknown"),
    ("record_function_id", "i8", "", "rf_id: Record function id of the call in newer Kineto traces, -1 if unknown"),
    ("sequence_id", "i8", "", "joins a forward with its backward, -1 if none"),
    ("native_thread_id", "i8", "", "torch's number of the thread, -1 if unknown"),
    ("name_code", "i8", "", "string: operator or annotation"),
    ("input_bytes", "i8", "bytes", "tensors given, views counted as long as they are"),
    ("output_bytes", "i8", "bytes", "tensors returned"),
    ("duration_ns", "i8", "ns", "as a simulator is told, -1 if unknown"),
    ("op_code", "i8", "", "CollectiveOp, -1 if no collective"),
    ("collective_sequence", "i8", "", "number that torch gave the collective, -1 if none"),
    ("group_code", "i8", "", "string: process group of the collective"),
    ("group_size", "i8", "", "ranks of the group, -1 if unknown"),
)

EXECUTION_DEPENDENCIES = schema(
    "execution_dependencies",
    "What nodes of Chakra's execution traces wait for: the data dependencies",
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if unknown"),
    ("node_id", "i8", "", "execution_nodes.node_id of the one that waits"),
    ("needed_node_id", "i8", "", "execution_nodes.node_id of the one that it waits for"),
)

#: Part of ``schemas.TABLES``.
IMPORTED_TABLES = (IO_TOTALS, EXECUTION_NODES, EXECUTION_DEPENDENCIES)

OPERATORS = schema(
    "operators",
    "What execution traces say of each operator, and of each kind of collective of a group",
    ("rank", "i8", "", "global rank, -1 if unknown"),
    ("name", "U16", "", "operator; of a collective, CollectiveOp in lower case"),
    ("group", "U16", "", "process group of the collective, empty otherwise"),
    ("group_size", "i8", "", "ranks of that group, -1 if unknown"),
    ("calls_count", "i8", "", "nodes"),
    ("input_bytes", "i8", "bytes", "tensors given, all calls added"),
    ("output_bytes", "i8", "bytes", "tensors returned, all calls added"),
    ("first_node_id", "i8", "", "execution_nodes.node_id of the first"),
)
