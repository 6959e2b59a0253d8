"""Every table of the event model: column names, types, units and meaning.

Times are int64 ns of one clock, intervals half-open; ``*_code`` indexes the ``StringPool`` or says its enumeration.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import INTERVAL as _INTERVAL
from stashtrace.model.columns import Column as Column
from stashtrace.model.columns import Schema as Schema
from stashtrace.model.columns import schema as _schema
from stashtrace.model.cross_rank_schemas import CROSS_RANK_TABLES
from stashtrace.model.cross_rank_schemas import STEPS as STEPS
from stashtrace.model.device_results import AGREEMENT as AGREEMENT
from stashtrace.model.device_results import BANDWIDTH as BANDWIDTH
from stashtrace.model.device_results import BREAKDOWN as BREAKDOWN
from stashtrace.model.device_results import COPY_TIMES as COPY_TIMES
from stashtrace.model.device_results import IDLE as IDLE
from stashtrace.model.device_results import IDLE_CALLS as IDLE_CALLS
from stashtrace.model.device_results import KERNEL_DIFF as KERNEL_DIFF
from stashtrace.model.device_results import KERNEL_TIMES as KERNEL_TIMES
from stashtrace.model.device_results import LAUNCHES as LAUNCHES
from stashtrace.model.device_results import LINKS as LINKS
from stashtrace.model.device_schemas import DEVICE_TABLES
from stashtrace.model.finding_results import BUDGETS as BUDGETS
from stashtrace.model.finding_results import FINDING_EVIDENCE as FINDING_EVIDENCE
from stashtrace.model.finding_results import FINDINGS as FINDINGS
from stashtrace.model.graph_results import CRITICAL_PATH as CRITICAL_PATH
from stashtrace.model.graph_results import CRITICAL_SHARE as CRITICAL_SHARE
from stashtrace.model.graph_results import SLACK as SLACK
from stashtrace.model.imported_schemas import IMPORTED_TABLES
from stashtrace.model.io_results import IO_ADVICE as IO_ADVICE
from stashtrace.model.io_results import IO_BANDWIDTH as IO_BANDWIDTH
from stashtrace.model.io_results import IO_CACHE as IO_CACHE
from stashtrace.model.io_results import IO_PATTERNS as IO_PATTERNS
from stashtrace.model.io_results import IO_REUSE as IO_REUSE
from stashtrace.model.io_results import IO_SIZES as IO_SIZES
from stashtrace.model.io_results import IO_STAGING as IO_STAGING
from stashtrace.model.io_results import IO_TIMES as IO_TIMES
from stashtrace.model.late_results import LATE as LATE
from stashtrace.model.late_results import LATE_RANKS as LATE_RANKS
from stashtrace.model.late_results import PIPELINE as PIPELINE
from stashtrace.model.late_results import SLOWDOWN as SLOWDOWN
from stashtrace.model.results import CACHE_FORECAST as CACHE_FORECAST
from stashtrace.model.results import COLLECTIVE_TIMES as COLLECTIVE_TIMES
from stashtrace.model.results import DIFF as DIFF
from stashtrace.model.results import EPOCH_BEGINS as EPOCH_BEGINS
from stashtrace.model.results import EVIDENCE as EVIDENCE
from stashtrace.model.results import HIDDEN as HIDDEN
from stashtrace.model.results import KILLED as KILLED
from stashtrace.model.results import LAST_RANKS as LAST_RANKS
from stashtrace.model.results import LINK_EFFICIENCY as LINK_EFFICIENCY
from stashtrace.model.results import LOADER_RATES as LOADER_RATES
from stashtrace.model.results import OVERLAP_ADVICE as OVERLAP_ADVICE
from stashtrace.model.results import STALL_INTERVALS as STALL_INTERVALS
from stashtrace.model.results import STALL_TOTALS as STALL_TOTALS
from stashtrace.model.results import STALL_TOTALS_BY_STEP_KIND as STALL_TOTALS_BY_STEP_KIND
from stashtrace.model.results import STALLS as STALLS
from stashtrace.model.results import STALLS_COUNTED as STALLS_COUNTED
from stashtrace.model.results import STEP_KINDS as STEP_KINDS
from stashtrace.model.results import STRAGGLER_CAUSES as STRAGGLER_CAUSES
from stashtrace.model.results import STRAGGLER_ROOTS as STRAGGLER_ROOTS
from stashtrace.model.results import STRAGGLERS as STRAGGLERS
from stashtrace.model.results import TRANSFER_CERTAINTY as TRANSFER_CERTAINTY

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
