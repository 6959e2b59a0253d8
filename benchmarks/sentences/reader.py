"""Reads and writes files without a loop that trains, and notes what it did. It knows nothing of stashtrace.

    python reader.py --clock FOLDER

FOLDER/files.json then maps each path to [calls of open, read and write, bytes moved].
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

#: Name -> calls that move data, bytes of each.
WRITTEN = {"large.bin": (40, 4 << 20), "medium.bin": (400, 64 << 10), "small.bin": (3_000, 4 << 10)}


def main() -> None:
    """Write each file, then read it in the same pieces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    folder = parser.parse_args().clock
    folder.mkdir(parents=True, exist_ok=True)
    reported: dict[str, list[int]] = {}
    for name, (count, size) in WRITTEN.items():
        path, piece = str(folder / name), bytes(size)
        moved = calls = 0
        for flags in (os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_RDONLY):
            file = os.open(path, flags, 0o600)
            calls += 1
            for _ in range(count):
                moved += os.write(file, piece) if flags & os.O_WRONLY else len(os.read(file, size))
                calls += 1
            os.close(file)
        reported[path] = [calls, moved]
    for path in reported:
        os.unlink(path)
    (folder / "files.json").write_text(json.dumps(reported), encoding="utf-8")


if __name__ == "__main__":
    main()
