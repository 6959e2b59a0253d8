"""Deep mode for steps that the launcher's side asks for while the job runs.

It asks by the file that the processes of a run map (``record.follower``). The first step is the same on all ranks; one
that has come further begins with its next step, so that each records as many. A rank ends deep mode by itself when its
steps have taken as much longer than usual as they may.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

from stashtrace.probes import native, recorder

#: Bytes of the file; where the number of the request stands, and the request (``record.follower`` knows these too).
_SIZE, _NUMBER_AT, _REQUEST_AT = 64, 1, 8
#: First step, how many (0: no more), what one usually takes, and what all may take longer, both in ns.
_REQUEST = struct.Struct("<QQQQ")
#: Answers of the recorder.
_LATER, _TAKEN = 0, 1


class DeeperSteps:
    """Follows the requests. ``control``: the file."""

    def __init__(self, control: mmap.mmap) -> None:
        self._control = control
        self._number = control[_NUMBER_AT]  # one of before this process is none of its own
        self._wanted: tuple[int, int, int, int] | None = None
        #: The steps that are or will be recorded; -1 for none.
        self._first = self._end = -1
        self._usual_ns = self._budget_ns = 0
        #: When the step before the first one began, in which the recorder gets ready; -1 before.
        self._begin_ns = -1
        self._ends = False

    def look(self, step: int) -> None:
        """Take what was asked for since the last step. ``step``: which begins now."""
        if self._control[_NUMBER_AT] != self._number:
            self._number = self._control[_NUMBER_AT]
            self._wanted = _REQUEST.unpack_from(self._control, _REQUEST_AT)
            if not self._wanted[1]:
                self._wanted, self._ends = None, self._end >= 0
        if self._wanted is not None:
            self._ask(step, *self._wanted)
        elif self._end >= 0:
            self._ends = self._ends or self._is_used_up(step)
            if step >= self._end or (self._ends and native.kernels_end(step)):
                self._first = self._end = self._begin_ns = -1
                self._ends = False

    def _is_used_up(self, step: int) -> bool:
        """Return whether the steps have taken as much longer than usual as they may."""
        if step < self._first - 1:
            return False
        now_ns = time.monotonic_ns()
        if self._begin_ns < 0:
            self._begin_ns = now_ns
        usual_ns = (step - self._first + 1) * self._usual_ns
        return now_ns - self._begin_ns > usual_ns + self._budget_ns

    def _ask(self, step: int, first: int, count: int, usual_ns: int, budget_ns: int) -> None:
        first = max(first, step + 1)  # the recorder needs one step to get ready
        answer = native.kernels_window(first, first + count)
        if answer == _LATER:
            return
        self._wanted = None
        if answer == _TAKEN:
            self._first, self._end, self._ends = first, first + count, False
            self._usual_ns, self._budget_ns, self._begin_ns = usual_ns, budget_ns, -1
            self._is_used_up(step)


def follow_requests() -> DeeperSteps | None:
    """Return what follows the requests; None where nobody makes any."""
    if os.environ.get("STASHTRACE_FOLLOWED") != "1":
        return None
    path = find_control(os.environ.get("STASHTRACE_DIR", ""))
    if not path:
        return None  # the launcher is on another host
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        recorder.failed("cupti", "control", error)
        return None
    try:
        return DeeperSteps(mmap.mmap(descriptor, _SIZE, mmap.MAP_SHARED, mmap.PROT_READ))
    except (OSError, ValueError) as error:
        recorder.failed("cupti", "control", error)
        return None
    finally:
        os.close(descriptor)


def find_control(directory: str) -> str:
    """Return the path of the file, empty if there is none: a container may have another name than its launcher."""
    own = os.path.join(directory, f"control-{os.uname().nodename}")
    if os.path.exists(own):
        return own
    try:
        names = [name for name in os.listdir(directory) if name.startswith("control-")]
    except OSError:
        return ""
    return os.path.join(directory, names[0]) if len(names) == 1 else ""
