"""The clocks of several hosts brought together by what the hosts did together.

Called by ``loading.session`` for runs of more than one boot, after the wall clocks have given a first guess. Reads the
collectives and pings of all processes in that guess, fits, and corrects the clocks; ``align_tables`` does the same for
tables that come from elsewhere.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stashtrace.collectors.context import Int64
from stashtrace.loading.clocks.graph import Alignment, align_hosts
from stashtrace.loading.clocks.meetings import Meetings, meetings_of
from stashtrace.loading.clocks.offset import Bend
from stashtrace.schema.kinds import Severity
from stashtrace.schema.table import Table
from stashtrace.schema.trace import LossRow

if TYPE_CHECKING:
    pass


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
