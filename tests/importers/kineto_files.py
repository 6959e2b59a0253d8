"""Small Kineto files for tests: events in, a file out."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

#: Microseconds since 1970 at which the tests' recordings begin; with three decimals a double cannot hold it.
START_US = 1_700_000_000_000_000
START_NS = START_US * 1000
PID = 4711


def us(offset: float) -> str:
    """A stamp ``offset`` microseconds after the begin, all its digits kept; ``write`` makes it a number."""
    return str(START_US + Decimal(str(offset)))


def host(
    name: str, begin: float, duration: float, *, cat: str = "cpu_op", tid: int = PID, **args: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": us(begin), "dur": duration, "args": args}


def step(number: int, begin: float, duration: float) -> dict[str, Any]:
    return host(f"ProfilerStep#{number}", begin, duration, cat="user_annotation")


def launch(correlation: int, begin: float, duration: float = 5, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return host(name, begin, duration, cat="cuda_runtime", correlation=correlation)


def device(
    name: str, begin: float, duration: float, *, cat: str = "kernel", stream: int = 7, correlation: int = 0, **args: Any
) -> dict[str, Any]:
    """Something that ran on GPU 0."""
    more = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": us(begin),
        "dur": duration,
        "args": more,
    }


def write(path: Path, events: list[dict[str, Any]], **top: Any) -> Path:
    """Write a file as Kineto does: ``traceEvents`` last but for what ``after`` holds."""
    after = top.pop("after", {})
    text = json.dumps({"schemaVersion": 1, **top, "traceEvents": events, **after})
    text = re.sub(r'"ts": "([0-9.]+)"', r'"ts": \1', text)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def rank_of_two(path: Path, rank: int, late_us: float = 0.0, first_step: int = 10) -> Path:
    """Two steps of a rank: a batch, a kernel, an all-reduce that both ranks leave together."""
    events: list[dict[str, Any]] = []
    for n in range(2):
        at, key = 1000.0 * n, 10 * n + 1
        enter = at + 200 + late_us
        events += [
            step(first_step + n, at, 990),
            host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at + 5, 50, cat="user_annotation"),
            launch(key, at + 90),
            device("gemm<float>", at + 100, 80 + late_us, correlation=key),
            host("record_param_comms", at + 110, 40),
            host(
                "nccl:all_reduce",
                at + 115,
                30,
                cat="user_annotation",
                **{"Input Dims": [[256]], "Input type": ["float"]},
            ),
            launch(key + 1, at + 120),
            device(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)",
                enter,
                at + 700 - enter,
                stream=20,
                correlation=key + 1,
            ),
            host("Optimizer.step#SGD.step", at + 750, 30, cat="user_annotation"),
        ]
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    return write(path, events, distributedInfo=info, deviceProperties=[{"id": i, "name": "H100"} for i in range(8)])
