"""Stacks of Python code, compared once with what the interpreter says; and the coroutine that a loop waits for.

``csrc/stacks`` knows where frames lie in the memory of each CPython. It reads nothing before a stack of this process,
read in that way, was equal to that of ``sys._getframe``. A coroutine that waits is on no stack:

    train (job.py:12)  asyncio.run  ...  EpollSelector.select        the stack of the thread
                                         fetch (job.py:7)  sleep     what the loop's first task awaits

Where the selector of an asyncio loop waited for long, the frames of the task that ``run_until_complete`` drives are put
below the thread's own. A task that awaits others stands for these where all of them await at the same place.
"""

from __future__ import annotations

import atexit
import gc
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from inspect import isasyncgen
from types import CodeType, FrameType
from typing import Any

from stashtrace.probes import native, recorder
from stashtrace.probes.patching import look_like, replace
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
    # Follow the loops that are made from now on, if asyncio has been imported
    events = sys.modules.get("asyncio.selector_events")
    if events is not None:
        replace(COLLECTOR, events.BaseSelectorEventLoop, "__init__", _followed)
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
        # Follow the loop that runs in this thread, if there is one
        events = sys.modules.get("asyncio.events")
        if events is not None:
            _follow(events._get_running_loop())


def note_garbage(begin_ticks: int) -> None:
    """Keep who was executing when a garbage collection, which ends now, began."""
    native.note_call(begin_ticks, _GARBAGE)


def note_wait(begin_ticks: int) -> None:
    """Keep who waited for a collective, until now."""
    native.note_call(begin_ticks, _COLLECTIVE)


in_forked_child(lambda: native.watch_stack(False))


#: A code object, and the offset of an instruction in it.
_Place = tuple[CodeType, int]

_LONG_TICKS = native.tick_hz() // 1000  # kLongCallNs of csrc/stacks/stacks.h
#: kMostAwaited of csrc/stacks/stacks.h.
_MOST_FRAMES = 64
#: From the selector's wrapper outwards: _run_once, run_forever, run_until_complete.
_CALLERS = 3
_PAIR = struct.Struct("=Qq")
#: What a coroutine, an asynchronous generator and a generator call their frame, and what they await.
_CHAINS = (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom"))
#: Where asyncio keeps the tasks that one of its own functions awaits: local variables, attributes of ``self``.
_LOCALS, _ATTRIBUTES = ("fs", "fut", "inner"), ("_tasks",)


def _followed(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _follow(self)

    return __init__


def _follow(loop: Any) -> None:
    try:
        _time_selector(loop)
    except Exception as error:  # a selector of the program may allow no attribute
        recorder.failed(COLLECTOR, "event_loop", error)


def _time_selector(loop: Any) -> None:
    selector = getattr(loop, "_selector", None)
    if selector is None or "select" in getattr(selector, "__dict__", {"select": None}):
        return
    # Not its bound method: a selector that holds itself is closed late where a program forgets to.
    select, kept = type(selector).select, weakref.ref(selector)
    now_ticks, state = native.now_ticks, thread_state

    def timed(timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:  # only asks: where it takes long, the thread got no CPU
            return select(kept(), timeout)
        begin_ticks = now_ticks()
        events = select(kept(), timeout)
        if now_ticks() - begin_ticks >= _LONG_TICKS and state.stack_watched:
            try:
                if frames := _awaited(sys._getframe()):
                    native.note_awaited(begin_ticks, b"".join(_PAIR.pack(id(code), at) for code, at in frames))
            except Exception as error:
                recorder.failed(COLLECTOR, "awaited", error)
        return events

    selector.select = look_like(timed, select)


def _awaited(wrapper: FrameType) -> list[_Place]:
    """Return what the loop's first task awaits, the innermost first: codes and offsets of instructions."""
    caller: FrameType | None = wrapper
    for _ in range(_CALLERS):
        caller = caller and caller.f_back
    if caller is None or caller.f_code.co_name != "run_until_complete":
        return []
    found: list[_Place] = []
    task, followed = caller.f_locals.get("future"), set()
    while task is not None and id(task) not in followed:
        followed.add(id(task))
        frames = list(_frames(task))
        found += _places(frames)
        others = _tasks_awaited(task, frames)
        at = {tuple(_places(_frames(one))) for one in others}
        task = others[0] if len(at) == 1 else None
    return found[: -_MOST_FRAMES - 1 : -1]


def _frames(task: Any) -> Iterator[FrameType]:
    """Yield the frames of a suspended task, the outermost first."""
    get = getattr(task, "get_coro", None)
    awaitable = get and get()
    for _ in range(_MOST_FRAMES):
        found = next((names for names in _CHAINS if hasattr(awaitable, names[0])), None)
        if found is None:  # what asks an asynchronous generator for its next value holds it, and does not name it
            awaitable = next(filter(isasyncgen, gc.get_referents(awaitable)), None)
            found = _CHAINS[1]
        frame = awaitable and getattr(awaitable, found[0])
        if frame is None:
            return
        yield frame
        awaitable = getattr(awaitable, found[1])


def _places(frames: Iterable[FrameType]) -> list[_Place]:
    return [(frame.f_code, frame.f_lasti) for frame in frames]


def _tasks_awaited(task: Any, frames: list[FrameType]) -> list[Any]:
    """Return the tasks that have not ended and that a task awaits."""
    waiter = getattr(task, "_fut_waiter", None)
    candidates = [waiter, *getattr(waiter, "_children", ())]
    if frames and frames[-1].f_globals.get("__name__", "").startswith("asyncio."):
        names = frames[-1].f_locals
        for held in (
            *(names.get(name) for name in _LOCALS),
            *(getattr(names.get("self"), name, None) for name in _ATTRIBUTES),
        ):
            candidates += held if isinstance(held, (set, frozenset, list, tuple)) else [held]
    return [one for one in candidates if hasattr(one, "get_coro") and not one.done()]
