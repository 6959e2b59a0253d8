"""Thresholds of the analyses of reads and writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """What is a small or a random read, and what is worth advice, each with its reason."""

    #: Most frequent sizes of calls that the table lists.
    common_sizes_count: int = 4

    # Advice on folders.

    #: A directory with fewer calls, or a smaller share of the time, gets no advice.
    least_calls_count: int = 100
    least_time_ratio: float = 0.05
    #: Reads are small if their mean size is below this; for larger reads, the cost of the call itself hardly
    #: matters.
    small_read_bytes: int = 64 << 10
    #: A buffer of this size makes small reads of large ones.
    good_read_bytes: int = 1 << 20
    #: Reads count as consecutive from this share on, and as random below the second one.
    consecutive_ratio: float = 0.8
    random_ratio: float = 0.2
    #: Share of reads that must have waited before the advice names read-ahead.
    waited_ratio: float = 0.1
    #: Parts of reads that return nothing and of metadata calls, and how often each file is opened, that are worth
    #: advice.
    empty_ratio: float = 0.3
    metadata_ratio: float = 0.2
    reopened_times: float = 4.0
    #: Files are small if their mean size is below this.
    small_file_bytes: int = 1 << 20
    #: Advice on read amplification starts at this many reads of each byte in a pass over the data, and this many
    #: bytes.
    amplified_times: float = 2.0
    amplified_bytes: int = 64 << 20

    # The curve of the page cache.

    #: Without a size the curve has this many points.
    curve_points_count: int = 20
    #: With more accesses than this, a smaller share of the blocks is used.
    sampled_from_count: int = 4_000_000

    # Ranges of a file.

    #: Ranges that are kept; with more, pages are merged in pairs, which counts more distinct bytes, never fewer.
    kept_ranges_count: int = 1 << 20
    #: Larger than any file; a damaged offset may be any number.
    largest_file_bytes: int = 1 << 50

    # Rates of storage.

    #: If two readers overlap for less than this part of the busy time of storage, they say nothing about its speed.
    together_ratio: float = 0.05
    #: A read that begins at most this far after the last one finds pages that the kernel read ahead (read_ahead_kb
    #: is 128).
    read_ahead_bytes: int = 128 << 10

    # Reads that no hook sees.

    #: What a call that went to storage may have read ahead.
    read_ahead_at_most_bytes: int = 512 * 1024
    #: A call that took longer went to storage.
    went_to_storage_ns: int = 20_000
    #: Of pages that nothing here explains: page tables of file systems, swap.
    slack_bytes: int = 64 * 1024 * 1024
    #: Libraries of a process that did not say at its end what its loader had mapped.
    unknown_loaded_bytes: int = 4 * 1024**3


POLICY = Policy()
