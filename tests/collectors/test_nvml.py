"""nvml: devices of a scripted machine, sampled in real programs; faults on every call; who samples, who must not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from collectors.nvml_doubles import ROOT, USES_DEVICE, Sampled, calls, doubles, sample, uuid
from collectors.recorded import NATIVE, compiled
from contract.real_interfaces import nvml_headers
from measurements import Measurements

from stashtrace.collectors.nvml import unit_of
from stashtrace.schema.kinds import Severity

RATES = "nvlink_tx 25GB\nnvlink_rx 20GB\npcie_tx 2GB\npcie_rx 3GB\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Measurements[tuple[Sampled, Path]]:
    # CUDA shows device 1 alone, as its device 0; NVML lists both, the other way round.
    script = RATES + "devices 2\nnvml_order reversed\npcie_bits 32\npower 412W\nthrottle 4\n"
    shown = {"CUDA_VISIBLE_DEVICES": "1"}
    return Measurements(
        lambda folder: (sample(folder, script, arguments=("2",), env=shown), folder), tmp_path_factory.mktemp("plain")
    )


@pytest.fixture(scope="module")
def plain(runs: Measurements[tuple[Sampled, Path]]) -> tuple[Sampled, Path]:
    return runs.first


@pytest.mark.truth
def test_rates_are_those_of_the_machine(runs) -> None:
    runs.agree(rates_are_those_of_the_machine)


def rates_are_those_of_the_machine(plain) -> None:
    sampled, _ = plain
    assert sampled.rate("nvlink_transmit_bytes_total", 1) == pytest.approx(25e9, rel=1e-3)
    assert sampled.rate("nvlink_receive_bytes_total", 1) == pytest.approx(20e9, rel=1e-3)
    # 32 bits wrap every 2.1 s at 2 GB/s, and every 1.4 s at 3.
    assert sampled.rate("pcie_transmit_bytes_total", 1) == pytest.approx(2e9, rel=1e-3)
    assert sampled.rate("pcie_receive_bytes_total", 1) == pytest.approx(3e9, rel=1e-3)
    assert sampled.rate("energy_joules_total", 1) == pytest.approx(412, rel=0.01)


def test_every_time_stamp_belongs_to_its_reading(plain) -> None:
    sampled, folder = plain
    ts, _ = sampled.series("nvlink_transmit_bytes_total", 1)
    assert np.all(np.diff(ts) > 0)
    # No answer is lost, but for the very last ones that a process may end in.
    assert 0 <= calls(folder)["nvmlDeviceGetFieldValues"] - len(ts) <= 2


@pytest.mark.truth
def test_a_time_stamp_is_the_moment_of_the_reading(runs) -> None:
    def right(plain: tuple[Sampled, Path]) -> None:
        assert late_ns(plain[0], device=1) < 50_000

    runs.agree(right)


@pytest.mark.truth
def test_a_slow_answer_is_stamped_when_it_was_read(tmp_path: Path) -> None:
    def right(sampled: Sampled) -> None:
        # The double reads its counters at the end of a call, so that the middle of the call is 20 ms too early.
        assert late_ns(sampled) < 1_000_000

    Measurements(lambda folder: sample(folder, RATES + "delay nvmlDeviceGetFieldValues 40ms\n"), tmp_path).agree(right)


def late_ns(sampled: Sampled, device: int = 0) -> float:
    """How far time stamps are from the moment at which the double read; a neighbour may come between a few of them."""
    ts, value = sampled.series("nvlink_transmit_bytes_total", device)
    read_ns = value / 25e9 * 1e9  # of CLOCK_MONOTONIC, from which the double computes
    trace = sampled.recording.trace
    origins = {trace.text(row["key_code"]): trace.text(row["value_code"]) for row in trace.metadata.rows()}
    return float(np.quantile(np.abs(ts + int(origins["origin_monotonic_ns"]) - read_ns), 0.9))


def test_plain_quantities_have_their_units(plain) -> None:
    sampled, _ = plain
    for quantity, wanted in {
        "power_watts": 412,
        "sm_clock_hz": 1980e6,
        "memory_clock_hz": 2619e6,
        "temperature_celsius": 55,
        "memory_used_bytes": 10e9,
        "busy_ratio": 0.9,
        "throttle_reasons_code": 4,
        "memory_celsius": 65,
        "sm_active_ratio": 0.8,
        "sm_occupancy_ratio": 0.4,
        "tensor_active_ratio": 0.3,
        "dram_active_ratio": 0.5,
        "gpm_nvlink_transmit_bytes_per_s": 25e9,
        "gpm_pcie_receive_bytes_per_s": 3e9,
    }.items():
        _, value = sampled.series(quantity, 1)
        assert value[0] == pytest.approx(wanted), quantity
        # What does not change is written once a second, not ten times.
        assert len(value) <= 4, quantity


def test_only_the_device_in_use_is_sampled_and_matched_by_uuid(plain) -> None:
    sampled, _ = plain
    assert len(sampled.series("power_watts", 1)[0]) > 0
    assert len(sampled.series("power_watts", 0)[0]) == 0


@pytest.mark.truth
def test_steady_calls_are_made_ten_times_a_second_and_gpm_five(runs) -> None:
    runs.agree(steady_calls_are_made)


def steady_calls_are_made(plain) -> None:
    sampled, folder = plain
    made = calls(folder)
    ts, _ = sampled.series("nvlink_transmit_bytes_total", 1)
    # A busy machine makes rounds late and leaves some out, so others are counted by the rounds that there were.
    assert np.quantile(np.diff(ts), 0.1) < 15e6
    assert len(ts) <= (ts[-1] - ts[0]) / 10e6 + 2
    for function, period_ns in {"nvmlDeviceGetPowerUsage": 98e6, "nvmlGpmSampleGet": 200e6}.items():
        assert made[function] == pytest.approx(rounds(ts, period_ns), rel=0.1, abs=1), function
    assert made["nvmlDeviceGetHandleByIndex_v2"] <= 2


def rounds(ts: np.ndarray, period_ns: float) -> int:
    """How many of the moments are the first so long after the one before."""
    count, due_ns = 0, 0.0
    for moment_ns in ts:
        if moment_ns >= due_ns:
            count, due_ns = count + 1, moment_ns + period_ns
    return count


def test_a_narrow_counter_is_reported(plain) -> None:
    sampled, _ = plain
    assert [(name, severity) for name, severity, _ in sampled.losses()] == [("narrow_counter", Severity.INFO)]


def test_what_is_not_offered_is_reported_once_and_not_asked_again(tmp_path: Path) -> None:
    script = RATES + "devices 1\nunsupported 38 197\ngpm 0\nfail nvmlDeviceGetPowerUsage 3\n"
    sampled = sample(tmp_path, script)
    reported = sorted(advice.split()[0] for name, _, advice in sampled.losses() if name == "counter_not_offered")
    assert reported == ["gpm", "nvlink_crc_flit_errors_count_total", "pcie_transmit_bytes_total", "power_watts"]
    assert {severity for _, severity, _ in sampled.losses()} == {Severity.INFO}
    assert calls(tmp_path)["nvmlDeviceGetPowerUsage"] == 1
    assert {"pcie_transmit_bytes_total", "power_watts"}.isdisjoint(sampled.names())
    # What one counter of the links lacks is not what their bytes lack.
    assert sampled.rate("nvlink_transmit_bytes_total") == pytest.approx(25e9, rel=1e-2)
    assert sampled.rate("pcie_receive_bytes_total") == pytest.approx(3e9, rel=1e-2)


FUNCTIONS = (
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_call_that_fails_costs_its_quantity_and_nothing_else(tmp_path: Path, function: str) -> None:
    sampled = sample(tmp_path, RATES + f"fail {function} 999\n", arguments=("0.5",))
    losses = sampled.losses()
    assert losses
    assert all(severity == Severity.INFO for _, severity, _ in losses)
    # Never asked again: once per value it stands for, and identifying a device is not repeated either.
    assert 1 <= calls(tmp_path)[function] <= 2
    no_device = ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID")
    if function in no_device:
        assert sampled.names() == set()
    elif function == "nvmlDeviceGetFieldValues":
        assert "power_watts" in sampled.names()
        assert "pcie_receive_bytes_total" not in sampled.names()
    else:
        assert "nvlink_receive_bytes_total" in sampled.names()


def test_a_device_that_falls_off_the_bus_is_left_alone(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "fail nvmlDeviceGetFieldValues 15 after 10\n")
    assert ("device_lost", Severity.ERROR, uuid(0)) in sampled.losses()
    assert calls(tmp_path)["nvmlDeviceGetFieldValues"] == 11


def test_without_nvml_the_job_runs_on(tmp_path: Path) -> None:
    sampled = sample(tmp_path, "", nvml=False, arguments=("0.3",))
    assert [name for name, _, _ in sampled.losses()] == ["no_nvml"]


def test_without_a_driver_nothing_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom stashtrace import _native\n_native.start_drainer()\ntime.sleep(0.3)\n"
        "print('nvidia' in open('/proc/self/maps').read())"
    )
    sampled = sample(tmp_path, "", program=program)
    assert sampled.recording.stdout == "False\n"
    assert sampled.losses() == []
    assert sampled.names() == set()
    assert calls(tmp_path) == {}


def test_nothing_is_sampled_before_the_job_initialises_cuda(tmp_path: Path) -> None:
    program = USES_DEVICE.replace("cuda.cuInit(0)\ncuda.use_device(0)\n", "")
    sampled = sample(tmp_path, RATES, program=program)
    assert sampled.names() == set()
    assert calls(tmp_path).get("nvmlDeviceGetFieldValues", 0) == 0


def test_zero_hertz_is_off(tmp_path: Path) -> None:
    assert sample(tmp_path, RATES, hz=0, arguments=("0.3",)).names() == set()
    assert calls(tmp_path) == {}


TWO_PROCESSES = """
import os, subprocess, sys
program = os.environ["PROGRAM"]
first = subprocess.Popen([sys.executable, "-c", program, "1.5"])
second = subprocess.Popen([sys.executable, "-c", program, "5"])
print(first.pid, second.pid)
assert first.wait() == 0 and second.wait() == 0
"""


def test_one_process_samples_a_device_and_another_takes_over(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES, program=TWO_PROCESSES, env={"PROGRAM": USES_DEVICE})
    trace = sampled.recording.trace
    tracks = [t for t in trace.tracks.rows() if trace.text(t["name_code"]).startswith("gpu_nvlink_transmit")]
    spans = []
    for track in tracks:
        ts = trace.counters["ts_ns"][trace.counters["track_id"] == track["track_id"]]
        spans.append((int(ts.min()), int(ts.max())))
    assert len({t["process_id"] for t in tracks}) == len(tracks) in (1, 2)
    for (_, end), (begin, _) in zip(sorted(spans)[:-1], sorted(spans)[1:], strict=True):
        assert begin > end
    assert max(end for _, end in spans) - min(begin for begin, _ in spans) > 3e9


FORKS = """
import os, sys, time
exec(os.environ["PROGRAM"])
child = os.fork()
if child == 0:
    _native.start_drainer()
    time.sleep(0.6)
    print("child", os.listdir("/proc/self/task").__len__(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.3)
"""


def test_a_forked_child_neither_samples_nor_stops_its_parent(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES, program=FORKS, arguments=("0.3",), env={"PROGRAM": USES_DEVICE})
    trace = sampled.recording.trace
    owners = {t["process_id"] for t in trace.tracks.rows() if trace.text(t["name_code"]).startswith("gpu_")}
    assert len(owners) == 1
    ts, _ = sampled.series("nvlink_transmit_bytes_total")
    assert ts[-1] - ts[0] > 0.8e9
    assert sampled.recording.stdout == "child 2\n"


FORKS_AT_ONCE = """
cuda.fork_from_threads(4, 100)
print(time.monotonic(), flush=True)
time.sleep(0.5)
"""


def test_threads_that_fork_at_once_do_not_stop_the_sampling(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES, program=USES_DEVICE + FORKS_AT_ONCE, arguments=("0.3",))
    _, value = sampled.series("nvlink_transmit_bytes_total")
    # The double counts from the start of CLOCK_MONOTONIC.
    assert value[-1] / 25e9 > float(sampled.recording.stdout) + 0.25


def test_a_library_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "delay nvmlDeviceGetFieldValues 300s\n", arguments=("0.5",), timeout_s=100)
    assert sampled.recording.exit_code == 0


def test_links_one_by_one_on_request(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "links 4\n", arguments=("1.5",), env={"STASHTRACE_NVML_LINKS": "1"})
    for link in range(4):
        assert sampled.rate("nvlink_transmit_bytes_total", 0, link) == pytest.approx(25e9 / 4, rel=1e-2)
    assert len(sampled.series("nvlink_transmit_bytes_total", 0, 4)[0]) == 0
    assert sampled.losses() == []


@pytest.mark.parametrize("code", [3, 2, 4, 999])  # not supported, invalid argument, no permission, unknown
def test_nvlink_5_is_counted_by_link(tmp_path: Path, code: int) -> None:
    script = f"{RATES}links 36\nnvlink5 1\nrefused 138:{code} 139:{code}\n"
    sampled = sample(tmp_path, script, arguments=("1.5",))
    assert len(sampled.series("nvlink_transmit_bytes_total")[0]) == 0
    for link in (0, 17, 18, 35):
        assert sampled.rate("nvlink_transmit_bytes_total", 0, link) == pytest.approx(25e9 / 36, rel=1e-2)
    assert sampled.losses() == [], "nothing is missing"


def test_nvlink_5_is_counted_by_link_though_other_fields_are_refused(tmp_path: Path) -> None:
    script = f"{RATES}links 4\nnvlink5 1\nrefused 138:3 139:3\nunsupported 45 52 59\n"  # errors of links
    sampled = sample(tmp_path, script, arguments=("1.5",))
    for quantity, rate in (("nvlink_transmit_bytes_total", 25e9), ("nvlink_receive_bytes_total", 20e9)):
        for link in range(4):
            assert sampled.rate(quantity, 0, link) == pytest.approx(rate / 4, rel=1e-2)


TWO_DEVICES = USES_DEVICE.replace("time.sleep", "time.sleep(0.5)\ncuda.use_device(1)\ntime.sleep")


def test_nvlink_5_of_a_device_that_is_used_later(tmp_path: Path) -> None:
    """Its first sample may ask for the sums alone, which are refused before single links are."""
    script = f"{RATES}devices 2\nlinks 36\nnvlink5 1\nrefused 138:3 139:3\n"
    env = {"STASHTRACE_NVML_LINKS": "1", "SMALL_CUDA_DEVICES": "2"}
    sampled = sample(tmp_path, script, program=TWO_DEVICES, arguments=("4",), env=env)
    for device in (0, 1):
        assert sampled.rate("nvlink_transmit_bytes_total", device, 35) == pytest.approx(25e9 / 36, rel=1e-2)
    assert sampled.losses() == [], "nothing is missing"


def test_bytes_over_nvlink_that_are_counted_in_no_way_are_reported(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "refused 138:999 139:3\n", arguments=("0.5",))
    reported = {(name, advice.split()[0]) for name, _, advice in sampled.losses()}
    assert reported == {
        ("counter_failed", "nvlink_transmit_bytes_total"),
        ("counter_not_offered", "nvlink_receive_bytes_total"),
    }


@pytest.mark.truth
def test_cost_is_below_one_percent_of_a_core(tmp_path: Path) -> None:
    def cheap(sampled: Sampled) -> None:
        ts, cpu_ns = sampled.named("nvml_sampler_cpu_ns_total")
        # At 100 Hz, the double's work included. Twice the bar, since neighbours double what anything costs here.
        assert cpu_ns[-1] - cpu_ns[0] < 0.02 * (ts[-1] - ts[0])

    Measurements(lambda folder: sample(folder, RATES, arguments=("2.5",)), tmp_path).agree(cheap)


def test_wraps_thinning_and_rdma_ports(tmp_path: Path) -> None:
    for name, number in {
        "mlx5_0/ports/1/counters/port_xmit_data": "1000",
        "mlx5_0/ports/1/counters/port_rcv_data": "2000",
        "efa_0/ports/1/hw_counters/tx_bytes": "70",
        "efa_0/ports/1/hw_counters/rx_bytes": "80",
        "mlx4_9/ports/1/counters/port_xmit_data": "N/A (no PMA)",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(number + "\n", encoding="utf-8")
    done = subprocess.run([compiled("nvml_cases.cpp"), tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_lock_file_is_not_opened_through_a_link(tmp_path: Path) -> None:
    """In a run directory that others may write to, it could lead to any file of the job's user."""
    link = tmp_path / "run" / f"{os.uname().nodename}.nvml.lock"
    linking = ["sh", "-c", 'ln -s "$0" "$1" && shift && exec "$@"', tmp_path / "elsewhere", link]
    sampled = sample(tmp_path, RATES, prefix=[str(word) for word in linking])
    assert link.is_symlink()
    assert not (tmp_path / "elsewhere").exists()
    assert len(sampled.series("nvlink_transmit_bytes_total", 0)[0]) > 0, "devices are sampled without a lock too"


def test_numbers_are_those_of_the_real_header() -> None:
    folders = nvml_headers()
    if not folders:
        pytest.skip("no nvml.h: install nvidia-nvml-dev, or name its folder in STASHTRACE_NVML_INCLUDE")
    doubles()  # skips without a compiler
    for folder in folders:
        command = ["g++", "-std=c++20", "-w", "-fsyntax-only", "-I", ROOT / "csrc", "-I", folder]
        done = subprocess.run([*command, NATIVE / "nvml_header.cpp"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{folder}\n{done.stderr}"


def test_values_of_any_type_are_read(tmp_path: Path) -> None:
    # Numbers of NVML_FI_DEV_*: PCIe bytes, energy, memory temperature, NVLink bytes.
    script = (
        "nvlink_tx 1GB\npcie_tx 2GB\npcie_rx 3MB\npower 250W\nlinks 4\n"
        "typed 197:double 198:long 83:double 82:int 139:double\n"
    )
    sampled = sample(tmp_path, script, arguments=("1.5",))
    assert sampled.rate("pcie_transmit_bytes_total") == pytest.approx(2e9, rel=1e-2)
    assert sampled.rate("pcie_receive_bytes_total") == pytest.approx(3e6, rel=1e-2)
    assert sampled.rate("energy_joules_total") == pytest.approx(250, rel=0.02)
    assert set(sampled.series("memory_celsius")[1]) == {65}
    for kind in ("double", "long", "short"):
        folder = tmp_path / kind
        folder.mkdir()
        assert set(sample(folder, f"typed 82:{kind}\n", arguments=("0.8",)).series("memory_celsius")[1]) == {65}


def test_a_counter_of_sixteen_bits_wraps(tmp_path: Path) -> None:
    # Every 0.65 s: a sample may be late.
    sampled = sample(tmp_path, "pcie_rx 100KB\ntyped 198:short\n", arguments=("1.5",))
    assert sampled.rate("pcie_receive_bytes_total") == pytest.approx(1e5, rel=2e-2)


def test_a_counter_that_begins_again_is_reported_and_goes_on(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "reset 500ms\n", arguments=("1.5",))
    ts, value = sampled.series("pcie_transmit_bytes_total")
    assert np.all(np.diff(value) >= 0)
    assert value[-1] - value[0] == pytest.approx(2 * (ts[-1] - ts[0]), rel=0.2)
    assert [(name, severity) for name, severity, _ in sampled.losses()] == [("counter_fell", Severity.INFO)]


#: What the oldest libnvidia-ml that there is does without, and what then cannot be known.
OLD = {
    "nvmlInitWithFlags": None,
    "nvmlDeviceGetCurrentClocksEventReasons": None,
    "nvmlDeviceGetFieldValues": "pcie_",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetClockInfo": "sm_clock",
    "nvmlGpmMetricsGet": "gpm",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetMemoryInfo": "memory_used",
    "nvmlDeviceGetUtilizationRates": "busy",
}


def test_an_old_library_reports_what_it_has(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "throttle 4\n", arguments=("0.5",), missing=list(OLD))
    assert sampled.names() == {"throttle_reasons_code"}
    assert sampled.series("throttle_reasons_code")[1][0] == 4
    reported = {advice for name, _, advice in sampled.losses() if name == "counter_not_offered"}
    for quantity in filter(None, OLD.values()):
        assert any(advice.startswith(quantity) for advice in reported), quantity
    assert calls(tmp_path)["nvmlInit_v2"] == 1


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (["nvmlInitWithFlags", "nvmlInit_v2"], "nvml_init_failed"),
        (["nvmlDeviceGetUUID"], "device_unknown"),
        (["cuDeviceGetUuid"], "driver_too_old"),
    ],
)
def test_without_a_function_that_is_needed_the_job_runs_on(tmp_path: Path, missing: list[str], reason: str) -> None:
    sampled = sample(tmp_path, RATES, arguments=("0.5",), missing=missing)
    assert [name for name, _, _ in sampled.losses()] == [reason]
    assert sampled.names() == set()


def test_a_device_that_nvml_does_not_list_is_reported_once(tmp_path: Path) -> None:
    sampled = sample(tmp_path, RATES + "uuid GPU-of-another-machine\n", arguments=("2.5",))
    assert [name for name, _, _ in sampled.losses()] == ["device_unknown"]
    assert sampled.names() == set()


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_device_is_lost_in_any_call(tmp_path: Path, function: str) -> None:
    sampled = sample(tmp_path, RATES + f"fail {function} 15 after 2\n", arguments=("1.5",))
    assert ("device_lost", Severity.ERROR, uuid(0)) in sampled.losses()
    assert calls(tmp_path)[function] == 3


@pytest.mark.root
def test_rdma_ports_of_a_host_are_sampled_by_one_process(tmp_path: Path) -> None:
    ports = tmp_path / "class/infiniband/mlx5_0/ports/1/counters"
    ports.mkdir(parents=True)
    for name, words in (("port_xmit_data", 1000), ("port_rcv_data", 2000)):
        (ports / name).write_text(f"{words}\n", encoding="utf-8")
    shown = f'mount --bind {tmp_path / "class"} /sys/class && exec "$@"'
    private = ("unshare", "-m", "sh", "-c", shown, "sh")
    if subprocess.run([*private, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and mount namespaces")
    program = USES_DEVICE.replace("time.sleep(float(sys.argv[1]))", GROWS)
    sampled = sample(tmp_path, RATES, program=program, arguments=(str(ports),), prefix=private)
    _, sent = sampled.named("rdma_transmit_bytes_total.mlx5_0:1")
    _, received = sampled.named("rdma_receive_bytes_total.mlx5_0:1")
    assert (sent[0], sent[-1]) == (4000, 4 * 501_000)
    assert set(received) == {8000}


GROWS = """
time.sleep(0.4)
for words in (1000, 501000):
    open(sys.argv[1] + "/port_xmit_data", "w").write(f"{words}\\n")
    time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("nvlink_transmit_bytes_total", "bytes"),
        ("gpm_pcie_receive_bytes_per_s", "bytes/s"),
        ("power_watts", "watts"),
        ("energy_joules_total", "joules"),
        ("throttle_reasons_code", ""),
        ("rdma_transmit_bytes_total.mlx5_0:1", "bytes"),
        ("ecc_corrected_count_total", "count"),
        ("strange", ""),
    ],
)
def test_the_unit_ends_the_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit
