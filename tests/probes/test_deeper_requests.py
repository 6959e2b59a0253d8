"""When a rank begins and ends the deeper steps that it is asked for. No recorder is loaded: its answers are made up."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field

import pytest

from stashtrace.probes import process

MS = 1_000_000
TAKEN = 1


@dataclass
class Rank:
    """A rank whose steps take 50 ms. ``windows``, ``ended_at``: what its recorder received."""

    control: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 64))
    now_ns: int = 1
    step: int = -1
    windows: list[tuple[int, int]] = field(default_factory=list)
    ended_at: list[int] = field(default_factory=list)

    def kernels_window(self, first: int, end: int) -> int:
        self.windows.append((first, end))
        return TAKEN

    def kernels_end(self, step: int) -> bool:
        self.ended_at.append(step)
        return True

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    made = Rank()
    monkeypatch.setattr(process, "native", made)
    monkeypatch.setattr(process, "time", made)
    return made


def ask(rank: Rank, first: int, count: int, usual_ms: int, budget_ms: int) -> None:
    struct.pack_into("<QQQQ", rank.control, 8, first, count, usual_ms * MS, budget_ms * MS)
    rank.control[1] += 1


def run(rank: Rank, steps: process.DeeperSteps, until: int, ms: int) -> None:
    while rank.step < until:
        rank.step += 1
        steps.look(rank.step)
        rank.now_ns += ms * MS


def test_steps_that_are_far_ahead_are_recorded(rank: Rank) -> None:
    """Their time does not begin when they are asked for, which may be long before on a busy machine."""
    steps = process.DeeperSteps(rank.control)
    ask(rank, first=300, count=5, usual_ms=50, budget_ms=360)
    run(rank, steps, until=400, ms=50)
    assert rank.windows == [(300, 305)]
    assert rank.ended_at == []


def test_they_end_when_they_took_longer_than_they_may(rank: Rank) -> None:
    """Each takes 150 ms longer than usual, so three of fifty are more than 360 ms."""
    steps = process.DeeperSteps(rank.control)
    ask(rank, first=300, count=50, usual_ms=50, budget_ms=360)
    run(rank, steps, until=299, ms=50)
    run(rank, steps, until=360, ms=200)
    assert rank.ended_at == [303]


def test_a_rank_that_is_further_begins_with_its_next_step(rank: Rank) -> None:
    steps = process.DeeperSteps(rank.control)
    run(rank, steps, until=500, ms=50)
    ask(rank, first=300, count=5, usual_ms=50, budget_ms=360)
    run(rank, steps, until=510, ms=200)
    assert rank.windows == [(502, 507)]
    assert rank.ended_at == [504], "the step in which it gets ready counts, too"


def test_a_request_is_taken_back(rank: Rank) -> None:
    steps = process.DeeperSteps(rank.control)
    ask(rank, first=300, count=50, usual_ms=50, budget_ms=360)
    run(rank, steps, until=310, ms=50)
    ask(rank, first=0, count=0, usual_ms=0, budget_ms=0)
    run(rank, steps, until=320, ms=50)
    assert rank.ended_at == [311]
    ask(rank, first=400, count=2, usual_ms=50, budget_ms=360)
    run(rank, steps, until=420, ms=50)
    assert rank.windows == [(300, 350), (400, 402)]
