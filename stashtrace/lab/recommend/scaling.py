"""Predict the step time on instance types and counts that were not measured, from those of others with the same device.

    step = compute of one device  +  exposed communication (:class:`Ring`)  +  what its loaders lag behind

What is assumed is listed by :data:`ASSUMPTIONS` and printed with every prediction; what cannot be predicted is an
error, not a guess, and a device of another type is never predicted. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.calibration.fit_link import bytes_factor
from stashtrace.errors import MissingDataError
from stashtrace.lab.number_intervals import Interval, exactly
from stashtrace.lab.recommend.instance_catalog import Catalog, Instance
from stashtrace.lab.recommend.profile import Profile

#: In the words of the output and of docs/guides/recommend.md.
ASSUMPTIONS = (
    "a device computes its batch as fast as alone (t1), whatever the other devices do",
    "exposed communication is that of a ring: messages * 2 (N - 1) * alpha + bytes * 2 (N - 1) / N * beta, from t2 - t1"
    " inside a host and t5 - t1 between hosts",
    "measured at one count it is taken to be bytes; the interval reaches to all of it being latency, and holds what"
    " the backward pass may have hidden",
    "between hosts its bytes go as fast as the network rates of the catalog are to each other",
    "batches are prepared as fast as vCPUs are many; each host has storage like that of the measured one",
    "the batch of a device stays, so more devices make a larger batch in all; epochs needed are taken to stay",
)


#: Part of a step that is the backward pass: two multiplications for each of the forward pass.
_BACKWARD = 2 / 3


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted step: without data, with cached data, with data from storage."""

    #: Without loading, ns.
    synthetic: Interval
    #: With data cached and with none cached; None if no characterization measured it.
    warm: Interval | None
    cold: Interval | None
    #: ``compute``, ``interconnect``, ``network`` of ``synthetic``.
    parts_ns: Mapping[str, float]
    #: This very configuration was run, without loading.
    ran: bool = False
    #: And with it.
    ran_with_data: bool = False
    #: A network of namespaces is in it.
    emulated: bool = False
    #: Compute is compute alone. Where configuration 1 is missing it holds what devices and network cost, too.
    parts_known: bool = True
    #: ``synthetic`` holds loading: no step without it was measured.
    loaded: bool = False
    #: What else was assumed.
    notes: tuple[str, ...] = ()


class UnpredictableError(MissingDataError):
    """A step cannot be predicted from what was measured; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Instances to predict for."""

    instance: Instance
    hosts_count: int
    devices_per_host: int

    @property
    def devices_count(self) -> int:
        """Devices of all hosts."""
        return self.hosts_count * self.devices_per_host


def predict(profile: Profile, target: Target, catalog: Catalog, others: Sequence[Profile] = ()) -> Prediction:
    """Predict the step of one target from one characterization.

    ``profile``: of the same device and batch. ``others``: of the same device and batch; they separate latency from
    bytes. Raises UnpredictableError if what it takes was not measured.
    """
    home = catalog.get(profile.instance) or Instance(profile.instance)
    t1, t2, t5 = (profile.step_ns.get(k) for k in (1, 2, 5))
    own = target.instance.name == profile.instance
    if target.hosts_count == 1 and own and target.devices_per_host == profile.devices_count:
        step = _measured_prediction(profile, t1, t2)
    elif t5 is not None and _ran_on_hosts(profile, target):
        step = _measured_between_hosts(profile, target, home, catalog, others, t5)
    elif t1 is None:
        raise UnpredictableError(f"configuration 1 of {profile.path} was not measured")
    elif target.devices_count == 1:
        step = Prediction(t1, None, None, {"compute": t1.value})
    elif target.hosts_count == 1:
        step = _inside_host(profile, target, home, catalog, others)
    elif t5 is None:
        raise UnpredictableError(f"configuration 5 (several hosts) of {profile.path} was not measured")
    else:
        step = _between_hosts(profile, target, home, catalog, others, t1)
    return _with_data(step, profile, target, home)


def in_host_ring(profile: Profile, catalog: Catalog, others: Sequence[Profile] = ()) -> Ring | None:
    """Exposed communication between the devices of one host; None if it was not measured."""
    base = _exposed_in_host(profile)
    if base is None:
        return None
    wired = (catalog.get(profile.instance) or Instance("")).interconnect
    same = [one for one in others if (catalog.get(one.instance) or Instance("")).interconnect == wired != ""]
    return fit_ring([*filter(None, map(_exposed_in_host, same)), base], base, _hidden(profile))


def network_ring(profile: Profile, catalog: Catalog, others: Sequence[Profile] = ()) -> Ring | None:
    """Exposed communication between hosts; None if it was not measured."""
    base = _exposed_between(profile, catalog)
    if base is None:
        return None
    exposed = (_exposed_between(one, catalog) for one in others if one.network_emulated == profile.network_emulated)
    known = [one for one in exposed if one is not None and (one.rate > 0) == (base.rate > 0)]
    seen = [Exposed(one.devices_count, one.time_ns, one.rate or 1.0) for one in (*known, base)]
    return fit_ring(seen, seen[-1], _hidden(profile))


def network_rate(profile: Profile, catalog: Catalog) -> int:
    """Rate in bits per second of the network of configuration 5; 0 if unknown."""
    if profile.network_bits_per_s:
        return profile.network_bits_per_s
    hosts = catalog.get(profile.network_instance)
    return hosts.network_bits_per_s if hosts is not None and not profile.network_emulated else 0


def _hidden(profile: Profile) -> float:
    """What a backward pass can hide: itself, taken as twice the forward pass."""
    return profile.step_ns[1].value * _BACKWARD if 1 in profile.step_ns else 0.0


def _exposed_in_host(profile: Profile) -> Exposed | None:
    t1, t2 = profile.step_ns.get(1), profile.step_ns.get(2)
    if t1 is None or t2 is None or profile.devices_count < 2:
        return None
    return Exposed(profile.devices_count, t2 - t1)


def _exposed_between(profile: Profile, catalog: Catalog) -> Exposed | None:
    t1, t5 = profile.step_ns.get(1), profile.step_ns.get(5)
    if t1 is None or t5 is None or profile.network_devices_count < 2:
        return None
    return Exposed(profile.network_devices_count, t5 - t1, float(network_rate(profile, catalog)))


def _ran_on_hosts(profile: Profile, target: Target) -> bool:
    """Whether the target is what configuration 5 ran on."""
    return (
        not profile.network_emulated
        and target.instance.name == profile.network_instance
        and target.hosts_count == profile.network_hosts_count
        and target.devices_count == profile.network_devices_count
    )


def _measured_prediction(profile: Profile, t1: Interval | None, t2: Interval | None) -> Prediction:
    step = t2 or (t1 if profile.devices_count == 1 else None)
    if step is None:
        real = profile.step_ns.get(4) or profile.step_ns.get(3)
        if real is None:
            raise UnpredictableError(f"neither configuration 2 nor one with data of {profile.path} was measured")
        note = "compute holds everything: no step without loading was measured"
        return _undivided_prediction(real, note, loaded=True)
    if profile.devices_count == 1:
        return Prediction(step, None, None, {"compute": step.value}, ran=True)
    if t1 is None:
        return _undivided_prediction(step, "compute holds the interconnect: configuration 1 was not measured")
    parts = {"compute": min(t1.value, step.value), "interconnect": max(step.value - t1.value, 0.0)}
    return Prediction(step, None, None, parts, ran=True)


def _undivided_prediction(step: Interval, note: str, *, loaded: bool = False) -> Prediction:
    """A step that ran, and of which nobody knows what is compute and what is not."""
    parts = {"compute": step.value}
    return Prediction(step, None, None, parts, ran=True, parts_known=False, loaded=loaded, notes=(note,))


def _inside_host(
    profile: Profile, target: Target, home: Instance, catalog: Catalog, others: Sequence[Profile]
) -> Prediction:
    t1 = profile.step_ns[1]
    ring = in_host_ring(profile, catalog, others)
    if ring is None:
        raise UnpredictableError(
            f"configuration 2 with several devices in a host was not measured on {profile.instance}"
        )
    wired = target.instance.interconnect
    if wired != home.interconnect or wired in ("", "none"):
        theirs, ours = (x.interconnect or "unknown wires" for x in (target.instance, home))
        raise UnpredictableError(f"its devices are joined by {theirs}, those of {profile.instance} by {ours}")
    exposed = ring.at(target.devices_count)
    return Prediction(t1 + exposed, None, None, {"compute": t1.value, "interconnect": exposed.value})


def _within_hosts(
    profile: Profile, target: Target, home: Instance, catalog: Catalog, others: Sequence[Profile]
) -> tuple[Interval, list[str]]:
    """Exposed communication inside each of several hosts, and what was assumed of it."""
    inside = in_host_ring(profile, catalog, others)
    if target.devices_per_host < 2:
        return exactly(0.0), []
    if inside is not None and target.instance.interconnect == home.interconnect:
        return inside.at(target.devices_count), []
    return exactly(0.0), ["network holds the interconnect, which was not measured for these devices"]


def _measured_between_hosts(
    profile: Profile, target: Target, home: Instance, catalog: Catalog, others: Sequence[Profile], t5: Interval
) -> Prediction:
    t1 = profile.step_ns.get(1)
    if t1 is None:
        return _undivided_prediction(t5, "compute holds the communication: configuration 1 was not measured")
    within, notes = _within_hosts(profile, target, home, catalog, others)
    whole = max(t5.value - t1.value, 0.0)
    inner = min(max(within.value, 0.0), whole)
    parts = {"compute": min(t1.value, t5.value), "interconnect": inner, "network": whole - inner}
    return Prediction(t5, None, None, parts, ran=True, notes=tuple(notes))


def _between_hosts(
    profile: Profile, target: Target, home: Instance, catalog: Catalog, others: Sequence[Profile], t1: Interval
) -> Prediction:
    within, notes = _within_hosts(profile, target, home, catalog, others)
    ring = network_ring(profile, catalog, others)
    if ring is None:
        raise UnpredictableError(f"configurations 1 and 5 of {profile.path} were not measured")
    rate = None
    measured_at, here = network_rate(profile, catalog), target.instance.network_bits_per_s
    if measured_at and here:
        rate = float(here)
        if target.instance.network_burst:
            notes.append(f"the network of {target.instance.name} keeps its rate for short times only")
    elif target.instance.name != profile.network_instance:
        notes.append(f"the network of {target.instance.name} is taken to be as fast as the measured one: no rate known")
    # A ring runs at the pace of its slowest link, so the links inside the hosts are a floor.
    exposed = ring.at(target.devices_count, rate).or_more(within)
    inner = min(max(within.value, 0.0), exposed.value)
    parts = {"compute": t1.value, "interconnect": inner, "network": exposed.value - inner}
    return Prediction(t1 + exposed, None, None, parts, emulated=profile.network_emulated, notes=tuple(notes))


def _with_data(step: Prediction, profile: Profile, target: Target, home: Instance) -> Prediction:
    """Add the loaders: as measured if the target was run, else by their rates."""
    t2, t3, t4 = (profile.step_ns.get(k) for k in (2, 3, 4))
    if step.ran and target.hosts_count == 1:
        return replace(step, warm=t4, cold=t3, ran_with_data=t3 is not None or t4 is not None)
    base = t2 or (profile.step_ns.get(1) if profile.devices_count == 1 else None)
    notes = step.notes
    share = target.devices_per_host / profile.devices_count
    sure, prepared = True, share
    if target.instance.name != profile.instance:
        if home.vcpus_count and target.instance.vcpus_count:
            prepared = share * home.vcpus_count / target.instance.vcpus_count
        else:
            sure = False
    warm = None if t4 is None else _lagging(step.synthetic, t4, base, prepared)
    if warm is not None and not sure:
        warm = Interval(warm.value)
        notes = (*notes, "vCPUs are not known, so nobody knows how fast batches are prepared")
    cold = None if t3 is None else _lagging(warm or step.synthetic, t3, t4 or base, share)
    return replace(step, warm=warm, cold=cold, notes=notes)


def _lagging(step: Interval, measured: Interval, without: Interval | None, share: float) -> Interval:
    """Predict a step whose loaders have ``share`` times the work of the measured one.

    Loaders work during the step, so one of the two sets the pace: the measured step is theirs if it was longer than the
    one without them, and else only a bound on theirs. What was lost need not be the loaders' pace but a separate cost
    (hand-over, copies), which is added: the interval holds both.
    """
    pace = measured.times(share)
    if without is None:
        return step.or_more(pace)
    gap = measured - without
    if gap.known and gap.low <= 0.0:  # no loss beyond the noise: they may be much faster than that
        return Interval(step.value, step.low, max(step.high, pace.high)) if step.known else step
    if gap.value <= 0.0:
        return step
    return step.or_more(pace).widened([step + gap.at_least(0.0).times(share)])


# Exposed communication against the number of devices: what a ring all-reduce lets one expect of counts nobody ran.
#
# A ring of N devices sends each message in 2 (N - 1) hops, and over each link 2 (N - 1) / N of its bytes:
#
#     exposed(N) = messages * 2 (N - 1) * alpha  +  bytes * 2 (N - 1) / N * beta
#
# From one measured count the two terms cannot be separated. The answer then takes all for bytes, which hardly grow
# with N, and its interval reaches to all being latency. Two counts and more decide it. alpha and beta are those of
# *exposed* communication. What the backward pass hides grows too, and comes out from under it: the interval holds
# that as well, for what can be hidden. Pure.

#: How far a prediction may be off besides that, as a part of it: the scatter of published runs about this model.
MODEL_ERROR = 0.1
#: More observations than this are not tried corner by corner.
_CORNERS_COUNT = 6


@dataclass(frozen=True, slots=True)
class Exposed:
    """Communication that was measured, or fitted, at one count."""

    devices_count: int
    #: Exposed time of a step.
    time_ns: Interval
    #: Of the link, in any unit, if several are compared; 1 if they are equal.
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Ring:
    """Exposed communication of one kind of link."""

    #: What predictions start from.
    base: Exposed
    #: Part of it that is latency, 0 to 1.
    latency_share: float = 0.0
    #: Between these it lies.
    low_share: float = 0.0
    high_share: float = 1.0
    #: Device counts that it was fitted to.
    counts: tuple[int, ...] = ()
    #: Communication that may have been hidden by the backward pass, at most.
    hidden_ns: float = 0.0

    def at(self, devices: int, rate: float | None = None) -> Interval:
        """Exposed time of a step with this many devices, over a link of this rate.

        Examples
        --------
        >>> ring = Ring(Exposed(4, Interval(75.0, 75.0, 75.0)))
        >>> ring.at(8)
        Interval(value=87.5, low=78.75, high=192.5)
        """
        if devices < 2:
            return Interval(0.0, 0.0, 0.0)
        rate = self.base.rate if rate is None else rate
        shares = (self.latency_share, self.low_share, self.high_share)
        point, *others = (self.base.time_ns.times(self._growth(share, devices, rate)) for share in shares)
        moved = self._growth(0.0, devices, rate)
        surfaced = (self.base.time_ns + exactly(self.hidden_ns)).times(moved) - exactly(self.hidden_ns)
        wide = point.widened([*others, surfaced.at_least(0.0)])
        return Interval(wide.value, wide.low * (1 - MODEL_ERROR), wide.high * (1 + MODEL_ERROR))

    def _growth(self, share: float, devices: int, rate: float) -> float:
        n = self.base.devices_count
        by_bytes = bytes_factor(devices) / bytes_factor(n) * self.base.rate / rate
        return share * (devices - 1) / (n - 1) + (1 - share) * by_bytes


def fit_ring(observed: Sequence[Exposed], base: Exposed, hidden_ns: float = 0.0) -> Ring:
    """Fit a ring that starts from ``base``; two counts in ``observed`` separate latency from bytes.

    ``observed``: of the same link and job, ``base`` among them or not. ``base``: with two devices at least. Negative
    times (noise about nothing) count as none. ``hidden_ns``: as in :class:`Ring`.

    Examples
    --------
    >>> seen = [Exposed(n, Interval(*[10.0 * (n - 1) + 40 * (n - 1) / n] * 3)) for n in (2, 4)]
    >>> round(fit_ring(seen, seen[0]).latency_share, 3), round(fit_ring(seen, seen[0]).at(8).value, 6)
    (0.333, 105.0)
    """
    base = _positive(base)
    usable = [_positive(one) for one in observed if one.devices_count > 1]
    counts = tuple(sorted({one.devices_count for one in usable} | {base.devices_count}))
    if len({one.devices_count for one in usable}) < 2 or base.time_ns.value == 0:
        return Ring(base, counts=counts, hidden_ns=hidden_ns)
    share = _share(usable, [one.time_ns.value for one in usable], base)
    if not all(one.time_ns.known for one in usable) or len(usable) > _CORNERS_COUNT:
        return Ring(base, share, counts=counts, hidden_ns=hidden_ns)
    corners = itertools.product(*((one.time_ns.low, one.time_ns.high) for one in usable))
    shares = [share, *(_share(usable, times, base) for times in corners)]
    return Ring(base, share, min(shares), max(shares), counts, hidden_ns)


def _positive(one: Exposed) -> Exposed:
    return Exposed(one.devices_count, one.time_ns.at_least(0.0), one.rate)


def _share(observed: Sequence[Exposed], times: Sequence[float], base: Exposed) -> float:
    """Latency share of ``base``, by non-negative least squares."""
    hops = np.array([one.devices_count - 1 for one in observed], dtype=np.float64)
    moved = np.array([bytes_factor(one.devices_count) * base.rate / one.rate for one in observed])
    time = np.asarray(times, dtype=np.float64)
    by_hop, by_byte = np.linalg.lstsq(np.stack([hops, moved], axis=1), time, rcond=None)[0]
    if by_hop < 0:
        return 0.0
    if by_byte < 0:
        return 1.0
    latency = by_hop * (base.devices_count - 1)
    whole = latency + by_byte * bytes_factor(base.devices_count)
    return float(latency / whole) if whole > 0 else 0.0
