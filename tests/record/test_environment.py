"""traced_environment: what it adds, what it keeps, what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stashtrace.errors import CaptureError, UsageError
from stashtrace.record.environment import INJECT_PATH, traced_environment, untraced_environment, without_library
from stashtrace.record.options import RecordOptions, default_collectors


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libstashtrace.so"
    path.write_bytes(b"")
    return path


def test_keeps_the_users_values_behind_ours(library: Path) -> None:
    base = {"LD_PRELOAD": "/usr/lib/a.so /usr/lib/b.so", "PYTHONPATH": "/home/user/lib", "HOME": "/home/user"}
    env = traced_environment(base, run_dir="/run/x", run_id="ab", library=library)
    assert env["LD_PRELOAD"] == f"{library}:/usr/lib/a.so:/usr/lib/b.so"
    assert env["PYTHONPATH"] == f"{INJECT_PATH}:/home/user/lib"
    assert env["HOME"] == "/home/user"
    assert base["PYTHONPATH"] == "/home/user/lib", "the caller's mapping must stay as it was"


def test_says_where_and_what_to_record(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(library.parent)
    env = traced_environment(
        {}, RecordOptions(collectors=["waits"], steps="5:"), run_dir="out", run_id="ab12", library=library
    )
    assert env["STASHTRACE_DIR"] == str(library.parent / "out")
    assert env["STASHTRACE_RUN_ID"] == "ab12"
    assert env["STASHTRACE_COLLECTORS"] == "waits"
    assert env["STASHTRACE_STEPS"] == "5:"


@pytest.mark.parametrize("plugin", ["", "/x/libnccl-profiler-other.so"])
def test_what_was_added_can_be_taken_back(library: Path, plugin: str) -> None:
    base = {"LD_PRELOAD": "/usr/lib/a.so", "HOME": "/home/user"} | ({"NCCL_PROFILER_PLUGIN": plugin} if plugin else {})
    traced = traced_environment(base, run_dir="/run/x", run_id="ab", library=library)
    assert traced["NCCL_PROFILER_PLUGIN"] == str(library)
    bare = untraced_environment(traced)
    assert {name: bare.get(name) for name in (*base, "NCCL_PROFILER_PLUGIN")} == {"NCCL_PROFILER_PLUGIN": None, **base}
    assert not any(name.startswith("STASHTRACE_") for name in bare)
    assert untraced_environment(base) == base


def test_preloads_of_others_keep_their_order() -> None:
    kept = without_library({"LD_PRELOAD": "/a/libstashtrace.so:/x/mine.so /a/libstashtrace_lookup.so other.so"})
    assert kept == {"LD_PRELOAD": "/x/mine.so:other.so"}
    assert without_library({"LD_PRELOAD": "/a/libstashtrace.so"}) == {}


def test_what_a_run_records_by_default() -> None:
    assert default_collectors() == (
        "posix_io",
        "waits",
        "proc",
        "cuda",
        "nccl",
        "nvml",
        "python_stacks",
        "torch_dataloader",
        "torch_step",
        "torch_distributed",
        "annotations",
    )


def test_a_recorder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import stashtrace

    monkeypatch.delattr(stashtrace, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "stashtrace._native", None)
    with pytest.raises(CaptureError, match="the recorder cannot be loaded") as error:
        default_collectors.__wrapped__()
    assert "make native" in (error.value.hint or "")


def test_twice_is_once(library: Path) -> None:
    once = traced_environment(
        {}, RecordOptions(steps="1:2", synthetic_batches=2), run_dir="/x", run_id="1", library=library
    )
    assert once["STASHTRACE_SYNTHETIC"] == "2"
    twice = traced_environment(once, run_dir="/y", run_id="2", library=library)
    assert twice["LD_PRELOAD"] == str(library)
    assert twice["PYTHONPATH"] == str(INJECT_PATH)
    assert "STASHTRACE_STEPS" not in twice, "a nested run must not inherit the outer window"
    assert "STASHTRACE_SYNTHETIC" not in twice
    assert twice["STASHTRACE_COLLECTORS"].split(",") == list(default_collectors())


def test_options_override_only_when_given(library: Path) -> None:
    base = {"STASHTRACE_LOG": "debug", "STASHTRACE_SAMPLE_MS": "50"}
    env = traced_environment(base, RecordOptions(sample_ms=10), run_dir="/x", run_id="1", library=library)
    assert (env["STASHTRACE_LOG"], env["STASHTRACE_SAMPLE_MS"]) == ("debug", "10")


@pytest.mark.parametrize("steps", ["5", "b:a", "7:3", "-1:4"])
def test_refuses_a_range_that_is_none(library: Path, steps: str) -> None:
    with pytest.raises(UsageError):
        traced_environment({}, RecordOptions(steps=steps), run_dir="/x", run_id="1", library=library)


def test_refuses_unknown_collectors_and_missing_libraries(library: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cupti"):
        traced_environment({}, RecordOptions(collectors=["cupti"]), run_dir="/x", run_id="1", library=library)
    with pytest.raises(CaptureError):
        traced_environment({}, run_dir="/x", run_id="1", library=tmp_path / "missing.so")


def test_deep_mode_is_off_unless_asked_for_and_not_inherited(library: Path) -> None:
    plain = traced_environment({}, run_dir="/x", run_id="1", library=library)
    assert "cupti" not in plain["STASHTRACE_COLLECTORS"].split(",")
    assert "STASHTRACE_KERNELS" not in plain
    deep = traced_environment(
        plain, RecordOptions(kernels=True, collectors=["waits"]), run_dir="/x", run_id="1", library=library
    )
    assert deep["STASHTRACE_COLLECTORS"] == "waits,cupti"
    assert (deep["STASHTRACE_KERNELS"], deep["STASHTRACE_KERNELS_STEPS"]) == ("1", "10:13")
    window = traced_environment({}, RecordOptions(kernels_steps="3:5"), run_dir="/x", run_id="1", library=library)
    assert window["STASHTRACE_KERNELS_STEPS"] == "3:5"
    again = traced_environment(deep, run_dir="/x", run_id="1", library=library)
    assert "STASHTRACE_KERNELS" not in again
    with pytest.raises(UsageError, match="range"):
        traced_environment({}, RecordOptions(kernels_steps="5"), run_dir="/x", run_id="1", library=library)
