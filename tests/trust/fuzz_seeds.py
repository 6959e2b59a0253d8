"""Small valid files of every format that is read, for the fuzzer to damage."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
for _place in (ROOT / "tests", ROOT / "tests/support", ROOT / "tests/importers"):
    if str(_place) not in sys.path:
        sys.path.append(str(_place))

from fuzz_inside import fitting, odd_value  # noqa: E402
from kineto_files import rank_of_two  # noqa: E402
from nsys_exports import MS, Export  # noqa: E402
from stash_files import StashWriter, ms, write_run_json  # noqa: E402

from stashtrace.format.compact import compact_run  # noqa: E402
from stashtrace.format.project import current_layouts  # noqa: E402
from stashtrace.format.reader import open_run  # noqa: E402
from stashtrace.lab import synth  # noqa: E402

GOLDEN = ROOT / "tests/data/golden"
START_US = 1_600_000_000_000_000


def stash(folder: Path) -> None:
    """Runs, each in a folder: what a killed process left and what a merge made of it, of each version; whole jobs."""
    for path in sorted(GOLDEN.rglob("*.stash")):
        own = folder / f"{path.parent.name}-{path.stem}"
        own.mkdir()
        shutil.copy(path, own)
        ring = path.with_suffix(".ring.gz")
        if ring.exists():
            (own / ring.stem).write_bytes(gzip.decompress(ring.read_bytes()))
    with_a_ring(folder / "ring")
    job(folder / "job")
    job(folder / "merged")
    compact_run(open_run(folder / "merged"))


def with_a_ring(folder: Path) -> None:
    """A .stash with rows of I/O, next to a .ring with more of them."""
    writer = StashWriter(folder, env={"RANK": "0", "WORLD_SIZE": "1"})
    name = writer.intern("/data/a")
    calls = [
        writer.row("io_op", begin_ticks=ms(i), duration_ticks=9000, path_id=name, op_code=1 + i % 4, result_bytes=4096)
        for i in range(20)
    ]
    writer.add("io_op", calls, packed=True)
    writer.sync(0, 10, 20)
    writer.add_ring("io_op", calls[:12])
    writer.save()
    write_run_json(folder)


def job(folder: Path) -> None:
    """Steps of two ranks, one of them late, with a worker each: every table of a job on the host has rows."""
    synth.write(
        folder, synth.SyntheticJob(ranks=2, workers=1, steps=6, calls_per_batch=12, late_rank=1, late_ns=7_000_000)
    )


def store(folder: Path) -> None:
    """The same job, and one with devices, as stores of Parquet; nothing where pyarrow is not installed.

    In separate processes: a process that has used pyarrow has threads, and must not fork.
    """
    if find_spec("pyarrow") is None:
        return
    with tempfile.TemporaryDirectory() as name:
        job(Path(name) / "job")
        shutil.copytree(GOLDEN / "v1_devices", Path(name) / "devices", ignore=lambda *_: {"killed.stash", "rows.json"})
        for run in ("job", "devices"):
            words = ["export", "parquet", str(Path(name) / run), "-o", str(folder / run)]
            subprocess.run([sys.executable, "-m", "stashtrace", *words], check=True, capture_output=True)


def random_rows(folder: Path, rng: random.Random) -> Path:
    """Segments of random rows under right checksums: damage that no checksum finds."""
    writer = StashWriter(folder, env={"RANK": "0", "WORLD_SIZE": "2"})
    name = writer.intern("/data/a")
    writer.sync(0, 10)
    for record in rng.sample(sorted(current_layouts()), rng.randint(1, 8)):
        rows = np.zeros(rng.randint(1, 12), dtype=current_layouts()[record].dtype)
        for field in rows.dtype.names or ():
            for row in rows:
                usual = ms(rng.uniform(0, 20)) if field.endswith("ticks") else name
                kind = rows.dtype[field]
                plain = kind.kind in "iu" and rng.random() < 0.3
                row[field] = fitting(kind, usual) if plain else odd_value(kind, rng, usual)
        writer.add(record, rows, packed=rng.random() < 0.5, gap=rng.choice([0, 0, 5]))
    return writer.save()


def kineto(folder: Path) -> None:
    rank_of_two(folder / "rank0.json", 0)
    rank_of_two(folder / "rank1.json.gz", 1, late_us=100)


def nsys(folder: Path) -> None:
    export = Export(folder / "report.sqlite", RANK="3", WORLD_SIZE="8")
    for step in range(2):
        at = 10 * MS * step
        export.range(42, f"step {12 + step}", at, at + 9 * MS)
        export.range(42, "dataloader", at, at + MS)
        export.call(42, "cudaLaunchKernel_v7000", at + 2 * MS, at + 2 * MS + 5000, call=10 + step)
        export.kernel(42, "void gemm<float>(int)", at + 3 * MS, at + 8 * MS, call=10 + step)
    export.close()


def dftracer(folder: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"id": 1, "name": "HH", "cat": "dftracer", "pid": 7, "tid": 7, "ph": "M", "args": {"name": "node", "value": 9}},
        {"id": 2, "name": "FH", "cat": "dftracer", "pid": 7, "tid": 7, "ph": "M", "args": {"name": "/a", "value": 5}},
    ]
    for i, name in enumerate(["open64", "read", "pread", "write", "close", "lseek64", "mkdir"]):
        call = {"fhash": 5, "hhash": 9, "ret": 4096, "offset": i, "size": 4096}
        head = {"id": 3 + i, "name": name, "cat": "POSIX", "pid": 7, "tid": 8, "ph": "X"}
        lines.append({**head, "ts": START_US + i * 100, "dur": 50, "args": call})
    text = "[\n" + "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "trace.pfw").write_text(text + "]", encoding="utf-8")
    (folder / "trace2.pfw.gz").write_bytes(gzip.compress(text.encode()))


def flight_recorder(folder: Path) -> None:
    def entry(number: int) -> dict[str, Any]:
        at = 1_724_779_239_000_000_000 + number * 1_000_000
        return {
            "frames": [{"name": "step", "filename": "train.py", "line": 3}],
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": at,
            "input_sizes": [[3, 4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[3, 4]],
            "output_dtypes": ["Float"],
            "state": "completed",
            "time_discovered_started_ns": at + 10,
            "time_discovered_completed_ns": at + 500_000,
            "retired": True,
            "timeout_ms": 600000,
            "is_p2p": False,
            "duration_ms": 0.4,
        }

    dump = {
        "version": "2.10",
        "entries": [entry(i) for i in range(4)],
        "pg_status": {},
        "rank": 0,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    }
    (folder / "nccl_trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    (folder / "fr_rank_1.json").write_text(json.dumps(dump), encoding="utf-8")


def chakra(folder: Path) -> None:
    from test_chakra import new, protobuf, write

    nodes = [new(i, f"aten::mul{i}", [1.5], [[1, 0, 0, 4, 4, "cpu"]]) for i in range(2, 6)]
    write(folder / "et.json", nodes, schema="1.0.2-chakra.0.0.4")
    (folder / "job.et").write_bytes(protobuf())


def nccl_inspector(folder: Path) -> None:
    from test_nccl_inspector import _header, _metadata, _operation

    for rank in range(2):
        head = {"header": _header(rank), "metadata": _metadata(100 + rank)}
        lines = [json.dumps({**head, "coll_perf": _operation("AllReduce", n, 300, 1000 * n)}) for n in range(4)]
        (folder / f"node01-pid{100 + rank}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def darshan(folder: Path) -> None:
    """A head that is recognised; logs of the corpus where they lie next to the checkout and PyDarshan is installed."""
    (folder / "head.darshan").write_bytes(b"3.41\0\0\0\0" + (6567223).to_bytes(8, "little") + bytes(64))
    corpus = next((p for p in (ROOT / "shared/corpus", ROOT.parent / "shared/corpus") if p.exists()), None)
    try:
        import darshan as backend
    except ImportError:
        return
    if corpus is not None and backend is not None:
        for path in sorted(corpus.glob("darshan/sample*.darshan")):
            shutil.copy(path, folder)


FORMATS: dict[str, Callable[[Path], None]] = {
    "stash": stash,
    "store": store,
    "kineto": kineto,
    "nsys": nsys,
    "dftracer": dftracer,
    "flight_recorder": flight_recorder,
    "chakra": chakra,
    "nccl_inspector": nccl_inspector,
    "darshan": darshan,
}
