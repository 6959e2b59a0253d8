"""The functions for user code: ``stashtrace.annotate``, ``stashtrace.step`` and ``stashtrace.flush``.

Outside a traced run they do nothing and load nothing; inside they cost about a microsecond. They never raise, whatever
they are given.

In a traced job these are the functions of the tracer's version, also for a ``stashtrace`` of another version that the
job's environment has: its ``__init__`` finds them here, by the names of this module and its functions, which stay.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
_COROUTINE = 0x80  # inspect.CO_COROUTINE


class _Nothing:
    """The annotation outside a traced run; does nothing."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        return function


_NOTHING = _Nothing()


class _Backend:
    """What annotations need of the recorder; made on first use inside a traced run."""

    def __init__(self) -> None:
        from stashtrace.probes import recorder
        from stashtrace.probes.device_marks import device_marks
        from stashtrace.probes.process import thread_state, window

        self.now = recorder.now_ticks
        self.intern = recorder.intern
        self.emit_span = recorder.RecordWriter("span").emit
        self.emit_instant = recorder.RecordWriter("instant").emit
        self.user = recorder.code("SpanKind", "user")
        self.step_mark = recorder.code("SpanKind", "step_mark")
        self.failed = recorder.failed
        self.window = window
        self.thread_state = thread_state
        self.device_marks = device_marks

    def begin_steps(self) -> None:
        """Record this process as a rank, also where it imports no torch, and this thread as the one that trains."""
        from stashtrace.probes import bootstrap, stacks
        from stashtrace.probes.process import mark_step_thread

        bootstrap.prepare()
        stacks.watch()
        mark_step_thread()


class _Annotation:
    """A named interval: a decorator, and a context manager that can be used again and inside itself."""

    __slots__ = ("_backend", "_begins", "_name")

    def __init__(self, backend: _Backend, name: str) -> None:
        self._backend = backend
        self._name = name
        self._begins: list[int] = []

    def __enter__(self) -> _Annotation:
        self._begins.append(self._backend.now())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        backend = self._backend
        try:
            if backend.window.open:
                name_id = backend.intern(self._name)
                backend.emit_span(self._begins.pop(), backend.now(), 0, 0, name_id, backend.user)
            else:
                self._begins.pop()
        except Exception as ours:
            backend.failed("annotations", "annotate", ours)

    def __call__(self, function: F) -> F:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with _Annotation(self._backend, self._name):
                    return await cast("Callable[..., Awaitable[Any]]", function)(*args, **kwargs)

            return cast("F", awaited)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with _Annotation(self._backend, self._name):
                return function(*args, **kwargs)

        return cast("F", called)


_backend: _Backend | None = None
_decided = False


def never_compiling() -> bool:
    """Stand in for torch's ``is_dynamo_compiling`` until torch has been imported."""
    return False


#: Becomes torch.compiler.is_dynamo_compiling, so that compiled functions hold no code of ours.
is_compiling: Callable[[], bool] = never_compiling


def _find_backend() -> _Backend | None:
    """Return the backend, None outside a traced run; decided once per process image."""
    global _backend, _decided
    if not _decided:
        _decided = True
        if os.environ.get("STASHTRACE_DIR"):
            try:
                from stashtrace.probes import native

                if native.active() and "annotations" in native.config()["collectors"]:
                    _backend = _Backend()
            except Exception as error:
                sys.stderr.write(
                    f"stashtrace[{os.environ.get('RANK', '-')} {os.getpid()}] error: annotations are off: {error!r}\n"
                )
    return _backend


def annotate(name: str) -> Any:
    """Name an interval: ``with stashtrace.annotate("augment"): ...`` or ``@stashtrace.annotate("augment")``.

    Parameters
    ----------
    name : str
        Shown on the timeline. Use few different names.

    Returns
    -------
    context manager and decorator
    """
    if is_compiling():
        return _NOTHING
    backend = _backend if _decided else _find_backend()
    return _NOTHING if backend is None else _Annotation(backend, str(name))


def step() -> None:
    """Mark the end of a training step. After the first call, only such marks end steps."""
    if is_compiling():
        return
    backend = _backend if _decided else _find_backend()
    if backend is None:
        return
    try:
        window = backend.window
        if not backend.thread_state.is_step_thread:
            backend.begin_steps()
        if window.is_controlled:
            window.mark_ns = time.monotonic_ns()
        if window.open:
            backend.emit_instant(backend.now(), 0, window.step, backend.intern("step"), backend.step_mark)
            backend.device_marks.step_ends()
        window.marked()
        if window.begins:  # with this mark, of which nothing was recorded
            backend.emit_instant(backend.now(), 0, window.step - 1, backend.intern("step"), backend.step_mark)
    except Exception as ours:
        backend.failed("annotations", "step", ours)


def flush() -> None:
    """Write all that has been recorded so far to the run directory."""
    if (_backend if _decided else _find_backend()) is not None:
        from stashtrace.probes import native

        native.flush()
