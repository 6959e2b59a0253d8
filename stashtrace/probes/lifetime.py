"""Begin and end of recording in a Python process that imports torch, and its forked children.

Called by ``bootstrap`` before the first probe is installed. Starts the drainer (the process is a rank or
a worker by now), and at exit writes what the probes cost. Registers no signal handler.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from stashtrace import _native
from stashtrace.probes import recorder

_before_end: list[Callable[[], None]] = []
_in_child: list[Callable[[], None]] = []
_pid = 0


def begin(*, ends_itself: bool = False) -> None:
    """Start recording in this process; harmless when called twice.

    Parameters
    ----------
    ends_itself : bool
        The caller will call :func:`end`; else a forked child of multiprocessing is told to.
    """
    global _pid
    if _pid == os.getpid():
        return
    first = _pid == 0
    _pid = os.getpid()
    _native.start_drainer()
    recorder.cost.calibrate()
    if first:
        atexit.register(end)
        os.register_at_fork(after_in_child=_forked)
    elif not ends_itself:
        from multiprocessing.util import Finalize

        # Children of multiprocessing leave by os._exit, without atexit.
        Finalize(None, end, exitpriority=0)


def before_end(action: Callable[[], None]) -> None:
    """Call ``action`` at the end of the process, newest first."""
    _before_end.append(action)


def in_forked_child(action: Callable[[], None]) -> None:
    """Call ``action`` in a child right after ``fork``; it may only reset Python objects."""
    _in_child.append(action)


def end() -> None:
    """Write what was gathered. Runs at exit, and at the end of a DataLoader worker, which skips ``atexit``."""
    if _pid != os.getpid():
        return
    for action in reversed(_before_end):
        try:
            action()
        except Exception as error:
            recorder.failed("core", "end_of_process", error)
    recorder.record_cost()
    _native.flush()


def _forked() -> None:
    # _pid stays the parent's, so that a child which never touches torch again starts no thread.
    recorder.cost.forget()
    for action in _in_child:
        action()
