"""Dumps as torchcomms writes them: TORCHCOMM_FR_DUMP_TEMP_FILE is a prefix of any form, to which the rank is added."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import stashtrace
from stashtrace.analysis.registry import analyze

T_NS = 1_724_779_239_000_000_000
MS = 1_000_000


def _dump(calls: int, ended: int, **more: Any) -> dict[str, Any]:
    """A dump without ``pg_config`` and times of ends, as the hook writes it."""
    entries = [
        {
            "record_id": n,
            "pg_id": 0,
            "process_group": ["main_comm", "main_comm"],
            "collective_seq_id": n + 1,
            "p2p_seq_id": 0,
            "op_id": n + 1,
            "profiling_name": "ncclx:all_reduce",
            "input_sizes": [[10, 10]],
            "input_dtypes": ["Float"],
            "output_sizes": [[10, 10]],
            "output_dtypes": ["Float"],
            "time_created_ns": T_NS + n * MS,
            "state": "completed" if n < ended else "started",
            "is_p2p": False,
            "retired": n < ended,
            "timeout_ms": 30000,
        }
        for n in range(calls)
    ]
    return {"version": "2.10", "entries": entries, **more}


@pytest.mark.parametrize("prefix", ["torchcomm_fr_trace_", "job7.fr"])
def test_the_rank_behind_any_prefix(tmp_path: Path, prefix: str) -> None:
    for rank in range(3):
        dump = _dump(5, 5) if rank == 1 else _dump(6, 5)
        (tmp_path / f"{prefix}{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    rows = list(analyze(stashtrace.load(tmp_path), "hang").rows())
    assert [(row["rank"], row["reason"], row["operation"], row["sequence"]) for row in rows] == [
        (1, "not_entered", "all_reduce", 6)
    ]
    assert (rows[0]["waiting"], rows[0]["last_index"], rows[0]["group"]) == ("0,2", 5, "main_comm")
    assert rows[0]["since_ns"] == -1
    assert rows[0]["activity"] == "unknown"


def test_a_rank_that_the_dump_says_counts_more_than_the_name(tmp_path: Path) -> None:
    for rank, name in ((0, "a9.json"), (1, "b9.json")):
        (tmp_path / name).write_text(json.dumps(_dump(6, 5, rank=rank) if rank == 0 else _dump(5, 5, rank=rank)))
    (row,) = analyze(stashtrace.load(tmp_path), "hang").rows()
    assert (row["rank"], row["waiting"]) == (1, "0")
