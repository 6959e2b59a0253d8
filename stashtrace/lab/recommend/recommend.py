"""Candidates for an amount of work with hours, cost and limit, and which of them meet the budgets.

Measured profiles and a catalog in, candidates out: every instance that has the device of a profile, in several counts.
The cost is hours times price times instances, as the analysis script of Stash has it; a networked pair that costs the
same as the one large instance therefore loses in money exactly what it loses in time. Pure; the words are in
``lab.recommend.recommendation_text``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab.number_intervals import Interval
from stashtrace.lab.recommend.instance_catalog import Catalog, Instance
from stashtrace.lab.recommend.profile import Profile
from stashtrace.lab.recommend.scaling import Prediction, Target, UnpredictableError, predict

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
    parts_known: bool = True
    notes: tuple[str, ...] = ()

    @property
    def priced(self) -> bool:
        """Whether its cost is known."""
        return not math.isnan(self.cost.value)

    @property
    def limited_by(self) -> str:
        """The largest part of its step; :data:`UNKNOWN` where that holds several."""
        largest = max(self.parts_ns, key=lambda kind: self.parts_ns[kind])
        return largest if self.parts_known or largest != "compute" else UNKNOWN

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
    """A number of instances, as in ``2x p3.8xlarge``."""
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


#: Which data a step reads: none cached, all cached, the first epoch from storage and the rest cached, none at all.
DATA = ("auto", "cold", "warm", "first-cold", "synthetic")
_HOUR_NS = 3600e9


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Candidates, and those that fit the budgets."""

    #: Cheapest first; those without a price last, by time.
    candidates: tuple[Candidate, ...]
    #: Instance -> why nothing is said of it.
    not_measured: Mapping[str, str]
    budget: Budget = field(default_factory=Budget)
    #: None also if that budget was not given.
    cheapest_within_time: Candidate | None = None
    fastest_within_cost: Candidate | None = None
    #: Some candidate keeps all of what was given.
    met: bool = True
    #: If none does: the one that misses by least.
    nearest: Candidate | None = None
    notes: tuple[str, ...] = ()

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """Candidates that no other beats in time and cost together, cheapest first."""
        return tuple(candidate for candidate in self.candidates if candidate.pareto)


#: Devices of a catalog's entry that are processors: ranks that used no GPU are at home there.
_PROCESSORS = re.compile(r"\b(v?cpu|core)s?\b", re.IGNORECASE)


def recommend(
    profiles: Sequence[Profile],
    catalog: Catalog,
    work: Work,
    budget: Budget | None = None,
    *,
    data: str = "auto",
    max_count: int = 8,
) -> Recommendation:
    """Find all candidates for the work, and those that fit the budgets.

    ``data``: one of :data:`DATA`. ``auto``: the first epoch cold and the rest warm where epochs are known, else warm;
    what no characterization measured is left out. ``max_count``: instances at most: 1, 2, 4 and so on, and what was
    measured. Raises UsageError if the work needs a batch that no characterization knows, or prices are in several
    currencies. Raises MissingDataError if there is no candidate at all, not even what was measured.
    """
    budget = budget or Budget()
    if work.samples and not all(profile.batch_samples for profile in profiles):
        where = next(profile.path for profile in profiles if not profile.batch_samples)
        raise UsageError(f"{where} does not know its batch, so samples are not steps", hint="give --batch-size N")
    possible, unknown, partly = _possible(profiles, catalog, work, data, max_count)
    if not possible:
        raise MissingDataError(
            f"nothing can be said of any instance: {next(iter(unknown.values()))}",
            hint="run `stashtrace characterize` again, with --steps 1,2 at least",
        )
    currencies = sorted({candidate.currency for candidate in possible if candidate.priced})
    if len(currencies) > 1:
        what = " and ".join(currencies)
        raise UsageError(f"prices in {what} cannot be compared", hint="give some with --catalog FILE")
    candidates = _sort(pareto_marked(possible))
    in_time = [candidate for candidate in candidates if Budget(hours=budget.hours).met_by(candidate)]
    in_cost = [candidate for candidate in candidates if Budget(cost=budget.cost).met_by(candidate)]
    met = any(budget.met_by(candidate) for candidate in candidates)
    return Recommendation(
        candidates=tuple(candidates),
        not_measured=unknown,
        budget=budget,
        cheapest_within_time=min(in_time, key=cheaper, default=None) if budget.hours is not None else None,
        fastest_within_cost=min(in_cost, key=faster, default=None) if budget.cost is not None else None,
        met=met,
        nearest=None if met else min(candidates, key=budget.overshoot),
        notes=(*_notes(profiles, catalog, candidates), *_batch_notes(profiles, work), *partly),
    )


def _possible(
    profiles: Sequence[Profile], catalog: Catalog, work: Work, data: str, max_count: int
) -> tuple[list[Candidate], dict[str, str], list[str]]:
    """Find all candidates; instances that cannot be predicted, and why; notes on counts that cannot be."""
    candidates: dict[tuple[str, int, int, int], Candidate] = {}
    reasons: dict[str, str] = {}
    counts: dict[tuple[str, str], list[int]] = {}
    own = [name for profile in profiles for name in (profile.instance, profile.network_instance) if name]
    for batch in dict.fromkeys(profile.batch_samples for profile in profiles):
        same_batch = [profile for profile in profiles if profile.batch_samples == batch]
        for name in dict.fromkeys([*own, *catalog.instances]):
            instance = catalog.get(name) or Instance(name)
            near = [profile for profile in same_batch if _same_device(profile, instance, catalog)]
            if not near:
                reasons.setdefault(name, f"no characterization on {instance.device or 'its device'}")
                continue
            for target in _targets(near, instance, max_count):
                try:
                    profile, prediction = _best(near, target, catalog)
                except UnpredictableError as error:
                    reasons.setdefault(name, str(error))
                    counts.setdefault((name, str(error)), []).append(target.hosts_count)
                    continue
                key = (name, target.hosts_count, target.devices_per_host, batch)
                candidates[key] = _candidate(profile, prediction, target, work, data, profiles[0])
    answered = {candidate.instance for candidate in candidates.values()}
    left_out: dict[tuple[str, int], list[str]] = {}
    for (name, why), hosts_counts in counts.items():
        if name in answered:
            left_out.setdefault((why, min(hosts_counts)), []).append(name)
    partly = [
        f"nothing is said of {f'{least} and more' if least > 1 else 'a single'} {', '.join(names)}: {why}"
        for (why, least), names in left_out.items()
    ]
    return list(candidates.values()), {name: why for name, why in reasons.items() if name not in answered}, partly


def _same_device(profile: Profile, instance: Instance, catalog: Catalog) -> bool:
    if instance.name in (profile.instance, profile.network_instance):
        return True
    home = catalog.get(profile.instance)
    return home is not None and home.device == instance.device != ""


def _targets(near: Sequence[Profile], instance: Instance, max_count: int) -> list[Target]:
    """1, 2, 4, ... instances with all devices, and what was run."""
    out: dict[tuple[int, int], Target] = {}
    full = {instance.devices_count} if instance.devices_count else set()
    for profile in near:
        if profile.instance == instance.name:
            out[1, profile.devices_count] = Target(instance, 1, profile.devices_count)
            full = full or {profile.devices_count}
        if (
            profile.network_instance == instance.name
            and profile.network_hosts_count > 1
            and not profile.network_emulated
        ):
            each = profile.network_devices_count // profile.network_hosts_count
            if each * profile.network_hosts_count == profile.network_devices_count:
                out[profile.network_hosts_count, each] = Target(instance, profile.network_hosts_count, each)
                full = full or {each}
    for each in full:
        count = 1
        while count <= max(max_count, 1):
            out[count, each] = Target(instance, count, each)
            count *= 2
    return [out[key] for key in sorted(out) if key[0] <= max(max_count, 1)]


def _best(near: Sequence[Profile], target: Target, catalog: Catalog) -> tuple[Profile, Prediction]:
    """Predict from the nearest characterization: run so, on the same instance, with the nearest count.

    Raises UnpredictableError if no characterization answers; by the nearest one.
    """

    def distance(profile: Profile) -> tuple[bool, bool, float]:
        between = target.hosts_count > 1
        count = profile.network_devices_count if between else profile.devices_count
        return (
            between and profile.network_emulated,
            profile.instance != target.instance.name,
            abs(math.log(max(count, 1) / target.devices_count)),
        )

    refusals, predicted = [], []
    for profile in sorted(near, key=distance):
        try:
            prediction = predict(profile, target, catalog, [other for other in near if other is not profile])
        except UnpredictableError as error:
            refusals.append(error)
            continue
        if prediction.ran:
            return profile, prediction
        predicted.append((profile, prediction))
    if not predicted:
        raise refusals[0]
    return predicted[0]


def _candidate(
    profile: Profile, prediction: Prediction, target: Target, work: Work, data: str, first: Profile
) -> Candidate:
    step, warm, cold, notes = _mean_step(prediction, work, data)
    parts = dict.fromkeys(KINDS, 0.0) | dict(prediction.parts_ns)
    parts["prep"] = max((warm or prediction.synthetic).value - prediction.synthetic.value, 0.0)
    parts["fetch"] = max(step.value - (warm or prediction.synthetic).value, 0.0)
    # A step with data that is shorter than the one without (noise) has no room for what the latter lost.
    over = sum(parts.values()) / step.value
    parts = {kind: time / max(over, 1.0) for kind, time in parts.items()}
    real = warm is not None or cold is not None
    devices = target.devices_count
    hours = step.times(work.steps(profile.batch_samples, devices, first) / _HOUR_NS)
    unit = target.instance.price_per_hour
    price = None if unit is None else unit * target.hosts_count
    devices_there = target.instance.devices_count
    if 0 < target.devices_per_host < devices_there:
        notes = (*notes, f"{target.devices_per_host} of {devices_there} devices of each are in use")
    return Candidate(
        instance=target.instance.name,
        count=target.hosts_count,
        devices_count=devices,
        batch_samples=profile.batch_samples,
        step=step,
        hours=hours,
        synthetic=Interval(math.nan) if prediction.loaded else prediction.synthetic,
        cost=hours.times(math.nan if price is None else price),
        price_per_hour=price,
        currency=target.instance.currency,
        priced_on=target.instance.priced_on,
        source=target.instance.source,
        parts_ns=parts,
        measured=prediction.ran_with_data if real else prediction.ran and not prediction.loaded,
        emulated=prediction.emulated,
        basis=profile.path,
        parts_known=prediction.parts_known,
        notes=(*prediction.notes, *notes),
    )


def _mean_step(
    prediction: Prediction, work: Work, data: str
) -> tuple[Interval, Interval | None, Interval | None, tuple[str, ...]]:
    """Mean step of the work: (step, warm step, cold step, what else was assumed)."""
    warm, cold, epochs = prediction.warm, prediction.cold, work.epochs if work.samples else 0.0
    if data == "auto":
        data = "first-cold" if epochs and warm is not None and cold is not None else "warm"
    if data == "synthetic":
        return prediction.synthetic, None, None, ()
    if data == "first-cold" and warm is not None and cold is not None and epochs:
        part = min(1.0 / epochs, 1.0)
        return cold.times(part) + warm.times(1 - part), warm, cold, ()
    if data in ("cold", "first-cold") and cold is not None:
        why = "the warm step was not measured" if warm is None else "how long an epoch is was not said"
        return cold, warm, cold, () if data == "cold" else (f"all epochs from storage: {why}",)
    if warm is not None:
        return warm, warm, None, ("storage left out: the cold step was not measured",) if data != "warm" else ()
    if cold is not None:
        return cold, None, cold, ("all epochs from storage: the warm step was not measured",)
    return prediction.synthetic, None, None, ("loading of data left out: it was not measured",)


def _sort(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(
        candidates,
        key=lambda candidate: (*cheaper(candidate), candidate.instance, candidate.count, candidate.devices_count),
    )


def _notes(profiles: Sequence[Profile], catalog: Catalog, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    notes = [*(note for profile in profiles for note in profile.notes), *catalog.notes]
    seen: dict[tuple[str, int, int], str] = {}
    for profile in profiles:
        first = seen.setdefault((profile.instance, profile.devices_count, profile.batch_samples), profile.path)
        if first != profile.path:
            notes.append(f"{profile.path} measured what {first} did: where both answer, the first is taken")
    if not catalog.instances:
        notes.append("the catalog is empty: times without costs, and no instance but the measured ones")
    for profile in profiles:
        name, known = profile.instance, catalog.get(profile.instance)
        says = f"{profile.path} names {name}, which has {known.device if known else ''}, but"
        if known is None:
            notes.append(f"{name} is in no catalog: no price, and nothing is said of its other sizes")
        elif known.device and profile.device == "cpu" and not _PROCESSORS.search(known.device):
            notes.append(f"{says} its ranks used no device")
        elif known.device and profile.machine_devices and not _by_name(known.device, profile.machine_devices):
            notes.append(f"{says} ran on {profile.machine_devices[0]}")
    unpriced = sorted({one.instance for one in candidates if not one.priced and catalog.get(one.instance)})
    if unpriced:
        notes.append(f"no price for {', '.join(unpriced)}: give one with --price NAME=VALUE")
    return tuple(dict.fromkeys(notes))


def _batch_notes(profiles: Sequence[Profile], work: Work) -> list[str]:
    """Note that some profiles do not know their batch while others do."""
    unknown = [profile.path for profile in profiles if not profile.batch_samples]
    if not work.iterations or len(unknown) in (0, len(profiles)):
        return []
    which = ", ".join(dict.fromkeys(unknown))
    return [
        f"{which} does not know its batch: a step there is assumed to do the work of one of the others;"
        " --batch-size N says it"
    ]


def _by_name(device: str, names: Sequence[str]) -> bool:
    """Whether one of the machine's device names holds the catalog's, as a word: an L40S is no L4."""
    model = re.escape(device.partition("-")[0].lower())
    return any(re.search(rf"(?<![a-z0-9]){model}(?![a-z0-9])", name.lower()) for name in names)
