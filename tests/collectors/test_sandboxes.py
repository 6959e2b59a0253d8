"""A process that forbids itself system calls goes on as untraced; a filter it was born with stops nothing."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import compiled, plain_environment, record

from stashtrace.report.trust import trust


@pytest.mark.parametrize("way", ["strict", "filter", "seccomp", "prctl by number", "tsc"])
def test_recording_ends_before_the_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.chdir(tmp_path)
    command = [compiled("sandbox_scenes.c"), way]
    plain = subprocess.run(
        command, env=plain_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (plain.returncode, plain.stdout) == (5, "went on\n")
    done = record(command, tmp_path / "run", exit_code=None)
    assert (done.exit_code, done.stdout, done.stderr) == (5, "went on\n", "")
    assert [row.result for row in done.of(tmp_path / "before") if row.result > 0] == [5, 7]
    assert any("sandbox" in part for part in trust(done.trace, [], {}).invisible)


def test_inherited_filter_stops_nothing(tmp_path: Path) -> None:
    script = f"for i in range(300): open({str(tmp_path / 'file')!r}, 'a').write('x')"
    command = [compiled("sandbox_scenes.c"), "container", sys.executable, "-c", script]
    done = record(command, tmp_path / "run")
    assert done.stderr == ""
    assert sum(row.result == 1 for row in done.of(tmp_path / "file")) == 300
    assert done.lost_rows() == 0
