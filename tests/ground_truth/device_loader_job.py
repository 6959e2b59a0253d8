"""A training loop on a played device whose batches a worker of a real DataLoader makes. Started by its test.

    worker    [ recv 30 ms ][ spin 15 ms ][ recv 30 ms ][ spin 15 ms ]...
    device    ...............[ 10 ms ]...................[ 10 ms ]........     45 ms a batch, 10 of compute

Arguments: port of a server that answers after so long (an object store), ms of CPU per batch, ms of kernels per step,
steps, a file for the worker's own clock: per batch when its request began and ended, and when it was made. The last
line of output is when each batch came. The probes are the real ones; what tells them the stream is a stand-in for CuPy.
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import time
import types

ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
CALLS = ctypes.CDLL(None)  # by name alone, so that the recorder's functions are found first
KERNEL = ctypes.cast(CALLS.abs, ctypes.c_void_p)
_STREAM = types.SimpleNamespace(ptr=0)
sys.modules["cupy"] = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=lambda: _STREAM))  # type: ignore[assignment]

import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class LaunchConfig(ctypes.Structure):
    """cudaLaunchConfig_t."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attributes_count", ctypes.c_uint),
    ]


def kernel(milliseconds: float) -> None:
    """Work on the default stream."""
    config = LaunchConfig((1, 1, 1), (1, 1, 1), 0, None, None, 0)
    duration = ctypes.c_uint64(round(milliseconds * 1e6))
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.pointer(duration), ctypes.c_void_p))
    result = CALLS.cudaLaunchKernelExC(ctypes.byref(config), KERNEL, arguments)
    assert result == 0, result


class Samples(Dataset[torch.Tensor]):
    """One sample is one batch: a request over the network, then work on what came."""

    def __init__(self, port: int, spin_ms: float, count: int, clock: str) -> None:
        self.port, self.spin_ms, self.count, self.clock = port, spin_ms, count, clock
        self.server: socket.socket | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        asked = time.monotonic_ns()
        if self.port:
            if self.server is None:
                self.server = socket.create_connection(("127.0.0.1", self.port))
            self.server.sendall(b"?")
            assert self.server.recv(1) == b"!"
        answered = time.monotonic_ns()
        end = time.monotonic() + self.spin_ms / 1e3  # of the wall: other processes may want the CPU too
        while time.monotonic() < end:
            pass
        with open(self.clock, "a", encoding="ascii") as file:
            file.write(f"{asked} {answered} {time.monotonic_ns()}\n")
        return torch.zeros(4)


def main() -> None:
    port, spin_ms, kernel_ms, steps = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    assert CALLS.cudaSetDevice(0) == 0
    kernel(0.1)
    weight = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.zeros(4)
    samples = Samples(port, spin_ms, steps, sys.argv[5])
    came = []
    for _ in DataLoader(samples, batch_size=1, num_workers=1, prefetch_factor=1):
        came.append(time.monotonic_ns())
        kernel(kernel_ms)
        optimizer.step()
    assert CALLS.cudaDeviceSynchronize() == 0
    time.sleep(0.1)  # the harvester sees the last events
    print(json.dumps(came))


if __name__ == "__main__":
    main()
