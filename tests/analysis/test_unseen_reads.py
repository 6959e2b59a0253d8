"""Storage reads that no recorded call explains are named; those that something explains are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from stash_files import StashWriter, ms, write_run_json

from stashtrace.analysis.findings.rules.trust import trust
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import IoFlag, IoOp

MB, GB = 10**6, 10**9


def process_of(
    folder: Path,
    facts: dict[str, object],
    calls: Sequence[tuple[IoOp, int, int]] = (),
    pid: int = 100,
    incarnation: int = 0,
    ppid: int = 1,
) -> None:
    """Write a process: its facts, and calls as (operation, bytes, flags)."""
    stash = StashWriter(folder, pid=pid, ppid=ppid, incarnation=incarnation)
    stash.sync(0, 1000)
    path = stash.intern("/data/a.bin")
    rows = [
        {"begin_ticks": ms(1 + i), "end_ticks": ms(1.5 + i), "op_code": op, "result_bytes": size, "io_flags": flags}
        for i, (op, size, flags) in enumerate([(IoOp.OPEN, 0, 0), *calls])
    ]
    stash.add("io_op_long", [stash.row("io_op_long", path_id=path, **row) for row in rows])
    for key, value in facts.items():
        stash.add("metadata", [(ms(900), stash.intern(key), stash.intern(str(value)))])
    stash.save()
    write_run_json(folder)


def unseen(folder: Path) -> list[str]:
    return [name for name in trust(load_trace(folder), {}).invisible if "storage" in name or "io_uring" in name]


def test_reads_by_io_uring_are_named_with_their_amount(tmp_path: Path) -> None:
    process_of(tmp_path, {"io_uring": "used", "storage_read_bytes": 2 * GB, "loaded_bytes": 10 * MB})
    assert unseen(tmp_path) == ["I/O of a process by io_uring (1.99 GB read from storage past the recorded calls)"]
    process_of(tmp_path, {"io_uring": "used"}, pid=101)
    assert unseen(tmp_path)[0].startswith("I/O of 2 processes by io_uring (1.99 GB read")


def test_a_store_that_waits_for_sockets_by_io_uring_is_not_named(tmp_path: Path) -> None:
    """Torch's, which is built on libuv: in the launcher, or in rank 0 if nobody launched it."""
    process_of(tmp_path, {"io_uring": "libtorch_cpu.so"})
    process_of(tmp_path, {"io_uring": "libuv.so.1"}, pid=101)
    assert unseen(tmp_path) == []
    process_of(tmp_path, {"io_uring": "liburing.so.2"}, pid=102)
    assert unseen(tmp_path) == ["I/O of a process by io_uring"]


def test_reads_of_unknown_means_are_named(tmp_path: Path) -> None:
    process_of(tmp_path, {"storage_read_bytes": 3 * GB, "loaded_bytes": 10 * MB}, [(IoOp.READ, 500 * MB, 0)])
    assert unseen(tmp_path) == ["2.49 GB read from storage past the recorded calls"]


@pytest.mark.parametrize(
    ("facts", "calls"),
    [
        ({"storage_read_bytes": 60 * MB, "loaded_bytes": 0}, []),  # a little: metadata, read-ahead
        ({"storage_read_bytes": 2 * GB}, []),  # killed: what its loader mapped is unknown
        ({"storage_read_bytes": 2 * GB, "loaded_bytes": 2 * GB}, []),  # `import torch` from a cold disk
        ({"storage_read_bytes": 2 * GB, "loaded_bytes": 0}, [(IoOp.PREAD, 1100 * MB, 0)]),  # read ahead: the same again
        ({"storage_read_bytes": 2 * GB, "loaded_bytes": 0}, [(IoOp.MMAP, 2 * GB, 0)]),
        ({"storage_read_bytes": 300 * MB, "loaded_bytes": 0}, [(IoOp.READ, 4096, 0)] * 600),  # read ahead by each call
    ],
)
def test_what_can_be_explained_is_not_named(
    tmp_path: Path, facts: dict[str, object], calls: list[tuple[IoOp, int, int]]
) -> None:
    process_of(tmp_path, facts, calls)
    assert unseen(tmp_path) == []


def test_bytes_of_sockets_and_calls_served_from_memory_explain_nothing(tmp_path: Path) -> None:
    calls = [(IoOp.READ, 2 * GB, int(IoFlag.PIPE)), *[(IoOp.READ, 4096, int(IoFlag.SAMPLED))] * 600]
    process_of(tmp_path, {"storage_read_bytes": 300 * MB, "loaded_bytes": 0}, calls)
    assert unseen(tmp_path) == ["298 MB read from storage past the recorded calls"]


def test_images_of_one_process_share_the_kernel_s_count(tmp_path: Path) -> None:
    """After exec the count goes on: what the first program read by calls is in the second one's."""
    process_of(tmp_path, {"storage_read_bytes": GB, "loaded_bytes": 0}, [(IoOp.READ, GB, 0)])
    process_of(tmp_path, {"storage_read_bytes": GB + MB, "loaded_bytes": 0}, incarnation=1)
    assert unseen(tmp_path) == []


def test_what_a_child_read_is_in_the_count_of_its_parent_too(tmp_path: Path) -> None:
    """A rank waits for the end of its loader's worker, whose reads the kernel then adds to those of the rank."""
    process_of(tmp_path, {"storage_read_bytes": 3 * GB, "loaded_bytes": 0})
    process_of(tmp_path, {"storage_read_bytes": 3 * GB, "loaded_bytes": 0}, [(IoOp.READ, 3 * GB, 0)], pid=101, ppid=100)
    assert unseen(tmp_path) == []
    process_of(tmp_path, {"storage_read_bytes": 5 * GB, "loaded_bytes": 0}, pid=102)
    process_of(tmp_path, {"storage_read_bytes": 3 * GB, "loaded_bytes": 0}, [(IoOp.READ, 3 * GB, 0)], pid=103, ppid=102)
    assert unseen(tmp_path) == ["2.00 GB read from storage past the recorded calls"]
