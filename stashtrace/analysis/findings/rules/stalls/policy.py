"""Thresholds of the rules about stalls."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """From which figure on something is said of a stall, each with its reason."""

    #: Shares of the step: less than the first is what steps vary by; a bound of time that may be 0 is worth the doubt
    #: from the second on.
    worth_saying_ratio: float = 0.03
    worth_doubting_ratio: float = 0.2
    #: A bound nearer to the point than this prints as nearly the same figure: it counts as the point.
    exact_ratio: float = 0.05
    #: Without a stall, the stalls that are not said add up to less than the rest.
    compute_bound_ratio: float = 0.9
    #: Ranks that lose less than this part of what the worst one loses have a claim of their own: one figure cannot
    #: stand for both.
    like_ratio: float = 0.5
    #: What is more than half of a time is its cause; from the second part on it prints as all of it.
    mostly_ratio: float = 0.5
    whole_ratio: float = 0.95
    #: Parts of a time, or of the making of a batch, below this share are not why it is long.
    part_ratio: float = 0.05
    #: Waiting for batches is what bounds a rank from a quarter of its step on.
    input_bound_ratio: float = 0.25
    #: The begin of epochs, blocked reads, and calls that block on a device explain nothing of a time that they do not
    #: cover a quarter of.
    explains_ratio: float = 0.25
    #: The mean of batches, or of workers, says little where it is this many times another figure of them.
    uneven_ratio: float = 1.5
    #: Workers that make batches for this part of the time do nothing else.
    always_ratio: float = 0.9
    #: Batches, or operations, per step: up to the first it is one, and from the second on they are counted.
    one_each_ratio: float = 1.05
    several_calls_count: float = 1.5
    #: The calls that block a rank are looked up if they are at least this share of its steps.
    blocked_examined_ratio: float = 0.01
    #: A rank at which less of the waiting ends, and what it did longer for less of that, is not who is waited for.
    root_ratio: float = 0.1
    root_kind_ratio: float = 0.2
    #: A line is said from this part of the time on; where none certainly has more than the second, more samples would
    #: name none either.
    line_ratio: float = 0.15
    spread_ratio: float = 0.3
    #: Computing in a line of the user's own is said from this part of the step on.
    computing_ratio: float = 0.1
    #: As many as a block of a page can hold; the costliest lines that are looked at for one of the user's own.
    roots_count: int = 3
    names_count: int = 2
    lines_examined_count: int = 4
    #: Characters of a name in a sentence, and in the first line.
    name_characters: int = 40
    short_name_characters: int = 24


POLICY = Policy()
