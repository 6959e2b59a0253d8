"""Reads during checkpoints: many runs at once give what each gives alone, counted part by part."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_history import MINUTE, SECOND, SHARED, Fleet, Job, each_run

from stashtrace.lab.history.gather import read_history
from stashtrace.lab.history.policy import POLICY
from stashtrace.lab.history.questions import interference as question
from stashtrace.lab.history.questions.interference import (
    SUMMED,
    Checkpoints,
    Groups,
    Readings,
    chances,
    compare,
    interference,
)
from stashtrace.lab.history.run_files import Place, file_name, parquet_bytes
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.recommend.instance_catalog import load_catalog

pytest.importorskip("pyarrow")

Part = tuple[int, int, int]  # reads, their time, steps


def made_up(seed: int) -> tuple[list[list[Part]], list[tuple[int, int, int, int]], list[tuple[int, int, int]]]:
    """Return the parts of some readings, (reading, job, begin, end) of checkpoints of others, and of theirs."""
    random = np.random.default_rng(seed)
    readings = [
        [tuple(random.integers((0, 0, 0), (12, 900, 4)).tolist()) for _ in range(random.integers(2, 70))]
        for _ in range(7)
    ]

    def moments(of: int) -> tuple[int, int]:
        begin = int(random.integers(-50, len(readings[of]) * 10 + 20))
        return begin, begin + int(random.integers(1, 90))

    others = [(of, int(random.integers(3)), *moments(of)) for of in random.integers(0, 7, 60).tolist()]
    return readings, others, [(of, *moments(of)) for of in random.integers(0, 7, 6).tolist()]


def begin_of(reading: int) -> int:
    return 1_780_000_000 * SECOND + reading * 7


def arrays(seed: int) -> tuple[Readings, Checkpoints]:
    readings, others, own = made_up(seed)
    count = [len(parts) for parts in readings]
    begin = np.array([begin_of(at) for at in range(len(readings))])
    flat = np.array([part for parts in readings for part in parts]).T
    series = dict(zip(("reads_count", "reads_ns", "steps_count"), flat, strict=True))

    def checkpoints(rows: list[tuple[int, int, int, int]]) -> Checkpoints:
        of, job, low, high = np.array(rows).T
        return Checkpoints(of, job, begin[of] + low, begin[of] + high)

    ends = begin + 10 * np.array(count)
    mine = checkpoints([(of, 0, low, high) for of, low, high in own])
    return Readings.counted(begin, ends, np.cumsum([0, *count]), series, mine), checkpoints(others)


def inside_and_around(parts: list[Part], low: int, high: int, first: int, last: int) -> tuple[int, int, int, int]:
    inside, around = parts[low:high], parts[first:low] + parts[high:last]
    return (
        sum(one[0] for one in inside),
        sum(one[1] for one in inside),
        sum(one[0] for one in around),
        sum(one[1] for one in around),
    )


def slower(figures: tuple[int, int, int, int]) -> float | None:
    count, ns, around_count, around_ns = figures
    if min(count, around_count) < 5 or min(ns, around_ns) <= 0:
        return None
    return math.log(ns / count) - math.log(around_ns / around_count)


def one_by_one(seed: int) -> dict[tuple[int, int], tuple[list[float], list[tuple[int, int, float, float]]]]:
    """Return (reading, job) -> its sums, and (begin, end, by how much slower, chance) of its stretches."""
    readings, others, own = made_up(seed)
    found = {}
    for at, whole in enumerate(readings):
        count, kept = len(whole), list(whole)
        for _, begin, end in (one for one in own if one[0] == at):
            for part in range(max(begin // 10, 0), min(-(-end // 10), count)):
                kept[part] = (0, 0, whole[part][2])
        for job in {one[1] for one in others if one[0] == at}:
            covered = []
            for _, _, begin, end in (one for one in others if one[:2] == (at, job)):
                low, high = (min(max(math.floor(moment / 10 + 0.5), 0), count) for moment in (begin, end))
                if high <= low:
                    low = min(max(math.floor((begin + end) / 2 / 10), 0), count - 1)
                covered.append((low, max(high, low + 1)))
            stretches: list[list[int]] = []
            for low, high in sorted(covered):
                if stretches and low <= stretches[-1][1]:
                    stretches[-1][1] = max(stretches[-1][1], high)
                else:
                    stretches.append([low, high])
            compared = []
            for number, (low, high) in enumerate(stretches):
                before = stretches[number - 1][1] if number else 0
                after = stretches[number + 1][0] if number + 1 < len(stretches) else count
                reach = 3 * (high - low)
                figures = inside_and_around(kept, low, high, max(low - reach, before), min(high + reach, after))
                if slower(figures) is not None:
                    compared.append((low, high, figures))
            if not compared:
                continue
            busy = {part for low, high, _ in compared for part in range(low, high)}
            ranked = []
            for low, high, figures in compared:
                length = high - low
                elsewhere = [
                    slower(inside_and_around(kept, b, b + length, max(b - 3 * length, 0), min(b + 4 * length, count)))
                    for b in range(count - length + 1)
                    if not busy & set(range(b, b + length))
                ]
                known = [one for one in elsewhere if one is not None]
                own_slower = slower(figures)
                assert own_slower is not None
                chance = (1 + sum(one >= own_slower for one in known)) / (1 + len(known))
                ranked.append((low, high, own_slower, chance))
            made = sum(part[2] for low, high, _ in compared for part in kept[low:high])
            parts = sum(high - low for low, high, _ in compared)
            rate = (sum(part[2] for part in kept) - made) / max(count - parts, 1)
            lost = 10 * max(parts - made / rate, 0.0) if rate > 0 else 0.0
            sums = [float(sum(figures[place] for _, _, figures in compared)) for place in range(4)]
            counts = [float(len(compared)), float(sum(one[2] > 0 for one in ranked))]
            found[at, job] = [*sums, float(made), lost, *counts], ranked
    return found


def grouped(reads: Readings, groups: Groups) -> dict[tuple[int, int], tuple[list[float], list[tuple[int, ...]]]]:
    group = np.repeat(np.arange(len(groups.of)), np.diff(groups.bounds))
    rank = chances(reads, groups, group, np.arange(len(group)))
    rows = list(zip(groups.low.tolist(), groups.high.tolist(), groups.slower.tolist(), rank.tolist(), strict=True))
    bounds = groups.bounds.tolist()
    keys = zip(groups.of.tolist(), groups.job.tolist(), strict=True)
    return {key: (groups.sums[at].tolist(), rows[bounds[at] : bounds[at + 1]]) for at, key in enumerate(keys)}


@pytest.mark.parametrize("at_once", [1, 1 << 15])
@pytest.mark.parametrize("seed", range(8))
def test_many_at_once_as_one_by_one(seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "POLICY", replace(POLICY, places_at_once_count=at_once))
    reads, checkpoints = arrays(seed)
    found, wanted = grouped(reads, compare(reads, checkpoints)), one_by_one(seed)
    assert found.keys() == wanted.keys()
    assert len(wanted) > 5
    for key, (sums, rows) in wanted.items():
        assert dict(zip(SUMMED, found[key][0], strict=True)) == pytest.approx(dict(zip(SUMMED, sums, strict=True)))
        assert [row[:2] for row in found[key][1]] == [row[:2] for row in rows]
        assert [row[2:] for row in found[key][1]] == [pytest.approx(row[2:]) for row in rows]


def test_no_checkpoint_during_any_reading() -> None:
    reads, checkpoints = arrays(0)
    nothing = np.empty(0, dtype=np.int64)
    groups = compare(reads, Checkpoints(nothing, nothing, nothing, nothing))
    assert grouped(reads, groups) == {}
    assert len(compare(reads, checkpoints).of) > 0


def test_the_answer_is_the_same_however_many_runs_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two file systems, and series that are cut off, missing or coarser: these are left out, or fit in."""
    jobs = tuple(
        Job(("torchrun", f"{name}.py"), every_ns=every * MINUTE, write_ns=60 * SECOND)
        for name, every in (("a", 12), ("b", 0), ("c", 17))
    )
    fleet = Fleet(seed=3, runs=60, jobs=jobs, write_slows=2.5, between_hours=0.2)
    for number, run in enumerate(each_run(fleet)):
        rows = []
        for row in run.rows:
            if row.name == SHARED and row.values is not None:
                if number % 5 == 0:
                    row = row._replace(name="lustre other")
                if number % 7 == 1 and row.section == "reads_ns":
                    row = row._replace(values=row.values[:400])
                if number % 7 == 2 and row.section == "steps_count":
                    continue
                if number % 7 == 3:
                    row = row._replace(values=[sum(two) for two in zip(row.values[::2], row.values[1::2], strict=True)])
            elif row.section == "checkpoint" and number % 2:
                row = row._replace(name="lustre other")
            rows.append(row)
        run.rows[:] = rows
        (tmp_path / file_name(run)).write_bytes(parquet_bytes(run))
    totals = RunTotals(read_history(Place(str(tmp_path))), load_catalog())
    whole = list(interference(totals).rows())
    assert {row["file_system"] for row in whole} == {SHARED, "lustre other"}
    monkeypatch.setattr(question, "POLICY", replace(POLICY, runs_in_memory_count=3))
    assert list(interference(totals).rows()) == whole
