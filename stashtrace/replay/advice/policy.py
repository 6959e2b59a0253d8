"""Thresholds of the advice on communication."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Where a transformation fits and what is worth a sentence, each with its reason."""

    #: Share of the step that a remedy must be able to save, and how many remedies a reader takes in.
    worth_naming_ratio: float = 0.02
    most_named_count: int = 3
    #: A limit is mentioned if the replay saves less than this part of the row's saving.
    much_less_ratio: float = 0.95
    #: If the largest saving of a rank is more than this many times what the median rank's times allow, the sentence
    #: names the rank of each.
    uneven_ratio: float = 1.05
    #: Size of an element where no kernel names its type; a message has twice as many of 16 bits.
    element_bytes: int = 4
    #: A message of up to this many bytes is all latency.
    small_bytes: int = 1 << 16
    #: Smaller messages are not predicted: at 2^17 elements the fused update was slower than the separate one.
    fewest_elements: int = 1 << 18
    #: From this size on, a fused update took the remaining time without its kernel, within this; below up to 38 % less.
    fuse_holds_elements: int = 1 << 26
    fuse_error_ratio: float = 0.05
    #: More chunks save less than an eighth of the shorter part, and cost a latency each.
    most_chunks: int = 8
    #: An update is sharded if it gathers parameters of at least this part of the gradients' bytes.
    sharded_ratio: float = 0.1
    #: Kernels shorter than this on average do not become N times shorter on slices.
    short_kernel_ns: int = 10_000
    #: An update with more kernels a step, or a larger part of gaps, is not fused yet.
    many_kernels_count: int = 16
    gaps_ratio: float = 0.1
    #: Exposed time below this share of the step is not worth a row.
    exposed_ratio: float = 0.001
    #: A producer ends at most this long before its collective begins, and at least this part of a kind's calls has one.
    behind_ns: int = 50_000
    produced_ratio: float = 0.5
    #: A kernel runs during a collective if this part of it does; this many places say something about contention.
    during_ratio: float = 0.9
    fewest_pairs_count: int = 10
    #: Characters of a line of the terminal.
    width_characters: int = 78


POLICY = Policy()
