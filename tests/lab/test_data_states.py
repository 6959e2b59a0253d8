"""Whether a warm data set stayed so, by what the kernel says of files on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from stashtrace.lab.characterize import five_configurations
from stashtrace.lab.characterize.answer import RunInvalidError
from stashtrace.lab.characterize.five_configurations import KEPT_RATIO, DataStates
from stashtrace.lab.job_files import file_set
from stashtrace.lab.page_cache import COLD, WARM, CacheState


@pytest.fixture
def states(tmp_path: Path) -> DataStates:
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * 8192)
    files = file_set([tmp_path])
    return DataStates(files, files, drop_caches=False)


def found(monkeypatch: pytest.MonkeyPatch, state: CacheState, share: float) -> None:
    now = CacheState(state.state, state.method, state.files, share, False, "cachestat", (), "")
    monkeypatch.setattr(five_configurations, "check", lambda _: now)


def test_a_little_may_be_taken_back(states: DataStates, monkeypatch: pytest.MonkeyPatch) -> None:
    state = states.prepare(WARM)
    assert state.verified
    states.require_still_warm(state)
    found(monkeypatch, state, KEPT_RATIO)
    states.require_still_warm(state)
    found(monkeypatch, state, 0.9)
    with pytest.raises(RunInvalidError) as raised:
        states.require_still_warm(state)
    assert str(raised.value) == ("the data set did not stay in memory: after the run cachestat finds 90 % resident")
    found(monkeypatch, state, float("nan"))
    with pytest.raises(RunInvalidError):  # what nothing shows is not a warm data set
        states.require_still_warm(state)


def test_a_cold_data_set_is_read_into_memory(states: DataStates, monkeypatch: pytest.MonkeyPatch) -> None:
    state = states.prepare(COLD)
    found(monkeypatch, state, 1.0)
    states.require_still_warm(state)


def test_data_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    monkeypatch.setattr(five_configurations, "memory_room", lambda: 10_000)
    states = DataStates(file_set([tmp_path]), file_set([tmp_path / "a"]), drop_caches=False)
    assert states.prepare(WARM).files.bytes == 8192
    assert states.notes == [
        "the data set (16.4 KB) does not fit into the 10.0 KB of memory that are free for it:"
        " configuration 4 has the 8.19 KB in memory that the job was seen to read"
    ]
