"""What analyses of any run return: one schema each, whose names the docstring of the analysis repeats.

``schemas`` gives them on; those of kernels and devices stand in ``device_results``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import INTERVAL as _INTERVAL
from stashtrace.model.columns import Column, Schema
from stashtrace.model.columns import schema as _schema

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
    ("cause_rank", "i8", "", "straggler: the rank that was waited for longest, -1 otherwise"),
    ("cause_share_ratio", "f8", "", "straggler: part of stall_ns that waited for cause_rank; -1 if that is -1"),
)
STRAGGLER_CAUSES = _schema(
    "straggler_causes",
    "Whom each step of each rank waited for; its rows sum to the straggler row of stalls, exactly",
    ("rank", "i8", "", "global rank that waited"),
    ("step", "i8", "", "ordinal; -1 for time outside steps"),
    ("cause_rank", "i8", "", "rank that was waited for, -1 if unknown"),
    ("stall_ns", "i8", "ns", "straggler time that waited for it"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this; of -1 with what other kinds have and may be a wait"),
)
STALLS_COUNTED = _schema(
    "stalls_counted",
    "Sums of stalls over the counted steps of a rank, apart by kind of step, method and the rank waited for",
    ("rank", "i8", "", "global rank"),
    ("step_kind", "U16", "", "steps.kind"),
    ("kind", "U16", "", "StallKind in lower case"),
    ("stall_ns", "i8", "ns", "time of this kind"),
    ("method", "U16", "", "kernels, brackets or host"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this"),
    ("cause_rank", "i8", "", "straggler: the rank that this part waited for, -1 otherwise or if unknown"),
    ("steps_count", "i8", "", "counted steps of the rank and kind of step"),
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
    ("cause_share_ratio", "f8", "", "straggler: part of stall_ns that waited for cause_rank; -1 if that is -1"),
    ("steps_count", "i8", "", "steps summed"),
)
STALL_TOTALS_BY_STEP_KIND = Schema(
    "stall_totals_by_step_kind",
    (STALL_TOTALS.columns[0], Column("step_kind", "U16", "", "steps.kind"), *STALL_TOTALS.columns[1:]),
    "Sums of stalls over the steps of one kind (train, validation, ...) of a rank; shares are of these steps",
)
STEP_KINDS = _schema(
    "step_kinds",
    "How many steps of each kind a rank made and how long they took; a row of rank -1 for all ranks",
    ("rank", "i8", "", "global rank, -1 for all"),
    ("kind", "U16", "", "steps.kind"),
    ("steps_count", "i8", "", "counted steps; of all ranks, steps that any rank made"),
    ("warmup_count", "i8", "", "steps left out as warm-up, or because the event budget left them without events"),
    ("mean_ns", "i8", "ns", "mean of the counted steps"),
    ("median_ns", "i8", "ns", "median of the counted steps"),
    ("total_ns", "i8", "ns", "sum of the counted steps; of all ranks, the mean over the ranks that made any"),
    ("sub_steps_count", "i8", "", "sub-steps of the counted steps: micro-batches, or updates of an iteration"),
    ("rollout_ns", "i8", "ns", "iterations: mean time up to the first phase that trains, by the host; else 0"),
)
EPOCH_BEGINS = _schema(
    "epoch_begins",
    "Loaders of a rank by what their batches serve: how often one was begun, and what that cost",
    ("rank", "i8", "", "global rank"),
    ("serves", "U16", "", "training, validation or inference"),
    ("begins_count", "i8", "", "iterators that gave their first batch within the counted steps"),
    ("wait_ns", "i8", "ns", "waits between epochs: iterators that ended and were made, and first batches"),
    ("workers_end_ns", "i8", "ns", "of it: waits for the workers of an iterator to end"),
    ("workers_count", "i8", "", "workers of such a loader, the most that made batches; 0 without workers"),
    ("anew_count", "i8", "", "of the begins: iterators that started workers of their own"),
)
KILLED = _schema(
    "killed",
    "Ranks and workers that a signal ended, as the process that started them learnt it",
    ("rank", "i8", "", "global rank; of a worker, the rank it served; -1 if unknown"),
    ("worker_id", "i8", "", "DataLoader worker number, -1 if it is none"),
    ("pid", "i8", "", "process id on its host"),
    ("process_id", "i8", "", "processes.process_id, -1 if it recorded nothing"),
    ("signal", "U16", "", "name of the signal, SIGKILL if the kernel's out-of-memory killer did it"),
    (
        "sender",
        "U16",
        "",
        "loader (the worker was late to end), launcher (SIGTERM, as for the rest when a rank failed) or unknown",
    ),
    ("end_ns", "i8", "ns", "its last record; it ended then or later, -1 if unknown"),
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
TRANSFER_CERTAINTY = _schema(
    "transfer_certainty",
    "Link time of the counted steps of a rank, by whether every rank of the operation is known to have entered by then",
    ("rank", "i8", "", "global rank"),
    (
        "reason",
        "U24",
        "",
        "certain; ranks_missing, members_unknown, operation_unknown, matched_by_order, untimed or no_operation: part of"
        " it may be waiting for other ranks",
    ),
    ("link_ns", "i8", "ns", "network and interconnect time of the rank in its counted steps; the reasons sum to it"),
    ("share_ratio", "f8", "", "of the link time of the rank"),
    ("collectives_count", "i8", "", "operations with a transfer in the counted steps that have this reason"),
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
    ("behind_second_ns", "i8", "ns", "this rank alone was missing: entry after the second latest, in steps, time once"),
)
STRAGGLER_ROOTS = _schema(
    "straggler_roots",
    "Straggler time by the rank at which the chain of waits ends; those of a rank and step sum to its straggler time",
    ("rank", "i8", "", "global rank that waited"),
    ("step", "i8", "", "ordinal, -1 outside the steps"),
    ("root_rank", "i8", "", "rank that waited for nobody at those instants, -1 if unknown"),
    ("stall_ns", "i8", "ns", "straggler time whose chain ends at root_rank"),
    ("direct_ns", "i8", "ns", "straggler time that root_rank was waited for directly"),
)
LAST_RANKS = _schema(
    "last_ranks",
    "Who entered a collective last, one row per rank that took part",
    ("rank", "i8", "", "global rank"),
    ("group_hash", "u8", "", "same on every rank of the group"),
    ("sequence", "i8", "", "number within the group"),
    ("last_rank", "i8", "", "the rank that was waited for"),
    ("step", "i8", "", "step in which this rank entered, -1 outside"),
    ("last_enter_ns", "i8", "ns", "entry of the last rank, -1 if it never entered"),
    ("wait_ns", "i8", "ns", "from the own entry to that, -1 if it never entered"),
    ("partial", "i8", "", "1 if a member's row is missing"),
)
LOADER_RATES = _schema(
    "loader_rates",
    "What the speed of loading depends on, over the steps without warm-up; a quantity not seen has no row",
    ("rank", "i8", "", "global rank, -1 for what all ranks share"),
    ("quantity", "U16", "", "its name; the unit ends it"),
    ("mean", "f8", "", "mean, in that unit; of a rate: all bytes by all time"),
    ("median", "f8", "", "median of the samples"),
    ("low", "f8", "", "lower quartile of the samples"),
    ("high", "f8", "", "upper quartile of the samples"),
    ("error", "f8", "", "standard error of the mean, 0 if it has none"),
    ("samples_count", "i8", "", "steps, batches or files that it is taken from"),
    ("origin", "U16", "", "what was measured"),
)
CACHE_FORECAST = _schema(
    "cache_forecast",
    "Step time and stalls against the cached share of the data set",
    ("cached_ratio", "f8", "", "part of the data set that is in the cache"),
    ("hit_ratio", "f8", "", "part of the reads that the cache answers"),
    ("step_ns", "i8", "ns", "predicted step of the slowest rank"),
    ("low_ns", "i8", "ns", "with every input one standard error better"),
    ("high_ns", "i8", "ns", "with every input one standard error worse"),
    ("compute_ns", "i8", "ns", "a step whose batch is there"),
    ("prep_ns", "i8", "ns", "what waiting for preparing adds, were all data in cache"),
    ("fetch_ns", "i8", "ns", "what storage adds"),
    ("simulated_ns", "i8", "ns", "step in the simulation"),
    ("batches_per_s", "f8", "", "of all ranks"),
    ("reader_bytes_per_s", "f8", "", "storage that gives each reader this keeps fetch within 5 % of a step; inf: none"),
    ("storage_bytes_per_s", "f8", "", "and all readers of a host together this"),
    ("limited_by", "U16", "", "compute, prep or fetch"),
)
EVIDENCE = _schema(
    "evidence",
    "What speaks for the largest stalls, over the steps without warm-up",
    ("rank", "i8", "", "global rank"),
    ("kind", "U16", "", "stall that it explains: prep, fetch, straggler, h2d, sync, other, network or interconnect"),
    (
        "detail",
        "U16",
        "",
        "worker_time: of its workers; file: blocked in it; late_rank: what the rank did meanwhile;"
        " copy, blocking_call, host_function, collective: of its device",
    ),
    (
        "name",
        "U16",
        "",
        "decode, collate, blocked or idle; path; kind of time of the late rank; what was copied or called; stream",
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
