"""Hosts with clocks that are off and drift, and what they record of operations that they do together.

Used by the tests of alignment and by benchmarks. True time is that of nobody; host h shows
``shown = true * (1 + drift[h]) + offset[h]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.loading.clocks.align_recorded import HostOffset
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource
from stashtrace.schema.table import Table

US, MS, S = 1_000, 1_000_000, 1_000_000_000
Int64 = npt.NDArray[np.int64]


@dataclass
class Hosts:
    """Clocks of some hosts; host 0 is the reference.

    Attributes
    ----------
    offset_ns, drift : arrays
        Of each host.
    wander : callable, optional
        True ns -> ns that the clock of every host but the first is off its line.
    """

    offset_ns: npt.NDArray[np.float64]
    drift: npt.NDArray[np.float64]
    wander: object = None
    origin_ns: int = 10 * S

    @classmethod
    def random(cls, count: int, rng: np.random.Generator, *, offset_ns: float = 10 * MS, ppm: float = 100) -> Hosts:
        return cls(rng.uniform(-offset_ns, offset_ns, count), rng.uniform(-ppm, ppm, count) * 1e-6)

    def shown(self, host: int | Int64, true_ns: npt.NDArray[np.float64]) -> Int64:
        """What a host's clock shows."""
        off = self.offset_ns[host] + true_ns * self.drift[host]
        if callable(self.wander):
            off = off + np.where(np.asarray(host) > 0, self.wander(true_ns), 0.0)
        return self.origin_ns + np.rint(true_ns).astype(np.int64) + np.rint(off).astype(np.int64)

    def miss(self, host: int, true_ns: npt.NDArray[np.float64], found: HostOffset) -> tuple[Int64, Int64]:
        """How far the found way to the reference is off, and the error it states, at some moments."""
        own, wanted = self.shown(host, true_ns), self.shown(0, true_ns)
        moment, knots = (own - found.at_ns[0]).astype(float), (found.at_ns - found.at_ns[0]).astype(float)
        first = found.offset_ns[0]
        mapped = (
            own + first + np.rint(np.interp(moment, knots, (found.offset_ns - first).astype(float))).astype(np.int64)
        )
        return mapped - wanted, np.interp(moment, knots, found.error_ns.astype(float)).astype(np.int64)


@dataclass
class Job:
    """Rows of collectives as ranks on these hosts record them.

    Attributes
    ----------
    host_of : int64 array
        Rank (and process) -> host.
    """

    hosts: Hosts
    host_of: Int64
    rng: np.random.Generator
    parts: list[Table] = field(default_factory=list)
    groups: list[tuple[int, int, int, int]] = field(default_factory=list)
    next_sequence: dict[int, int] = field(default_factory=dict)

    def operate(
        self,
        true_ns: npt.NDArray[np.float64],
        members: Sequence[int] | Int64,
        *,
        op: CollectiveOp = CollectiveOp.ALL_REDUCE,
        group: int = 1,
        root: int = -1,
        jitter_ns: float = 1 * MS,
        late_ns: npt.NDArray[np.float64] | None = None,
        latency_ns: float = 60 * US,
        noise_ns: float = 15 * US,
        on_device: bool = False,
        return_ns: float = -10 * US,
    ) -> None:
        """Operations that members enter around these moments; ``return_ns``: mean time from a device's entry until the
        call that launched it returns, which is when events show it to begin, if not negative."""
        members = np.asarray(members, dtype=np.int64)
        count, size = len(true_ns), len(members)
        if group not in self.next_sequence:
            self.groups += [(int(m), group, place, size) for place, m in enumerate(members)]
        first = self.next_sequence.get(group, 0)
        self.next_sequence[group] = first + count
        enter = true_ns[:, None] + self.rng.exponential(jitter_ns, (count, size))
        if late_ns is not None:
            enter = enter + late_ns[members]
        noise = self.rng.exponential(noise_ns, (count, size))
        if op in (CollectiveOp.BROADCAST, CollectiveOp.SCATTER):
            free = enter[:, root, None]
        else:
            free = enter.max(axis=1)[:, None]
        end = np.maximum(enter, free) + latency_ns + noise
        shown = [self.hosts.shown(self.host_of[members], times) for times in (enter, end)]
        self.parts.append(
            rows_of(
                process_id=np.tile(members, count),
                sequence=np.repeat(np.arange(first, first + count), size),
                group=group,
                op=op,
                peer=root,
                enter=shown[0].ravel(),
                end=shown[1].ravel(),
                on_device=on_device,
                return_after=np.rint(self.rng.exponential(return_ns, count * size))
                if return_ns > 0
                else int(return_ns),
            )
        )

    def message(
        self, true_ns: npt.NDArray[np.float64], sender: int, receiver: int, *, group: int, latency_ns: float = 40 * US
    ) -> None:
        """Messages from one rank to another."""
        count = len(true_ns)
        if group not in self.next_sequence:
            self.groups += [(sender, group, 0, 2), (receiver, group, 1, 2)]
        first = self.next_sequence.get(group, 0)
        self.next_sequence[group] = first + count
        sent = true_ns + self.rng.exponential(1 * MS, count)
        waits = true_ns + self.rng.exponential(1 * MS, count)
        got = np.maximum(sent, waits) + latency_ns + self.rng.exponential(10 * US, count)
        for rank, op, begin, end in (
            (sender, CollectiveOp.SEND, sent, sent + 20 * US),
            (receiver, CollectiveOp.RECEIVE, waits, got),
        ):
            host = self.host_of[rank]
            self.parts.append(
                rows_of(
                    process_id=np.full(count, rank),
                    sequence=np.arange(first, first + count),
                    group=group,
                    op=op,
                    peer=int(rank == sender),
                    enter=self.hosts.shown(host, begin),
                    end=self.hosts.shown(host, end),
                )
            )

    def collectives(self) -> Table:
        """The table, as it is before alignment."""
        return Table.concat(TABLES["collectives"], self.parts)

    def group_table(self) -> Table:
        rank, group, place, size = (np.array(c, dtype=np.int64) for c in zip(*self.groups, strict=True))
        schema = TABLES["groups"]
        columns = {n: np.zeros(len(rank), dtype=np.int64) for n in schema.names}
        columns |= {
            "process_id": rank,
            "rank": rank,
            "group_hash": group.astype(np.uint64),
            "group_rank": place,
            "group_size": size,
        }
        return Table(schema, columns)

    def lifes(self, true_begin_ns: float, true_end_ns: float) -> Int64:
        """Begin and end of each host on its clock."""
        ends = np.array([true_begin_ns, true_end_ns])
        return np.stack([self.hosts.shown(h, ends) for h in range(len(self.hosts.offset_ns))])


def rows_of(
    *,
    process_id: Int64,
    sequence: Int64,
    group: int,
    op: CollectiveOp,
    peer: int,
    enter: Int64,
    end: Int64,
    on_device: bool = False,
    return_after: npt.NDArray[np.float64] | int = -10 * US,
) -> Table:
    """Rows of ``collectives``."""
    schema = TABLES["collectives"]
    rows = len(process_id)
    unseen = np.full(rows, -1, dtype=np.int64)
    columns = dict.fromkeys(schema.names, np.zeros(rows, dtype=np.int64))
    columns |= {
        "process_id": process_id,
        "rank": process_id,
        "group_hash": np.full(rows, group, dtype=np.uint64),
        "sequence": sequence,
        "op_code": np.full(rows, int(op)),
        "peer_rank": np.full(rows, peer),
        "call_ns": enter,
        "return_ns": enter,
        "begin_ns": unseen,
        "end_ns": end,
        "device_begin_ns": unseen,
        "device_end_ns": unseen,
        "stream_track_id": unseen,
        "source_code": np.full(rows, int(CollectiveSource.HOST)),
    }
    if on_device:
        back = enter + np.asarray(return_after, dtype=np.int64)
        columns |= {
            "device_begin_ns": np.minimum(np.maximum(enter, back), end),
            "device_end_ns": end,
            "call_ns": enter - 30 * US,
            "return_ns": back,
            "source_code": np.full(rows, int(CollectiveSource.EVENTS)),
        }
    return Table(schema, columns)
