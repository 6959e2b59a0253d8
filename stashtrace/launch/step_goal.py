"""`--until-step`: sees when all ranks of this host have made the steps that were asked for, and how to end the command.

A rank that gets there leaves an empty file in the run directory (``probes.step_window``), whose name holds the host
and how many ranks it has. Used by ``launch.run``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

#: Ranks are in step, but a file may come late: so long the others are waited for.
_OTHERS_S = 5.0
#: From asking the command to end to making it, and the same for what it leaves.
_PATIENCE_S, _REST_S = 20.0, 3.0
_POLL_S = 0.05


class StepGoal:
    """Watches a run directory.

    Parameters
    ----------
    directory : Path
        Where the processes of this host write.

    Attributes
    ----------
    reached : bool
        Whether ranks made their steps and the command was told to end.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._first_s = 0.0
        self._asked_s = 0.0
        self.reached = False

    def signal_now(self) -> int:
        """Signal that the command should be sent now: SIGTERM once, SIGKILL if it does not follow, else 0."""
        now = time.monotonic()
        if self.reached:
            return signal.SIGKILL if now > self._asked_s + _PATIENCE_S else 0
        files = self._files()
        if not files:
            return 0
        self._first_s = self._first_s or now
        expected = max(int(file.name.split(".")[-2]) for file in files)
        if len(files) < expected and now < self._first_s + _OTHERS_S:
            return 0
        self.reached, self._asked_s = True, now
        return signal.SIGTERM

    def end_rest(self, living: Callable[[], Iterable[int]]) -> None:
        """End ranks that outlive the command, as those below a shell do: it does not pass signals on."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _REST_S
            for pid in living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while time.monotonic() < deadline and list(living()):
                time.sleep(_POLL_S)

    def clear(self) -> None:
        """Remove the files."""
        for file in self._files():
            file.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Of this host: others may write into the same directory."""
        return list(self._directory.glob(f"{os.uname().nodename}.*.reached"))
