"""Thresholds of the search for late ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """When a rank is late, and what explains it, each with its reason."""

    # Late ranks.

    #: A rank is late repeatedly if the probability by chance is below the first; the second is a share of the steps.
    late_chance_ratio: float = 0.001
    most_steps_ratio: float = 0.5
    #: A step counts if it cost the group at least this part of the mean cost of a step.
    matters_divisor: int = 10
    #: The best tenth of a kind of transfer shows what its link can do, if there are at least this many. A kind is
    #: all transfers of one size, else all between two powers of two.
    best_transfers_divisor: int = 10
    enough_transfers_count: int = 8

    # Why a rank is late.

    #: A late rank is compared with at most this many others, spread over the members of the group.
    compared_ranks_count: int = 15
    #: A surplus of time explains the lateness if it is at least this share of it.
    explains_numerator: int = 1
    explains_denominator: int = 4

    # Names of causes.

    #: A file, kernel or call is named if it takes at least this part of the time of its kind.
    named_divisor: int = 4

    # Chains of waits.

    #: Of the waits of a rank that the oldest operation in flight does not explain, this many of the longest are
    #: looked up.
    searched_waits_count: int = 2_000
    #: This number of the longest waits is followed; the others end at the rank that was waited for.
    followed_waits_count: int = 200_000
    #: A chain of waits is followed over this many ranks.
    links_of_chain_count: int = 64
    #: Parts of a wait below this are not followed further.
    followed_ratio: float = 0.01

    # Stages of a pipeline.

    #: One of two ranks sends, or computes, that many times more often than the other: they are no stages of one
    #: pipeline.
    unequal_times: float = 1.5
    #: Messages of a step that are counted as this many: medians of steps and of ranks differ by less.
    same_messages_ratio: float = 0.02
    #: The first of two ranks takes in this many micro-batches before it waits for one to come back.
    ahead_batches_count: int = 3


POLICY = Policy()
