"""File systems: which one holds a path, which may stand still, and where a host has a disk of its own."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from stashtrace.record import host
from stashtrace.record.host import file_system_of, is_far, near_folder

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
