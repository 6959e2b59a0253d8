"""What an entry of the bench says: what is planted, on which ranks, and what would be false to say."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cause:
    """One planted cause.

    Attributes
    ----------
    ranks : tuple of int
        Whose work it is.
    kind : str
        Of ``words.WORDS``: what has to be said.
    piece : str
        The piece of work on the stopwatch, if it is not called by the kind.
    named : str
        Pattern of a name that has to be said too, of a file or a function; empty if there is none.
    """

    ranks: tuple[int, ...]
    kind: str
    piece: str = ""
    named: str = ""


@dataclass(frozen=True)
class Plan:
    """What is true of a member of the bench and what may not be said of it.

    Attributes
    ----------
    causes : tuple of Cause
        Nothing for a balanced member; with two, either may be the first verdict.
    shape : str
        Pattern that a verdict has to hold about a cause that is not the same in each step; empty if it is.
    false : tuple of str
        Patterns that would be false anywhere in the summary.
    ending : str
        "died", "hung" or "mismatch" where the job does not end well, else empty.
    bubble : bool
        The stages of a pipeline wait for each other, and none of them is late.
    """

    causes: tuple[Cause, ...] = ()
    shape: str = ""
    false: tuple[str, ...] = ()
    ending: str = ""
    bubble: bool = False


@dataclass(frozen=True)
class Truth:
    """What is known of a recorded member, in ms a step.

    Attributes
    ----------
    ranks_count : int
    step_ms : float
        Mean of the counted steps.
    amounts : tuple of dict
        For each cause: what is measured -> how long it takes.
    caused : dict of int to float
        Rank -> waiting that it causes, by the moments at which the ranks entered collectives; empty if unknown.
    """

    ranks_count: int
    step_ms: float
    amounts: tuple[Mapping[str, float], ...] = ()
    caused: Mapping[int, float] = field(default_factory=dict)
