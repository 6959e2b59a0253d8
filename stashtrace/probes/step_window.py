"""STASHTRACE_STEPS: record only the steps ``A:B`` of a process; outside them probes count and do not record.

``torch_step`` tells when an update was made and when the next forward begins, ``annotations`` when the
user marks a step; the first mark by the user makes those the only boundaries.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

from stashtrace import _native


class StepWindow:
    """Counts steps and pauses the recorder outside the wanted ones.

    Parameters
    ----------
    steps : str
        ``"A:B"``, ``"A:"``, ``":B"`` or empty for all.

    Attributes
    ----------
    step : int
        Steps ended so far.
    open : bool
        Whether probes should record now.
    marked_by_user : bool
        Whether ``stashtrace.step()`` has been called: then nothing else ends a step.
    """

    def __init__(self, steps: str) -> None:
        first, _, last = steps.partition(":")
        self._first = int(first) if first.isdecimal() else 0
        self._last = int(last) if last.isdecimal() else None
        self._updated = False
        self.marked_by_user = False
        self._told = -1
        goal = os.environ.get("STASHTRACE_UNTIL_STEP", "")
        self._goal = int(goal) if goal.isdecimal() else None
        self.step = 0
        self.open = True
        self._apply()

    def _apply(self) -> None:
        open_now = self._first <= self.step and (self._last is None or self.step < self._last)
        if open_now != self.open:
            self.open = open_now
            _native.set_recording(open_now)

    def always(self) -> None:
        """Record everything from now on; for workers, which make batches of steps they do not know."""
        self._first, self._last = 0, None
        self._apply()

    def updated(self) -> None:
        """The optimizer has made an update; the step ends before the next forward or batch wait."""
        self._updated = True

    def forward_begins(self) -> None:
        """An outermost forward begins, or the step thread asks for a batch: its wait is of that step."""
        if self._updated:
            self._updated = False
            if not self.marked_by_user:
                self.step += 1
                self._apply()
        if self._told != self.step:
            self._tell()

    def marked(self) -> None:
        """The user said that a step ends here."""
        self.marked_by_user = True
        self.step += 1
        self._apply()
        self._tell()

    def _tell(self) -> None:
        """Let deep mode know where its own window of steps begins and ends."""
        self._told = self.step
        _native.kernels_step(self.step)
        if self._goal is not None and self.step >= self._goal:
            self._goal = None
            self._leave_word()

    def _leave_word(self) -> None:
        """STASHTRACE_UNTIL_STEP: the launcher waits for a file of each rank, and ends the job then."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        name = f"{os.uname().nodename}.{os.getpid()}.{ranks if ranks.isdecimal() else 1}.reached"
        try:
            os.close(os.open(os.path.join(os.environ["STASHTRACE_DIR"], name), os.O_CREAT | os.O_WRONLY, 0o644))
        except (OSError, KeyError) as error:
            from stashtrace.probes import recorder

            recorder.failed("torch_step", "until_step", error)


window = StepWindow(_native.config().get("steps") or "")
