"""The runtime library needs libc alone and shows only the symbols on the list."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from source_tree import ROOT

from stashtrace import _native

LIBRARY = Path(_native.__file__).with_name("libstashtrace.so")
pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf (binutils) is not installed")


def listed_symbols() -> list[str]:
    text = (ROOT / "csrc/hooks/exports.map").read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/|#.*", "", text, flags=re.S)
    body = text[text.index("global:") + 7 : text.index("local:")]
    return [name.strip() for name in body.split(";") if name.strip()]


def test_needs_libc_only() -> None:
    dynamic = subprocess.run(["readelf", "-d", str(LIBRARY)], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    assert needed <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_shows_listed_symbols_only() -> None:
    table = subprocess.run(
        ["readelf", "--dyn-syms", "-W", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    shown = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[4] in ("GLOBAL", "WEAK") and fields[6] not in ("UND", "ABS"):  # ABS: versions
            shown.add(fields[7].split("@")[0])
    patterns = listed_symbols()
    exact = {p for p in patterns if "*" not in p}
    prefixes = tuple(p[:-1] for p in patterns if p.endswith("*"))
    assert {s for s in shown if s not in exact and not s.startswith(prefixes or ("\0",))} == set()
    assert exact - shown == set(), "listed but not there"
