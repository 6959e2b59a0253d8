"""Real NCCL between two ranks that share one device: late ranks and a shaped link must land in their kinds.

NCCL refuses two ranks on a device unless each believes it is on a separate host; then everything goes over its socket
transport on loopback. A rig for truth, not for speed: the ranks take turns on the device.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from installed import needs_gpu

import stashtrace
from stashtrace.schema.kinds import CollectiveOp

pytestmark = [*needs_gpu(), pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
SOCKETS_ONLY = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_PROTO": "Simple",
}
#: Of the step: the ranks take turns on the device in slices of some 2 ms.
TOLERANCE_RATIO = 0.1


def run(
    out: Path,
    *workload: str,
    options: tuple[str, ...] = (),
    prefix: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> stashtrace.Trace:
    """The small GPT on both ranks under the tracer."""
    script = [sys.executable, str(ROOT / "benchmarks/gpu/workloads.py"), "gpt", "--tiny", "--workers", "1"]
    words = shlex.join([*script, "--steps", str(STEPS), *workload])
    rank = ["sh", "-c", f"NCCL_HOSTID=rank$RANK LOCAL_RANK=0 exec {words}"]
    command = [
        *(*prefix, sys.executable, "-m", "stashtrace", "run", "--out", str(out), *options, "--", sys.executable),
        *(str(ROOT / "tests/ground_truth/launch_ranks.py"), "--", *rank),
    ]
    variables = dict(os.environ, PYTHONPATH=str(ROOT), **SOCKETS_ONLY, **(environment or {}))
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return stashtrace.load(out)


def mean_ns(trace: stashtrace.Trace, rank: int, kind: str) -> float:
    """Mean time of a kind per counted step of a rank."""
    table = stashtrace.analyze(trace, "stalls", by="rank")
    rows = (table["rank"] == rank) & (table["kind"] == kind)
    return float((table["stall_ns"][rows] / table["steps_count"][rows]).sum())


@pytest.mark.parametrize("source", ["events", "plugin"])
def test_collectives_are_timed_and_matched(tmp_path: Path, source: str) -> None:
    trace = run(tmp_path / "run", options=("--nccl-source", source))
    reduces = trace.collectives.take(trace.collectives["op_code"] == CollectiveOp.ALL_REDUCE)
    counts = [int(np.count_nonzero(reduces["rank"] == rank)) for rank in (0, 1)]
    assert counts[0] == counts[1] > STEPS
    timed = reduces["device_end_ns"] > reduces["device_begin_ns"]
    assert timed.mean() > 0.95
    # Nobody ends before everybody has entered, within the error of the devices' clocks.
    error_ns = 2 * int(trace.device_clocks["error_ns"].max()) + 1000
    group_of = reduces["group_hash"].astype(np.int64)
    for group, sequence in np.unique(np.stack([group_of, reduces["sequence"]]), axis=1).T.tolist():
        both = reduces.take((group_of == group) & (reduces["sequence"] == sequence) & timed)
        if len(both) == 2:
            assert both["device_end_ns"].min() >= both["device_begin_ns"].max() - error_ns


def test_a_late_rank_is_straggler_time_of_the_other(tmp_path: Path) -> None:
    bare = run(tmp_path / "bare")
    late = run(tmp_path / "late", "--late-ms 30")
    grown = mean_ns(late, 0, "straggler") - mean_ns(bare, 0, "straggler")
    assert grown == pytest.approx(30e6, rel=TOLERANCE_RATIO)


@pytest.mark.root
def test_a_slow_link_is_network_time(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("tc") or not shutil.which("unshare"):
        pytest.skip("needs root, tc and unshare")
    shape = "ip link set lo up && tc qdisc add dev lo root tbf rate 200mbit burst 128kb latency 100ms"
    probe = subprocess.run(["unshare", "-n", "sh", "-c", shape], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"loopback cannot be shaped: {probe.stderr.strip()}")
    bare = run(tmp_path / "bare")
    slow = run(tmp_path / "slow", prefix=("unshare", "-n", "sh", "-c", f'{shape} && exec "$@"', "sh"))
    steps = stashtrace.analyze(slow, "steps").take(stashtrace.analyze(slow, "steps")["rank"] == 0)
    before = stashtrace.analyze(bare, "steps").take(stashtrace.analyze(bare, "steps")["rank"] == 0)
    grown = float(np.median(steps["end_ns"] - steps["begin_ns"]) - np.median(before["end_ns"] - before["begin_ns"]))
    network = mean_ns(slow, 0, "network") - mean_ns(bare, 0, "network")
    assert network > 0.9 * grown
