"""The processor's name, from what kernels of both architectures list."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from stashtrace.record.host import processor_name

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
def test_name(tmp_path: Path, listing: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(listing)
    assert processor_name(tmp_path / "cpuinfo") == name


def test_without_a_listing(tmp_path: Path) -> None:
    assert processor_name(tmp_path / "nothing") == os.uname().machine
