"""Candidates, each an instance type and a count with the time, cost and limit of a given amount of work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stashtrace.lab.number_intervals import Interval
from stashtrace.lab.recommend.profile import Profile

#: What a step is made of.
KINDS = ("compute", "interconnect", "network", "prep", "fetch")
UNKNOWN = "unknown"
#: Two prices this near are the same.
_SAME_PRICE = 0.005


@dataclass(frozen=True, slots=True)
class Work:
    """How much is to be trained: samples, or steps of the first characterization."""

    #: Of one epoch; 0 if steps are given.
    samples: float = 0.0
    epochs: float = 1.0
    #: Steps as the first characterization makes them, all its devices together; 0 if samples are given.
    iterations: float = 0.0

    def steps(self, batch_samples: int, devices: int, first: Profile) -> float:
        """Number of steps of a candidate; the last step of an epoch counts in part."""
        if self.iterations:
            scale = first.batch_samples / batch_samples if first.batch_samples and batch_samples else 1.0
            return self.iterations * scale * first.devices_count / devices
        return self.samples * self.epochs / (batch_samples * devices)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to do the work."""

    instance: str
    #: Of instances.
    count: int
    #: In all.
    devices_count: int
    #: Of one device and step; 0 if unknown.
    batch_samples: int
    #: Mean step, ns.
    step: Interval
    #: The step without loading; NaN if nobody measured one.
    synthetic: Interval
    hours: Interval
    #: NaN without a price.
    cost: Interval
    #: Of all its instances.
    price_per_hour: float | None
    #: Of the price.
    currency: str
    priced_on: str
    source: str
    #: :data:`KINDS` -> time of a step.
    parts_ns: Mapping[str, float]
    #: It was run, with the data that is asked for.
    measured: bool
    #: Predicted from a network of namespaces.
    emulated: bool
    #: The characterization behind it.
    basis: str
    #: Nothing is both faster and cheaper.
    pareto: bool = False
    #: False where compute holds what devices and network cost, since nobody ran one device alone.
    told_apart: bool = True
    notes: tuple[str, ...] = ()

    @property
    def priced(self) -> bool:
        """Whether its cost is known."""
        return not math.isnan(self.cost.value)

    @property
    def limited_by(self) -> str:
        """The largest part of its step; :data:`UNKNOWN` where that holds several."""
        largest = max(self.parts_ns, key=lambda kind: self.parts_ns[kind])
        return largest if self.told_apart or largest != "compute" else UNKNOWN

    @property
    def worst_stall(self) -> str:
        """The largest part that is not compute; empty if nothing is lost."""
        lost = {kind: time for kind, time in self.parts_ns.items() if kind != "compute" and time > 0}
        return max(lost, key=lambda kind: lost[kind]) if lost else ""

    def share(self, kind: str) -> float:
        """Part of the step that a kind takes, 0 to 1."""
        return self.parts_ns.get(kind, 0.0) / self.step.value

    @property
    def name(self) -> str:
        """Instance and count."""
        return several_text(self.instance, self.count)


@dataclass(frozen=True, slots=True)
class Budget:
    """Hours and cost that may be spent; None for no limit."""

    hours: float | None = None
    cost: float | None = None

    def met_by(self, candidate: Candidate) -> bool:
        """Whether a candidate keeps both; an unknown cost keeps no cost budget."""
        in_time = self.hours is None or candidate.hours.value <= self.hours
        return in_time and (self.cost is None or candidate.cost.value <= self.cost)

    def overshoot(self, candidate: Candidate) -> float:
        """Factor by which a candidate misses the worse of the two; 1 or less if both are kept."""
        over = [0.0]
        if self.hours is not None:
            over.append(candidate.hours.value / self.hours)
        if self.cost is not None:
            over.append(_ratio(candidate.cost.value, self.cost) if candidate.priced else math.inf)
        return max(over)


def several_text(instance: str, count: int) -> str:
    """So many instances, as in ``2x p3.8xlarge``."""
    return instance if count == 1 else f"{count}x {instance}"


def cheaper(candidate: Candidate) -> tuple[float, float]:
    """Sort key: cost, then time."""
    return (candidate.cost.value if candidate.priced else math.inf, candidate.hours.value)


def faster(candidate: Candidate) -> tuple[float, float]:
    """Sort key: time, then cost."""
    return (candidate.hours.value, candidate.cost.value if candidate.priced else math.inf)


def same_price(one: Candidate, other: Candidate) -> bool:
    """Whether an hour of both costs the same."""
    a, b = one.price_per_hour, other.price_per_hour
    return a is not None and b is not None and abs(a - b) <= _SAME_PRICE * max(a, b)


def pareto_marked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Mark the candidates with a price that no other beats in time and cost together."""
    every = list(candidates)

    def beats(one: Candidate, other: Candidate) -> bool:
        a, b = (one.hours.value, one.cost.value), (other.hours.value, other.cost.value)
        return a[0] <= b[0] and a[1] <= b[1] and a != b

    return [replace(one, pareto=one.priced and not any(beats(other, one) for other in every)) for one in every]


def _ratio(value: float, limit: float) -> float:
    if limit > 0:
        return value / limit
    return math.inf if value > 0 else 0.0
