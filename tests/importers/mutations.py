"""Small files of every format, and mutations of them by a fixed seed: bytes, numbers, brackets, cuts."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path

import test_chakra
import test_dftracer
import test_flight_recorder
import test_nccl_inspector as inspector
from kineto_files import rank_of_two
from nsys_exports import Export

#: What a number or a text is exchanged for.
_ODD = [
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"9223372036854775807",
    b"18446744073709551616",
    b"-" + b"9" * 25,
    b"7" * 5000,
    b'""',
    b"[]",
    b"{}",
    b"[" * 2000,
    b'"\\u0000\\ud800"',
    b"[[[]]]",
    b"0.5",
    b'{"a": [1]}',
]


def _kineto(folder: Path) -> Path:
    return rank_of_two(folder / "rank0.json", 0)


def _flight_json(folder: Path) -> Path:
    path = folder / "dump_rank_0.json"
    path.write_text(json.dumps(test_flight_recorder._dump([test_flight_recorder._entry(n) for n in (1, 2, 3)])))
    return path


def _flight_pickle(folder: Path) -> Path:
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(test_flight_recorder._dump([test_flight_recorder._entry(n) for n in (1, 2, 3)])))
    return path


def _chakra(folder: Path) -> Path:
    nodes = [test_chakra.old(n, f"op{n}", [test_chakra.TENSOR], [test_chakra.TENSOR]) for n in range(3, 8)]
    return test_chakra.write(folder / "et_rank0.json", nodes)


def _chakra_protobuf(folder: Path) -> Path:
    path = folder / "workload.3.et"
    path.write_bytes(test_chakra.protobuf())
    return path


def _dftracer(folder: Path) -> Path:
    return test_dftracer.calls().write(folder / "trace-0-of-1.pfw")


def _inspector(folder: Path) -> Path:
    operations = [inspector._operation("AllReduce", n, 100, 1000 * n) for n in (1, 2, 3)]
    head = {"header": inspector._header(0), "metadata": inspector._metadata(100)}
    return inspector._write(folder, 0, *({**head, "coll_perf": each} for each in operations))


def _nsys(folder: Path) -> Path:
    export = Export(folder / "rank0.sqlite")
    for n in range(4):
        export.call(100, "cudaLaunchKernel", 1000 * n, 1000 * n + 100, call=n + 1)
        export.kernel(100, "gemm", 1000 * n + 200, 1000 * n + 500, call=n + 1)
        export.range(100, f"step {n}", 1000 * n, 1000 * n + 900)
    return export.close()


#: Format -> how to write a small file of it.
SEEDS: dict[str, Callable[[Path], Path]] = {
    "kineto": _kineto,
    "flight_recorder json": _flight_json,
    "flight_recorder pickle": _flight_pickle,
    "chakra json": _chakra,
    "chakra protobuf": _chakra_protobuf,
    "dftracer": _dftracer,
    "nccl_inspector": _inspector,
    "nsys": _nsys,
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file with one to three things changed."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.randrange(6)
        at = rng.randrange(max(len(data), 1))
        if kind == 0:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at]
        elif kind == 2:
            end = min(len(data), at + rng.randrange(1, 200))
            data = data[:at] + data[at:end] * 2 + data[end:]
        elif kind == 3:
            data = data[:at] + data[at + rng.randrange(1, 64) :]
        else:
            found = list(re.finditer(rb'-?\b\d+(?:\.\d+)?\b|"[^"\n]{0,40}"', data[: 1 << 16]))
            if found:
                spot = rng.choice(found)
                data = data[: spot.start()] + rng.choice(_ODD) + data[spot.end() :]
    return data
