"""A job of two ranks in which rank 1 works 90 ms at the end of step 49, so that rank 0 waits for it in step 50."""

from __future__ import annotations

from builders import MS, TraceBuilder


def work_after_meeting() -> tuple[TraceBuilder, tuple[int, int], int]:
    """Return the job of 80 steps, when that work begins and ends, and when rank 0 ends."""
    build, clock, work = TraceBuilder(), [0, 0], (0, 0)
    for step in range(80):
        entered = {rank: clock[rank] + 8 * MS + rank * (step % 7) * MS // 100 for rank in (0, 1)}
        end = max(entered.values()) + MS
        build.meet(entered, end)
        for rank, at in entered.items():
            begin = clock[rank]
            build.rank(rank).phase("forward", begin, begin + 3 * MS).phase("backward", begin + 3 * MS, at)
            late = 90 * MS if (rank, step) == (1, 49) else 0
            work = (end, end + late) if late else work
            build.rank(rank).phase("optimizer", end + late, end + late + MS)
            clock[rank] = end + late + MS
    return build, work, clock[0]
