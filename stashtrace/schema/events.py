"""Every table of the event model: column names, types, units and meaning.

Times are int64 ns of one clock, intervals half-open; ``*_code`` indexes the ``StringPool`` or says its enumeration.
"""

from __future__ import annotations

from stashtrace.schema import columns as col
from stashtrace.schema import kinds

PROCESSES = col.schema(
    "processes",
    "One row per traced process image",
    col.key("process_id", "row number, unique in the trace", detail=6),
    col.Column("host_code", "i8", "", "host name", role="host"),
    col.text("boot_code", "boot id and time namespace, the clock domain"),
    col.text("netns_code", "network namespace"),
    col.number("pid", "process id on its host"),
    col.refers("parent_process_id", "processes.process_id", "the parent, -1 if not traced", missing=-1),
    col.rank("rank", "global rank, -1 if none; workers carry the rank they serve", missing=-1),
    col.number("local_rank", "rank within the host, -1 if none", missing=-1),
    col.rank("world_size", "ranks of the job, -1 if unknown", missing=-1),
    col.Column("role_code", "i8", "", "", of=kinds.ProcessRole),
    col.identity("worker_id", "DataLoader worker number, -1 if none", missing=-1),
    col.text("name_code", "what a person calls it"),
    *col.INTERVAL,
)
TRACKS = col.schema(
    "tracks",
    "A line of the timeline: thread, communicator, stream, counter",
    col.key("track_id", "row number, unique in the trace", detail=5),
    col.PROCESS_ID,
    col.Column("kind_code", "i8", "", "", of=kinds.TrackKind),
    col.identity("native_id", "thread id, stream id, ...; 0 if none, -1 of an unknown one"),
    col.Column("role_code", "i8", "", "of threads; 0 of other tracks", of=kinds.ThreadRole),
    col.text("name_code", ""),
    col.text("unit_code", "unit of a counter, empty otherwise"),
)
SPANS = col.schema(
    "spans",
    "User annotations, garbage collection, time of the probes; step marks have begin_ns == end_ns",
    col.key("span_id", "row number, unique in the table"),
    *col.INTERVAL,
    col.TRACK_ID,
    col.Column("kind_code", "i8", "", "", of=kinds.SpanKind),
    col.text("name_code", ""),
    col.identity("correlation_id", "joins records of one cause, 0 if none"),
    col.number("value", "step: its number; else as the kind says"),
)
STACKS = col.schema(
    "stacks",
    "Python functions that threads were in, from samples of the steps that were recorded deeper",
    *col.INTERVAL,
    col.TRACK_ID,
    col.number("depth", "0 for the outermost"),
    col.number("line", "on which it was first seen"),
    col.text("name_code", "function at file"),
)
PHASES = col.schema(
    "phases",
    "Forward, backward, optimizer, checkpoint",
    *col.INTERVAL,
    col.TRACK_ID,
    col.PROCESS_ID,
    col.Column("phase_code", "i8", "", "", of=kinds.Phase),
    col.Column("phase_flags", "i8", "", "", of=kinds.PhaseFlag),
    col.text("name_code", "class of the module, optimizer, ..."),
    col.ns("begin_cpu_ns", "thread CPU time at begin, -1 if unknown", missing=-1),
    col.ns("end_cpu_ns", "thread CPU time at end, -1 if unknown", missing=-1),
    col.ns("begin_runqueue_ns", "time runnable but not running at begin, -1 if unknown", missing=-1),
    col.ns("end_runqueue_ns", "time runnable but not running at end, -1 if unknown", missing=-1),
)
BATCHES = col.schema(
    "batches",
    "Phases in the life of DataLoader batches",
    *col.INTERVAL,
    col.refers("track_id", "tracks.track_id", "the recording thread", detail=5),
    col.refers("process_id", "processes.process_id", "the recording process", detail=6),
    col.rank("rank", "rank that is served, -1 if none", missing=-1),
    col.Column("loader_id", "u8", "", "one per iterator, same in main process and workers", role="id"),
    col.number("batch_index", "the loader's index of the batch, -1 if none", missing=-1),
    col.identity("worker_id", "who made the batch, -1 for the main process, -2 if unseen", missing=-1),
    col.Column("phase_code", "i8", "", "", of=kinds.BatchPhase),
    col.ns("cpu_ns", "CPU time of the thread inside, -1 if unknown", missing=-1),
    col.ns("runqueue_ns", "runnable but not running inside, -1 if unknown", missing=-1),
    col.number("major_faults_count", "page faults that waited for storage, inside"),
    col.number("block_inputs_count", "ru_inblock growth of the thread, inside"),
)
IO = col.schema(
    "io",
    "One row per I/O call; sorted by track_id, then begin_ns",
    *col.INTERVAL,
    col.Column("track_id", "i4", "", "", of="tracks.track_id", detail=5),
    col.Column("path_code", "i4", "", "path, empty if unknown", role="path"),
    col.Column("op_code", "i2", "", "", of=kinds.IoOp),
    col.Column("io_flags", "i2", "", "", of=kinds.IoFlag),
    col.Column("offset_bytes", "i8", "bytes", "file offset, -1 if unknown", role="position", missing=-1),
    col.nbytes("result_bytes", "bytes moved or 0, or minus errno"),
)
WAITS = col.schema(
    "waits",
    "Blocking waits of watched threads, above the recording threshold",
    *col.INTERVAL,
    col.TRACK_ID,
    col.PROCESS_ID,
    col.Column("wait_code", "i8", "", "", of=kinds.WaitOp),
    col.refers("gil_track_id", "tracks.track_id", "a sampled thread that held the GIL last when it ended, else -1"),
)
FRAMES = col.schema(
    "frames",
    "Frames of Python code at one of their instructions, each below its callers",
    col.PROCESS_ID,
    col.identity("frame_key", "number within the process, never 0"),
    col.identity("caller_key", "frame_key of the calling frame, 0 of the outermost"),
    col.text("name_code", "qualified name of the function"),
    col.text("path_code", "its file"),
    col.number("line", "of the instruction, -1 if unknown", missing=-1),
    col.number("first_line", "of the function"),
)
STACK_SAMPLES = col.schema(
    "stack_samples",
    "What watched threads were executing at random moments",
    col.moment("ts_ns", "when"),
    col.refers("track_id", "tracks.track_id", "the sampled thread", detail=5),
    col.PROCESS_ID,
    col.identity("frame_key", "frames.frame_key of the innermost frame, 0 if it could not be read"),
    col.Column("sample_flags", "i8", "", "", of=kinds.StackFlag),
)
STACK_SPANS = col.schema(
    "stack_spans",
    "Who made a call that took long",
    *col.INTERVAL,
    col.TRACK_ID,
    col.PROCESS_ID,
    col.identity("frame_key", "frames.frame_key of the innermost frame, which made the call"),
    col.Column("cause_code", "i8", "", "", of=kinds.StackCause),
)
COLLECTIVES = col.schema(
    "collectives",
    "One row per rank and collective; host side (call, return) and backend side (begin, end)",
    col.key("collective_key", "row number; other ranks' rows have the same group and sequence"),
    col.PROCESS_ID,
    col.RANK,
    col.refers("track_id", "tracks.track_id", "the calling thread", detail=5),
    col.refers("communicator_track_id", "tracks.track_id", "the communicator, -1 if none", missing=-1),
    col.Column("group_hash", "u8", "", "same on every rank of the group", role="id"),
    col.number("sequence", "number within the group", detail=4),
    col.Column("op_code", "i8", "", "", of=kinds.CollectiveOp),
    col.text("name_code", "operator as called"),
    col.nbytes("message_bytes", "payload of this rank's input"),
    col.number("peer_rank", "root or peer within the group, -1 if none", missing=-1),
    col.Column("collective_flags", "i8", "", "", of=kinds.CollectiveFlag),
    col.Column("element_code", "i8", "", "of this rank's tensors; of several the first", of=kinds.ElementType),
    col.moment("call_ns", "the caller entered"),
    col.moment("return_ns", "the launching call returned, -1 if unseen", missing=-1),
    col.moment("begin_ns", "the backend began, -1 if unseen", missing=-1),
    col.moment("end_ns", "the backend finished, -1 if never seen", missing=-1),
    col.Column("status_code", "i8", "", "0 fine, 1 failed, 2 end seen late by a wait, 3 end unseen", role="code"),
    col.Column("source_code", "i8", "", "who timed it", of=kinds.CollectiveSource),
    col.moment("device_begin_ns", "the device entered it, -1 if untimed", missing=-1),
    col.moment("device_end_ns", "the device left it, -1 if untimed", missing=-1),
    col.refers("stream_track_id", "tracks.track_id", "the stream it was given, -1 if none or unknown", missing=-1),
)
COLLECTIVE_WAITS = col.schema(
    "collective_waits",
    "A thread blocked on a collective (Work.wait)",
    *col.INTERVAL,
    col.TRACK_ID,
    col.PROCESS_ID,
    col.refers("collective_key", "collectives.collective_key", "-1 if unknown", missing=-1),
)
GROUPS = col.schema(
    "groups",
    "One row per rank and process group",
    col.PROCESS_ID,
    col.RANK,
    col.Column("group_hash", "u8", "", "same on every rank of the group", role="id"),
    col.text("name_code", ""),
    col.text("backend_code", "gloo, nccl, ..."),
    col.text("members_code", "global ranks, comma separated, in group order"),
    col.number("group_rank", "this rank within the group"),
    col.number("group_size", "members"),
    col.number("observed_count", "collectives recorded, -1 if not compared", missing=-1),
    col.number("backend_count", "sequence number of the group, -1 if none", missing=-1),
    col.number("crosses_hosts", "1 if its traffic leaves a host, 0 if not, -1 if unknown", missing=-1),
    col.text("locality_code", "the evidence for crosses_hosts"),
)
COUNTERS = col.schema(
    "counters",
    "Sampled values; the track names the quantity and its unit",
    col.moment("ts_ns", "when"),
    col.TRACK_ID,
    col.real("value", "in the track's unit; cumulative ones end in _total"),
)
FLOWS = col.schema(
    "flows",
    "Arrows; source and destination are an instant on a track",
    col.Column("kind_code", "i8", "", "", of=kinds.FlowKind),
    col.refers("source_track_id", "tracks.track_id"),
    col.moment("source_ns", "inside the source span"),
    col.refers("destination_track_id", "tracks.track_id"),
    col.moment("destination_ns", "inside the destination span"),
)
LOSSES = col.schema(
    "losses",
    "What could not be recorded or read",
    col.refers("process_id", "processes.process_id", "-1 if the whole run", missing=-1, detail=6),
    col.text("collector_code", "collector or 'format'"),
    col.text("name_code", "snake_case reason"),
    col.Column("severity_code", "i8", "", "", of=kinds.Severity),
    col.number("lost_count", "records, events or bytes as the name says"),
    col.text("advice_code", "one sentence for the user"),
)
ALIGNMENT = col.schema(
    "alignment",
    "What the merge of clocks is worth",
    col.text("boot_code", "clock domain"),
    col.text("reference_code", "clock domain it is mapped to"),
    col.ns("offset_ns", "added to this domain's monotonic clock at the origin of the common clock"),
    col.Column("drift_ppb", "i8", "ppb", "mean rate at which that changes, 1e-9"),
    col.ns("error_ns", "half-width of the interval that holds the true offset, during the whole run"),
    col.ns("touch_error_ns", "the same between the first and last meeting, -1 if unknown", missing=-1),
    col.text("method_code", "same_clock, realtime, collectives, ping, collectives+ping; assumed", detail=7),
)
METADATA = col.schema(
    "metadata",
    "Facts about processes: versions, command line, environment",
    col.refers("process_id", "processes.process_id", "-1 for the run", missing=-1, detail=6),
    col.text("key_code", ""),
    col.text("value_code", ""),
)


# The tables of devices.
#
# Device times are mapped to the run's common clock; what that mapping is worth stands in ``device_clocks``.

DEVICES = col.schema(
    "devices",
    "One row per process and device that it uses",
    col.PROCESS_ID,
    col.RANK_OR_NONE,
    col.number("device_index", "CUDA ordinal within the process"),
    col.refers("track_id", "tracks.track_id", "the device", detail=5),
    col.text("uuid_code", "the same device has the same in every process"),
    col.text("gpu_uuid_code", "of a MIG instance, the GPU that it is part of; else empty"),
    col.text("name_code", "product"),
    col.text("bus_code", "PCI address"),
    col.nbytes("memory_bytes", "total, -1 if unknown", missing=-1),
    col.number("multiprocessors_count", "-1 if unknown", missing=-1),
    col.Column("capability_code", "i8", "", "10 * major + minor", role="code"),
    col.Column("driver_code", "i8", "", "as cuDriverGetVersion", role="code"),
)
STREAMS = col.schema(
    "streams",
    "Streams that were seen",
    col.refers("track_id", "tracks.track_id", "the stream", detail=5),
    col.PROCESS_ID,
    col.RANK_OR_NONE,
    col.number("device_index", "CUDA ordinal within the process"),
    col.Column("stream_flags", "i8", "", "", of=kinds.StreamFlag),
    col.number("priority_index", "as CUDA says it"),
)
DEVICE_CLOCKS = col.schema(
    "device_clocks",
    "How well each clock of a device is known",
    col.refers("process_id", "processes.process_id", "whose anchors these are", detail=6),
    col.number("device_index", "CUDA ordinal within the process"),
    col.Column("clock_code", "i8", "", "", of=kinds.DeviceClock),
    col.number("anchors_count", "readings used"),
    col.ns("error_ns", "largest half-width of the readings used, and what interpolation adds"),
    col.Column("drift_ppb", "i8", "ppb", "rate against the host, 1e-9"),
)
DEVICE_BRACKETS = col.schema(
    "device_brackets",
    "Two timing events around something on a stream, and the host's side of it",
    col.identity("bracket_id", "unique in the process"),
    col.PROCESS_ID,
    col.RANK_OR_NONE,
    col.number("device_index", "CUDA ordinal within the process"),
    col.refers("track_id", "tracks.track_id", "the stream", detail=5),
    col.refers("thread_track_id", "tracks.track_id", "the thread that called"),
    col.moment("begin_ns", "first event, -1 if untimed", missing=-1),
    col.moment("end_ns", "second event, -1 if untimed", missing=-1),
    col.moment("awaited_ns", "stream_wait: end of the awaited work, -1 if untimed", missing=-1),
    col.moment("call_ns", "host: first event recorded, or call entered"),
    col.moment("return_ns", "host: call left, or second event recorded"),
    col.Column("bracket_code", "i8", "", "", of=kinds.Bracket),
    col.Column("awaited_code", "i8", "", "", of=kinds.Awaited),
    col.Column("bracket_flags", "i8", "", "", of=kinds.BracketFlag),
    col.Column(
        "copy_code", "i8", "", "of the copy, or of that which a stream_wait was for; 0 if none", of=kinds.CopyDirection
    ),
    col.nbytes("size_bytes", "copy: bytes"),
    col.identity("correlation_id", "batch index, step, call_id, awaited bracket_id; see the record"),
)
DEVICE_CALLS = col.schema(
    "device_calls",
    "Blocking and allocating calls of the driver or runtime, on the host",
    *col.INTERVAL,
    col.refers("track_id", "tracks.track_id", "the thread", detail=5),
    col.PROCESS_ID,
    col.RANK_OR_NONE,
    col.refers("stream_track_id", "tracks.track_id", "the stream, -1 if none", missing=-1),
    col.number("device_index", "-1 if unknown", missing=-1),
    col.Column("call_code", "i8", "", "", of=kinds.DeviceCall),
    col.Column("status_code", "i8", "", "result, 0 fine", role="code"),
    col.nbytes("size_bytes", "allocation or copy"),
    col.text("name_code", "function called, as hipFree; empty if only its DeviceCall is known"),
)
KERNELS = col.schema(
    "kernels",
    "Everything that ran on a device, in deep mode or imported",
    *col.INTERVAL,
    col.PROCESS_ID,
    col.RANK_OR_NONE,
    col.number("device_index", "CUDA ordinal within the process"),
    col.refers("track_id", "tracks.track_id", "the stream", detail=5),
    col.refers("thread_track_id", "tracks.track_id", "the launching thread, -1 if unknown", missing=-1),
    col.moment("launch_ns", "host: launching call entered, -1 if unknown", missing=-1),
    col.moment("return_ns", "host: it returned, -1 if unknown", missing=-1),
    col.text("name_code", "kernel, or kind of copy"),
    col.Column("work_code", "i8", "", "", of=kinds.DeviceWork),
    col.Column("copy_code", "i8", "", "0 if no copy", of=kinds.CopyDirection),
    col.nbytes("size_bytes", "copy or memset"),
    col.identity("correlation_id", "joins launch and work"),
    col.identity("graph_key", "graph node, 0 if not from a graph"),
)
COLLECTIVE_DETAILS = col.schema(
    "collective_details",
    "What NCCL's profiler plugin or its arguments record of a collective beyond its times",
    col.refers("collective_key", "collectives.collective_key"),
    col.PROCESS_ID,
    col.text("algorithm_code", "RING, TREE, NVLS, ...; empty if unknown"),
    col.text("protocol_code", "LL, LL128, SIMPLE; empty if unknown"),
    col.number("channels_count", "channels used, 0 if unknown"),
    col.number("timed_count", "of these, with both device stamps"),
    col.Column("nccl_flags", "i8", "", "", of=kinds.NcclFlag),
    col.identity("batch_key", "equal for the operations of one group of this process, 0 if alone"),
    col.ns("network_ns", "a send or receive of it was in flight, -1 if no proxy was seen", missing=-1),
    col.nbytes("transfer_bytes", "moved by its proxies, -1 if none was seen", missing=-1),
    col.ns("gpu_wait_ns", "its proxies waited for the device, steps added, -1 if none seen", missing=-1),
    col.ns("peer_wait_ns", "for the peer"),
    col.ns("wire_wait_ns", "for the network"),
    col.ns("channel_skew_ns", "from first to last begin of a channel, -1 if fewer than two timed", missing=-1),
    col.ns("channel_spread_ns", "from first to last end of a channel, -1 if fewer than two timed", missing=-1),
)

#: Part of ``TABLES``.
DEVICE_TABLES = (DEVICES, STREAMS, DEVICE_CLOCKS, DEVICE_BRACKETS, DEVICE_CALLS, KERNELS, COLLECTIVE_DETAILS)


# What only all ranks together show, as tables parallel to the rows of each rank.
#
# A store that is partitioned by rank keeps them, so that one rank's partition is attributed as within its whole run.

STEPS = col.schema(
    "steps",
    "One row per rank and step",
    col.RANK,
    col.number("step", "ordinal from 0, the same step on every rank"),
    *col.INTERVAL,
    col.PROCESS_ID,
    col.refers("track_id", "tracks.track_id", "the step thread", detail=5),
    col.number("sub_steps_count", "micro-batches"),
    col.word("kind", "train, skipped_update, validation, iteration (rollout and its updates), inference or marked"),
    col.number("warmup", "1 if left out of summaries by default"),
    col.Column(
        "matched_code", "i8", "", "1 other ranks have its collectives in this step, 0 not all, -1 none", role="code"
    ),
    col.Column("clock_code", "i8", "", "clock of its begin and end, 0 for the host's", of=kinds.DeviceClock),
    col.number("thinned", "1 if the event budget left it without timing events: totals pass over it", detail=6),
)
NUMBERED_STEPS = col.Schema(
    "numbered_steps", STEPS.columns, "Steps as numbered among all ranks; empty unless loaded from a store of partitions"
)
MATCHED_COLLECTIVES = col.schema(
    "matched_collectives",
    "Collectives as matched among all ranks; empty unless loaded from a store of partitions",
    col.refers("collective_key", "collectives.collective_key"),
    col.PROCESS_ID,
    col.RANK,
    col.moment("resolved_end_ns", "end on this rank, estimated where it was not seen"),
    col.moment("last_enter_ns", "when the last rank entered that this row had to wait for"),
    col.rank("last_rank", "that rank, -1 if it waits for nobody", missing=-1),
    col.number("partial", "1 if a member's row is missing although the operation ended"),
    col.number("link", "0 inside a host, 1 between hosts, 2 between hosts of which some hold several members"),
    col.number("by_clock", "0 if the ranks' clocks are too far apart for this operation"),
    col.number("ordered", "0 if it entered closer to the last rank than their clocks can resolve"),
    col.moment("device_resolved_end_ns", "the same seven by the clocks of devices"),
    col.moment("device_last_enter_ns", ""),
    col.rank("device_last_rank", ""),
    col.number("device_partial", ""),
    col.number("device_link", ""),
    col.number("device_by_clock", ""),
    col.number("device_ordered", ""),
    col.moment(
        "network_low_ns", "over hosts and inside them: its network part is not over before, -1 if unknown", missing=-1
    ),
    col.moment("network_point_ns", "when it is over, as the budget takes it, -1 if unknown", missing=-1),
    col.moment("network_high_ns", "at the latest, -1 if unknown", missing=-1),
    col.number("network_estimated", "1 if no proxy said so"),
)

#: Part of ``TABLES``.
CROSS_RANK_TABLES = (NUMBERED_STEPS, MATCHED_COLLECTIVES)


# The tables that importers alone fill.

IO_TOTALS = col.schema(
    "io_totals",
    "Calls of a process on a file of which only the sum was recorded; none of them has a row in io",
    col.moment("begin_ns", "the first of them began, -1 if unknown", missing=-1),
    col.moment("end_ns", "the last of them ended, -1 if unknown", missing=-1),
    col.PROCESS_ID,
    col.Column("path_code", "i8", "", "path, empty if unknown", role="path"),
    col.text("layer_code", "posix, stdio or mpi-io"),
    col.number("opens_count", "opens", detail=3),
    col.number("reads_count", "read calls"),
    col.number("writes_count", "write calls", detail=2),
    col.nbytes("read_bytes", "bytes read"),
    col.nbytes("write_bytes", "bytes written", detail=1),
    col.ns("read_ns", "time inside read calls"),
    col.ns("write_ns", "time inside write calls"),
    col.ns("other_ns", "time inside other calls"),
    col.number("consecutive_reads_count", "reads that began where the last one ended, -1 if unknown", missing=-1),
    col.ns("slowest_process_ns", "a row of all processes: time of the slowest of them, -1 if unknown", missing=-1),
)

EXECUTION_NODES = col.schema(
    "execution_nodes",
    "Nodes of execution traces in the order written: what was called with how much data, without times",
    col.PROCESS_ID,
    col.rank("rank", "global rank, -1 if unknown", missing=-1),
    col.identity("node_id", "unique in the process"),
    col.identity("parent_node_id", "node_id of the caller, -1 if unknown", missing=-1),
    col.identity(
        "record_function_id", "rf_id: Record function id of the call in newer Kineto traces, -1 if unknown", missing=-1
    ),
    col.identity("sequence_id", "joins a forward with its backward, -1 if none", missing=-1),
    col.identity("native_thread_id", "torch's number of the thread, -1 if unknown", missing=-1),
    col.text("name_code", "operator or annotation"),
    col.nbytes("input_bytes", "tensors given, views counted as long as they are"),
    col.nbytes("output_bytes", "tensors returned"),
    col.ns("duration_ns", "as a simulator is to take it, -1 if unknown", missing=-1),
    col.Column("op_code", "i8", "", "-1 if no collective", missing=-1, of=kinds.CollectiveOp),
    col.number("collective_sequence", "number that torch gave the collective, -1 if none", missing=-1),
    col.text("group_code", "process group of the collective"),
    col.number("group_size", "ranks of the group, -1 if unknown", missing=-1),
)

EXECUTION_DEPENDENCIES = col.schema(
    "execution_dependencies",
    "What nodes of Chakra's execution traces wait for: the data dependencies",
    col.PROCESS_ID,
    col.rank("rank", "global rank, -1 if unknown", missing=-1),
    col.identity("node_id", "execution_nodes.node_id of the one that waits"),
    col.identity("needed_node_id", "execution_nodes.node_id of the one that it waits for"),
)

#: Part of ``TABLES``.
IMPORTED_TABLES = (IO_TOTALS, EXECUTION_NODES, EXECUTION_DEPENDENCIES)


#: Every table of EventTables and Trace, by attribute name.
TABLES: dict[str, col.Schema] = {
    s.name: s
    for s in (
        PROCESSES,
        TRACKS,
        SPANS,
        STACKS,
        PHASES,
        BATCHES,
        IO,
        WAITS,
        FRAMES,
        STACK_SAMPLES,
        STACK_SPANS,
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
