"""Compilations of torch.compile: which function, for how long, how often it had been compiled, and why it is again.

Installed by ``bootstrap`` when Dynamo has been imported, which a job that compiles nothing does not do. A frame is
compiled in ``convert_frame._compile``; what is compiled later, when a backward runs for the first time or a CUDA graph
is recorded, torch says in its callbacks. A compilation inside another one is part of that.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, ModuleType
from typing import Any

from stashtrace.probes import patching, recorder
from stashtrace.probes.process import thread_state, window
from stashtrace.probes.recorder import failed, intern, now_ticks

COLLECTOR = "torch_step"
_emit_span = recorder.RecordWriter("span").emit
_emit_instant = recorder.RecordWriter("instant").emit
_KIND = recorder.code("SpanKind", "compile")
_REASON = recorder.code("SpanKind", "compile_reason")
#: Words for what is compiled later, by the name of torch's trigger; frames are seen by ``_compile``.
_LATER = {"LAZY_BACKWARD": "backward of ", "CUDAGRAPH_RECORDING": "CUDA graph of "}
#: A job may compile for each of its sizes: later reasons would fill its string table.
_MOST_REASONS, _REASON_WIDTH = 64, 200
#: Numbers of compilations that are kept until what they compile runs.
_MOST_LABELS = 4096
#: Dynamo's name of the rest of a function behind a graph break, before the function's own.
_RESUMED = "torch_dynamo_resume_in_"

#: How often each function was compiled, and what torch's number of a compilation compiles.
_times: dict[str, int] = {}
_labels: dict[str, str] = {}
_reasons: set[str] = set()


def install(convert_frame: ModuleType) -> None:
    """Watch the compilation of frames, and what is compiled when it first runs."""
    patching.replace(COLLECTOR, convert_frame, "_compile", _compile)


def _compile(original: Any) -> Any:
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        if thread_state.compiling:
            return original(*args, **kwargs)
        thread_state.compiling = True
        begin = now_ticks()
        try:
            _follow_later_ones()
            return original(*args, **kwargs)
        finally:
            thread_state.compiling = False
            try:
                _compiled(begin, _name(args), kwargs.get("compile_id"))
            except Exception as error:
                failed(COLLECTOR, "compile", error)

    return compile_frame


def _compiled(begin: int, label: str, number: Any) -> None:
    if len(_labels) > _MOST_LABELS:
        _labels.clear()
    _labels[str(number)] = label
    before = _record(begin, label)
    reason = _reason_of(number) if before else ""
    if reason and window.open and (reason in _reasons or len(_reasons) < _MOST_REASONS):
        _reasons.add(reason)
        _emit_instant(begin, 0, before, intern(reason), _REASON)


def _record(begin: int, label: str) -> int:
    """Write one compilation, and return how many of this function came before it."""
    before = _times.get(label, 0)
    _times[label] = before + 1  # in a pause, too
    if window.open:
        _emit_span(begin, now_ticks(), 0, before, intern(f"torch.compile {label}"), _KIND)
    return before


def _reason_of(number: Any) -> str:
    """Return why torch compiled again, from the facts that it keeps of its last compilations; empty if unknown."""
    kept: Any = getattr(sys.modules.get("torch._dynamo.utils"), "get_compilation_metrics", tuple)
    metrics = kept()
    last = metrics[-1] if metrics else None
    if last is None or str(getattr(last, "compile_id", "")) != str(number):
        return ""
    text = getattr(last, "recompile_reason", None) or ""
    # "0/1: tensor 'x' size mismatch ...": the number says which compiled version did not fit.
    head, colon, rest = text.partition(": ")
    return (rest if colon and "/" in head else text)[:_REASON_WIDTH]


# What is compiled ---------------------------------------------------------------------------------


def _name(args: tuple[Any, ...]) -> str:
    """Name the function that a frame runs, with its file and line."""
    code = args[0] if args and isinstance(args[0], CodeType) else None
    if code is None:
        return "a function"
    owner = ""
    if f"{os.sep}_dynamo{os.sep}" in code.co_filename:  # torch's function around a module
        module = _module_in(args[4] if len(args) > 4 else ())
        forward = getattr(getattr(type(module), "forward", None), "__code__", None)
        if isinstance(forward, CodeType):
            code, owner = forward, f"{type(module).__name__}."
    name = str(code.co_name if owner else getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2]
    if name.startswith(_RESUMED):
        name = f"{name.removeprefix(_RESUMED).rpartition('_at_')[0]} behind a graph break"
    return f"{owner}{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def _module_in(closure: Any) -> Any:
    for cell in closure or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue  # nothing is in it yet
        for one in (held, getattr(held, "__self__", None)):
            if hasattr(one, "forward") and hasattr(one, "named_parameters"):
                return one
    return None


# What is compiled when it first runs --------------------------------------------------------------


def _follow_later_ones() -> None:
    """Register our callbacks; ``torch._dynamo.reset()`` removes all, so this is asked at each compilation."""
    module = sys.modules.get("torch._dynamo.callback")
    handler = getattr(module, "callback_handler", None)
    if handler is None or not hasattr(module, "CallbackTrigger"):
        return  # an older torch calls back for frames alone
    if _later_begins not in handler.start_callbacks:
        handler.register_start_callback(_later_begins)
        handler.register_end_callback(_later_ends)


def _later_begins(about: Any) -> None:
    try:
        if about.callback_trigger.name in _LATER and not thread_state.compiling:
            thread_state.compile_begin = now_ticks()
    except Exception as error:
        failed(COLLECTOR, "compile", error)


def _later_ends(about: Any) -> None:
    try:
        begin, thread_state.compile_begin = thread_state.compile_begin, 0
        if begin:
            what = _LATER[about.callback_trigger.name]
            _record(begin, what + _labels.get(str(about.compile_id), "a function"))
    except Exception as error:
        failed(COLLECTOR, "compile", error)
