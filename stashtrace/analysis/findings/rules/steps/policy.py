"""Thresholds of the rules about steps."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """From which figure on something is said of the steps, each with its reason."""

    #: A median further than this from the mean says that a few steps are much longer or shorter than the others.
    skewed_ratio: float = 0.1
    #: Steps of so many backward passes accumulate gradients, or train several models; few others have more than one.
    several_passes_count: float = 1.5
    #: Ranks of a job that was stopped may be a step apart.
    uneven_count: int = 1
    #: A change explains a time if at least this part of it is what the changed steps have more than the others.
    explains_ratio: float = 0.5
    #: Steps that have at most this part of what the others have of a time have nothing of it.
    nothing_ratio: float = 0.1
    #: With fewer steps it is not said that a time lies in few of them, or on the ranks by turns: that may be chance.
    enough_steps_count: int = 20
    #: Few steps are at most this part of all, and hold at least that part of the time.
    few_ratio: float = 0.1
    most_ratio: float = 0.8
    #: Ranks have a time by turns if in each step one of them has at least this part of it, and each of them is that one
    #: in at least that part of an equal share of the steps.
    alone_ratio: float = 0.9
    fair_ratio: float = 0.5
    #: Slow steps are said if what they take longer is this part of all steps.
    slow_ratio: float = 0.01
    #: What holds for fewer than this part of them is not said of them.
    of_most_ratio: float = 0.5
    #: As many as a sentence, or a block of a page, can hold; the table has all.
    named_count: int = 3
    path_characters: int = 48


POLICY = Policy()
