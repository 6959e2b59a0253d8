"""Facts of a host: which file system holds a path, which may stand still, where a disk is, the processor's name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stashtrace.record import host
from stashtrace.record.host import file_system_of, is_far, near_folder, processor_name

MOUNTS = [
    "21 1 8:1 / / rw - ext4 /dev/sda1 rw",
    "22 21 0:5 / /data rw - nfs4 server:/data rw",
    "23 21 0:6 / /data rw - lustre server:/data rw",
    "24 21 0:7 / /with\\040blank rw shared:1 - tmpfs tmpfs rw",
    "broken",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/x", "ext4"), ("/data/a", "lustre"), ("/database", "ext4"), ("/with blank/a", "tmpfs"), ("/data", "lustre")],
)
def test_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_far_file_systems() -> None:
    far = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "virtiofs")
    assert all(map(is_far, (*far, "fuse", "fuse.sshfs", "fuse.bindfs", "fuse.gcsfuse")))
    assert not any(map(is_far, ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.overlayfs", "")))


def test_a_disk_of_the_host_comes_before_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(host, "_LEAST_FREE_BYTES", 1)
    assert near_folder() == str(tmp_path)
    kinds = {str(tmp_path): "nfs4", "/var/tmp": "fuse.sshfs"}
    monkeypatch.setattr(host, "far_file_system", lambda path: kinds.get(str(path), ""))
    assert near_folder() == "/dev/shm"
    kinds["/dev/shm"] = "nfs4"
    assert near_folder() is None


X86 = "processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n\nprocessor\t: 1\n"
GRACE = """processor\t: 0
BogoMIPS\t: 2000.00
Features\t: fp asimd crc32
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd4f
CPU revision\t: 0

processor\t: 1
CPU part\t: 0xd40
"""


@pytest.mark.parametrize(
    ("listing", "name"),
    [
        (X86, "Intel(R) Xeon(R) Platinum 8480C"),
        (GRACE, f"{os.uname().machine} 0x41/0xd4f r0p0"),
        (GRACE.replace("variant\t: 0x0", "variant\t: ?"), f"{os.uname().machine} 0x41/0xd4f"),
        ("model name\t:\n", os.uname().machine),
        ("", os.uname().machine),
    ],
)
def test_name_of_the_processor(tmp_path: Path, listing: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(listing)
    assert processor_name(tmp_path / "cpuinfo") == name


def test_name_of_a_processor_without_a_listing(tmp_path: Path) -> None:
    assert processor_name(tmp_path / "nothing") == os.uname().machine
