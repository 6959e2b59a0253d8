"""Files of two hosts whose clocks are off: one timeline, with the error that the operations leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stashtrace
from stashtrace.importers import registry
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource

EPOCH_NS = 1_700_000_000_000_000_000
MS = 1_000_000


class Operations:
    """A format of the tests: ``rank host`` in the first line, then one line an all-reduce, ``begin end``."""

    @staticmethod
    def sniff(head: bytes, path: Path) -> bool:
        return head.startswith(b"#operations")

    @staticmethod
    def load(source: Source, context: ImportContext) -> None:
        with source.open() as stream:
            lines = [line.split() for line in stream.read().decode().splitlines()[1:]]
        rank, host = int(lines[0][0]), lines[0][1]
        begin, end = (np.array([int(line[i]) for line in lines[1:]]) for i in (0, 1))
        process = context.process(pid=10 + rank, rank=rank, host=host, world_size=2)
        context.add(
            "collectives",
            process_id=process,
            group_hash=5,
            sequence=np.arange(len(begin)),
            op_code=int(CollectiveOp.ALL_REDUCE),
            track_id=context.tracks.thread(process, 1),
            call_ns=begin,
            return_ns=begin,
            begin_ns=begin,
            end_ns=end,
            device_begin_ns=begin,
            device_end_ns=end,
            source_code=int(CollectiveSource.IMPORTED),
            status_code=0,
        )
        context.add("groups", process_id=process, group_hash=5, group_rank=rank, group_size=2)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(registry, "importers", lambda: iter([("operations", Operations)]))
    rng = np.random.default_rng(1)
    enter = np.arange(200)[:, None] * 20 * MS + rng.integers(0, 3 * MS, (200, 2))
    end = enter.max(axis=1)[:, None] + 40_000 + rng.integers(0, 5_000, (200, 2))
    for rank, host in enumerate(("a", "b")):
        clock = [EPOCH_NS + t + rank * (7 * MS + t * 60 // 1_000_000) for t in (enter[:, rank], end[:, rank])]
        rows = [f"{b} {e}" for b, e in zip(*(c.tolist() for c in clock), strict=True)]
        (tmp_path / f"{host}.txt").write_text("\n".join(["#operations", f"{rank} {host}", *rows]))
    return tmp_path


def test_hosts_of_files_are_aligned_by_their_operations(folder: Path) -> None:
    trace = stashtrace.load(folder)
    alignment = {trace.text(r["boot_code"]): r for r in trace.alignment.rows()}
    assert trace.text(alignment["a"]["method_code"]) == "same_clock"
    found = alignment["b"]
    assert trace.text(found["method_code"]) == "collectives"
    assert abs(found["offset_ns"] + 7 * MS) <= found["error_ns"] < 60_000
    assert abs(found["drift_ppb"] + 60_000) < 5_000
    end = trace.collectives["end_ns"].reshape(-1)
    rank, sequence = trace.collectives["rank"], trace.collectives["sequence"]
    ends = np.zeros((200, 2), dtype=np.int64)
    ends[sequence, rank] = end
    assert np.abs(ends[:, 0] - ends[:, 1]).max() < 10_000
    assert trace.processes["begin_ns"].min() == 0
    assert trace.processes["end_ns"].tolist() == [int(end[rank == r].max()) for r in (0, 1)]


def test_one_host_alone_is_left_as_it_is(folder: Path) -> None:
    trace = stashtrace.load(folder / "b.txt")
    assert [trace.text(c) for c in trace.alignment["method_code"]] == ["same_clock"]
    assert trace.alignment["error_ns"].tolist() == [0]
