"""What to rent: candidates with hours and cost for an amount of work, what each is limited by, which meet the budgets.

Measured profiles and a catalog in, candidates out: every instance that has the device of a profile, in several counts.
The cost is hours times price times instances, as the analysis script of Stash has it; a networked pair that costs the
same as the one large instance therefore loses in money exactly what it loses in time. Pure; the words are in
``lab.recommend.report``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab.intervals import Interval
from stashtrace.lab.recommend.candidates import KINDS, Budget, Candidate, Work, cheaper, faster, pareto_marked
from stashtrace.lab.recommend.catalog import Catalog, Instance
from stashtrace.lab.recommend.profile import Profile
from stashtrace.lab.recommend.scaling import Prediction, Target, UnpredictableError, predict

#: Which data a step reads: none cached, all cached, the first epoch from storage and the rest cached, none at all.
DATA = ("auto", "cold", "warm", "first-cold", "synthetic")
_HOUR_NS = 3600e9


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer.

    Attributes
    ----------
    candidates : tuple of Candidate
        Cheapest first; those without a price last, by time.
    not_measured : mapping of str to str
        Instance -> why nothing is said of it.
    budget : Budget
    cheapest_within_time, fastest_within_cost : Candidate or None
        None also if that budget was not given.
    met : bool
        Some candidate keeps all of what was given.
    nearest : Candidate or None
        If none does: the one that misses by least.
    notes : tuple of str
    """

    candidates: tuple[Candidate, ...]
    not_measured: Mapping[str, str]
    budget: Budget = field(default_factory=Budget)
    cheapest_within_time: Candidate | None = None
    fastest_within_cost: Candidate | None = None
    met: bool = True
    nearest: Candidate | None = None
    notes: tuple[str, ...] = ()

    @property
    def pareto(self) -> tuple[Candidate, ...]:
        """Those that nothing beats in both, cheapest first."""
        return tuple(one for one in self.candidates if one.pareto)


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
    """All candidates for the work, and those that fit the budgets.

    Parameters
    ----------
    profiles : sequence of Profile
        At least one.
    catalog : Catalog
    work : Work
    budget : Budget, optional
    data : str
        One of :data:`DATA`. ``auto``: the first epoch cold and the rest warm where epochs are known, else warm; what no
        characterization measured is left out.
    max_count : int
        Instances at most: 1, 2, 4 and so on, and what was measured.

    Raises
    ------
    UsageError
        If the work needs a batch that no characterization knows, or prices are in several currencies.
    MissingDataError
        If there is no candidate at all, not even what was measured.
    """
    budget = budget or Budget()
    if work.samples and not all(one.batch_samples for one in profiles):
        where = next(one.path for one in profiles if not one.batch_samples)
        raise UsageError(f"{where} does not know its batch, so samples are no steps", hint="give --batch-size N")
    found, unknown, partly = _every(profiles, catalog, work, data, max_count)
    if not found:
        raise MissingDataError(
            f"nothing can be said of any instance: {next(iter(unknown.values()))}",
            hint="run `stashtrace characterize` again, with --steps 1,2 at least",
        )
    currencies = sorted({one.currency for one in found if one.priced})
    if len(currencies) > 1:
        what = " and ".join(currencies)
        raise UsageError(f"prices in {what} cannot be compared", hint="give some with --catalog FILE")
    candidates = _sorted(pareto_marked(found))
    in_time = [one for one in candidates if Budget(hours=budget.hours).met_by(one)]
    in_cost = [one for one in candidates if Budget(cost=budget.cost).met_by(one)]
    met = any(budget.met_by(one) for one in candidates)
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


def _every(
    profiles: Sequence[Profile], catalog: Catalog, work: Work, data: str, max_count: int
) -> tuple[list[Candidate], dict[str, str], list[str]]:
    """Candidates; instances of which nothing is said, and why; why of some nothing is said in some counts."""
    found: dict[tuple[str, int, int, int], Candidate] = {}
    reasons: dict[str, str] = {}
    counts: dict[tuple[str, str], list[int]] = {}
    own = [name for one in profiles for name in (one.instance, one.network_instance) if name]
    instances = dict.fromkeys([*own, *catalog.instances])
    for batch in dict.fromkeys(one.batch_samples for one in profiles):
        alike = [one for one in profiles if one.batch_samples == batch]
        for name in instances:
            instance = catalog.get(name) or Instance(name)
            near = [one for one in alike if _same_device(one, instance, catalog)]
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
                found[key] = _candidate(profile, prediction, target, work, data, profiles[0])
    names = {one.instance for one in found.values()}
    left_out: dict[tuple[str, int], list[str]] = {}
    for (name, why), some in counts.items():
        if name in names:
            left_out.setdefault((why, min(some)), []).append(name)
    partly = [
        f"nothing is said of {f'{least} and more' if least > 1 else 'a single'} {', '.join(some)}: {why}"
        for (why, least), some in left_out.items()
    ]
    return list(found.values()), {name: why for name, why in reasons.items() if name not in names}, partly


def _same_device(profile: Profile, instance: Instance, catalog: Catalog) -> bool:
    if instance.name in (profile.instance, profile.network_instance):
        return True
    home = catalog.get(profile.instance)
    return home is not None and home.device == instance.device != ""


def _targets(near: Sequence[Profile], instance: Instance, max_count: int) -> list[Target]:
    """1, 2, 4, ... instances with all devices, and what was run."""
    out: dict[tuple[int, int], Target] = {}
    full = {instance.devices_count} if instance.devices_count else set()
    for one in near:
        if one.instance == instance.name:
            out[1, one.devices_count] = Target(instance, 1, one.devices_count)
            full = full or {one.devices_count}
        if one.network_instance == instance.name and one.network_hosts_count > 1 and not one.network_emulated:
            each = one.network_devices_count // one.network_hosts_count
            if each * one.network_hosts_count == one.network_devices_count:
                out[one.network_hosts_count, each] = Target(instance, one.network_hosts_count, each)
                full = full or {each}
    for each in full:
        count = 1
        while count <= max(max_count, 1):
            out[count, each] = Target(instance, count, each)
            count *= 2
    return [out[key] for key in sorted(out) if key[0] <= max(max_count, 1)]


def _best(near: Sequence[Profile], target: Target, catalog: Catalog) -> tuple[Profile, Prediction]:
    """Predict from the nearest characterization: run so, on the same instance, with the nearest count.

    Raises
    ------
    UnpredictableError
        If no characterization tells; by the nearest one.
    """

    def distance(one: Profile) -> tuple[bool, bool, float]:
        between = target.hosts_count > 1
        count = one.network_devices_count if between else one.devices_count
        return (
            between and one.network_emulated,
            one.instance != target.instance.name,
            abs(math.log(max(count, 1) / target.devices_count)),
        )

    refusals, predicted = [], []
    for one in sorted(near, key=distance):
        try:
            prediction = predict(one, target, catalog, [other for other in near if other is not one])
        except UnpredictableError as error:
            refusals.append(error)
            continue
        if prediction.ran:
            return one, prediction
        predicted.append((one, prediction))
    if not predicted:
        raise refusals[0]
    return predicted[0]


def _candidate(profile: Profile, found: Prediction, target: Target, work: Work, data: str, first: Profile) -> Candidate:
    step, warm, cold, notes = _mean_step(found, work, data)
    parts = dict.fromkeys(KINDS, 0.0) | dict(found.parts_ns)
    parts["prep"] = max((warm or found.synthetic).value - found.synthetic.value, 0.0)
    parts["fetch"] = max(step.value - (warm or found.synthetic).value, 0.0)
    # A step with data that is shorter than the one without (noise) has no room for what the latter lost.
    over = sum(parts.values()) / step.value
    parts = {kind: time / max(over, 1.0) for kind, time in parts.items()}
    real = warm is not None or cold is not None
    devices = target.devices_count
    hours = step.times(work.steps(profile.batch_samples, devices, first) / _HOUR_NS)
    unit = target.instance.price_per_hour
    price = None if unit is None else unit * target.hosts_count
    some = target.instance.devices_count
    if 0 < target.devices_per_host < some:
        notes = (*notes, f"{target.devices_per_host} of {some} devices of each are in use")
    return Candidate(
        instance=target.instance.name,
        count=target.hosts_count,
        devices_count=devices,
        batch_samples=profile.batch_samples,
        step=step,
        hours=hours,
        synthetic=Interval(math.nan) if found.loaded else found.synthetic,
        cost=hours.times(math.nan if price is None else price),
        price_per_hour=price,
        currency=target.instance.currency,
        priced_on=target.instance.priced_on,
        source=target.instance.source,
        parts_ns=parts,
        measured=found.ran_with_data if real else found.ran and not found.loaded,
        emulated=found.emulated,
        basis=profile.path,
        told_apart=found.told_apart,
        notes=(*found.notes, *notes),
    )


def _mean_step(
    found: Prediction, work: Work, data: str
) -> tuple[Interval, Interval | None, Interval | None, tuple[str, ...]]:
    """Mean step, and of what it is made: (step, warm, cold, what else was assumed)."""
    warm, cold, epochs = found.warm, found.cold, work.epochs if work.samples else 0.0
    if data == "auto":
        data = "first-cold" if epochs and warm is not None and cold is not None else "warm"
    if data == "synthetic":
        return found.synthetic, None, None, ()
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
    return found.synthetic, None, None, ("loading of data left out: it was not measured",)


def _sorted(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda one: (*cheaper(one), one.instance, one.count, one.devices_count))


def _notes(profiles: Sequence[Profile], catalog: Catalog, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    notes = [note for one in profiles for note in one.notes]
    notes += catalog.notes
    seen: dict[tuple[str, int, int], str] = {}
    for one in profiles:
        first = seen.setdefault((one.instance, one.devices_count, one.batch_samples), one.path)
        if first != one.path:
            notes.append(f"{one.path} measured what {first} did: where both answer, the first is taken")
    if not catalog.instances:
        notes.append("the catalog is empty: times without costs, and no instance but the measured ones")
    for one in profiles:
        known = catalog.get(one.instance)
        if known is None:
            notes.append(f"{one.instance} is in no catalog: no price, and nothing is said of its other sizes")
        elif known.device and one.device == "cpu" and not _PROCESSORS.search(known.device):
            notes.append(f"{one.path} names {one.instance}, which has {known.device}, but its ranks used no device")
        elif known.device and one.machine_devices and not _named_alike(known.device, one.machine_devices):
            ran = one.machine_devices[0]
            notes.append(f"{one.path} names {one.instance}, which has {known.device}, but ran on {ran}")
    unpriced = sorted({one.instance for one in candidates if not one.priced and catalog.get(one.instance)})
    if unpriced:
        notes.append(f"no price for {', '.join(unpriced)}: give one with --price NAME=VALUE")
    return tuple(dict.fromkeys(notes))


def _batch_notes(profiles: Sequence[Profile], work: Work) -> list[str]:
    """Steps of an unknown number of samples beside steps of a known one."""
    unknown = [one.path for one in profiles if not one.batch_samples]
    if not work.iterations or len(unknown) in (0, len(profiles)):
        return []
    which = ", ".join(dict.fromkeys(unknown))
    return [
        f"{which} does not know its batch: a step there is taken to do as much as one of the others;"
        " --batch-size N says it"
    ]


def _named_alike(device: str, names: Sequence[str]) -> bool:
    """Whether the machine's own names hold the device's, as a word: an L40S is no L4."""
    model = re.escape(device.partition("-")[0].lower())
    return any(re.search(rf"(?<![a-z0-9]){model}(?![a-z0-9])", name.lower()) for name in names)
