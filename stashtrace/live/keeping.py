"""Keep the last steps of a run alone: rows of earlier ones are dropped from the files while it records.

The processes of the job append to their files as ever; what is dropped becomes a hole, which takes no space. The run
then begins in the middle of the job, and the fact ``window`` in its ``run.json`` says where.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stashtrace.format.growing import CLOCKS_NS
from stashtrace.live.accounts import LiveAccounts
from stashtrace.loading.run_tables import WINDOW_FACT, Window
from stashtrace.record.directory import read_run_file, write_run_file


@dataclass(slots=True)
class Keeper:
    """Drops what is older than the steps to keep.

    ``steps``: how many closed steps stay, 0 for no such limit. ``most_bytes``: what the files may take, 0 for no limit.
    """

    directory: Path
    steps: int = 0
    most_bytes: int = 0
    #: Where the run on disk begins; None while all of it is there.
    window: Window | None = None
    dropped_bytes: int = 0
    #: Why nothing can be dropped; empty while it can.
    error: str = ""

    def drop(self, accounts: LiveAccounts) -> None:
        """Drop what need not stay. If the file system cannot, ``error`` says so, and nothing is dropped."""
        wanted = self._wanted(accounts)
        if self.error or wanted is None or (self.window is not None and wanted.first_step <= self.window.first_step):
            return
        before_ns = min(wanted.begins_ns.values()) + accounts.origin_ns - CLOCKS_NS
        # First where the run begins, then the holes: a run that is cut off in between has too many rows, not too few.
        content = read_run_file(self.directory)
        write_run_file(self.directory, {**content, WINDOW_FACT: wanted.fact(accounts.origin_ns)})
        try:
            self.dropped_bytes += accounts.run.drop(before_ns)
            self.window = wanted
        except OSError as error:
            if not self.dropped_bytes:  # then all rows are there, whatever was noted before
                content.pop(WINDOW_FACT, None)
            write_run_file(self.directory, content)
            reason = error.strerror or str(error)
            self.error = f"no more steps are dropped: the file system of {self.directory} refuses it ({reason})"

    def _wanted(self, accounts: LiveAccounts) -> Window | None:
        """Return where the run on disk is to begin, None if all of it may stay."""
        closed = min(accounts.closed.values(), default=-1)
        found = None
        if self.steps:
            old = (w for w in reversed(accounts.windows) if w.first_step <= closed + 1 - self.steps)
            found = next(old, None)
        if self.most_bytes and accounts.windows and accounts.run.bytes_on_disk() > self.most_bytes:
            # A quarter of the steps more, until the files are small enough; what is in memory stays.
            known = [w for w in accounts.windows if self.window is None or w.first_step > self.window.first_step]
            if known:
                further = known[(len(known) - 1) // 4]
                found = further if found is None or further.first_step > found.first_step else found
        return found
