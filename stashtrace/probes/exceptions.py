"""The exception that ends a process: its type, the first line of its message and where it was raised.

It becomes an instant of kind ``exception`` at the moment at which nothing had caught it. Three ways lead here, because
each misses some processes: ``sys.excepthook`` (a script), a finalizer of multiprocessing (a child, whose exception is
caught and printed there) and the end of the process (a hook that a library has put in place of ours).
"""

from __future__ import annotations

import functools
import os
import re
import sys

from stashtrace.probes import native, recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

#: Characters of a message, of a path and of all that is said.
_MESSAGE, _PATH, _WHOLE = 200, 60, 320
#: Characters that are read of a message, which may be as long as a tensor.
_READ = 20_000
#: Folders of code that is not the user's.
_FOREIGN = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.dirname(os.__file__) + os.sep)
#: Where native code raised it, before the message: "[/pytorch/third_party/gloo/pair.cc:537] Connection closed".
_SOURCE = re.compile(r"^\[[^\]\s]*:\d+\]\s*")
_recorded_in = 0
#: The exception that was being handled when this process was forked: it is none of its own, and is handled to its end,
#: as by a loader that begins again after StopIteration.
_inherited: BaseException | None = None


def watch() -> None:
    """Follow uncaught exceptions of this process; the hook that is in place is called afterwards, as before."""
    before = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        record(error)
        return before(kind, error, trace)

    sys.excepthook = excepthook


def watch_children() -> None:
    """Have each child of multiprocessing look at its end: it catches what its function raises."""
    from multiprocessing import util

    # A spawned child keeps what it registers while it imports its program, a forked one forgets its parent's.
    _watch_own_end()
    util.register_after_fork(sys.modules[__name__], _watch_own_end)


def _watch_own_end(_: object = None) -> None:
    from multiprocessing.util import Finalize

    Finalize(None, look, exitpriority=1)


def forked() -> None:
    """Note, right after a fork, which exception the parent was handling."""
    global _inherited
    _inherited = sys.exc_info()[1]


def look() -> None:
    """Record the exception that this process ends with, if it does and none has been recorded."""
    error = sys.exc_info()[1]
    if error is _inherited:
        error = None
    if error is None and not hasattr(sys, "ps1"):  # at a prompt an exception ends nothing
        error = getattr(sys, "last_value", None)
    # ``torch.multiprocessing.spawn`` reports what its function raised, and leaves by sys.exit.
    if isinstance(error, SystemExit):
        error = error.__context__
    if error is not None and not isinstance(error, SystemExit | GeneratorExit):
        record(error)


def record(error: BaseException) -> None:
    """Record an exception that nothing caught: the first one of this process."""
    global _recorded_in
    if _recorded_in == os.getpid() or isinstance(error, SystemExit):
        return
    _recorded_in = os.getpid()
    try:
        name_id = recorder.intern(describe(error))
        kind = recorder.code("SpanKind", "exception")
        recorder.RecordWriter("instant").emit(recorder.now_ticks(), 0, 0, name_id, kind)
        native.flush()
    except Exception as ours:
        recorder.failed("core", "exception", ours)


def describe(error: BaseException) -> str:
    """Word an exception: ``ValueError: bad batch (in collate, /home/me/train.py:118)``, without secrets."""
    place = _place(error.__traceback__)
    room = _WHOLE - len(place) - 3
    text = f"{type(error).__qualname__}: {_message(error)}".removesuffix(": ")
    text = text if len(text) <= room else text[: room - 3] + "..."
    return f"{text} ({place})" if place else text


def _message(error: BaseException) -> str:
    """Return the first line of the message; where that only says in which worker it was raised, also the last one."""
    try:
        text = str(error)[:_READ]
    except Exception:
        return ""  # a message that cannot be made is none
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    if not lines:
        return ""
    said = _SOURCE.sub("", lines[0]).strip("- ")
    if len(lines) > 1 and (said.startswith("Caught ") or lines[0].startswith("-- ")):
        said = f"{said.rstrip('.:')}: {lines[-1]}"
    scrubbing = _scrubbing()
    (said,) = scrubbing.scrub_arguments([scrubbing.scrub_urls(said)])
    said = str(said)
    return said if len(said) <= _MESSAGE else said[: _MESSAGE - 3] + "..."


@functools.lru_cache(maxsize=1)
def _scrubbing() -> Any:
    """Load the rules about secrets that belong to this recorder, whichever stashtrace the job may import."""
    from importlib.util import module_from_spec, spec_from_file_location

    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    spec = spec_from_file_location("stashtrace_scrubbing", os.path.join(package, "scrubbing", "secrets.py"))
    if spec is None or spec.loader is None:
        raise ImportError("no scrubbing/secrets.py in the folder above the probes")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _place(trace: TracebackType | None) -> str:
    """Return function, file and line of the innermost frame of the user's code, else of the innermost one."""
    best, innermost = None, trace
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith(("<frozen", own)) or any(part in file for part in _FOREIGN)):
            best = trace
        innermost, trace = trace, trace.tb_next
    best = best or innermost
    if best is None:
        return ""
    code = best.tb_frame.f_code
    # A path that is cut could not be distinguished from other words any more by who replaces paths.
    file = code.co_filename if len(code.co_filename) <= _PATH else os.path.basename(code.co_filename)[-_PATH:]
    return f"in {code.co_name}, {_scrubbing().scrub_urls(file)}:{best.tb_lineno}"
