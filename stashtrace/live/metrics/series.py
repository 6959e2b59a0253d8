"""The series: what each is called, and its samples from the state of a run.

Sums are those of the state, so they grow as long as the run is followed, over the starts of an elastic job too. Labels
take few values: ranks, kinds of time, parts of the tracer. What differs from job to job stands on ``rank_info`` alone,
which queries join by rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from stashtrace.live.state import LiveState
from stashtrace.live.table import STEP_BOUNDS_S
from stashtrace.schema.stall_kinds import STALL_KINDS

_NS_PER_S = 1e9
#: What the values of the label ``kind`` are called in the summary, where that is another word.
_KINDS_TEXT = ", ".join(f"{kind.name} is {kind.words}" for kind in STALL_KINDS if kind.name != kind.words)


@dataclass(frozen=True, slots=True)
class Series:
    """A series as it is declared. ``name``: without the ending that its type adds."""

    name: str
    type: Literal["counter", "gauge", "histogram", "info"]
    labels: tuple[str, ...]
    doc: str

    @property
    def full_name(self) -> str:
        """The name that queries use; of a histogram without ``_bucket``, ``_sum`` and ``_count``."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.type, "")

    @property
    def unit(self) -> str:
        """The unit that ends the name, empty for plain counts."""
        return "seconds" if self.name.endswith("_seconds") else ""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values counted by size. ``counts``: of each bound and, at the end, of larger ones; not cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    def cumulative(self) -> list[tuple[str, int]]:
        """Return (upper bound, number of values up to it) as Prometheus counts them."""
        bounds = [*map(str, self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


@dataclass(frozen=True, slots=True)
class Family:
    """The samples of a series: (value of each label, value)."""

    series: Series
    samples: tuple[tuple[tuple[str, ...], float | Distribution], ...]


STALL = Series(
    "stashtrace_stall_seconds",
    "counter",
    ("rank", "kind"),
    f"Time of closed steps by kind; those of a rank add up to its steps. In the summary {_KINDS_TEXT}",
)
STEPS = Series("stashtrace_steps", "counter", ("rank",), "Steps that have closed")
STEP = Series("stashtrace_step_seconds", "histogram", ("rank",), "Length of closed steps")
CAUSED = Series(
    "stashtrace_caused_wait_seconds",
    "counter",
    ("rank",),
    "Time that other ranks waited in collectives of which this rank was the longest cause",
)
LAST_STEP = Series("stashtrace_last_step_timestamp_seconds", "gauge", ("rank",), "When the last closed step ended")
LAST_LOOK = Series(
    "stashtrace_last_look_timestamp_seconds",
    "gauge",
    (),
    "When the process that follows the run on this host last read it: the other values are as old",
)
STUCK = Series(
    "stashtrace_stuck",
    "gauge",
    ("rank",),
    "1 while the job stands still and waits for this rank, or for one that is not known; else 0",
)
LOST = Series("stashtrace_lost_records", "counter", (), "Records that are missing from the recording")
OWN_CPU = Series(
    "stashtrace_own_cpu_seconds",
    "counter",
    ("part",),
    "CPU time of the tracer: of the process that follows the run, and of the recorder's threads in the job",
)
RANK = Series(
    "stashtrace_rank",
    "info",
    ("rank", "host", "gpu_uuid", "pod", "job"),
    "Where a rank runs; what is not known is empty",
)
#: In the order in which they are written.
SERIES = (STALL, STEPS, STEP, CAUSED, LAST_STEP, LAST_LOOK, STUCK, LOST, OWN_CPU, RANK)


def families_of(state: LiveState) -> list[Family]:
    """Return the samples of all series.

    Of a job that has ended the sums stay; what is true only while it runs is left out, so that no alert waits for its
    next step, and no GPU is said to be in its use.
    """
    # Where no rank can be named, an alert has to fire all the same.
    stuck = set(state.stuck_ranks or (map(int, _ranks(state)) if state.stuck else ()))
    samples = {
        STALL: _stalls(state),
        STEPS: _sums(state, "steps_count", 1),
        STEP: _lengths(state),
        CAUSED: _sums(state, "caused_wait_ns", _NS_PER_S),
        LAST_STEP: _last_ends(state),
        LAST_LOOK: iter([((), state.updated_realtime_ns / _NS_PER_S)]),
        STUCK: (((rank,), float(int(rank) in stuck)) for rank in _ranks(state)),
        LOST: iter([((), float(state.lost_records_count))]),
        OWN_CPU: iter(
            [(("follower",), state.own_cpu_ns / _NS_PER_S), (("recorder",), state.recorder_cpu_ns / _NS_PER_S)]
        ),
        RANK: (
            ((rank, state.host, state.gpus.get(rank, ""), state.pod, state.job or state.run_id), 1.0)
            for rank in _ranks(state)
        ),
    }
    lasting = ("counter", "histogram")
    return [Family(one, tuple(samples[one])) for one in SERIES if not state.ended or one.type in lasting]


_Samples = Iterator[tuple[tuple[str, ...], float | Distribution]]


def _ranks(state: LiveState) -> list[str]:
    """Return the ranks that are known, also those that have not closed a step yet."""
    known = {*map(int, state.ranks), *state.stuck_ranks, *map(int, state.gpus)}
    return [str(rank) for rank in sorted(known)]


def _stalls(state: LiveState) -> _Samples:
    for rank, totals in state.ranks.items():
        for kind, spent_ns in totals["stall_ns"].items():
            yield (rank, kind), spent_ns / _NS_PER_S


def _sums(state: LiveState, name: str, divisor: float) -> _Samples:
    for rank, totals in state.ranks.items():
        yield (rank,), totals[name] / divisor


def _lengths(state: LiveState) -> _Samples:
    for rank, totals in state.ranks.items():
        yield (rank,), Distribution(STEP_BOUNDS_S, tuple(totals["lengths_count"]), totals["wall_ns"] / _NS_PER_S)


def _last_ends(state: LiveState) -> _Samples:
    for rank, totals in state.ranks.items():
        if totals["last_end_realtime_ns"]:
            yield (rank,), totals["last_end_realtime_ns"] / _NS_PER_S
