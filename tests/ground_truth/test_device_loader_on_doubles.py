"""What a DataLoader's worker does while the device has run dry: real loader, real probes, a played device."""

# SPDX-License-Identifier: Apache-2.0
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
from traced import TracedRun, run_traced

from ground_truth.device_scenarios import measure

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
        args = [str(value) for value in (port if fetch_ms else 0, spin_ms, KERNEL_MS, STEPS)]
        window = f"1:{STEPS}" if kernels else None
        return run_traced(JOB.read_text(), folder / "job", args=args, env=env, kernels_steps=window)


@pytest.mark.parametrize("kernels", [False, True], ids=["brackets", "kernels"])
@pytest.mark.parametrize(("fetch_ms", "spin_ms"), [(40, 0), (0, 40), (30, 20)], ids=["fetch", "prep", "both"])
def test_what_the_worker_does_is_the_kind(fetch_ms: float, spin_ms: float, kernels: bool, tmp_path: Path) -> None:
    found = []
    for attempt in range(3):  # the machine may be busy; the worker's CPU work is real
        (rank,) = measure(run(tmp_path / str(attempt), fetch_ms, spin_ms, kernels=kernels))
        assert rank.methods == {"kernels" if kernels else "brackets"}
        found.append(rank)
        points = {kind: statistics.median(r.points_ms.get(kind, 0) for r in found) for kind in rank.points_ms}
        # The device computes while the worker is in its request, so that what it waits for is the rest.
        expected = {"compute": KERNEL_MS, "fetch": max(fetch_ms - KERNEL_MS, 0)}
        expected["prep"] = fetch_ms + spin_ms - sum(expected.values())
        allowed = 0.1 * (expected["fetch"] + expected["prep"])
        off = {kind: at for kind, at in points.items() if abs(at - expected.get(kind, 0)) > allowed}
        if not off:
            return
    pytest.fail(f"{off} in {found}")
