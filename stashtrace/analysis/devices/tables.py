"""Tables that the analyses of work on devices return.

The analyses need the ``kernels`` table (deep mode, or imported), unless a schema says otherwise.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.schema.columns import RANK_OR_ALL, RANK_OR_NONE, Column, schema

_WHO = (
    RANK_OR_NONE,
    Column("step", "i8", "", "ordinal; -1 for the whole recording", missing=-1),
    ("device_index", "i8", "", "CUDA ordinal within the process"),
)
BREAKDOWN = schema(
    "breakdown",
    "What each device did: busy_ns + idle_ns = window_ns, compute_ns + both exposed_* of work = busy_ns",
    *_WHO,
    ("window_ns", "i8", "ns", "from the first work on the device to the end of the last; the step if by step"),
    ("busy_ns", "i8", "ns", "anything ran on the device"),
    ("idle_ns", "i8", "ns", "nothing did"),
    ("compute_ns", "i8", "ns", "a kernel ran that is not communication"),
    ("communication_ns", "i8", "ns", "a communication kernel ran"),
    ("exposed_communication_ns", "i8", "ns", "of this, while nothing computed"),
    Column("overlap_ratio", "f8", "", "share of communication_ns that compute hid, -1 if there was none", missing=-1),
    ("memcpy_ns", "i8", "ns", "a copy or a fill (memset) ran"),
    ("exposed_memcpy_ns", "i8", "ns", "of this, while nothing computed or communicated"),
    ("memset_ns", "i8", "ns", "a fill ran, part of memcpy_ns", 2),
    ("input_wait_ns", "i8", "ns", "the host waited for a batch, also before the first work on the device"),
    ("exposed_input_wait_ns", "i8", "ns", "of this, while the device idled inside the window"),
    ("work_count", "i8", "", "kernels, copies and fills that were counted", 1),
    ("orphans_count", "i8", "", "of these, launched before the recording began, or by a call that was not recorded", 2),
)
IDLE = schema(
    "idle",
    "Why the devices idled; each instant has one cause, the causes of a row's window sum to its idle time",
    *_WHO,
    ("cause", "U16", "", "input, sync, host, launch, kernel_wait or unknown"),
    ("idle_ns", "i8", "ns", "nothing ran on the device for this cause"),
    ("share_ratio", "f8", "", "of the window"),
    ("pieces_count", "i8", "", "stretches"),
    ("longest_ns", "i8", "ns", "the longest of them"),
)
LAUNCHES = schema(
    "launches",
    "How far the host was ahead of each stream",
    *_WHO,
    Column("stream_code", "i8", "", "name of the stream", role="text"),
    ("launches_count", "i8", "", "launching calls that were recorded; one for a whole graph"),
    ("latency_ns", "i8", "ns", "from the launching call to the begin on the device, median"),
    ("p95_latency_ns", "i8", "ns", "the same of the 95th percentile"),
    ("longest_latency_ns", "i8", "ns", "the same of the longest"),
    Column("call_ns", "i8", "ns", "length of the launching call, median, -1 if unknown", missing=-1),
    ("launch_bound_ratio", "f8", "", "share of the launches that found the stream empty: its latency was not hidden"),
    ("mean_queue_count", "f8", "", "launches whose work had not begun, mean over the window"),
    ("longest_queue_count", "i8", "", "the same at its most"),
    ("full_queue_ns", "i8", "ns", "1,024 or more were waiting: the next launch blocks its thread"),
    ("orphans_count", "i8", "", "pieces of work without a launch, left out of everything else", 2),
)
COPY_TIMES = schema(
    "copies",
    "Copies by direction; from kernels, or from brackets where a process has no kernels",
    RANK_OR_NONE,
    ("device_index", "i8", "", "CUDA ordinal within the process"),
    ("direction", "U16", "", "CopyDirection in lower case"),
    ("host_memory", "U16", "", "pinned, pageable, both, none (no host involved) or unknown"),
    ("copies_count", "i8", "", "copies"),
    ("total_bytes", "i8", "bytes", "copied, all added"),
    ("copy_ns", "i8", "ns", "all copies added"),
    ("busy_ns", "i8", "ns", "at least one ran"),
    Column("exposed_ns", "i8", "ns", "of this, while nothing computed or communicated, -1 if unknown", missing=-1),
    ("mean_bytes_per_s", "f8", "", "bytes by copy_ns, over the copies whose bytes are known, 0 if none"),
    ("best_bytes_per_s", "f8", "", "the best of the copies of a megabyte and more, 0 if there is none"),
    Column("median_bytes", "i8", "bytes", "size, median, -1 if unknown", missing=-1),
    ("method", "U16", "", "kernels or brackets", 7),
)
KERNEL_TIMES = schema(
    "kernel_times",
    "What ran on the devices, by name",
    RANK_OR_ALL,
    Column("name_code", "i8", "", "kernel, or kind of copy", role="text"),
    ("work", "U16", "", "DeviceWork in lower case"),
    ("calls_count", "i8", "", "times it ran"),
    ("total_ns", "i8", "ns", "all added, also where they ran at once"),
    ("share_ratio", "f8", "", "of all work of the rank, or of all ranks"),
    ("mean_ns", "i8", "ns", "of one"),
    ("median_ns", "i8", "ns", "of one"),
    ("min_ns", "i8", "ns", "of one"),
    ("max_ns", "i8", "ns", "of one"),
    ("ranks_count", "i8", "", "ranks on which it ran"),
    Column("slowest_rank", "i8", "", "rank that spent most in it, -1 if there are no ranks", role="rank", missing=-1),
    ("slowest_ns", "i8", "ns", "what that rank spent in it"),
)
KERNEL_DIFF = schema(
    "kernel_diff",
    "Two runs by kernel: time per step and rank before and after, largest change first",
    ("name", "U16", "", "kernel, or kind of copy; the first row, all, sums them up"),
    ("work", "U16", "", "DeviceWork in lower case"),
    ("before_ns", "i8", "ns", "per step and rank; per rank where one of the runs has no steps"),
    ("after_ns", "i8", "ns", "the same of the second run"),
    ("change_ns", "i8", "ns", "after minus before"),
    ("before_calls_count", "f8", "", "calls per step and rank"),
    ("after_calls_count", "f8", "", "the same of the second run"),
    Column("before_mean_ns", "i8", "ns", "of one, -1 if there is none", missing=-1),
    Column("after_mean_ns", "i8", "ns", "the same of the second run, -1 if there is none", missing=-1),
    ("noise_ns", "i8", "ns", "changes up to this are not a difference"),
    ("verdict", "U16", "", "slower, faster, appeared, vanished or no difference"),
)
