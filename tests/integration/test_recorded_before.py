"""Runs that earlier versions recorded open as they did then.

``data/recorded/VERSION/`` holds a run of two ranks (gloo, DDP, a DataLoader with one worker), the same run as a store,
and what that version read from it. All three were made by that version::

    stashtrace run --steps 1:5 --out run -- torchrun --standalone --nproc-per-node 2 train_ddp.py --steps 6
    stashtrace scrub --all run -o scrubbed
    stashtrace export parquet scrubbed -o store
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked_commands import environment, run_command

import stashtrace
from stashtrace.schema.trace import Trace

RECORDED = Path(__file__).resolve().parents[1] / "data" / "recorded"
VERSIONS = sorted(p.name for p in RECORDED.iterdir())


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked files of one version: ``run``, ``store`` and ``tables.json``."""
    folder = tmp_path_factory.mktemp("recorded")
    for name in ("run", "store"):
        with tarfile.open(RECORDED / request.param / f"{name}.tar.xz") as archive:
            for member in archive.getmembers():
                assert member.isdir() or member.isfile()
                assert not member.name.startswith(("/", ".."))
            archive.extractall(folder)
    (folder / "tables.json").write_bytes((RECORDED / request.param / "tables.json").read_bytes())
    return folder


@pytest.fixture(scope="module", params=["run", "store"])
def trace(request: pytest.FixtureRequest, version: Path) -> Trace:
    if request.param == "store":
        pytest.importorskip("pyarrow")
    return stashtrace.load(version / request.param)


def sums(trace: Trace, name: str, columns: list[str]) -> dict[str, int]:
    """Rows of a table, and the exact sum of each column that is a number."""
    table = trace.table(name)
    return {column: int(np.asarray(table[column]).astype(object).sum()) if len(table) else 0 for column in columns}


def test_tables_are_as_they_were(trace: Trace, version: Path) -> None:
    expected: dict[str, dict[str, Any]] = json.loads((version / "tables.json").read_text())["tables"]
    if Path(trace.path).name == "store":
        del expected["metadata"]  # a store says of itself that it is one
    assert len(expected) > 10
    for name, columns in expected.items():
        rows = columns.pop("rows")
        assert len(trace.table(name)) == rows, name
        assert sums(trace, name, list(columns)) == columns, name


def test_steps_are_as_they_were(trace: Trace, version: Path) -> None:
    expected = json.loads((version / "tables.json").read_text())["steps"]
    steps = stashtrace.analyze(trace, "steps")
    rows = zip(*(steps[name].tolist() for name in ("rank", "step", "begin_ns", "end_ns")), strict=True)
    assert [list(row) for row in rows] == expected


def test_every_nanosecond_has_a_bucket(trace: Trace) -> None:
    steps, stalls = stashtrace.analyze(trace, "steps"), stashtrace.analyze(trace, "stalls", warmup=True)
    for rank, step, begin_ns, end_ns in zip(
        *(steps[name] for name in ("rank", "step", "begin_ns", "end_ns")), strict=True
    ):
        mine = (stalls["rank"] == rank) & (stalls["step"] == step)
        assert int(stalls["stall_ns"][mine].sum()) == end_ns - begin_ns


@pytest.mark.parametrize(
    "words",
    [
        ("summary", "RUN"),
        ("info", "RUN"),
        ("whatif", "RUN"),
        ("analyze", "late", "RUN"),
        ("merge", "RUN"),
        ("export", "perfetto", "RUN", "-o", "timeline.pftrace"),
    ],
    ids=lambda words: words[0],
)
def test_commands_take_them(version: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [str(version / "run") if word == "RUN" else word for word in words]
    done = run_command(command, tmp_path, environment(), 120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
