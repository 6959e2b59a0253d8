"""Every table of the event model: column names, types, units and meaning.

Times are int64 ns of one clock, intervals half-open; ``*_code`` indexes the ``StringPool`` or says its enumeration.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.schema.columns import INTERVAL, Schema, schema
from stashtrace.schema.columns import INTERVAL as _INTERVAL
from stashtrace.schema.columns import schema as _schema

PROCESSES = _schema(
    "processes",
    "One row per traced process image",
    ("process_id", "i8", "", "row number, unique in the trace"),
    ("host_code", "i8", "", "string: host name"),
    ("boot_code", "i8", "", "string: boot id and time namespace, the clock domain"),
    ("netns_code", "i8", "", "string: network namespace"),
    ("pid", "i8", "", "process id on its host"),
    ("parent_process_id", "i8", "", "process_id of the parent, -1 if not traced"),
    ("rank", "i8", "", "global rank, -1 if none; workers carry the rank they serve"),
    ("local_rank", "i8", "", "rank within the host, -1 if none"),
    ("world_size", "i8", "", "ranks of the job, -1 if unknown"),
    ("role_code", "i8", "", "ProcessRole"),
    ("worker_id", "i8", "", "DataLoader worker number, -1 if none"),
    ("name_code", "i8", "", "string: what a person calls it"),
    *_INTERVAL,
)
TRACKS = _schema(
    "tracks",
    "A line of the time line: thread, communicator, stream, counter",
    ("track_id", "i8", "", "row number, unique in the trace"),
    ("process_id", "i8", "", "processes.process_id"),
    ("kind_code", "i8", "", "TrackKind"),
    ("native_id", "i8", "", "thread id, stream id, ...; 0 if none, -1 of an unknown one"),
    ("role_code", "i8", "", "ThreadRole of a thread"),
    ("name_code", "i8", "", "string"),
    ("unit_code", "i8", "", "string: unit of a counter, empty otherwise"),
)
SPANS = _schema(
    "spans",
    "User annotations, garbage collection, probes' own time; step marks have begin_ns == end_ns",
    ("span_id", "i8", "", "row number, unique in the table"),
    *_INTERVAL,
    ("track_id", "i8", "", "tracks.track_id"),
    ("kind_code", "i8", "", "SpanKind"),
    ("name_code", "i8", "", "string"),
    ("correlation_id", "i8", "", "joins records of one cause, 0 if none"),
    ("value", "i8", "", "step: its number; else as the kind says"),
)
PHASES = _schema(
    "phases",
    "Forward, backward, optimizer, checkpoint",
    *_INTERVAL,
    ("track_id", "i8", "", "tracks.track_id"),
    ("process_id", "i8", "", "processes.process_id"),
    ("phase_code", "i8", "", "Phase"),
    ("phase_flags", "i8", "", "PhaseFlag bits"),
    ("name_code", "i8", "", "string: class of the module, optimizer, ..."),
    ("begin_cpu_ns", "i8", "ns", "thread CPU time at begin, -1 if unknown"),
    ("end_cpu_ns", "i8", "ns", "thread CPU time at end, -1 if unknown"),
    ("begin_runqueue_ns", "i8", "ns", "time runnable but not running at begin, -1 if unknown"),
    ("end_runqueue_ns", "i8", "ns", "time runnable but not running at end, -1 if unknown"),
)
BATCHES = _schema(
    "batches",
    "Phases in the life of DataLoader batches",
    *_INTERVAL,
    ("track_id", "i8", "", "tracks.track_id of the recording thread"),
    ("process_id", "i8", "", "processes.process_id of the recording process"),
    ("rank", "i8", "", "rank that is served, -1 if none"),
    ("loader_id", "u8", "", "one per iterator, same in main process and workers"),
    ("batch_index", "i8", "", "the loader's index of the batch, -1 if none"),
    ("worker_id", "i8", "", "worker that made the batch, -1 for the main process, -2 for one that was not seen"),
    ("phase_code", "i8", "", "BatchPhase"),
    ("cpu_ns", "i8", "ns", "CPU time of the thread inside, -1 if unknown"),
    ("runqueue_ns", "i8", "ns", "runnable but not running inside, -1 if unknown"),
    ("major_faults_count", "i8", "", "page faults that waited for storage, inside"),
    ("block_inputs_count", "i8", "", "ru_inblock growth of the thread, inside"),
)
IO = _schema(
    "io",
    "One row per I/O call; sorted by track_id, then begin_ns",
    *_INTERVAL,
    ("track_id", "i4", "", "tracks.track_id"),
    ("path_code", "i4", "", "string: path, empty if unknown"),
    ("op_code", "i2", "", "IoOp"),
    ("io_flags", "i2", "", "IoFlag bits"),
    ("offset_bytes", "i8", "bytes", "file offset, -1 if unknown"),
    ("result_bytes", "i8", "bytes", "bytes moved or 0, or minus errno"),
)
WAITS = _schema(
    "waits",
    "Blocking waits of watched threads, above the recording threshold",
    *_INTERVAL,
    ("track_id", "i8", "", "tracks.track_id"),
    ("process_id", "i8", "", "processes.process_id"),
    ("wait_code", "i8", "", "WaitOp"),
)
COLLECTIVES = _schema(
    "collectives",
    "One row per rank and collective; host side (call, return) and backend side (begin, end)",
    ("collective_key", "i8", "", "row number; the same cause on other ranks has the same group and sequence"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank"),
    ("track_id", "i8", "", "tracks.track_id of the calling thread"),
    ("communicator_track_id", "i8", "", "tracks.track_id of the communicator, -1 if none"),
    ("group_hash", "u8", "", "same on every rank of the group"),
    ("sequence", "i8", "", "number within the group"),
    ("op_code", "i8", "", "CollectiveOp"),
    ("name_code", "i8", "", "string: operator as called"),
    ("message_bytes", "i8", "bytes", "payload of this rank's input"),
    ("peer_rank", "i8", "", "root or peer within the group, -1 if none"),
    ("collective_flags", "i8", "", "CollectiveFlag bits"),
    ("call_ns", "i8", "ns", "the caller entered"),
    ("return_ns", "i8", "ns", "the launching call returned, -1 if unseen"),
    ("begin_ns", "i8", "ns", "the backend began, -1 if unseen"),
    ("end_ns", "i8", "ns", "the backend finished, -1 if never seen"),
    ("status_code", "i8", "", "0 fine, 1 failed, 2 end seen late by a wait, 3 end unseen"),
    ("source_code", "i8", "", "CollectiveSource: who timed it"),
    ("device_begin_ns", "i8", "ns", "the device entered it, -1 if untimed"),
    ("device_end_ns", "i8", "ns", "the device left it, -1 if untimed"),
    ("stream_track_id", "i8", "", "tracks.track_id of the stream it was given, -1 if none or unknown"),
)
COLLECTIVE_WAITS = _schema(
    "collective_waits",
    "A thread blocked on a collective (Work.wait)",
    *_INTERVAL,
    ("track_id", "i8", "", "tracks.track_id"),
    ("process_id", "i8", "", "processes.process_id"),
    ("collective_key", "i8", "", "collectives.collective_key, -1 if unknown"),
)
GROUPS = _schema(
    "groups",
    "One row per rank and process group",
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank"),
    ("group_hash", "u8", "", "same on every rank of the group"),
    ("name_code", "i8", "", "string"),
    ("backend_code", "i8", "", "string: gloo, nccl, ..."),
    ("members_code", "i8", "", "string: global ranks, comma separated, in group order"),
    ("group_rank", "i8", "", "this rank within the group"),
    ("group_size", "i8", "", "members"),
    ("observed_count", "i8", "", "collectives recorded, -1 if not compared"),
    ("backend_count", "i8", "", "the group's own sequence number, -1 if none"),
    ("crosses_hosts", "i8", "", "1 if its traffic leaves a host, 0 if not, -1 if unknown"),
    ("locality_code", "i8", "", "string: the evidence for crosses_hosts"),
)
COUNTERS = _schema(
    "counters",
    "Sampled values; the track names the quantity and its unit",
    ("ts_ns", "i8", "ns", "when"),
    ("track_id", "i8", "", "tracks.track_id"),
    ("value", "f8", "", "in the track's unit; cumulative ones end in _total"),
)
FLOWS = _schema(
    "flows",
    "Arrows; source and destination are an instant on a track",
    ("kind_code", "i8", "", "FlowKind"),
    ("source_track_id", "i8", "", "tracks.track_id"),
    ("source_ns", "i8", "ns", "inside the source span"),
    ("destination_track_id", "i8", "", "tracks.track_id"),
    ("destination_ns", "i8", "ns", "inside the destination span"),
)
LOSSES = _schema(
    "losses",
    "What could not be recorded or read",
    ("process_id", "i8", "", "processes.process_id, -1 if the whole run"),
    ("collector_code", "i8", "", "string: collector or 'format'"),
    ("name_code", "i8", "", "string: snake_case reason"),
    ("severity_code", "i8", "", "Severity"),
    ("lost_count", "i8", "", "records, events or bytes as the name says"),
    ("advice_code", "i8", "", "string: one sentence for the user"),
)
ALIGNMENT = _schema(
    "alignment",
    "What the merge of clocks is worth",
    ("boot_code", "i8", "", "string: clock domain"),
    ("reference_code", "i8", "", "string: clock domain it is mapped to"),
    ("offset_ns", "i8", "ns", "added to this domain's monotonic clock at the origin of the common clock"),
    ("drift_ppb", "i8", "ppb", "mean rate at which that changes, 1e-9"),
    ("error_ns", "i8", "ns", "half-width of the interval that holds the true offset, during the whole run"),
    ("touch_error_ns", "i8", "ns", "the same from the first to the last thing done together, -1 if unknown"),
    ("method_code", "i8", "", "string: same_clock, realtime, collectives, ping, collectives+ping; assumed"),
)
METADATA = _schema(
    "metadata",
    "Facts about processes: versions, command line, environment",
    ("process_id", "i8", "", "processes.process_id, -1 for the run"),
    ("key_code", "i8", "", "string"),
    ("value_code", "i8", "", "string"),
)


# The tables of devices.
#
# Device times are mapped to the run's common clock; what that mapping is worth stands in ``device_clocks``.

DEVICES = schema(
    "devices",
    "One row per process and device that it uses",
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("track_id", "i8", "", "tracks.track_id of the device"),
    ("uuid_code", "i8", "", "string: the same device has the same in every process"),
    ("name_code", "i8", "", "string: product"),
    ("bus_code", "i8", "", "string: PCI address"),
    ("memory_bytes", "i8", "bytes", "total, -1 if unknown"),
    ("multiprocessors_count", "i8", "", "-1 if unknown"),
    ("capability_code", "i8", "", "10 * major + minor"),
    ("driver_code", "i8", "", "as cuDriverGetVersion"),
)
STREAMS = schema(
    "streams",
    "Streams that were seen",
    ("track_id", "i8", "", "tracks.track_id of the stream"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("stream_flags", "i8", "", "StreamFlag bits"),
    ("priority_index", "i8", "", "as CUDA says it"),
)
DEVICE_CLOCKS = schema(
    "device_clocks",
    "How well each clock of a device is known",
    ("process_id", "i8", "", "processes.process_id whose anchors these are"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("clock_code", "i8", "", "DeviceClock"),
    ("anchors_count", "i8", "", "readings used"),
    ("error_ns", "i8", "ns", "largest half-width of the readings used, and what interpolation adds"),
    ("drift_ppb", "i8", "ppb", "rate against the host, 1e-9"),
)
DEVICE_BRACKETS = schema(
    "device_brackets",
    "Two timing events around something on a stream, and the host's side of it",
    ("bracket_id", "i8", "", "unique in the process"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("track_id", "i8", "", "tracks.track_id of the stream"),
    ("thread_track_id", "i8", "", "tracks.track_id of the thread that called"),
    ("begin_ns", "i8", "ns", "first event, -1 if untimed"),
    ("end_ns", "i8", "ns", "second event, -1 if untimed"),
    ("awaited_ns", "i8", "ns", "stream_wait: end of the awaited work, -1 if not timed"),
    ("call_ns", "i8", "ns", "host: first event recorded, or call entered"),
    ("return_ns", "i8", "ns", "host: call left, or second event recorded"),
    ("bracket_code", "i8", "", "Bracket"),
    ("awaited_code", "i8", "", "Awaited"),
    ("bracket_flags", "i8", "", "BracketFlag bits"),
    ("copy_code", "i8", "", "CopyDirection of the copy, or of the one that a stream_wait was for; 0 if none"),
    ("size_bytes", "i8", "bytes", "copy: bytes"),
    ("correlation_id", "i8", "", "batch index, step, call_id, awaited bracket_id; see the record"),
)
DEVICE_CALLS = schema(
    "device_calls",
    "Blocking and allocating calls of the driver or runtime, on the host",
    *INTERVAL,
    ("track_id", "i8", "", "tracks.track_id of the thread"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("stream_track_id", "i8", "", "tracks.track_id of the stream, -1 if none"),
    ("device_index", "i8", "", "-1 if unknown"),
    ("call_code", "i8", "", "DeviceCall"),
    ("status_code", "i8", "", "result, 0 fine"),
    ("size_bytes", "i8", "bytes", "allocation or copy"),
    ("name_code", "i8", "", "string: name of the function, as hipFree; empty if only its DeviceCall is known"),
)
KERNELS = schema(
    "kernels",
    "Everything that ran on a device, in deep mode or imported",
    *INTERVAL,
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank, -1 if none"),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("track_id", "i8", "", "tracks.track_id of the stream"),
    ("thread_track_id", "i8", "", "tracks.track_id of the launching thread, -1 if unknown"),
    ("launch_ns", "i8", "ns", "host: launching call entered, -1 if unknown"),
    ("return_ns", "i8", "ns", "host: it returned, -1 if unknown"),
    ("name_code", "i8", "", "string: kernel, or kind of copy"),
    ("work_code", "i8", "", "DeviceWork"),
    ("copy_code", "i8", "", "CopyDirection, 0 if no copy"),
    ("size_bytes", "i8", "bytes", "copy or memset"),
    ("correlation_id", "i8", "", "joins launch and work"),
    ("graph_key", "i8", "", "graph node, 0 if not from a graph"),
)
COLLECTIVE_DETAILS = schema(
    "collective_details",
    "What NCCL's profiler plugin or its arguments tell of a collective beyond its times",
    ("collective_key", "i8", "", "collectives.collective_key"),
    ("process_id", "i8", "", "processes.process_id"),
    ("algorithm_code", "i8", "", "string: RING, TREE, NVLS, ...; empty if unknown"),
    ("protocol_code", "i8", "", "string: LL, LL128, SIMPLE; empty if unknown"),
    ("channels_count", "i8", "", "channels used, 0 if unknown"),
    ("timed_count", "i8", "", "of these, with both device stamps"),
    ("nccl_flags", "i8", "", "NcclFlag bits"),
    ("batch_key", "i8", "", "equal for the operations of one group of this process, 0 if alone"),
    ("network_ns", "i8", "ns", "a send or receive of it was in flight, -1 if no proxy was seen"),
    ("transfer_bytes", "i8", "bytes", "moved by its proxies, -1 if none was seen"),
    ("gpu_wait_ns", "i8", "ns", "its proxies waited for the device, steps added, -1 if none was seen"),
    ("peer_wait_ns", "i8", "ns", "for the peer"),
    ("wire_wait_ns", "i8", "ns", "for the network"),
    ("channel_skew_ns", "i8", "ns", "from the first channel's begin to the last one's, -1 if less than two are timed"),
    ("channel_spread_ns", "i8", "ns", "from the first channel's end to the last one's, -1 if less than two are timed"),
)

#: Part of ``TABLES``.
DEVICE_TABLES = (DEVICES, STREAMS, DEVICE_CLOCKS, DEVICE_BRACKETS, DEVICE_CALLS, KERNELS, COLLECTIVE_DETAILS)


# What only all ranks together can tell, as tables beside the rows of each rank.
#
# A store that is partitioned by rank keeps them, so that one rank's partition is attributed as within its whole run.

STEPS = _schema(
    "steps",
    "One row per rank and step",
    ("rank", "i8", "", "global rank"),
    ("step", "i8", "", "ordinal from 0, the same step on every rank"),
    *_INTERVAL,
    ("process_id", "i8", "", "processes.process_id"),
    ("track_id", "i8", "", "tracks.track_id of the step thread"),
    ("sub_steps_count", "i8", "", "micro-batches"),
    ("kind", "U16", "", "train, skipped_update, validation, iteration (rollout and its updates), inference or marked"),
    ("warmup", "i8", "", "1 if left out of summaries by default"),
    ("matched_code", "i8", "", "1 its collectives fall into the same step on other ranks, 0 some do not, -1 none"),
    ("clock_code", "i8", "", "DeviceClock that its begin and end are from, 0 for the host's"),
    ("thinned", "i8", "", "1 if the event budget left it without timing events: totals pass over it"),
)
NUMBERED_STEPS = Schema(
    "numbered_steps", STEPS.columns, "Steps as numbered among all ranks; empty unless loaded from a store of partitions"
)
MATCHED_COLLECTIVES = _schema(
    "matched_collectives",
    "Collectives as matched among all ranks; empty unless loaded from a store of partitions",
    ("collective_key", "i8", "", "collectives.collective_key"),
    ("process_id", "i8", "", "processes.process_id"),
    ("rank", "i8", "", "global rank"),
    ("resolved_end_ns", "i8", "ns", "end on this rank, estimated where it was not seen"),
    ("last_enter_ns", "i8", "ns", "when the last rank entered that this row had to wait for"),
    ("last_rank", "i8", "", "that rank, -1 if it waits for nobody"),
    ("partial", "i8", "", "1 if a member's row is missing although the operation ended"),
    ("link", "i8", "", "0 inside a host, 1 between hosts, 2 between hosts of which some hold several members"),
    ("by_clock", "i8", "", "0 if the ranks' clocks are too far apart for this operation"),
    ("ordered", "i8", "", "0 if it entered closer to the last rank than their clocks can tell apart"),
    ("device_resolved_end_ns", "i8", "ns", "the same seven by the clocks of devices"),
    ("device_last_enter_ns", "i8", "ns", ""),
    ("device_last_rank", "i8", "", ""),
    ("device_partial", "i8", "", ""),
    ("device_link", "i8", "", ""),
    ("device_by_clock", "i8", "", ""),
    ("device_ordered", "i8", "", ""),
    ("network_low_ns", "i8", "ns", "over hosts and inside them: its network part is not over before, -1 if unknown"),
    ("network_point_ns", "i8", "ns", "when it is over, as the budget takes it, -1 if unknown"),
    ("network_high_ns", "i8", "ns", "at the latest, -1 if unknown"),
    ("network_estimated", "i8", "", "1 if no proxy said so"),
)

#: Part of ``TABLES``.
CROSS_RANK_TABLES = (NUMBERED_STEPS, MATCHED_COLLECTIVES)


# The tables that importers alone fill.

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
