"""The stopwatch of a planted job: what each rank did, by its own clock.

A rank writes FOLDER/clock-RANK.jsonl, one line per step: {"rank", "step", "kind", "begin_ns", "end_ns", "pieces",
"arrivals"}. ``pieces`` maps the name of a piece of work to its milliseconds in the step; ``arrivals`` maps the name of
a collective to the moments at which the rank entered it, of time.monotonic_ns, which all ranks of a host share.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


class Stopwatch:
    """Time the pieces of the steps of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rank, self.step = rank, 0
        self._file = os.open(folder / f"clock-{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        (folder / f"pid-{rank}").write_text(str(os.getpid()), encoding="ascii")
        self._begin_step(time.monotonic_ns())

    def _begin_step(self, now_ns: int) -> None:
        self._begin_ns = now_ns
        self._pieces: dict[str, float] = {}
        self._arrivals: dict[str, list[int]] = {}

    @contextlib.contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Time what happens inside; a name that comes again in a step is summed."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(name, (time.monotonic_ns() - begin) / 1e6)

    def add(self, name: str, milliseconds: float) -> None:
        """Add time to a piece of the step."""
        self._pieces[name] = self._pieces.get(name, 0.0) + milliseconds

    def arrive(self, name: str) -> None:
        """Note that the rank enters a collective now."""
        self._arrivals.setdefault(name, []).append(time.monotonic_ns())

    def end_step(self, kind: str = "train") -> None:
        """Write the step that ends now."""
        now = time.monotonic_ns()
        row = {
            "rank": self.rank,
            "step": self.step,
            "kind": kind,
            "begin_ns": self._begin_ns,
            "end_ns": now,
            "pieces": self._pieces,
            "arrivals": self._arrivals,
        }
        os.write(self._file, (json.dumps(row) + "\n").encode())
        self.step += 1
        self._begin_step(now)
