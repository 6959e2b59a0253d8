"""proc: samples of a real program, compared with what the program knows of itself; parsing of kernel texts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from collectors.recorded import Recording, compiled, record
from measurements import Measurements

SCRIPT = """
import json, os, resource, socket, sys, threading, time
from stashtrace import _native
_native.start_drainer()
limit = time.monotonic() + 30
while _native.stats()["rows_count"] < 20 and time.monotonic() < limit:  # there are samples from before the work
    time.sleep(0.01)
path = sys.argv[1]

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))

burner = threading.Thread(target=burn, args=(0.4,))
burner.start()
burner_tid = burner.native_id
with open(path, "wb") as f:
    f.write(os.urandom(4 << 20)); f.flush(); os.fsync(f.fileno())
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
for _ in range(64):
    client.sendall(b"x" * 65536)
    left = 65536
    while left:
        left -= len(peer.recv(left))
time.sleep(0.4)
burner.join()
_native.flush()
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"tid": threading.get_native_id(), "burner": burner_tid, "user_s": usage.ru_utime,
                  "system_s": usage.ru_stime, "switches": usage.ru_nvcsw}))
"""


def counters(recording: Recording) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
    """(name, native id) -> times, values."""
    trace = recording.trace
    tracks = {t["track_id"]: (trace.text(t["name_code"]), t["native_id"]) for t in trace.tracks.rows()}
    table = trace.counters
    return {
        tracks[track]: (table["ts_ns"][table["track_id"] == track], table["value"][table["track_id"] == track])
        for track in np.unique(table["track_id"]).tolist()
    }


def sample(folder: Path) -> tuple[dict, dict]:
    folder.mkdir()
    root = str(Path(__file__).resolve().parents[2])
    recording = record(
        [sys.executable, "-c", SCRIPT, folder / "data"],
        folder / "run",
        collectors=("proc",),
        sample_ms=20,
        env={"PYTHONPATH": root, "LOCAL_RANK": "0", "RANK": "0"},
    )
    return json.loads(recording.stdout), counters(recording)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Measurements[tuple[dict, dict]]:
    return Measurements(sample, tmp_path_factory.mktemp("proc"))


@pytest.fixture(scope="module")
def sampled(samples: Measurements[tuple[dict, dict]]) -> tuple[dict, dict]:
    return samples.first


@pytest.mark.truth
def test_samples_come_at_the_period(samples: Measurements[tuple[dict, dict]]) -> None:
    def often(sampled: tuple[dict, dict]) -> None:
        times, _ = sampled[1]["process_user_ns_total", 0]
        assert len(times) > 15
        # A loaded machine delays ticks, so only the rate is checked, and that every stamp is the real one.
        assert np.all(np.diff(times) > 0)
        assert 10_000_000 < np.median(np.diff(times)) < 100_000_000

    samples.agree(often)


def test_cumulative_counters_never_fall(sampled) -> None:
    _, found = sampled
    totals = {k: v for k, (_, v) in found.items() if k[0].split(".")[0].endswith("_total") and "iowait" not in k[0]}
    assert len(totals) > 20
    assert [k for k, v in totals.items() if np.any(np.diff(v) < 0)] == []


def test_time_stamps_grow(sampled) -> None:
    times, _ = sampled[1]["process_user_ns_total", 0]
    assert len(times) > 1
    assert np.all(np.diff(times) > 0)


def test_threads_and_the_process_are_there(sampled) -> None:
    reported, found = sampled
    assert found["thread_run_ns_total", reported["burner"]][1].max() > 0
    assert ("thread_runqueue_ns_total", reported["tid"]) in found
    assert found["process_user_ns_total", 0][1].max() > 0
    assert 4 << 20 < found["process_resident_bytes", 0][1].max() < 4 << 30


@pytest.mark.truth
def test_threads(samples: Measurements[tuple[dict, dict]]) -> None:
    samples.agree(threads_are_there)


def threads_are_there(sampled: tuple[dict, dict]) -> None:
    reported, found = sampled
    _, burned = found["thread_run_ns_total", reported["burner"]]
    assert 0.2e9 < burned.max() < 0.6e9
    assert ("thread_runqueue_ns_total", reported["tid"]) in found
    assert found["thread_timeslices_count_total", reported["tid"]][1].max() > 1


@pytest.mark.truth
def test_process(samples: Measurements[tuple[dict, dict]]) -> None:
    samples.agree(process_is_there)


def process_is_there(sampled: tuple[dict, dict]) -> None:
    reported, found = sampled
    assert found["process_user_ns_total", 0][1].max() == pytest.approx(reported["user_s"] * 1e9, rel=0.35)
    assert found["process_voluntary_switches_count_total", 0][1].max() <= reported["switches"] + 50
    assert 4 << 20 < found["process_resident_bytes", 0][1].max() < 4 << 30
    if ("process_write_bytes_total", 0) in found:
        assert np.ptp(found["process_write_bytes_total", 0][1]) >= 3 << 20


def test_host(sampled) -> None:
    _, found = sampled
    busy = np.ptp(found["host_user_ns_total", 0][1]) + np.ptp(found["host_system_ns_total", 0][1])
    assert busy >= 0.1e9
    assert found["host_page_cache_bytes", 0][1].min() > 1 << 20
    assert ("host_tcp_retransmits_count_total", 0) in found


def test_network_interfaces(sampled) -> None:
    _, found = sampled
    moved = np.ptp(found["net_receive_bytes_total.lo", 0][1])
    assert moved >= 2 << 20


@pytest.mark.parametrize("environment", [{"LOCAL_RANK": "1", "RANK": "1"}])
def test_only_one_rank_reads_the_host(tmp_path: Path, environment: dict[str, str]) -> None:
    script = "from stashtrace import _native; import time; _native.start_drainer(); time.sleep(0.2)"
    root = str(Path(__file__).resolve().parents[2])
    recording = record(
        [sys.executable, "-c", script],
        tmp_path / "run",
        collectors=("proc",),
        sample_ms=20,
        env={"PYTHONPATH": root, **environment},
    )
    names = {name for name, _ in counters(recording)}
    assert "process_user_ns_total" in names
    assert not [n for n in names if n.startswith(("host_", "net_"))]


@pytest.mark.truth
def test_cost_is_below_one_percent_of_a_core(tmp_path: Path) -> None:
    script = (
        "from stashtrace import _native; import time, threading\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(1.3,)).start()\n"
        "_native.start_drainer(); time.sleep(1.2); print(_native.stats()['drainer_cpu_ns'])"
    )
    root = str(Path(__file__).resolve().parents[2])

    def cheap(recording: Recording) -> None:
        # 20 threads and the whole host at 10 Hz; twice the bar, since neighbours double what anything costs here.
        assert int(recording.stdout) < 0.02 * 1.2e9

    Measurements(
        lambda folder: record(
            [sys.executable, "-c", script], folder, collectors=("proc",), sample_ms=100, env={"PYTHONPATH": root}
        ),
        tmp_path,
    ).agree(cheap)


def test_parsing() -> None:
    done = subprocess.run([compiled_test()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def compiled_test() -> Path:
    return compiled("proc_text_cases.cpp")


STANDS = """
import os, signal, sys, threading, time
from stashtrace import _native
_native.start_drainer()
path, how = sys.argv[1:]

def end():
    time.sleep(7)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=end, daemon=True).start()
if how == "sleep":
    time.sleep(60)
elif how == "read":
    os.mkfifo(path)
    os.read(os.open(path, os.O_RDWR), 1)
elif how == "lock":
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
elif how == "again":
    time.sleep(5)
    while True:
        pass
"""


@pytest.mark.parametrize(("how", "call"), [("sleep", "sleep"), ("read", "read {}"), ("lock", "futex"), ("again", "")])
def test_the_call_that_the_main_thread_stands_in(tmp_path: Path, how: str, call: str) -> None:
    root = str(Path(__file__).resolve().parents[2])
    fifo = tmp_path / "fifo"
    recording = record(
        [sys.executable, "-c", STANDS, fifo, how],
        tmp_path / "run",
        collectors=("proc",),
        env={"PYTHONPATH": root, "RANK": "0"},
        exit_code=-9,
    )
    trace = recording.trace
    rows = trace.metadata["key_code"] == trace.strings.find("stands_in")
    assert [trace.text(code) for code in trace.metadata["value_code"][rows].tolist()] == [call.format(fifo)]
