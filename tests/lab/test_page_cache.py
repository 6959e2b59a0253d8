"""Files made cold and warm for real, and every way in which they only seem to be."""

from __future__ import annotations

import errno
import math
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traced import TracedRun, run_traced

from stashtrace.lab import machine, page_cache
from stashtrace.lab.job_files import FileSet, file_set, files_read, is_library
from stashtrace.lab.page_cache import (
    INSTRUMENTS,
    PAGE_BYTES,
    Residency,
    cachestat,
    check,
    make_cold,
    make_warm,
    memory_room,
    mincore,
)
from stashtrace.record.host import file_system_of

ROOT = Path(__file__).resolve().parents[2]
SIZE = 64 * PAGE_BYTES


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a file system that has a page cache to be dropped from."""
    for base in (Path(tempfile.gettempdir()), ROOT):
        made = Path(tempfile.mkdtemp(prefix=".page-cache-", dir=base))
        try:
            if file_system_of(str(made.resolve())) not in ("tmpfs", "ramfs", "overlay", ""):
                yield made
                return
        finally:
            shutil.rmtree(made)
    pytest.skip("no folder that is not in memory")


@pytest.fixture
def files(folder: Path) -> FileSet:
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(os.urandom(SIZE))
    found = file_set([folder])
    assert found.bytes == 3 * SIZE
    return found


def touch(path: str) -> None:
    with open(path, "rb") as file:
        file.read()


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda i: i[0])
def test_cold_and_warm_are_what_every_instrument_sees(files: FileSet, instrument: Any) -> None:
    name, function = instrument
    try:
        with open(files.paths[0], "rb") as file:
            function(file.fileno(), 0, SIZE)
    except OSError as error:
        pytest.skip(f"{name}: {error}")
    cold = make_cold(files, residency=Residency((instrument,)))
    assert cold.verified, cold.sentence
    assert (cold.method, cold.instrument, cold.share) == ("posix_fadvise", name, 0.0)
    assert cold.sentence.startswith("cold: 786 KB in 3 files by posix_fadvise;")
    warm = make_warm(files, residency=Residency((instrument,)))
    assert warm.verified, warm.sentence
    assert (warm.method, warm.share) == ("read", 1.0)
    assert check(warm).verified
    assert not check(cold, residency=Residency((instrument,))).verified, "it was read meanwhile"


def test_a_part_of_a_file_counts_as_a_part(files: FileSet) -> None:
    make_cold(files)
    path = files.paths[0]
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 3 * PAGE_BYTES, 0)
    assert Residency().resident_bytes(path) == 3 * PAGE_BYTES
    with open(path, "rb") as file:
        assert mincore(file.fileno(), 0, SIZE) == 3
        assert mincore(file.fileno(), 2 * PAGE_BYTES, SIZE - 2 * PAGE_BYTES) == 1


def test_a_mapped_file_stays_and_is_named(files: FileSet) -> None:
    with open(files.paths[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len({mapped[at] for at in range(0, SIZE, PAGE_BYTES)}) > 1
        state = make_cold(files)
        assert not state.verified
        assert state.share == pytest.approx(1 / 3)
        assert state.sentence.startswith("not verified as cold: 786 KB in 3 files")
        assert f"{files.paths[1]} stays in memory" in state.sentence
    assert make_cold(files).verified


def test_a_file_that_is_being_written_stays(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the write-back its dirty pages cannot go: what a writer next to us does to every try."""
    with open(files.paths[0], "r+b") as file:
        file.write(os.urandom(SIZE))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    state = make_cold(files)
    if state.verified:
        pytest.skip("the kernel wrote it back by itself")
    assert files.paths[0] in state.sentence


def test_a_missing_file_is_named_and_nothing_is_claimed(files: FileSet) -> None:
    os.remove(files.paths[2])
    for state in (make_cold(files), make_warm(files)):
        assert not state.verified
        assert math.isnan(state.share)
        assert f"{files.paths[2]} is gone" in state.problems
    again = file_set(files.paths)
    assert again.left_out == ((files.paths[2], "no such file or directory"),)
    assert make_cold(again).verified


def test_files_in_memory_are_never_cold() -> None:
    if file_system_of("/dev/shm") != "tmpfs" or not os.access("/dev/shm", os.W_OK):
        pytest.skip("no tmpfs")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(SIZE))
        file.flush()
        state = make_cold(file_set([file.name]))
        assert not state.verified
        assert state.share == 1.0
        assert "files on tmpfs are always in memory" in state.problems
        assert make_warm(file_set([file.name])).verified


def refused(*args: Any) -> int:
    raise OSError(errno.EPERM, "mine")


def test_an_instrument_that_is_refused_gives_way_to_the_next(files: FileSet) -> None:
    look = Residency((("cachestat", refused), ("mincore", mincore)))
    assert make_cold(files, residency=look).instrument == "mincore"
    silent = make_cold(files, residency=Residency((("cachestat", refused),)))
    assert not silent.verified
    assert silent.instrument == ""
    assert "what is resident is not known" in silent.sentence
    assert "cannot be asked about" in silent.sentence


def test_an_instrument_that_sees_nothing_is_not_believed(files: FileSet) -> None:
    """As cachestat on a stacked file system, whose pages belong to the file below."""
    blind = ("cachestat", lambda descriptor, offset, length: 0)
    state = make_cold(files, residency=Residency((blind,)))
    assert not state.verified
    assert make_cold(files, residency=Residency((blind, ("mincore", mincore)))).instrument == "mincore"


def test_mincore_is_not_asked_about_files_of_others(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would call all of their pages resident."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with open(files.paths[0], "rb") as file, pytest.raises(PermissionError):
        mincore(file.fileno(), 0, SIZE)


def test_dropping_all_caches_is_asked_for_and_may_be_refused(
    files: FileSet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(page_cache, "DROP_CACHES", str(folder / "missing" / "drop_caches"))
    state = make_cold(files, drop_caches=True)
    assert state.method == "posix_fadvise"
    assert state.verified
    assert state.problems == ("drop_caches is not permitted (no such file or directory)",)
    switch = folder / "drop_caches"
    monkeypatch.setattr(page_cache, "DROP_CACHES", str(switch))
    state = make_cold(files, drop_caches=True)
    assert switch.read_text() == "3"
    assert state.method == "drop_caches"
    make_warm(files)
    switch.unlink()
    make_cold(files)
    assert not switch.exists(), "only where it was asked for"


def test_more_than_fits_is_not_read(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cold(files)
    monkeypatch.setattr(page_cache, "memory_room", lambda: 2 * SIZE + 5)
    state = make_warm(files)
    assert not state.verified
    assert (state.method, state.files.paths) == ("none", ())
    assert "786 KB do not fit into the 524 KB of memory that are free for them, nothing was read" in state.sentence
    assert [Residency().resident_bytes(path) for path in files.paths] == [0, 0, 0]


def test_pages_that_are_evicted_while_others_are_read(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cold(files)
    real = page_cache._read

    def read(*rest: Any) -> None:
        real(*rest)
        make_cold(FileSet(files.paths[:1], SIZE))

    monkeypatch.setattr(page_cache, "_read", read)
    state = make_warm(files)
    assert not state.verified
    assert "what was read first was evicted while the rest was read" in state.problems


def test_no_files_are_neither_cold_nor_warm() -> None:
    for state in (make_cold(file_set([])), make_warm(file_set([]))):
        assert not state.verified
        assert "no file to check" in state.sentence


def test_servers_have_memory_too(files: FileSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "file_system_of", lambda path: "nfs4")
    assert "the servers of nfs4 may still hold the data in their memory" in make_cold(files).sentence


def test_room_is_less_than_the_memory_of_the_machine() -> None:
    assert 0 < memory_room() < os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def test_limits_of_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "memory" / "job" / "rank"
    inner.mkdir(parents=True)
    for group, limit, used in ((inner, "max", 1), (inner.parent, 5000, 3000), (tmp_path / "memory", 10**6, 0)):
        (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (group / "memory.usage_in_bytes").write_text(f"{used}\n")
        (group / "memory.stat").write_text("active_file 7\ninactive_file 500\n")
    listing = tmp_path / "cgroup"
    listing.write_text("4:memory:/job/rank\n1:cpu:/\n0::/\n")
    assert machine.group_free_bytes(listing, tmp_path) == 2500
    listing.write_text("1:cpu:/\n")
    assert machine.group_free_bytes(listing, tmp_path) is None


def test_cachestat_reports_a_bad_descriptor() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        cachestat(-1, 0, PAGE_BYTES)


JOB = """
    import mmap, os, sys
    import stashtrace
    here = os.path.dirname(os.path.abspath(__file__))
    early = open(os.path.join(here, "early.bin"), "rb").read()
    mapped = open(os.path.join(here, "mapped.bin"), "rb")
    memory = mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ)
    sys.path.insert(0, here)
    for number in range(3):
        stashtrace.step()
        with open(os.path.join(here, "data.bin"), "rb") as file:
            file.read()
        with open(os.path.join(here, "gone.bin"), "rb") as file:
            file.read(1)
        with open(os.path.join(here, "empty.bin"), "rb") as file:
            file.read()
        with open(os.path.join(here, "written.bin"), "wb") as file:
            file.write(b"x")
        open("/proc/self/stat").read()
        import helper_of_a_step
    stashtrace.step()
    late = open(os.path.join(here, "late.bin"), "rb").read()
"""


def test_files_of_a_run_are_those_read_in_steps(tmp_path: Path) -> None:
    for name in ("early", "mapped", "data", "gone", "late"):
        (tmp_path / f"{name}.bin").write_bytes(bytes(5000))
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "helper_of_a_step.py").write_text("x = 1\n")
    run = run_traced(JOB, tmp_path, collectors=["posix_io", "annotations"])
    os.remove(tmp_path / "gone.bin")
    found = files_read(run.trace)
    names = [Path(path).name for path in found.paths]
    assert names == ["data.bin", "mapped.bin"]
    assert found.bytes == 10000
    assert found.left_out == ((str(tmp_path / "gone.bin"), "no such file or directory"),)

    hosts = run.trace.processes["host_code"]
    assert {run.trace.text(code) for code in hosts.tolist()} == {socket.gethostname()}
    elsewhere = run.trace.replace(processes=run.trace.processes.replace(host_code=np.zeros_like(hosts) + other(run)))
    left = files_read(elsewhere)
    assert left.paths == ()
    assert (str(tmp_path / "data.bin"), "read on another host") in left.left_out


def other(run: TracedRun) -> int:
    """Code of a text that is not a host of this machine."""
    return next(code for code in range(len(run.trace.strings)) if run.trace.text(code).endswith("data.bin"))


@pytest.mark.parametrize(
    ("path", "is_code"),
    [
        ("/home/u/venv/lib/python3.11/site-packages/torch/lib/libtorch.so", True),
        ("/opt/x/libcudart.so.12.4", True),
        ("/home/u/a.py", True),
        ("/home/u/venv/lib/python3.11/site-packages/x-1.0.dist-info/METADATA", True),
        ("/proc/meminfo", True),
        ("/home/u/venv/lib/python3.11/site-packages/sklearn/datasets/iris.csv", False),
        ("/data/so.sorted/train.tar", False),
    ],
)
def test_what_is_code(path: str, is_code: bool) -> None:
    assert is_library(path) is is_code
