"""Map device time to the run's common clock, from bracketed readings of a device's clocks.

The event and CUPTI clocks belong to one process. ``%globaltimer`` is one counter per physical device, so the readings
of all processes of a host make one mapping. Time is linear between readings; outside them, the rate of the nearest
readings continues. All numbers but distances within a piece are integers, as for the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.collectors.decode_context import DeviceTime, TickClock
from stashtrace.loading.clocks.host_clock import TickMap, consistent_run, with_ends
from stashtrace.loading.clocks.policy import POLICY
from stashtrace.schema.groupby import Int64
from stashtrace.schema.kinds import DeviceClock, Severity
from stashtrace.schema.possible import is_possible
from stashtrace.schema.trace import LossRow, RawProcess

#: Records that this module needs from every process before rows are decoded.
RECORDS = ("device_info", "device_clock")


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """Readings of one clock in any order: the device clock was at ``device_ns`` within ``half_ns`` of ``common_ns``."""

    device_ns: Int64
    common_ns: Int64
    half_ns: Int64

    @classmethod
    def concat(cls, parts: Sequence[DeviceReadings]) -> DeviceReadings:
        """Join the readings of several processes."""
        return cls(*(np.concatenate([getattr(p, n) for p in parts]) for n in cls.__slots__))


def device_time(readings: DeviceReadings, clock: DeviceClock) -> DeviceTime:
    """Return the mapping of one device clock from at least one reading.

    ``error_ns`` is the largest half-width of the readings used, plus the uncertainty of the clock between them and up
    to one interval outside of them, plus the clock's step.
    """
    order = np.lexsort((readings.half_ns, readings.device_ns, readings.common_ns))
    device, common, half = readings.device_ns[order], readings.common_ns[order], readings.half_ns[order]
    step = _step(device, clock)
    narrow = _not_wide(common, half)
    best = _mapping(device, common, half, narrow, step)
    if len(narrow) == len(half):
        return best
    # A few narrow readings close together give a worse rate, and worse times far from them, than all readings do.
    every = _mapping(device, common, half, np.arange(len(half)), step)
    knows_more = best.anchors_count == 1 < every.anchors_count or every.error_ns < best.error_ns
    return every if knows_more and every.rejected_count <= best.rejected_count else best


def _mapping(device: Int64, common: Int64, half: Int64, usable: Int64, step: int) -> DeviceTime:
    """Return the mapping from the usable readings, in order of time; the others are compared with it."""
    kept = _drop_close_readings(common, half, usable)
    kept, rejected = consistent_run(device, common, 2 * half, kept, 1.0, POLICY.most_drift_ppb)
    if len(kept) == 1:
        only = int(kept[0])
        reach = np.array([0, 1 << 40])
        line = TickMap(device[only] + reach, common[only] + reach, int(half[only]) + step)
        return DeviceTime(line, line.error_ns, 1, 0, rejected)
    line = TickMap(*with_ends(device[kept], common[kept]), 0)
    error = int(half[kept].max()) + _between(device[kept], common[kept], half[kept])
    beyond = max(int(device[kept[0]] - device[0]), int(device[-1] - device[kept[-1]]), 0)
    error = max(error, _outside(device[kept], half[kept], beyond)) + step
    error += _worst_distance(line, device, common, half, rejected)
    span = int(device[kept[-1]] - device[kept[0]])
    drift = (int(common[kept[-1]] - common[kept[0]]) - span) * 10**9 // span
    return DeviceTime(line, error, len(kept), drift, rejected)


def _not_wide(common: Int64, half: Int64) -> Int64:
    """Return the index of the readings that are narrow compared with those around them, ascending."""
    window = (common - common[0]) // POLICY.device_window_ns
    _, number = np.unique(window, return_inverse=True)
    best = np.full(int(number.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(best, number, half)
    kept = np.flatnonzero(half <= POLICY.wide_times * best[number])
    usual = int(np.quantile(half[kept], 0.25))
    wide = half[kept] > POLICY.very_wide_times * usual
    narrow = kept[~wide]
    after = np.searchsorted(narrow, kept)
    inside = (after > 0) & (after < len(narrow))
    gap = common[narrow[np.minimum(after, len(narrow) - 1)]] - common[narrow[np.maximum(after - 1, 0)]]
    kept = kept[~(wide & inside & (gap <= POLICY.near_ns))]
    # A single narrow reading gives no rate; together with the wide ones it does.
    return kept if len(kept) > 1 else np.arange(len(half))


def _drop_close_readings(common: Int64, half: Int64, kept: Int64) -> Int64:
    """Keep the narrower of readings too close to give a rate; they occur when several processes read a shared clock."""
    near = min(POLICY.close_ns, int(common[-1] - common[0]) // 16)
    chosen: list[int] = []
    for i in kept.tolist():
        # Within this distance, the noise of both readings would be a larger rate than any clock's drift.
        noise = int(half[i] + half[chosen[-1]]) * 10**9 // POLICY.most_drift_ppb if chosen else 0
        if chosen and common[i] - common[chosen[-1]] <= max(near, noise):
            if half[i] < half[chosen[-1]]:
                chosen[-1] = i
        else:
            chosen.append(i)
    return np.array(chosen, dtype=np.int64)


def _between(device: Int64, common: Int64, half: Int64) -> int:
    """Return how far in ns the clock may leave the line inside a piece: its change of rate beyond reading noise."""
    if len(device) < 3:
        return 0
    length = np.diff(device)
    excess = np.diff(common) - length
    # Change of rate between neighbours, over the longer piece; each reading accounts for a part of it.
    scale = np.maximum(length[1:], length[:-1])
    change = np.abs(excess[1:] / length[1:] - excess[:-1] / length[:-1]) * scale
    noise = (half[:-2] + half[1:-1]) * (scale / length[:-1]) + (half[1:-1] + half[2:]) * (scale / length[1:])
    return int(np.ceil(np.maximum(change - noise, 0).max() / 4))


def _outside(device: Int64, half: Int64, beyond: int) -> int:
    """Return the error one usual interval beyond the outermost readings, at the rate of a longer baseline.

    ``beyond`` is the distance from the outermost used readings to the outermost ones that were too wide to use.
    """
    interval = int(np.median(np.diff(device))) + beyond
    worst = 0
    for near, far in ((0, len(device) - 1), (len(device) - 1, 0)):
        baseline = abs(int(device[far] - device[near]))
        baseline = min(baseline, max(10_000_000_000, interval))
        worst = max(worst, int(half[near]) + -(-interval * int(half[near] + half.max()) // max(baseline, 1)))
    return worst


def _worst_distance(line: TickMap, device: Int64, common: Int64, half: Int64, rejected: int) -> int:
    """Return how far in ns the worst reading is from the line, beyond its half-width and the narrowest one's."""
    residual = np.maximum(np.abs(line(device.view(np.uint64)) - common) - half, 0)
    if rejected:
        residual = residual[residual <= np.quantile(residual, 1 - rejected / len(residual))]
    # The line passes through the middle of the kept readings, each of which may be off by its half-width.
    return int(np.maximum(residual - half.min(), 0).max(initial=0))


def _step(device: Int64, clock: DeviceClock) -> int:
    """Return the step of the clock in ns: known for events, the common factor of the readings for ``%globaltimer``."""
    if clock == DeviceClock.EVENT:
        return POLICY.event_step_ns
    if clock != DeviceClock.GLOBALTIMER or len(device) < 4:
        return 0
    step = int(np.gcd.reduce(np.diff(np.sort(device))))
    return step if 1 < step <= POLICY.most_step_ns else 0


def device_times(
    processes: Iterable[tuple[RawProcess, TickClock, str]],
) -> tuple[list[dict[tuple[int, int], DeviceTime]], list[tuple[int, LossRow]]]:
    """Return for each process a dict (device index, clock) -> mapping; and the losses found in the readings.

    ``processes``: with the records :data:`RECORDS`; ``clock`` maps ticks to the common clock.
    """
    listed = list(processes)
    own: list[dict[tuple[int, int], DeviceTime]] = [{} for _ in listed]
    losses: list[tuple[int, LossRow]] = []
    shared: dict[tuple[str, str], list[DeviceReadings]] = {}
    users: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for index, (raw, clock, domain) in enumerate(listed):
        uuids = _uuids(raw)
        for device, uuid in uuids.items():
            users.setdefault((domain, uuid), []).append((index, device))
        for (device, code), readings in _readings(raw, clock).items():
            uuid = uuids.get(device, "")
            if code == DeviceClock.GLOBALTIMER and uuid:
                shared.setdefault((domain, uuid), []).append(readings)
            else:
                time = own[index][device, code] = device_time(readings, DeviceClock(code))
                _note(losses, index, device, code, time)
    for key, parts in shared.items():
        time = device_time(DeviceReadings.concat(parts), DeviceClock.GLOBALTIMER)
        for index, device in users[key]:
            own[index][device, int(DeviceClock.GLOBALTIMER)] = time
        _note(losses, *users[key][0], int(DeviceClock.GLOBALTIMER), time)
    return own, losses


def _note(losses: list[tuple[int, LossRow]], index: int, device: int, code: int, time: DeviceTime) -> None:
    name = f"the {DeviceClock(code).name.lower()} clock of GPU {device}"
    if time.anchors_count == 1:
        text = f"{name} was read once: its drift is unknown, and its error grows with time"
        losses.append((index, ("cuda", "device_drift_unknown", int(Severity.INFO), 1, text)))
    if time.rejected_count:
        text, count = f"some readings of {name} contradict the others", time.rejected_count
        losses.append((index, ("cuda", "device_clock_readings_rejected", int(Severity.ERROR), count, text)))


def _uuids(raw: RawProcess) -> dict[int, str]:
    records = raw.records.get("device_info")
    if records is None:
        return {}
    return {int(r["device_index"]): raw.strings.get(int(r["uuid_id"]), "") for r in records.rows}


def _readings(raw: RawProcess, clock: TickClock) -> dict[tuple[int, int], DeviceReadings]:
    records = raw.records.get("device_clock")
    if records is None or not len(records.rows):
        return {}
    rows = records.rows
    rows = rows[(rows["device_ns"] != -1) & (rows["after_ticks"] >= rows["before_ticks"])]
    rows = rows[np.isin(rows["clock_code"], list(DeviceClock))]
    before, after = clock(rows["before_ticks"]), clock(rows["after_ticks"])
    # The mapped ticks of a damaged reading may wrap around.
    sound = is_possible(before) & is_possible(after) & is_possible(rows["device_ns"].astype(np.int64))
    sound &= (before <= after) & (after - before < POLICY.most_width_ns)
    rows, before, after = rows[sound], before[sound], after[sound]
    middle, half = before + (after - before) // 2, (after - before + 1) // 2
    readings = {}
    for device, code in sorted(set(zip(rows["device_index"].tolist(), rows["clock_code"].tolist(), strict=True))):
        mine = (rows["device_index"] == device) & (rows["clock_code"] == code)
        readings[device, code] = DeviceReadings(rows["device_ns"][mine].astype(np.int64), middle[mine], half[mine])
    return readings
