"""A rank that is lost is reported once, by what its process does; ranks that end together are not lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from growing_files import grow
from made_job import write_job

from stashtrace.format.growing import GrowingRun
from stashtrace.format.liveness import LiveRings
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.triggers import LostRank, LostRankTrigger

SECOND = 1_000_000_000
#: Process of rank 1, and that of its loader worker.
PIDS = (1010, 1011)


@pytest.fixture
def processes_live(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Sets what /proc says of processes that have a ring."""
    return lambda live: monkeypatch.setattr(LiveRings, "holds", lambda rings, file: live)


def lost_ranks(
    folder: Path, *, killed: Collection[int] = (), awaited: Collection[int] = (), **job: object
) -> list[LostRank]:
    """What the trigger says of a job while it grows."""
    write_job(folder / "job", lockstep=False, **job)  # type: ignore[arg-type]
    target = folder / "run"
    accounts, trigger = LiveAccounts(GrowingRun(str(target))), LostRankTrigger()
    found = []
    for now_ns in grow(folder / "job", target, SECOND, killed):
        window = accounts.round(now_ns).window
        if window is not None:
            found += trigger.round(window, accounts.run.files, now_ns, accounts.closed, awaited)
    return found


def test_a_rank_that_was_killed(tmp_path: Path, processes_live: Callable[[bool], None]) -> None:
    processes_live(False)
    (lost,) = lost_ranks(tmp_path, steps_count=300, dead=[(1, 60)], killed=PIDS)
    assert lost.rank == 1
    assert lost.last_step in (58, 59), "the end of the last step may lie behind the last reading of its clock"
    assert lost.text == (
        f"rank 1 is lost after step {lost.last_step}: its process 1010 has died without ending its recording;"
        " rank 0 goes on"
    )


def test_a_rank_that_stopped_recording(tmp_path: Path, processes_live: Callable[[bool], None]) -> None:
    processes_live(True)
    (lost,) = lost_ranks(tmp_path, steps_count=450, ranks_count=3, dead=[(1, 60)], killed=PIDS)
    pattern = (
        r"rank 1 is lost after step 5[89]: its process 1010 runs but has recorded nothing for 15.* s; ranks 0,2 go on"
    )
    assert re.fullmatch(pattern, lost.text), lost.text


def test_a_rank_that_ended_in_order_long_before_the_others(tmp_path: Path) -> None:
    (lost,) = lost_ranks(tmp_path, steps_count=400, dead=[(1, 60)])
    assert re.fullmatch(
        r"rank 1 is lost after step 5[89]: its process 1010 has ended, and the others have made \d+ steps without it;"
        r" rank 0 goes on",
        lost.text,
    )


@pytest.mark.parametrize("dead", [[], [(1, 275)]])
def test_ranks_that_end_together_are_not_lost(tmp_path: Path, dead: list[tuple[int, int]]) -> None:
    """Nor one that ends two seconds before the others."""
    assert lost_ranks(tmp_path, steps_count=300, dead=dead) == []


def test_a_rank_that_the_job_is_stuck_for_is_not_said_again(
    tmp_path: Path, processes_live: Callable[[bool], None]
) -> None:
    processes_live(False)
    assert lost_ranks(tmp_path, steps_count=300, dead=[(1, 60)], killed=PIDS, awaited=[1]) == []
