"""A made-up state of a followed run with known numbers."""

from __future__ import annotations

from stashtrace.live.state import LiveState
from stashtrace.live.table import STEP_BOUNDS_S, LiveTotals, RankTotals

S = 10**9
#: CLOCK_REALTIME of the zero of the common clock.
ZERO_NS = 1_700_000_000 * S


def made_up_totals() -> LiveTotals:
    """Rank 0: four steps, 2 s in all, waits 0.5 s. Rank 1: three steps of 0.6 s, waited for 0.75 s, the last at 9 s."""
    totals = LiveTotals()
    for rank, lengths_ms in ((0, (8, 92, 900, 1000)), (1, (600, 600, 600))):
        own = totals.ranks[rank] = RankTotals()
        own.steps_count = len(lengths_ms)
        own.wall_ns = sum(lengths_ms) * 10**6
        for length in lengths_ms:
            own.lengths_count[sum(bound * 1000 < length for bound in STEP_BOUNDS_S)] += 1
        own.last_step, own.last_end_ns = len(lengths_ms) - 1, 9 * S
        own.stall_ns["straggler"] = S // 2 if rank == 0 else 0
        own.stall_ns["compute"] = own.wall_ns - own.stall_ns["straggler"]
    totals.ranks[1].caused_wait_ns = 750_000_000
    return totals


def made_up_state() -> LiveState:
    """The state with these totals: two ranks of a job of SLURM, stuck on rank 1, 3 records lost."""
    state = LiveState("node07", run_id="0123456789abcdef", begin_realtime_ns=ZERO_NS)
    state.take_totals(made_up_totals(), ZERO_NS)
    state.stuck, state.stuck_ranks = "rank 1 does not come", [1]
    state.lost_records_count = 3
    state.own_cpu_ns, state.recorder_cpu_ns = 2_500_000_000, 40_000_000
    state.job, state.pod, state.gpus = "4711", "train-0", {"1": "GPU-11111111-2222-3333-4444-555555555555"}
    return state
