"""Merging a run of many small processes: what grows with them, counted at N and at 2 N. Keeps no time."""

from __future__ import annotations

import os
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stash_files import StashWriter, ms, write_run_json

from stashtrace.errors import DataLossWarning
from stashtrace.format import container, project
from stashtrace.format.compact import compact_run
from stashtrace.format.liveness import own_boot_id
from stashtrace.format.reader import open_run
from stashtrace.loading.load import load_trace
from stashtrace.schema import table

#: What a process of forty calls may keep in memory while its run is merged, beyond the run's first processes.
MOST_BYTES_PER_PROCESS = 40_000


def write_run(folder: Path, count: int) -> None:
    for number in range(count):
        began = ms(number)
        stash = StashWriter(
            folder,
            pid=1000 + number,
            boot_id=own_boot_id(),
            ppid=1000 if number else 1,
            metadata={"start_ticks": began, "start_monotonic_ns": began, "start_realtime_ns": began + number},
        )
        path = stash.intern(f"/usr/lib/module_{number % 50}.py")
        stash.sync(number, number + 50)
        rows = [stash.row("io_op", begin_ticks=ms(number + k), duration_ticks=900, path_id=path) for k in range(40)]
        stash.add("io_op", rows)
        stash.add_ring("io_op", rows[:8], dropped=number % 2)
        stash.save()
    write_run_json(folder)


def counted(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a merge of ``count`` processes did what costs, and the memory it needed at its peak."""
    write_run(folder, count)
    seen: Counter[str] = Counter()
    open_now: set[int] = set()

    def tally(owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            seen[key] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    def opened(self: Any, path: str, **options: Any) -> None:
        first_open(self, path, **options)
        seen["opened files"] += 1
        open_now.add(id(self))
        seen["open at once"] = max(seen["open at once"], len(open_now))

    def closed(self: Any) -> None:
        first_close(self)
        open_now.discard(id(self))

    first_open, first_close = container.ByteFile.__init__, container.ByteFile.close
    with monkeypatch.context() as patch:
        patch.setattr(container.ByteFile, "__init__", opened)
        patch.setattr(container.ByteFile, "close", closed)
        monkeypatch = patch
        tally(table.Table, "__init__", "tables")
        tally(project, "layout_of", "layouts")
        tracemalloc.start()
        try:
            assert compact_run(open_run(folder)).problems == []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataLossWarning)
                trace = load_trace(folder)
            seen["peak bytes"] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(trace.processes) == count
    assert trace.io_rows_count == 48 * count
    assert len(os.listdir(folder)) == count + 1, "the rings are drained and gone"
    return dict(seen)


@pytest.mark.thorough
def test_a_merge_grows_with_the_processes_and_no_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 100, 200
    counted(tmp_path / "warm", 4, monkeypatch)  # what is made once for all runs
    small = counted(tmp_path / "small", few, monkeypatch)
    large = counted(tmp_path / "large", many, monkeypatch)
    assert large["opened files"] <= 2 * small["opened files"]
    assert large["tables"] <= 2 * small["tables"]
    assert large.get("layouts", 0) == small.get("layouts", 0), "processes of one program have one field table"
    assert large["open at once"] == small["open at once"]
    assert large["peak bytes"] - small["peak bytes"] <= MOST_BYTES_PER_PROCESS * (many - few), (small, large)
    assert large["tables"] <= 12 * many, "a table without rows is made once, not for each process"
