"""Stacks of Python code: compared once with what the interpreter says, then read without it.

``csrc/stacks`` knows where frames lie in the memory of each CPython. It reads nothing before a stack of this process,
read in that way, was equal to that of ``sys._getframe``.
"""

from __future__ import annotations

import atexit
import sys
from types import FrameType

from stashtrace.probes import awaits, native, recorder
from stashtrace.probes.process import in_forked_child, thread_state

COLLECTOR = "python_stacks"
_GARBAGE = recorder.code("StackCause", "garbage")
_COLLECTIVE = recorder.code("StackCause", "collective")
#: kMostTextBytes of csrc/stacks/objects.h.
_LONGEST_TEXT_BYTES = 1024
_on = False


def begin() -> None:
    """Start to note who makes long calls, if stacks can be read here; a second call does nothing."""
    global _on
    if _on or COLLECTOR not in native.config()["collectors"]:
        return
    if why := native.start_stacks(sys.hexversion) or _difference():
        recorder.unavailable(COLLECTOR, "no_stacks", why)
        return
    native.enable_stacks()
    awaits.begin()
    atexit.register(native.disable_stacks)
    _on = True


def _difference() -> str:
    # One line, so that both see this frame at the same line.
    read, said = native.own_stack(), _said(sys._getframe())
    if read is None:
        return "the frames of this process cannot be read"
    if read and read == said[: len(read)]:
        return ""
    return "its frames are not where they were in other builds of this version of Python"


def _said(frame: FrameType | None) -> list[tuple[bytes, bytes, int]]:
    frames = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # 3.11
        frames.append((_bytes(name), _bytes(code.co_filename), frame.f_lineno if frame.f_lineno is not None else -1))
        frame = frame.f_back
    return frames


def _bytes(text: str) -> bytes:
    # As native code reads it: UTF-8, surrogates of os.fsdecode as their bytes, and of a long text the begin.
    if text.isascii():
        return text[:_LONGEST_TEXT_BYTES].encode()
    bytes_per_character = 1 if max(text) < "\u0100" else 2 if max(text) < "\U00010000" else 4
    text = text[: _LONGEST_TEXT_BYTES // bytes_per_character]
    return b"".join(
        c.encode("utf-8", "surrogateescape" if "\udc80" <= c <= "\udcff" else "surrogatepass") for c in text
    )


def watch() -> None:
    """Have this thread sampled from now on."""
    if thread_state.stack_watched:
        return
    thread_state.stack_watched = True
    if _on:
        native.watch_stack(True)
        awaits.follow_running_loop()


def note_garbage(begin_ticks: int) -> None:
    """Keep who was executing when a garbage collection, which ends now, began."""
    native.note_call(begin_ticks, _GARBAGE)


def note_wait(begin_ticks: int) -> None:
    """Keep who waited for a collective, until now."""
    native.note_call(begin_ticks, _COLLECTIVE)


in_forked_child(lambda: native.watch_stack(False))
