"""Every table of the event model: column names, types, units and meaning.

Times are int64 ns of one clock, intervals half-open; ``*_code`` indexes the ``StringPool`` or says its enumeration.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.schema import kinds
from stashtrace.schema.columns import INTERVAL, PROCESS_ID, RANK, RANK_OR_NONE, TRACK_ID, Column, Schema, schema

PROCESSES = schema(
    "processes",
    "One row per traced process image",
    Column("process_id", "i8", "", "row number, unique in the trace", 6, role="key"),
    Column("host_code", "i8", "", "host name", role="host"),
    Column("boot_code", "i8", "", "boot id and time namespace, the clock domain", role="text"),
    Column("netns_code", "i8", "", "network namespace", role="text"),
    ("pid", "i8", "", "process id on its host"),
    Column("parent_process_id", "i8", "", "the parent, -1 if not traced", missing=-1, of="processes.process_id"),
    Column("rank", "i8", "", "global rank, -1 if none; workers carry the rank they serve", role="rank", missing=-1),
    Column("local_rank", "i8", "", "rank within the host, -1 if none", missing=-1),
    Column("world_size", "i8", "", "ranks of the job, -1 if unknown", role="rank", missing=-1),
    Column("role_code", "i8", "", "", of=kinds.ProcessRole),
    Column("worker_id", "i8", "", "DataLoader worker number, -1 if none", role="id", missing=-1),
    Column("name_code", "i8", "", "what a person calls it", role="text"),
    *INTERVAL,
)
TRACKS = schema(
    "tracks",
    "A line of the timeline: thread, communicator, stream, counter",
    Column("track_id", "i8", "", "row number, unique in the trace", 5, role="key"),
    PROCESS_ID,
    Column("kind_code", "i8", "", "", of=kinds.TrackKind),
    Column("native_id", "i8", "", "thread id, stream id, ...; 0 if none, -1 of an unknown one", role="id"),
    Column("role_code", "i8", "", "of threads; 0 of other tracks", of=kinds.ThreadRole),
    Column("name_code", "i8", "", "", role="text"),
    Column("unit_code", "i8", "", "unit of a counter, empty otherwise", role="text"),
)
SPANS = schema(
    "spans",
    "User annotations, garbage collection, probes' own time; step marks have begin_ns == end_ns",
    Column("span_id", "i8", "", "row number, unique in the table", role="key"),
    *INTERVAL,
    TRACK_ID,
    Column("kind_code", "i8", "", "", of=kinds.SpanKind),
    Column("name_code", "i8", "", "", role="text"),
    Column("correlation_id", "i8", "", "joins records of one cause, 0 if none", role="id"),
    ("value", "i8", "", "step: its number; else as the kind says"),
)
PHASES = schema(
    "phases",
    "Forward, backward, optimizer, checkpoint",
    *INTERVAL,
    TRACK_ID,
    PROCESS_ID,
    Column("phase_code", "i8", "", "", of=kinds.Phase),
    Column("phase_flags", "i8", "", "", of=kinds.PhaseFlag),
    Column("name_code", "i8", "", "class of the module, optimizer, ...", role="text"),
    Column("begin_cpu_ns", "i8", "ns", "thread CPU time at begin, -1 if unknown", missing=-1),
    Column("end_cpu_ns", "i8", "ns", "thread CPU time at end, -1 if unknown", missing=-1),
    Column("begin_runqueue_ns", "i8", "ns", "time runnable but not running at begin, -1 if unknown", missing=-1),
    Column("end_runqueue_ns", "i8", "ns", "time runnable but not running at end, -1 if unknown", missing=-1),
)
BATCHES = schema(
    "batches",
    "Phases in the life of DataLoader batches",
    *INTERVAL,
    Column("track_id", "i8", "", "the recording thread", 5, of="tracks.track_id"),
    Column("process_id", "i8", "", "the recording process", 6, of="processes.process_id"),
    Column("rank", "i8", "", "rank that is served, -1 if none", role="rank", missing=-1),
    Column("loader_id", "u8", "", "one per iterator, same in main process and workers", role="id"),
    Column("batch_index", "i8", "", "the loader's index of the batch, -1 if none", missing=-1),
    Column("worker_id", "i8", "", "who made the batch, -1 for the main process, -2 if unseen", role="id", missing=-1),
    Column("phase_code", "i8", "", "", of=kinds.BatchPhase),
    Column("cpu_ns", "i8", "ns", "CPU time of the thread inside, -1 if unknown", missing=-1),
    Column("runqueue_ns", "i8", "ns", "runnable but not running inside, -1 if unknown", missing=-1),
    ("major_faults_count", "i8", "", "page faults that waited for storage, inside"),
    ("block_inputs_count", "i8", "", "ru_inblock growth of the thread, inside"),
)
IO = schema(
    "io",
    "One row per I/O call; sorted by track_id, then begin_ns",
    *INTERVAL,
    Column("track_id", "i4", "", "", 5, of="tracks.track_id"),
    Column("path_code", "i4", "", "path, empty if unknown", role="path"),
    Column("op_code", "i2", "", "", of=kinds.IoOp),
    Column("io_flags", "i2", "", "", of=kinds.IoFlag),
    Column("offset_bytes", "i8", "bytes", "file offset, -1 if unknown", role="position", missing=-1),
    ("result_bytes", "i8", "bytes", "bytes moved or 0, or minus errno"),
)
WAITS = schema(
    "waits",
    "Blocking waits of watched threads, above the recording threshold",
    *INTERVAL,
    TRACK_ID,
    PROCESS_ID,
    Column("wait_code", "i8", "", "", of=kinds.WaitOp),
)
COLLECTIVES = schema(
    "collectives",
    "One row per rank and collective; host side (call, return) and backend side (begin, end)",
    Column("collective_key", "i8", "", "row number; other ranks' rows have the same group and sequence", role="key"),
    PROCESS_ID,
    RANK,
    Column("track_id", "i8", "", "the calling thread", 5, of="tracks.track_id"),
    Column("communicator_track_id", "i8", "", "the communicator, -1 if none", missing=-1, of="tracks.track_id"),
    Column("group_hash", "u8", "", "same on every rank of the group", role="id"),
    ("sequence", "i8", "", "number within the group", 4),
    Column("op_code", "i8", "", "", of=kinds.CollectiveOp),
    Column("name_code", "i8", "", "operator as called", role="text"),
    ("message_bytes", "i8", "bytes", "payload of this rank's input"),
    Column("peer_rank", "i8", "", "root or peer within the group, -1 if none", missing=-1),
    Column("collective_flags", "i8", "", "", of=kinds.CollectiveFlag),
    Column("call_ns", "i8", "ns", "the caller entered", role="moment"),
    Column("return_ns", "i8", "ns", "the launching call returned, -1 if unseen", role="moment", missing=-1),
    Column("begin_ns", "i8", "ns", "the backend began, -1 if unseen", role="moment", missing=-1),
    Column("end_ns", "i8", "ns", "the backend finished, -1 if never seen", role="moment", missing=-1),
    Column("status_code", "i8", "", "0 fine, 1 failed, 2 end seen late by a wait, 3 end unseen", role="code"),
    Column("source_code", "i8", "", "who timed it", of=kinds.CollectiveSource),
    Column("device_begin_ns", "i8", "ns", "the device entered it, -1 if untimed", role="moment", missing=-1),
    Column("device_end_ns", "i8", "ns", "the device left it, -1 if untimed", role="moment", missing=-1),
    Column(
        "stream_track_id", "i8", "", "the stream it was given, -1 if none or unknown", missing=-1, of="tracks.track_id"
    ),
)
COLLECTIVE_WAITS = schema(
    "collective_waits",
    "A thread blocked on a collective (Work.wait)",
    *INTERVAL,
    TRACK_ID,
    PROCESS_ID,
    Column("collective_key", "i8", "", "-1 if unknown", missing=-1, of="collectives.collective_key"),
)
GROUPS = schema(
    "groups",
    "One row per rank and process group",
    PROCESS_ID,
    RANK,
    Column("group_hash", "u8", "", "same on every rank of the group", role="id"),
    Column("name_code", "i8", "", "", role="text"),
    Column("backend_code", "i8", "", "gloo, nccl, ...", role="text"),
    Column("members_code", "i8", "", "global ranks, comma separated, in group order", role="text"),
    ("group_rank", "i8", "", "this rank within the group"),
    ("group_size", "i8", "", "members"),
    Column("observed_count", "i8", "", "collectives recorded, -1 if not compared", missing=-1),
    Column("backend_count", "i8", "", "the group's own sequence number, -1 if none", missing=-1),
    Column("crosses_hosts", "i8", "", "1 if its traffic leaves a host, 0 if not, -1 if unknown", missing=-1),
    Column("locality_code", "i8", "", "the evidence for crosses_hosts", role="text"),
)
COUNTERS = schema(
    "counters",
    "Sampled values; the track names the quantity and its unit",
    Column("ts_ns", "i8", "ns", "when", role="moment"),
    TRACK_ID,
    ("value", "f8", "", "in the track's unit; cumulative ones end in _total"),
)
FLOWS = schema(
    "flows",
    "Arrows; source and destination are an instant on a track",
    Column("kind_code", "i8", "", "", of=kinds.FlowKind),
    Column("source_track_id", "i8", "", "", of="tracks.track_id"),
    Column("source_ns", "i8", "ns", "inside the source span", role="moment"),
    Column("destination_track_id", "i8", "", "", of="tracks.track_id"),
    Column("destination_ns", "i8", "ns", "inside the destination span", role="moment"),
)
LOSSES = schema(
    "losses",
    "What could not be recorded or read",
    Column("process_id", "i8", "", "-1 if the whole run", 6, missing=-1, of="processes.process_id"),
    Column("collector_code", "i8", "", "collector or 'format'", role="text"),
    Column("name_code", "i8", "", "snake_case reason", role="text"),
    Column("severity_code", "i8", "", "", of=kinds.Severity),
    ("lost_count", "i8", "", "records, events or bytes as the name says"),
    Column("advice_code", "i8", "", "one sentence for the user", role="text"),
)
ALIGNMENT = schema(
    "alignment",
    "What the merge of clocks is worth",
    Column("boot_code", "i8", "", "clock domain", role="text"),
    Column("reference_code", "i8", "", "clock domain it is mapped to", role="text"),
    ("offset_ns", "i8", "ns", "added to this domain's monotonic clock at the origin of the common clock"),
    ("drift_ppb", "i8", "ppb", "mean rate at which that changes, 1e-9"),
    ("error_ns", "i8", "ns", "half-width of the interval that holds the true offset, during the whole run"),
    Column("touch_error_ns", "i8", "ns", "the same between the first and last meeting, -1 if unknown", missing=-1),
    Column(
        "method_code", "i8", "", "same_clock, realtime, collectives, ping, collectives+ping; assumed", 7, role="text"
    ),
)
METADATA = schema(
    "metadata",
    "Facts about processes: versions, command line, environment",
    Column("process_id", "i8", "", "-1 for the run", 6, missing=-1, of="processes.process_id"),
    Column("key_code", "i8", "", "", role="text"),
    Column("value_code", "i8", "", "", role="text"),
)


# The tables of devices.
#
# Device times are mapped to the run's common clock; what that mapping is worth stands in ``device_clocks``.

DEVICES = schema(
    "devices",
    "One row per process and device that it uses",
    PROCESS_ID,
    RANK_OR_NONE,
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    Column("track_id", "i8", "", "the device", 5, of="tracks.track_id"),
    Column("uuid_code", "i8", "", "the same device has the same in every process", role="text"),
    Column("gpu_uuid_code", "i8", "", "of a MIG instance, the GPU that it is part of; else empty", role="text"),
    Column("name_code", "i8", "", "product", role="text"),
    Column("bus_code", "i8", "", "PCI address", role="text"),
    Column("memory_bytes", "i8", "bytes", "total, -1 if unknown", missing=-1),
    Column("multiprocessors_count", "i8", "", "-1 if unknown", missing=-1),
    Column("capability_code", "i8", "", "10 * major + minor", role="code"),
    Column("driver_code", "i8", "", "as cuDriverGetVersion", role="code"),
)
STREAMS = schema(
    "streams",
    "Streams that were seen",
    Column("track_id", "i8", "", "the stream", 5, of="tracks.track_id"),
    PROCESS_ID,
    RANK_OR_NONE,
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    Column("stream_flags", "i8", "", "", of=kinds.StreamFlag),
    ("priority_index", "i8", "", "as CUDA says it"),
)
DEVICE_CLOCKS = schema(
    "device_clocks",
    "How well each clock of a device is known",
    Column("process_id", "i8", "", "whose anchors these are", 6, of="processes.process_id"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    Column("clock_code", "i8", "", "", of=kinds.DeviceClock),
    ("anchors_count", "i8", "", "readings used"),
    ("error_ns", "i8", "ns", "largest half-width of the readings used, and what interpolation adds"),
    ("drift_ppb", "i8", "ppb", "rate against the host, 1e-9"),
)
DEVICE_BRACKETS = schema(
    "device_brackets",
    "Two timing events around something on a stream, and the host's side of it",
    Column("bracket_id", "i8", "", "unique in the process", role="id"),
    PROCESS_ID,
    RANK_OR_NONE,
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    Column("track_id", "i8", "", "the stream", 5, of="tracks.track_id"),
    Column("thread_track_id", "i8", "", "the thread that called", of="tracks.track_id"),
    Column("begin_ns", "i8", "ns", "first event, -1 if untimed", role="moment", missing=-1),
    Column("end_ns", "i8", "ns", "second event, -1 if untimed", role="moment", missing=-1),
    Column("awaited_ns", "i8", "ns", "stream_wait: end of the awaited work, -1 if untimed", role="moment", missing=-1),
    Column("call_ns", "i8", "ns", "host: first event recorded, or call entered", role="moment"),
    Column("return_ns", "i8", "ns", "host: call left, or second event recorded", role="moment"),
    Column("bracket_code", "i8", "", "", of=kinds.Bracket),
    Column("awaited_code", "i8", "", "", of=kinds.Awaited),
    Column("bracket_flags", "i8", "", "", of=kinds.BracketFlag),
    Column(
        "copy_code", "i8", "", "of the copy, or of that which a stream_wait was for; 0 if none", of=kinds.CopyDirection
    ),
    ("size_bytes", "i8", "bytes", "copy: bytes"),
    Column("correlation_id", "i8", "", "batch index, step, call_id, awaited bracket_id; see the record", role="id"),
)
DEVICE_CALLS = schema(
    "device_calls",
    "Blocking and allocating calls of the driver or runtime, on the host",
    *INTERVAL,
    Column("track_id", "i8", "", "the thread", 5, of="tracks.track_id"),
    PROCESS_ID,
    RANK_OR_NONE,
    Column("stream_track_id", "i8", "", "the stream, -1 if none", missing=-1, of="tracks.track_id"),
    Column("device_index", "i8", "", "-1 if unknown", missing=-1),
    Column("call_code", "i8", "", "", of=kinds.DeviceCall),
    Column("status_code", "i8", "", "result, 0 fine", role="code"),
    ("size_bytes", "i8", "bytes", "allocation or copy"),
    Column("name_code", "i8", "", "function called, as hipFree; empty if only its DeviceCall is known", role="text"),
)
KERNELS = schema(
    "kernels",
    "Everything that ran on a device, in deep mode or imported",
    *INTERVAL,
    PROCESS_ID,
    RANK_OR_NONE,
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    Column("track_id", "i8", "", "the stream", 5, of="tracks.track_id"),
    Column("thread_track_id", "i8", "", "the launching thread, -1 if unknown", missing=-1, of="tracks.track_id"),
    Column("launch_ns", "i8", "ns", "host: launching call entered, -1 if unknown", role="moment", missing=-1),
    Column("return_ns", "i8", "ns", "host: it returned, -1 if unknown", role="moment", missing=-1),
    Column("name_code", "i8", "", "kernel, or kind of copy", role="text"),
    Column("work_code", "i8", "", "", of=kinds.DeviceWork),
    Column("copy_code", "i8", "", "0 if no copy", of=kinds.CopyDirection),
    ("size_bytes", "i8", "bytes", "copy or memset"),
    Column("correlation_id", "i8", "", "joins launch and work", role="id"),
    Column("graph_key", "i8", "", "graph node, 0 if not from a graph", role="id"),
)
COLLECTIVE_DETAILS = schema(
    "collective_details",
    "What NCCL's profiler plugin or its arguments tell of a collective beyond its times",
    Column("collective_key", "i8", "", "", of="collectives.collective_key"),
    PROCESS_ID,
    Column("algorithm_code", "i8", "", "RING, TREE, NVLS, ...; empty if unknown", role="text"),
    Column("protocol_code", "i8", "", "LL, LL128, SIMPLE; empty if unknown", role="text"),
    ("channels_count", "i8", "", "channels used, 0 if unknown"),
    ("timed_count", "i8", "", "of these, with both device stamps"),
    Column("nccl_flags", "i8", "", "", of=kinds.NcclFlag),
    Column("batch_key", "i8", "", "equal for the operations of one group of this process, 0 if alone", role="id"),
    Column("network_ns", "i8", "ns", "a send or receive of it was in flight, -1 if no proxy was seen", missing=-1),
    Column("transfer_bytes", "i8", "bytes", "moved by its proxies, -1 if none was seen", missing=-1),
    Column("gpu_wait_ns", "i8", "ns", "its proxies waited for the device, steps added, -1 if none seen", missing=-1),
    ("peer_wait_ns", "i8", "ns", "for the peer"),
    ("wire_wait_ns", "i8", "ns", "for the network"),
    Column(
        "channel_skew_ns", "i8", "ns", "from first to last begin of a channel, -1 if fewer than two timed", missing=-1
    ),
    Column(
        "channel_spread_ns", "i8", "ns", "from first to last end of a channel, -1 if fewer than two timed", missing=-1
    ),
)

#: Part of ``TABLES``.
DEVICE_TABLES = (DEVICES, STREAMS, DEVICE_CLOCKS, DEVICE_BRACKETS, DEVICE_CALLS, KERNELS, COLLECTIVE_DETAILS)


# What only all ranks together can tell, as tables beside the rows of each rank.
#
# A store that is partitioned by rank keeps them, so that one rank's partition is attributed as within its whole run.

STEPS = schema(
    "steps",
    "One row per rank and step",
    RANK,
    ("step", "i8", "", "ordinal from 0, the same step on every rank"),
    *INTERVAL,
    PROCESS_ID,
    Column("track_id", "i8", "", "the step thread", 5, of="tracks.track_id"),
    ("sub_steps_count", "i8", "", "micro-batches"),
    ("kind", "U16", "", "train, skipped_update, validation, iteration (rollout and its updates), inference or marked"),
    ("warmup", "i8", "", "1 if left out of summaries by default"),
    Column(
        "matched_code", "i8", "", "1 other ranks have its collectives in this step, 0 not all, -1 none", role="code"
    ),
    Column("clock_code", "i8", "", "clock of its begin and end, 0 for the host's", of=kinds.DeviceClock),
    ("thinned", "i8", "", "1 if the event budget left it without timing events: totals pass over it", 6),
)
NUMBERED_STEPS = Schema(
    "numbered_steps", STEPS.columns, "Steps as numbered among all ranks; empty unless loaded from a store of partitions"
)
MATCHED_COLLECTIVES = schema(
    "matched_collectives",
    "Collectives as matched among all ranks; empty unless loaded from a store of partitions",
    Column("collective_key", "i8", "", "", of="collectives.collective_key"),
    PROCESS_ID,
    RANK,
    Column("resolved_end_ns", "i8", "ns", "end on this rank, estimated where it was not seen", role="moment"),
    Column("last_enter_ns", "i8", "ns", "when the last rank entered that this row had to wait for", role="moment"),
    Column("last_rank", "i8", "", "that rank, -1 if it waits for nobody", role="rank", missing=-1),
    ("partial", "i8", "", "1 if a member's row is missing although the operation ended"),
    ("link", "i8", "", "0 inside a host, 1 between hosts, 2 between hosts of which some hold several members"),
    ("by_clock", "i8", "", "0 if the ranks' clocks are too far apart for this operation"),
    ("ordered", "i8", "", "0 if it entered closer to the last rank than their clocks can tell apart"),
    Column("device_resolved_end_ns", "i8", "ns", "the same seven by the clocks of devices", role="moment"),
    Column("device_last_enter_ns", "i8", "ns", "", role="moment"),
    Column("device_last_rank", "i8", "", "", role="rank"),
    ("device_partial", "i8", "", ""),
    ("device_link", "i8", "", ""),
    ("device_by_clock", "i8", "", ""),
    ("device_ordered", "i8", "", ""),
    Column(
        "network_low_ns",
        "i8",
        "ns",
        "over hosts and inside them: its network part is not over before, -1 if unknown",
        role="moment",
        missing=-1,
    ),
    Column(
        "network_point_ns",
        "i8",
        "ns",
        "when it is over, as the budget takes it, -1 if unknown",
        role="moment",
        missing=-1,
    ),
    Column("network_high_ns", "i8", "ns", "at the latest, -1 if unknown", role="moment", missing=-1),
    ("network_estimated", "i8", "", "1 if no proxy said so"),
)

#: Part of ``TABLES``.
CROSS_RANK_TABLES = (NUMBERED_STEPS, MATCHED_COLLECTIVES)


# The tables that importers alone fill.

IO_TOTALS = schema(
    "io_totals",
    "Calls of a process on a file of which only the sum was recorded; none of them has a row in io",
    Column("begin_ns", "i8", "ns", "the first of them began, -1 if unknown", role="moment", missing=-1),
    Column("end_ns", "i8", "ns", "the last of them ended, -1 if unknown", role="moment", missing=-1),
    PROCESS_ID,
    Column("path_code", "i8", "", "path, empty if unknown", role="path"),
    Column("layer_code", "i8", "", "posix, stdio or mpi-io", role="text"),
    ("opens_count", "i8", "", "opens", 3),
    ("reads_count", "i8", "", "read calls"),
    ("writes_count", "i8", "", "write calls", 2),
    ("read_bytes", "i8", "bytes", "bytes read"),
    ("write_bytes", "i8", "bytes", "bytes written", 1),
    ("read_ns", "i8", "ns", "time inside read calls"),
    ("write_ns", "i8", "ns", "time inside write calls"),
    ("other_ns", "i8", "ns", "time inside other calls"),
    Column("consecutive_reads_count", "i8", "", "reads that began where the last one ended, -1 if unknown", missing=-1),
    Column(
        "slowest_process_ns",
        "i8",
        "ns",
        "a row of all processes: time of the slowest of them, -1 if unknown",
        missing=-1,
    ),
)

EXECUTION_NODES = schema(
    "execution_nodes",
    "Nodes of execution traces in the order written: what was called with how much data, without times",
    PROCESS_ID,
    Column("rank", "i8", "", "global rank, -1 if unknown", role="rank", missing=-1),
    Column("node_id", "i8", "", "unique in the process", role="id"),
    Column("parent_node_id", "i8", "", "node_id of the caller, -1 if unknown", role="id", missing=-1),
    Column(
        "record_function_id",
        "i8",
        "",
        "rf_id: Record function id of the call in newer Kineto traces, -1 if unknown",
        role="id",
        missing=-1,
    ),
    Column("sequence_id", "i8", "", "joins a forward with its backward, -1 if none", role="id", missing=-1),
    Column("native_thread_id", "i8", "", "torch's number of the thread, -1 if unknown", role="id", missing=-1),
    Column("name_code", "i8", "", "operator or annotation", role="text"),
    ("input_bytes", "i8", "bytes", "tensors given, views counted as long as they are"),
    ("output_bytes", "i8", "bytes", "tensors returned"),
    Column("duration_ns", "i8", "ns", "as a simulator is told, -1 if unknown", missing=-1),
    Column("op_code", "i8", "", "-1 if no collective", missing=-1, of=kinds.CollectiveOp),
    Column("collective_sequence", "i8", "", "number that torch gave the collective, -1 if none", missing=-1),
    Column("group_code", "i8", "", "process group of the collective", role="text"),
    Column("group_size", "i8", "", "ranks of the group, -1 if unknown", missing=-1),
)

EXECUTION_DEPENDENCIES = schema(
    "execution_dependencies",
    "What nodes of Chakra's execution traces wait for: the data dependencies",
    PROCESS_ID,
    Column("rank", "i8", "", "global rank, -1 if unknown", role="rank", missing=-1),
    Column("node_id", "i8", "", "execution_nodes.node_id of the one that waits", role="id"),
    Column("needed_node_id", "i8", "", "execution_nodes.node_id of the one that it waits for", role="id"),
)

#: Part of ``TABLES``.
IMPORTED_TABLES = (IO_TOTALS, EXECUTION_NODES, EXECUTION_DEPENDENCIES)


#: Every table of EventTables and Trace, by attribute name.
TABLES: dict[str, Schema] = {
    s.name: s
    for s in (
        PROCESSES,
        TRACKS,
        SPANS,
        PHASES,
        BATCHES,
        IO,
        WAITS,
        COLLECTIVES,
        COLLECTIVE_WAITS,
        GROUPS,
        COUNTERS,
        FLOWS,
        LOSSES,
        ALIGNMENT,
        METADATA,
        *DEVICE_TABLES,
        *IMPORTED_TABLES,
        *CROSS_RANK_TABLES,
    )
}
