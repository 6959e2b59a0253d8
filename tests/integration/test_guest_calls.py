"""`stashtrace._native` inside a traced process: clocks of the thread, roles, steps that are not recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from stashtrace import _native
from stashtrace.format.reader import open_run
from stashtrace.record.environment import LIBRARY_PATH, preload_path

SCRIPT = """
    import json, os, struct, threading, time
    from stashtrace import _native as native

    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def span(value):
        return native.emit(0x10, struct.pack("<QQQqIHH", native.now_ticks(), native.now_ticks(), 0, value, 0, 0, 0))

    def group():
        return native.emit(0x53, struct.pack("<QQIIIiiI", native.now_ticks(), 1, 0, 0, 0, 0, 1, 0))

    def kernel_says():
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])

    out = {"active": native.active(), "config": native.config()}
    out["before"], out["stamp"], out["after"] = kernel_says(), native.stamp(), kernel_says()
    here = descriptors()
    for _ in range(20):
        thread = threading.Thread(target=lambda: (native.stamp(), span(-1)))
        thread.start()
        thread.join()
    # Python has joined them, the kernel may not have: the last ones are still leaving, with what they hold open.
    limit = time.monotonic() + 30
    while descriptors() - here > 2 and time.monotonic() < limit:
        time.sleep(0.01)
    out["new_descriptors"] = descriptors() - here
    native.set_thread_role(1, "step thread")
    kept = [span(1)]
    native.set_recording(False)
    kept += [span(2), group(), native.recording()]
    native.set_recording(True)
    kept += [span(3), native.recording()]
    out["kept"] = kept
    native.report_loss(1, "test_reason", 5, "a sentence", 1)
    try:
        native.emit(0x10, b"short")
    except ValueError:
        out["refused"] = True
    pid = os.fork()
    if pid == 0:
        # Threads of the parent and of the child have other figures: the child's must lie between two of its own.
        before, own, after = kernel_says(), native.stamp()[2], kernel_says()
        os._exit(0 if before <= own <= after and native.recording() else 1)
    out["child"] = os.waitpid(pid, 0)[1]
    os.closerange(3, 5000)
    out["blind"] = native.stamp()[2] >= out["stamp"][2]
    out["flushed"] = native.flush()
    out["stats"] = native.stats()
    print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("guest")
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    (folder / "run").mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")} | {
        "LD_PRELOAD": preload_path(LIBRARY_PATH),
        "PYTHONPATH": str(Path(_native.__file__).resolve().parents[1]),
        "STASHTRACE_DIR": str(folder / "run"),
        "STASHTRACE_COLLECTORS": "annotations",
        "STASHTRACE_STEPS": "5:10",
        "RANK": "1",
        "PET_RDZV_ID": 'odd "name" \udcff',
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout), folder / "run"


def test_configuration(guest: tuple[dict[str, Any], Path]) -> None:
    out, run = guest
    assert out["active"] is True
    assert out["config"]["dir"] == str(run)
    assert out["config"]["steps"] == "5:10"
    assert out["config"]["collectors"] == ["core", "annotations"]


def test_clocks_of_the_thread(guest: tuple[dict[str, Any], Path]) -> None:
    out, _ = guest
    ticks, cpu_ns, runqueue_ns = out["stamp"]
    assert ticks > 0
    assert cpu_ns > 0
    assert out["before"] <= runqueue_ns <= out["after"]
    assert out["child"] == 0
    assert out["blind"] is True  # after somebody closed every descriptor
    assert out["new_descriptors"] <= 2, "the recorder's files; the 20 threads took theirs with them"


def test_steps_that_are_not_recorded(guest: tuple[dict[str, Any], Path]) -> None:
    out, _ = guest
    assert out["kept"] == [True, False, True, False, True, True]  # a group gives other rows their meaning
    assert out["refused"] is True


def test_what_is_in_the_file(guest: tuple[dict[str, Any], Path]) -> None:
    out, run = guest
    assert out["flushed"] is True
    assert out["stats"]["rows_count"] >= out["stats"]["written_rows_count"] > 0
    process = next(p.load() for p in open_run(run).processes if "span" in p.load(["span"]).records)
    assert sorted(process.records["span"].rows["value"].tolist()) == [-1] * 20 + [1, 3]
    roles = process.records["thread_info"].rows
    assert "step thread" in {process.strings[int(row["name_id"])] for row in roles if row["role_code"] == 1}
    loss = process.records["loss"].rows[0]
    assert (process.strings[int(loss["reason_id"])], int(loss["lost_count"])) == ("test_reason", 5)
    assert process.strings[int(loss["detail_id"])] == "a sentence"
    assert process.metadata["env"]["RANK"] == "1"
    assert process.metadata["env"]["PET_RDZV_ID"] == 'odd "name" \udcff'
    assert process.metadata["tick_hz"] > 0


def test_not_traced() -> None:
    assert _native.active() is False
    assert _native.recording() is False
    assert _native.intern("text") == 0
    assert _native.emit(0x10, bytes(40)) is False
    assert _native.start_drainer() is False
    assert _native.flush() is True
    assert _native.stats()["incarnation"] == -1
    assert _native.stamp()[1] > 0
    assert _native.clock_name() in ("tsc", "cntvct", "monotonic")


def test_version_is_that_of_the_package() -> None:
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    assert f'version = "{_native.__version__}"' in pyproject.read_text(encoding="utf-8")
