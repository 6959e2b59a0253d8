"""The clocks of several hosts brought together by what the hosts did together.

Called by ``align.session`` for runs of more than one boot, after the wall clocks have given a first guess. Reads the
collectives and pings of all processes in that guess, fits, and corrects the clocks; ``align_tables`` does the same for
tables that come from elsewhere.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stashtrace.align.host_clocks import HostClock, start_ticks
from stashtrace.align.host_graph import Alignment, align_hosts
from stashtrace.align.meetings import Meetings, meetings_of
from stashtrace.align.offset_fit import STRAIGHT, Bend
from stashtrace.align.pings import pings_of
from stashtrace.collectors.context import Int64
from stashtrace.model.kinds import CollectiveSource, DeviceClock, Severity
from stashtrace.model.losses import LossRow
from stashtrace.model.schemas import TABLES
from stashtrace.model.table import Table

if TYPE_CHECKING:
    from stashtrace.align.session import Session

#: What is decoded to find out.
NEEDED = frozenset({"collectives", "groups"})
_DEVICE_CLOCK = {CollectiveSource.EVENTS: DeviceClock.EVENT, CollectiveSource.PLUGIN: DeviceClock.GLOBALTIMER}


def align_run(scout: Session, clocks: Mapping[tuple[str, str], HostClock], reference: str) -> list[tuple[int, LossRow]]:
    """Correct the clocks of a run; what did not fit comes back as rows of ``losses``.

    Parameters
    ----------
    scout : Session
        Of all processes, on first guesses; it is used up.
    clocks : mapping
        Clocks to be corrected, by clock domain.
    reference : str
        Boot id of the host to align to.
    """
    boots = [reference, *sorted({clock.boot_id for clock in clocks.values()} - {reference})]
    number = {boot: i for i, boot in enumerate(boots)}
    host_of = np.array([number[scout.clock_of(i).boot_id] for i in range(len(scout))], dtype=np.int64)
    own_error = np.zeros(len(boots), dtype=np.int64)
    bends = [STRAIGHT] * len(boots)
    for clock in clocks.values():
        own_error[number[clock.boot_id]] = max(own_error[number[clock.boot_id]], clock.map.error_ns)
        bends[number[clock.boot_id]] = max(bends[number[clock.boot_id]], clock.bend(), key=lambda bend: bend.bow_ns)
    parts = [scout.decode(i, NEEDED) for i in range(len(scout))]
    collectives, groups = (
        Table.concat(TABLES[name], [p.table(name) for p in parts]) for name in ("collectives", "groups")
    )
    error_of = {
        (process, int(source)): max((t.error_ns for (_, c), t in times.items() if c == clock), default=0)
        for process, times in enumerate(scout.device_times)
        for source, clock in _DEVICE_CLOCK.items()
    }
    own_clocks = [scout.clock_of(i) for i in range(len(scout))]
    begins = [int(clock(start_ticks(raw.metadata))[0]) for clock, raw in zip(own_clocks, scout.core, strict=True)]
    pings = pings_of(scout.core, own_clocks, host_of, own_error)
    lifes = lifes_of(host_of, begins, scout.ends_ns)
    found = align_tables(collectives, groups, host_of, own_error, lifes, error_of, pings, bends)
    for clock in clocks.values():
        offset = found.offsets.get(number[clock.boot_id])
        if offset is not None:
            at = offset.at_ns + scout.origin_monotonic_ns
            error = int(offset.error_ns.max())
            clock.correct(at, offset.offset_ns, error, offset.touch_error_ns, offset.method)
    names = {scout.clock_of(i).boot_id: str(raw.metadata.get("host", "")) for i, raw in enumerate(scout.core)}
    return [(-1, row) for row in alignment_losses(found, [names.get(boot, boot) for boot in boots])]


def align_tables(
    collectives: Table,
    groups: Table,
    host_of: Int64,
    own_error_ns: Int64,
    lifes_ns: Int64,
    error_of: Mapping[tuple[int, int], int] | None = None,
    pings: Meetings | None = None,
    bends: Sequence[Bend] = (),
) -> Alignment:
    """Align hosts by tables that hold each process's times on its host's clock; host 0 is the reference.

    Parameters
    ----------
    collectives, groups : Table
    host_of : int64 array
        process_id -> host.
    own_error_ns : int64 array
        Error of each host's clock against itself.
    lifes_ns : (hosts, 2) int64 array
        Begin and end of each host on its clock.
    error_of : mapping, optional
        (process_id, source_code) -> error of the device clock behind its times.
    pings : Meetings, optional
    bends : sequence of Bend
        How straight each host's clock was; without them all are.
    """
    meetings = meetings_of(collectives, groups, host_of, own_error_ns, error_of or {})
    return align_hosts(meetings if pings is None else Meetings.concat([meetings, pings]), lifes_ns, 0, bends)


def lifes_of(host_of: Int64, begins: Sequence[int], ends: Sequence[int]) -> Int64:
    """Begin and end of each host, from those of its processes."""
    lifes = np.tile(np.array([np.iinfo(np.int64).max, 0]), (int(host_of.max()) + 1, 1))
    for host, begin, end in zip(host_of.tolist(), begins, ends, strict=True):
        lifes[host] = min(lifes[host, 0], begin), max(lifes[host, 1], end, begin + 1)
    return lifes


def alignment_losses(found: Alignment, names: Sequence[str]) -> list[LossRow]:
    """What did not fit, as rows of ``losses``."""
    rows: list[LossRow] = []
    if found.rejected_count:
        text = "times of operations that two hosts shared contradict the others; they were left out of the clocks"
        rows.append(("core", "clock_limits_rejected", int(Severity.INFO), found.rejected_count, text))
    for host in found.stepped:
        text = f"the clock of {names[host]} seems to have been set during the run; the error of alignment covers it"
        rows.append(("core", "clock_stepped", int(Severity.ERROR), 1, text))
    return rows
