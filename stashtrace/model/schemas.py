"""Every table of the event model: column names, types, units and meaning.

Times are int64 nanoseconds of the run's common clock, intervals are half-open ``[begin_ns, end_ns)``.
``*_code`` columns of texts index the trace's ``StringPool``; those of enumerations name their type.
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
from stashtrace.model.device_results import KERNEL_DIFF as KERNEL_DIFF
from stashtrace.model.device_results import KERNEL_TIMES as KERNEL_TIMES
from stashtrace.model.device_results import LAUNCHES as LAUNCHES
from stashtrace.model.device_results import LINKS as LINKS
from stashtrace.model.device_schemas import DEVICE_TABLES
from stashtrace.model.imported_schemas import IMPORTED_TABLES

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
    ("native_id", "i8", "", "thread id, stream id, ...; 0 if none"),
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

# Results of analyses (one schema each; the docstring of the analysis repeats the names).
STALLS = _schema(
    "stalls",
    "Where the time of each step of each rank went; step -1 is outside_steps",
    ("rank", "i8", "", "global rank"),
    ("step", "i8", "", "ordinal; -1 for time outside steps"),
    ("kind", "U16", "", "StallKind in lower case"),
    ("stall_ns", "i8", "ns", "time of this kind; the kinds of a step sum to its wall time"),
    ("method", "U16", "", "kernels, brackets or host"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this"),
    ("cause_rank", "i8", "", "straggler: the rank that was late most, -1 otherwise"),
)
STALLS_COUNTED = _schema(
    "stalls_counted",
    "Sums of stalls over the counted steps of a rank, apart by method and cause",
    ("rank", "i8", "", "global rank"),
    ("kind", "U16", "", "StallKind in lower case"),
    ("stall_ns", "i8", "ns", "time of this kind"),
    ("method", "U16", "", "kernels, brackets or host"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this"),
    ("cause_rank", "i8", "", "straggler: the rank that was late, -1 otherwise"),
    ("steps_count", "i8", "", "counted steps of the rank"),
)
STALL_TOTALS = _schema(
    "stall_totals",
    "Sums of stalls over the steps of a rank, or of all ranks (rank -1)",
    ("rank", "i8", "", "global rank, -1 for all"),
    ("kind", "U16", "", "StallKind in lower case"),
    ("stall_ns", "i8", "ns", "time of this kind in all counted steps"),
    ("share_ratio", "f8", "", "of the wall time of these steps"),
    ("method", "U16", "", "kernels, brackets or host; mixed if not the same in all steps"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this"),
    ("cause_rank", "i8", "", "straggler: the rank that was waited for longest, -1 otherwise"),
    ("steps_count", "i8", "", "steps summed"),
)
HIDDEN = _schema(
    "hidden",
    "What each step did beside its stalls; nothing of it is part of the budget",
    ("rank", "i8", "", "global rank"),
    ("step", "i8", "", "ordinal"),
    ("wall_ns", "i8", "ns", "length of the step"),
    ("hidden_communication_ns", "i8", "ns", "a collective in flight while the rank was not blocked on it"),
    ("hidden_loading_ns", "i8", "ns", "a worker made a batch while the rank waited for none"),
    ("hidden_checkpoint_ns", "i8", "ns", "another thread wrote a checkpoint while the step thread did something else"),
    ("cpu_contention_ns", "i8", "ns", "the step thread was runnable but not running, -1 if unknown"),
    ("steal_ratio", "f8", "", "share of the host's CPU time taken by its hypervisor, -1 if unknown"),
    ("gc_ns", "i8", "ns", "Python garbage collection on the step thread, inside compute"),
    ("queued_ns", "i8", "ns", "waited for a collective that stood behind an earlier one, inside the link's time"),
    ("hidden_copy_ns", "i8", "ns", "a copy between host and device while the device did something else"),
    ("host_paced_ns", "i8", "ns", "device: no record proves it had work; the bound of launch, part of compute"),
    ("graph_opaque_ns", "i8", "ns", "device: inside a graph launch of which nothing is known, part of compute"),
    ("untimed_count", "i8", "", "collectives given to a device without device times"),
    ("estimated_ns", "i8", "ns", "link time that an estimate divides between hosts and inside one"),
)
COLLECTIVE_TIMES = _schema(
    "collective_times",
    "One row per rank and collective: waiting for the last rank, then moving bytes",
    ("rank", "i8", "", "global rank"),
    ("step", "i8", "", "ordinal of the step it was called in, -1 outside"),
    ("communicator", "U16", "", "name of the group"),
    ("sequence", "i8", "", "number within the group"),
    ("op", "U16", "", "CollectiveOp in lower case"),
    ("bytes", "i8", "bytes", "payload of this rank's input"),
    *_INTERVAL,
    ("wait_ns", "i8", "ns", "from the own call to the call of the last rank"),
    ("transfer_ns", "i8", "ns", "from there to the end, queueing included"),
    ("last_rank", "i8", "", "the rank that was waited for, -1 if none"),
    ("method", "U16", "", "clock: by the ranks' times; duration: the shortest rank's duration is the transfer"),
)
LINK_EFFICIENCY = _schema(
    "link_efficiency",
    "Transfers of collectives by size, beside what a calibration says the link can do",
    ("rank", "i8", "", "global rank, -1 for all"),
    ("step", "i8", "", "ordinal of the step, -1 for all and outside steps"),
    ("communicator", "U16", "", "name of the group"),
    ("op", "U16", "", "CollectiveOp in lower case"),
    ("group_size", "i8", "", "ranks that took part"),
    ("message_bytes", "i8", "bytes", "payload of one rank's input"),
    ("calls_count", "i8", "", "rows of collectives summed up"),
    ("transfer_ns", "i8", "ns", "median transfer, without waiting for the last rank"),
    ("bus_bytes_per_s", "f8", "", "bytes over the busiest link by the median transfer, 0 if it took no time"),
    ("expected_ns", "i8", "ns", "what the calibration expects, -1 if it does not say"),
    ("error_ns", "i8", "ns", "standard error of that, -1 if it does not say"),
    ("efficiency_ratio", "f8", "", "expected by measured: 1 as calibrated, less is slower, -1 if unknown"),
    ("method", "U16", "", "calibration, extrapolated, crosses_hosts, not_calibrated or none"),
)
STRAGGLERS = _schema(
    "stragglers",
    "Who is late, and what it costs the others",
    ("rank", "i8", "", "global rank"),
    ("last_count", "i8", "", "collectives that this rank entered last"),
    ("caused_wait_ns", "i8", "ns", "straggler time of the other ranks while they waited for this one"),
    ("wait_ns", "i8", "ns", "straggler time of this rank"),
)
LAST_RANKS = _schema(
    "last_ranks",
    "Who entered a collective last, one row per rank that waited for it",
    ("rank", "i8", "", "global rank that waited"),
    ("group_hash", "u8", "", "same on every rank of the group"),
    ("sequence", "i8", "", "number within the group"),
    ("last_rank", "i8", "", "the rank that was waited for"),
)
IO_TIMES = _schema(
    "io_times",
    "Calls on each file or directory",
    ("path", "U16", "", "file, or directory; empty if the path was not known"),
    ("opens_count", "i8", "", "successful opens"),
    ("reads_count", "i8", "", "read calls"),
    ("writes_count", "i8", "", "write calls"),
    ("read_bytes", "i8", "bytes", "bytes read"),
    ("write_bytes", "i8", "bytes", "bytes written"),
    ("call_ns", "i8", "ns", "time inside calls of all kinds, all threads added"),
    ("blocked_ns", "i8", "ns", "of this, in calls that blocked"),
    ("sequential_ratio", "f8", "", "reads that began where the thread's last one on the file ended, -1 if unknown"),
    ("read_bytes_per_s", "f8", "", "bytes read by the time inside read calls, 0 if none"),
)
EVIDENCE = _schema(
    "evidence",
    "What speaks for the largest stalls, over the steps without warm-up",
    ("rank", "i8", "", "global rank"),
    ("kind", "U16", "", "stall that it explains: prep, fetch, straggler, h2d, sync, network or interconnect"),
    (
        "detail",
        "U16",
        "",
        "worker_time: of its workers; file: blocked in it; late_rank: what the rank did meanwhile;"
        " copy, blocking_call, collective: of its device",
    ),
    (
        "name",
        "U16",
        "",
        "decode, collate, blocked or idle; path; kind of time of the late rank; what was copied or called",
    ),
    ("cause_rank", "i8", "", "late_rank: the rank that was waited for, -1 otherwise"),
    ("amount_ns", "i8", "ns", "how long"),
    ("share_ratio", "f8", "", "of the rank's rows with the same detail"),
    ("rate_bytes_per_s", "f8", "", "file: bytes by blocked time; copy; collective: bus bandwidth; 0 otherwise"),
)
DIFF = _schema(
    "diff",
    "Two runs by stall kind: a typical step before and after",
    ("kind", "U16", "", "step for the wall time, else StallKind in lower case"),
    ("before_ns", "i8", "ns", "median over steps, mean over ranks"),
    ("after_ns", "i8", "ns", "the same of the second run"),
    ("change_ns", "i8", "ns", "after minus before"),
    ("spread_before_ns", "i8", "ns", "median absolute deviation over steps, times 1.4826"),
    ("spread_after_ns", "i8", "ns", "the same of the second run"),
    ("noise_ns", "i8", "ns", "changes up to this are no difference"),
    ("verdict", "U16", "", "faster, slower or no difference"),
    ("statistic", "U16", "", "median; mean where the kind occurs in less than half of the steps of both runs"),
    ("before_steps_count", "i8", "", "steps compared"),
    ("after_steps_count", "i8", "", "steps compared"),
)
STALL_INTERVALS = _schema(
    "stall_intervals",
    "The attribution as intervals on the time line; those of a rank neither overlap nor leave gaps",
    ("rank", "i8", "", "global rank"),
    ("step", "i8", "", "ordinal; -1 for time outside steps"),
    ("kind", "U16", "", "StallKind in lower case"),
    *_INTERVAL,
    ("track_id", "i8", "", "tracks.track_id of the step thread"),
    ("cause_rank", "i8", "", "straggler: the rank that was late as the interval began, -1 otherwise"),
)
