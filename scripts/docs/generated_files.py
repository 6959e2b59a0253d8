"""Write files whose text is derived, or compare them: what the scripts `generate_*.py` share."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def write_or_compare(files: Mapping[Path, Callable[[], str]], arguments: Sequence[str]) -> int:
    """Write each file; with ``--check`` return 1 if one is stale, and write none."""
    stale = 0
    for path, make in files.items():
        text = make()
        if "--check" in arguments:
            stale |= not path.exists() or path.read_text(encoding="utf-8") != text
        else:
            path.write_text(text, encoding="utf-8")
    return int(stale)
