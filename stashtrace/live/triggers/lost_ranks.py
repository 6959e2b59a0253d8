"""A rank that is lost: its process has died, or it records nothing more, while other ranks of the run go on.

A rank that ends in order near the others' end is not lost: the others have to make some steps without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stashtrace.format.growing import GrowingFile
from stashtrace.format.liveness import LiveRings
from stashtrace.live import times
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace
from stashtrace.units import duration_text, ranks_named

#: Steps that others make without a rank that has ended in order, before it counts as lost.
_MORE_STEPS = 10


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that is lost, its last step, -1 if it has none, and the sentence about it."""

    rank: int
    last_step: int
    text: str


@dataclass(slots=True)
class LostRankTrigger:
    """Tells each lost rank once; one that records again, as after a restart, may be lost again."""

    lost: set[int] = field(default_factory=set)
    #: Rank -> when its process was first found ended.
    _ended_ns: dict[int, int] = field(default_factory=dict)

    def round(
        self,
        window: Trace,
        files: Collection[GrowingFile],
        at_ns: int,
        last_steps: Mapping[int, int],
        awaited: Collection[int] = (),
    ) -> list[LostRank]:
        """Look at the processes of the ranks of this host.

        ``at_ns``: CLOCK_MONOTONIC now. ``last_steps``: rank -> its last closed step. ``awaited``: ranks of which it is
        said already that the job is stuck for them.
        """
        own = _files_of_ranks(window, files)
        going = {rank for rank, file in own.items() if file.is_open and at_ns - file.newest_ns < times.LATELY_NS}
        self.lost -= going
        for rank in going:
            self._ended_ns.pop(rank, None)
        found = []
        for rank, file in sorted(own.items()):
            others = going - {rank}
            if rank in going or rank in self.lost or rank in awaited or not others:
                continue
            how = self._how(rank, file, at_ns, last_steps, others)
            if how:
                self.lost.add(rank)
                last = last_steps.get(rank, -1)
                after = f" after step {last:,}" if last >= 0 else ""
                go = f"{ranks_named(sorted(others))} go{'' if len(others) > 1 else 'es'} on"
                found.append(LostRank(rank, last, f"rank {rank} is lost{after}: {how}; {go}"))
        return found

    def _how(
        self, rank: int, file: GrowingFile, at_ns: int, last_steps: Mapping[int, int], others: Collection[int]
    ) -> str:
        """Return what happened to a rank; empty if it may still come back or be about to end with the others."""
        pid = file.metadata.get("pid")
        if not file.is_open:
            begun_ns = self._ended_ns.setdefault(rank, at_ns)
            ahead = min(last_steps.get(other, -1) for other in others) - last_steps.get(rank, -1)
            if ahead < _MORE_STEPS or at_ns - begun_ns < times.ENDED_EARLY_NS:
                return ""
            return f"its process {pid} has ended, and the others have made {ahead} steps without it"
        silent_ns = at_ns - file.newest_ns
        if not LiveRings.look().holds(file):
            return f"its process {pid} has died without an end in order" if silent_ns >= times.LATELY_NS else ""
        if silent_ns < times.STOPPED_NS:
            return ""
        return f"its process {pid} lives but has recorded nothing for {duration_text(silent_ns)}"


def _files_of_ranks(window: Trace, files: Collection[GrowingFile]) -> dict[int, GrowingFile]:
    """Return the file of each rank's newest process; workers and other processes are left out."""
    by_process = {(str(file.metadata.get("host", "")), file.metadata.get("pid")): file for file in files}
    found: dict[int, GrowingFile] = {}
    for row in window.processes.rows():
        if row["role_code"] == ProcessRole.RANK and row["rank"] >= 0:
            file = by_process.get((window.text(row["host_code"]), row["pid"]))
            known = found.get(row["rank"])
            if file is not None and (known is None or file.newest_ns >= known.newest_ns):
                found[row["rank"]] = file
    return found
