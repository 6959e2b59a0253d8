"""Which process has a ring mapped, and how many processes are read to find out."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stash_files import StashWriter

from stashtrace.format import liveness
from stashtrace.format.liveness import LiveRings, own_boot_id
from stashtrace.format.stash_file import StashFile


@contextmanager
def mapped(folder: Path, pid: int) -> Iterator[StashFile]:
    """A file that names a process, and whose ring this process has mapped."""
    stash = StashWriter(folder, pid=pid, boot_id=own_boot_id())
    stash.add_ring("io_op", [stash.row("io_op", begin_ticks=1)])
    stash.save()
    with open(stash.ring_path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        yield StashFile(str(stash.path))


@pytest.fixture
def read_pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose maps are read from now on."""
    pids: list[int] = []
    rings_of = liveness._rings_of

    def read(pid: int) -> object:
        pids.append(pid)
        return rings_of(pid)

    monkeypatch.setattr(liveness, "_rings_of", read)
    return pids


def test_the_process_that_a_file_names_is_read_alone(tmp_path: Path, read_pids: list[int]) -> None:
    with mapped(tmp_path, os.getpid()) as stash:
        rings = LiveRings.now()
        assert rings.holds(stash)
        assert rings.pid_of(stash) == os.getpid()
    assert read_pids == [os.getpid()]


def test_a_writer_in_a_container_is_found_by_its_ring(tmp_path: Path, read_pids: list[int]) -> None:
    """Its file names the number that the container has for it, which here is another process or none."""
    with mapped(tmp_path, 1) as stash:
        rings = LiveRings.now()
        assert rings.pid_of(stash) == os.getpid()
        count = len(read_pids)
        assert rings.holds(stash)
        assert len(read_pids) == count, "each look reads a process once"
    assert not LiveRings.now().holds(stash), "it is mapped no longer"


def test_of_a_file_of_another_host_no_process_is_read(tmp_path: Path, read_pids: list[int]) -> None:
    stash = StashWriter(tmp_path)
    stash.add_ring("io_op", [stash.row("io_op", begin_ticks=1)])
    stash.save()
    rings = LiveRings.now()
    assert rings.holds(StashFile(str(stash.path))), "it was written just now"
    assert rings.pid_of(StashFile(str(stash.path))) == -1
    assert read_pids == []


@pytest.mark.parametrize("pid", ["../self", None, -1, True])
def test_a_file_that_names_no_process(tmp_path: Path, pid: object) -> None:
    stash = StashWriter(tmp_path, boot_id=own_boot_id(), metadata={"pid": pid})
    stash.add_ring("io_op", [stash.row("io_op", begin_ticks=1)])
    stash.save()
    assert LiveRings.now().pid_of(StashFile(str(stash.path))) == -1
