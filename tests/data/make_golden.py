"""Makes the golden files of this format version: what a killed process left, and the same after the merge.

    PYTHONPATH=. LD_PRELOAD=$PWD/stashtrace/libstashtrace.so STASHTRACE_DIR=/some/folder STASHTRACE_RUN_ID=901d \
        STASHTRACE_COLLECTORS=annotations python tests/data/make_golden.py record
    PYTHONPATH=. python tests/data/make_golden.py keep /some/folder tests/data/golden/v1

Files of released versions are never made again; a new version gets a separate folder, and so do new records of the
same version (``v1_devices``: the first with those of devices). ``keep`` replaces what names the machine in the file's
metadata.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

CODES = {"u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f64": "d", "text56": "56s"}
NEUTRAL = {
    "host": "node01",
    "boot_id": "b0070000-0000-0000-0000-000000000001",
    "netns": "net:[1]",
    "ppid": 1,
    "argv": ["python", "train.py"],
    "exe": "/usr/bin/python3",
    "env": {"RANK": "0", "WORLD_SIZE": "1"},
}


def record() -> None:
    """Inside a traced process: some rows of every record, half of them drained, then the end without warning."""
    from stashtrace import _native

    text = _native.intern("/data/" + "a long path that needs two parts/" * 3 + "é.bin")
    for round_ in range(2):
        for kind in _native.schema()["records"]:
            if kind["collector"] == "core" and kind["name"] != "thread_info":
                continue
            packed = struct.Struct("<" + "".join(CODES[f["type"]] for f in kind["fields"]))
            for row in range(5):
                values = [_value(f, row + 5 * round_, text, _native.now_ticks()) for f in kind["fields"]]
                if not _native.emit(kind["id"], packed.pack(*values)):
                    raise SystemExit(f"{kind['name']} was not recorded")
        if round_ == 0:
            _native.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _value(field: dict[str, Any], row: int, text: int, ticks: int) -> Any:
    name = field["name"]
    if name.endswith("ticks") and field["type"] == "u64":
        return ticks
    if name.endswith("_id") and field["type"] == "u32" and name not in ("collective_id",):
        return text
    if name.startswith("reserved") or name == "device_index":
        return 0
    if name.endswith("device_ns"):  # a device whose clocks are the host's
        return time.monotonic_ns()
    if name == "clock_code":
        return 1 + row % 3
    if name.endswith("_code"):
        return 1
    return row / 4 if field["type"] == "f64" else row


def keep(source: Path, target: Path) -> None:
    """Copy what was recorded, without the machine's names, and its merged form."""
    from stashtrace.format.compact import compact_file
    from stashtrace.format.container import ByteFile, pack_head, read_head
    from stashtrace.format.stash_file import StashFile

    target.mkdir(parents=True, exist_ok=True)
    [stash] = source.glob("*.stash")
    with ByteFile(str(stash)) as file:
        head = read_head(file)
        segments = file.read(head.data_offset, file.size)
    for name in ("killed", "merged"):
        (target / f"{name}.stash").write_bytes(pack_head(head.records, {**head.metadata, **NEUTRAL}) + segments)
        shutil.copy(stash.with_suffix(".ring"), target / f"{name}.ring")
    compact_file(StashFile(str(target / "merged.stash")))
    ring = target / "killed.ring"
    rows = {name: r.rows.tolist() for name, r in StashFile(str(target / "killed.stash")).load().records.items()}
    tables = [f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, of)) + "\n]" for name, of in rows.items()]
    (target / "rows.json").write_text("{\n" + ",\n".join(tables) + "\n}\n")
    (target / "killed.ring.gz").write_bytes(gzip.compress(ring.read_bytes(), 9, mtime=0))  # zeros for the most part
    ring.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record()
    else:
        keep(Path(sys.argv[2]), Path(sys.argv[3]))
