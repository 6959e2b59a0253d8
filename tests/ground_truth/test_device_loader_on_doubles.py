"""What a DataLoader's worker does while the device has run dry: real loader, real probes, a played device."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from device import NEEDED, fake_environment
from measurements import Measurements
from traced import TracedRun, run_traced

from ground_truth.device_scenarios import LEFT_OUT, measure

pytestmark = pytest.mark.truth

KERNEL_MS, STEPS = 10, 24
JOB = Path(__file__).with_name("device_loader_job.py")
SCRIPT = "device 0 event.offset 3s\ndevice 0 event.drift 20ppm"


@contextmanager
def object_store(delay_ms: float) -> Iterator[int]:
    """A server on a port that answers each byte after a while; the worker is blocked in recv for so long."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                while client.recv(1):
                    time.sleep(delay_ms / 1e3)
                    client.sendall(b"!")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def run(folder: Path, fetch_ms: float, spin_ms: float, *, kernels: bool) -> TracedRun:
    libraries = (*NEEDED, "cupti") if kernels else NEEDED
    env = fake_environment(folder / "doubles", "devices 1\n" + SCRIPT, libraries=libraries)
    with object_store(fetch_ms) as port:
        args = [str(value) for value in (port if fetch_ms else 0, spin_ms, KERNEL_MS, STEPS, folder / "worker.txt")]
        window = f"1:{STEPS}" if kernels else None
        return run_traced(JOB.read_text(), folder / "job", args=args, env=env, kernels_steps=window)


def truth(folder: Path, came: list[int]) -> dict[str, float]:
    """What the job's clock says of a typical step, in ms: a busy machine is not a mistake of the attribution."""
    batches = [[int(word) for word in line.split()] for line in (folder / "worker.txt").read_text().splitlines()]
    steps: dict[str, list[float]] = {"fetch": [], "prep": [], "handoff": []}
    for (asked, answered, made), before, now in zip(batches[1:], came, came[1:], strict=False):
        dry = before + round(KERNEL_MS * 1e6)
        fetch = max(min(answered, now) - max(asked, dry), 0)
        steps["fetch"].append(fetch / 1e6)
        steps["prep"].append((max(made - dry, 0) - fetch) / 1e6)
        steps["handoff"].append((now - max(made, dry)) / 1e6)
    return {kind: statistics.median(values[LEFT_OUT:-LEFT_OUT]) for kind, values in steps.items()}


@pytest.mark.parametrize("kernels", [False, True], ids=["brackets", "kernels"])
@pytest.mark.parametrize(("fetch_ms", "spin_ms"), [(40, 0), (0, 40), (30, 20)], ids=["fetch", "prep", "both"])
def test_what_the_worker_does_is_the_kind(fetch_ms: float, spin_ms: float, kernels: bool, tmp_path: Path) -> None:
    def right(job: TracedRun) -> None:
        (rank,) = measure(job)
        assert rank.methods == {"kernels" if kernels else "brackets"}
        expected = {"compute": KERNEL_MS, **truth(job.directory.parents[1], job.results()[0])}
        assert expected["fetch"] > 0.5 * (fetch_ms - KERNEL_MS), "the request is there, whatever else the machine does"
        assert expected["prep"] > 0.5 * min(spin_ms, fetch_ms + spin_ms - KERNEL_MS)
        allowed = 0.1 * (fetch_ms + spin_ms - KERNEL_MS)
        off = {kind: at for kind, at in rank.points_ms.items() if abs(at - expected.get(kind, 0)) > allowed}
        assert not off, (rank, expected)

    Measurements(lambda folder: run(folder, fetch_ms, spin_ms, kernels=kernels), tmp_path, most=8).agree(right)
