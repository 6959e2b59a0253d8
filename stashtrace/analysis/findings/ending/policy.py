"""Thresholds of what is said of the end of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """From which figure on a job is said to stand still, or a rank to be gone, each with its reason."""

    #: Less than this after the last record is nothing to speak of: samplers add rows ten times a second.
    silence_ns: int = 500_000_000
    #: A wait for a collective is worth a line from this time and this number of steps on: less may be an ordinary one.
    suspicious_ns: int = 1_000_000_000
    hung_steps_count: int = 3
    #: A job is not called idle before this time; before its first steps it loads, compiles and connects. Nor before its
    #: ranks have done nothing for this number of its longest steps: a checkpoint is a part of one.
    idle_ns: int = 10_000_000_000
    idle_without_steps_ns: int = 30_000_000_000
    idle_longest_steps_count: int = 3
    #: The last part of a wait shows whether a rank works on.
    last_part_ratio: float = 0.5
    #: What comes next is said if it did so at least this often, in at least this share of the steps before.
    follows_count: int = 3
    follows_ratio: float = 0.8
    #: A thread that ran, or waited for a CPU, for this share of the time did nothing else.
    ran_always_ratio: float = 0.9
    #: The last sign of a killed process is a sample: ends nearer to each other than a few of these have no order.
    ends_before_ns: int = 50_000_000
    #: Operations before the stuck one in which members may have gone different ways.
    near_operations_count: int = 16
    #: A number with more digits is damaged.
    most_digits_count: int = 15
    #: As many as a block of a page can hold; the others are counted.
    named_count: int = 3
    path_characters: int = 60


POLICY = Policy()
