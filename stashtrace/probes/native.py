"""The recorder's functions for the probes, in whatever Python the job runs.

They are built-in functions that ``libstashtrace.so`` makes for the interpreter that asks (``csrc/python``), by the
stable ABI of CPython: one file serves each version from 3.10 on, with and without a GIL, and the tracer's own Python
may be another one. ctypes is used once, to ask for them: a call through it costs four times more time. No probe loads
the extension ``stashtrace._native``, which is built for one version and would switch on the GIL of an interpreter
without one.

The library is the one that has been preloaded, whichever file that was: a process has one recorder. In a process
without it (tests, a job attached to NCCL) the file of this package is loaded.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

LIBRARY = "libstashtrace.so"


def _library() -> ctypes.PyDLL:
    # PyDLL keeps the GIL, since the call makes Python objects.
    try:
        return ctypes.PyDLL(LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return ctypes.PyDLL(os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), LIBRARY))


def _functions() -> dict[str, Callable[..., Any]]:
    """Return the functions by name.

    Raises ImportError if the recorder in this process is of another version, or the interpreter is not a CPython that
    it knows.
    """
    try:
        make = _library().stashtrace_python_functions
        make.restype = ctypes.py_object
        made: dict[str, Callable[..., Any]] = make()
        return made
    except (OSError, AttributeError, ValueError) as error:
        raise ImportError(f"the recorder has no functions for this Python: {error}") from error


_made = _functions()

# The recorder of this process. Harmless where it is not traced: active() says whether it is.
active: Callable[[], bool] = _made["active"]
config: Callable[[], dict[str, Any]] = _made["config"]
schema: Callable[[], dict[str, Any]] = _made["schema"]
#: Off: frequent rows are refused; core, instant and group rows are kept.
set_recording: Callable[[bool], None] = _made["set_recording"]
now_ticks: Callable[[], int] = _made["now_ticks"]
tick_hz: Callable[[], int] = _made["tick_hz"]
intern: Callable[[str], int] = _made["intern"]
#: Of a record's id and its packed row; ValueError if no record has this id and size.
emit: Callable[[int, bytes], bool] = _made["emit"]
#: Of a ThreadRole and a name.
set_thread_role: Callable[[int, str], None] = _made["set_thread_role"]
watch_waits: Callable[[bool], None] = _made["watch_waits"]
start_drainer: Callable[[], bool] = _made["start_drainer"]
flush: Callable[[], bool] = _made["flush"]
#: Of a collector's code, a reason, a count, a sentence and a Severity.
report_loss: Callable[[int, str, int, str, int], None] = _made["report_loss"]
# Works of torch.distributed whose end the recorder writes, on the backend's thread and without the GIL.
#: Of a Work, from a callback of its future: later ones of its class can be followed.
learn_work: Callable[[Any], bool] = _made["learn_work"]
#: Of a Work, a collective_id, call_ticks and return_ticks; the Work's address, 0: nothing will be written.
follow_work: Callable[[Any, int, int, int], int] = _made["follow_work"]
work_address: Callable[[Any], int] = _made["work_address"]
works_in_flight: Callable[[], int] = _made["works_in_flight"]
forget_works: Callable[[], None] = _made["forget_works"]

# Stacks of Python code (csrc/stacks).
#: Of sys.hexversion; None, or why they cannot be read.
start_stacks: Callable[[int], str | None] = _made["start_stacks"]
#: Name, file and line of this thread's frames, the innermost first; None if they cannot be read.
own_stack: Callable[[], list[tuple[bytes, bytes, int]] | None] = _made["own_stack"]
enable_stacks: Callable[[], None] = _made["enable_stacks"]
disable_stacks: Callable[[], None] = _made["disable_stacks"]
watch_stack: Callable[[bool], None] = _made["watch_stack"]
#: Of the ticks at which a call began that ends now, and a StackCause.
note_call: Callable[[int, int], None] = _made["note_call"]
#: As note_call, and frames of coroutines below the thread's own: id(code), f_lasti of each, the innermost first.
note_awaited: Callable[[int, bytes], None] = _made["note_awaited"]

#: Own and peer end of a connection as "address:port"; None: not established, not TCP.
tcp_ends: Callable[[int], tuple[str, str] | None] = _made["tcp_ends"]

# Outermost calls of a Python function: begins() -> token or None, ends(first argument, token, failed).
watch_outermost_calls: Callable[[Any, Callable[[], object], Callable[[Any, Any, bool], None]], bool] = _made[
    "watch_outermost_calls"
]
in_outermost_call: Callable[[], bool] = _made["in_outermost_call"]
forget_outermost_call: Callable[[], None] = _made["forget_outermost_call"]

# Both ends of a recorded interval.
#: Of 0: ticks, 1: and CPU and run-queue time, 2: and faults, block inputs.
probe_begins: Callable[[int], bytes] = _made["probe_begins"]
#: Of what probe_begins() gave, a name, a Phase and PhaseFlags.
phase_ends: Callable[[bytes, str, int, int], None] = _made["phase_ends"]
#: Of what probe_begins() gave, a BatchPhase, a loader, a batch's index and a worker.
batch_ends: Callable[[bytes, int, int, int, int], None] = _made["batch_ends"]
#: Ticks, and recorded intervals.
probe_account: Callable[[], tuple[int, int]] = _made["probe_account"]
forget_probe_account: Callable[[], None] = _made["forget_probe_account"]

# Timing events. Harmless (False, 0, nothing) without a device.
device_active: Callable[[], bool] = _made["device_active"]
#: Of a Bracket, a stream and a correlation; a token.
device_bracket_begin: Callable[[int, int, int], int] = _made["device_bracket_begin"]
device_bracket_end: Callable[[int, int], None] = _made["device_bracket_end"]
device_mark: Callable[[int, int, int], None] = _made["device_mark"]
kernels_step: Callable[[int], None] = _made["kernels_step"]
#: Of the first step and the one behind the last; 0: ask again at the next step, 1: they will be recorded, 2: never.
kernels_window: Callable[[int, int], int] = _made["kernels_window"]
#: Of a step, with which deep mode is over; 0: ask again at the next one.
kernels_end: Callable[[int], int] = _made["kernels_end"]
kernels_step_aside: Callable[[str], None] = _made["kernels_step_aside"]
