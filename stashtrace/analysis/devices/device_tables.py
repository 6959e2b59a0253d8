"""Tables that the analyses of work on devices return.

The analyses need the ``kernels`` table (deep mode, or imported), unless a schema says otherwise.
"""

from __future__ import annotations

from stashtrace.schema import columns as col

_WHO = (
    col.RANK_OR_NONE,
    col.number("step", "ordinal; -1 for the whole recording", missing=-1),
    col.number("device_index", "CUDA ordinal within the process"),
)
BREAKDOWN = col.schema(
    "breakdown",
    "What each device did: busy_ns + idle_ns = window_ns, compute_ns + both exposed_* of work = busy_ns",
    *_WHO,
    col.ns("window_ns", "from the first work on the device to the end of the last; the step if by step"),
    col.ns("busy_ns", "anything ran on the device"),
    col.ns("idle_ns", "nothing did"),
    col.ns("compute_ns", "a kernel ran that is not communication"),
    col.ns("communication_ns", "a communication kernel ran"),
    col.ns("exposed_communication_ns", "of this, while nothing computed"),
    col.real("overlap_ratio", "share of communication_ns that compute hid, -1 if there was none", missing=-1),
    col.ns("memcpy_ns", "a copy or a fill (memset) ran"),
    col.ns("exposed_memcpy_ns", "of this, while nothing computed or communicated"),
    col.ns("memset_ns", "a fill ran, part of memcpy_ns", detail=2),
    col.ns("input_wait_ns", "the host waited for a batch, also before the first work on the device"),
    col.ns("exposed_input_wait_ns", "of this, while the device idled inside the window"),
    col.number("work_count", "kernels, copies and fills that were counted", detail=1),
    col.number(
        "orphans_count", "of these, launched before the recording began, or by a call that was not recorded", detail=2
    ),
)
IDLE = col.schema(
    "idle",
    "Why the devices idled; each instant has one cause, the causes of a row's window sum to its idle time",
    *_WHO,
    col.word("cause", "input, sync, host, launch, kernel_wait or unknown"),
    col.ns("idle_ns", "nothing ran on the device for this cause"),
    col.real("share_ratio", "of the window"),
    col.number("pieces_count", "stretches"),
    col.ns("longest_ns", "the longest of them"),
)
LAUNCHES = col.schema(
    "launches",
    "How far the host was ahead of each stream",
    *_WHO,
    col.text("stream_code", "name of the stream"),
    col.number("launches_count", "launching calls that were recorded; one for a whole graph"),
    col.ns("latency_ns", "from the launching call to the begin on the device, median"),
    col.ns("p95_latency_ns", "the same of the 95th percentile"),
    col.ns("longest_latency_ns", "the same of the longest"),
    col.ns("call_ns", "length of the launching call, median, -1 if unknown", missing=-1),
    col.real("launch_bound_ratio", "share of the launches that found the stream empty: its latency was not hidden"),
    col.real("mean_queue_count", "launches whose work had not begun, mean over the window"),
    col.number("longest_queue_count", "the same at its most"),
    col.ns("full_queue_ns", "1,024 or more were waiting: the next launch blocks its thread"),
    col.number("orphans_count", "pieces of work without a launch, left out of everything else", detail=2),
)
COPY_TIMES = col.schema(
    "copies",
    "Copies by direction; from kernels, or from brackets where a process has no kernels",
    col.RANK_OR_NONE,
    col.number("device_index", "CUDA ordinal within the process"),
    col.word("direction", "CopyDirection in lower case"),
    col.word("host_memory", "pinned, pageable, both, none (no host involved) or unknown"),
    col.number("copies_count", "copies"),
    col.nbytes("total_bytes", "copied, all added"),
    col.ns("copy_ns", "all copies added"),
    col.ns("busy_ns", "at least one ran"),
    col.ns("exposed_ns", "of this, while nothing computed or communicated, -1 if unknown", missing=-1),
    col.real("mean_bytes_per_s", "bytes by copy_ns, over the copies whose bytes are known, 0 if none"),
    col.real("best_bytes_per_s", "the best of the copies of a megabyte and more, 0 if there is none"),
    col.nbytes("median_bytes", "size, median, -1 if unknown", missing=-1),
    col.word("method", "kernels or brackets", detail=7),
)
KERNEL_TIMES = col.schema(
    "kernel_times",
    "What ran on the devices, by name",
    col.RANK_OR_ALL,
    col.text("name_code", "kernel, or kind of copy"),
    col.word("work", "DeviceWork in lower case"),
    col.number("calls_count", "times it ran"),
    col.ns("total_ns", "all added, also where they ran at once"),
    col.real("share_ratio", "of all work of the rank, or of all ranks"),
    col.ns("mean_ns", "of one"),
    col.ns("median_ns", "of one"),
    col.ns("min_ns", "of one"),
    col.ns("max_ns", "of one"),
    col.number("ranks_count", "ranks on which it ran"),
    col.rank("slowest_rank", "rank that spent most in it, -1 if there are no ranks", missing=-1),
    col.ns("slowest_ns", "what that rank spent in it"),
)
KERNEL_DIFF = col.schema(
    "kernel_diff",
    "Two runs by kernel: time per step and rank before and after, largest change first",
    col.word("name", "kernel, or kind of copy; the first row, all, sums them up"),
    col.word("work", "DeviceWork in lower case"),
    col.ns("before_ns", "per step and rank; per rank where one of the runs has no steps"),
    col.ns("after_ns", "the same of the second run"),
    col.ns("change_ns", "after minus before"),
    col.real("before_calls_count", "calls per step and rank"),
    col.real("after_calls_count", "the same of the second run"),
    col.ns("before_mean_ns", "of one, -1 if there is none", missing=-1),
    col.ns("after_mean_ns", "the same of the second run, -1 if there is none", missing=-1),
    col.ns("noise_ns", "changes up to this are not a difference"),
    col.word("verdict", "slower, faster, appeared, vanished or no difference"),
)
