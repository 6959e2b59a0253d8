"""Calls of torch that may take long on the host, each with the line of the script that makes it.

Object collectives pickle on every rank, in addition to the operations that they start; a sampler may shuffle a whole
data set in Python when an epoch begins; process groups, wrappers and models on their way to a device take most of a
job's start. A call inside another one of these is part of that, and short ones are not recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from stashtrace.probes import native, patching, recorder
from stashtrace.probes.process import thread_state, window
from stashtrace.probes.recorder import failed, intern, now_ticks

#: Functions of ``torch.distributed`` that move Python objects.
OBJECT_COLLECTIVES = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
_emit_span = recorder.RecordWriter("span").emit
_LIBRARY, _OBJECTS = (recorder.code("SpanKind", name) for name in ("library", "objects"))
#: Calls shorter than this are not worth a row, as with collections of garbage.
_LEAST_TICKS = 100_000 * native.tick_hz() // 1_000_000_000
_TORCH = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep if "torch" in sys.modules else os.sep
#: Our own wrappers, which stand between torch and the script.
_PROBES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def time_object_collectives(collector: str, owners: Sequence[Any]) -> None:
    """Time those of the first owner; further ones have them under the same names, as a package of its module."""
    first, *others = owners
    for name in OBJECT_COLLECTIVES:
        if patching.replace(collector, first, name, _timed(collector, name), needed=False):
            for owner in others:
                if hasattr(owner, name):
                    setattr(owner, name, getattr(first, name))


def time_sampler(collector: str, iterator_class: Any) -> None:
    """Time how long an iterator of a DataLoader waits for its sampler, which is named by its class."""

    def make(original: Any) -> Any:
        def _next_index(self: Any) -> Any:
            begin = now_ticks()
            try:
                return original(self)
            finally:
                if now_ticks() - begin >= _LEAST_TICKS:
                    _record(collector, begin, _LIBRARY, _sampler_name, self)

        return _next_index

    patching.replace(collector, iterator_class, "_next_index", make, needed=False)


def _timed(collector: str, name: str) -> Any:
    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if thread_state.in_library:
                return original(*args, **kwargs)
            thread_state.in_library = True
            begin = now_ticks()
            try:
                return original(*args, **kwargs)
            finally:
                thread_state.in_library = False
                if now_ticks() - begin >= _LEAST_TICKS:
                    _record(collector, begin, _OBJECTS, _with_place, name)

        return call

    return make


def record_call(collector: str, begin: int, name: str) -> None:
    """Record a call in which all ranks meet, which began at ``begin`` and ends now, with its line of the script."""
    if now_ticks() - begin >= _LEAST_TICKS:
        _record(collector, begin, _LIBRARY, _with_place, name, 1)


def _record(collector: str, begin: int, kind: int, make_name: Callable[[Any], str], of: Any, value: int = 0) -> None:
    try:
        if window.open:
            _emit_span(begin, now_ticks(), 0, value, intern(make_name(of)), kind)
    except Exception as error:
        failed(collector, "timed_call", error)


def _with_place(name: str) -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _PROBES)):
        frame = frame.f_back
    if frame is None:  # torch alone is on the way
        return name
    return f"{name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _sampler_name(iterator: Any) -> str:
    batches = getattr(iterator, "_index_sampler", None)
    sampler = getattr(batches, "sampler", None)  # of torch's BatchSampler
    sampler = batches if sampler is None else sampler
    code = getattr(getattr(type(sampler), "__iter__", None), "__code__", None)
    place = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
    return f"sampler {type(sampler).__name__}{place}"
