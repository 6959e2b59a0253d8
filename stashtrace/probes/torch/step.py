"""Phases of a training step: forward, backward, optimizer, skipped updates; garbage collection pauses.

Installed by ``bootstrap`` when torch has been imported. Calls of modules are seen in the call slot of the function
behind ``nn.Module.__call__`` (``csrc/python/outermost_calls.cpp``), which stays torch's own; for a module inside
another, we only test a flag. The entry of the autograd engine is wrapped, and the optimizers have hooks. Under Dynamo
every wrapper only calls the original (``is_compiling`` is a constant there).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stashtrace.probes import annotations as marks
from stashtrace.probes import bootstrap, native, patching, recorder, stacks
from stashtrace.probes.device_marks import device_marks
from stashtrace.probes.process import mark_step_thread, thread_state, window
from stashtrace.probes.recorder import CLOCKS, TICKS, failed, intern, now_ticks, phase_ends, probe_begins

COLLECTOR = "torch_step"
#: Collections shorter than this are not worth a row.
GC_THRESHOLD_NS = 100_000
_MOST_NESTED_UPDATES = 8
#: Optimizers of one class with different names; a job that makes one for each step would fill its string table.
_MOST_OF_A_CLASS = 8

_FORWARD = recorder.code("Phase", "forward")
_BACKWARD = recorder.code("Phase", "backward")
_OPTIMIZER = recorder.code("Phase", "optimizer")
_SKIPPED = recorder.code("Phase", "update_skipped")
_NO_GRAD = recorder.code("PhaseFlag", "no_grad")
_TRAINING = recorder.code("PhaseFlag", "training")
_NESTED = recorder.code("PhaseFlag", "nested")
_FAILED = recorder.code("PhaseFlag", "failed")

is_compiling = marks.never_compiling
_grad_enabled: Any = bool


def install(torch: ModuleType) -> None:
    """Patch torch; called once, after ``import torch``."""
    global is_compiling, _grad_enabled
    compiler = getattr(torch, "compiler", None)
    is_compiling = marks.is_compiling = (
        getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or is_compiling
    )
    _grad_enabled = torch.is_grad_enabled
    # Only the blocking waits of the thread that imports torch matter: it becomes the step thread.
    native.watch_waits(True)
    # Record the import of torch, which is a good part of a short job's start
    took = bootstrap.import_ns.get("torch", 0) * native.tick_hz() // 1_000_000_000
    if took and window.open:
        now, kind = now_ticks(), recorder.code("SpanKind", "library")
        recorder.RecordWriter("span").emit(now - took, now, 0, 0, intern("import torch"), kind)
    recorder.record_fact("torch_version", torch.__version__)
    recorder.record_fact("torch_threads", torch.get_num_threads())
    patching.replace(COLLECTOR, torch, "set_num_threads", _sets_threads, needed=False)
    recorder.record_fact("omp_num_threads", os.environ.get("OMP_NUM_THREADS", ""))
    if hasattr(os, "sched_getaffinity"):
        recorder.record_fact("cpus_allowed", _ranges(sorted(os.sched_getaffinity(0))))
    # Watch the outermost module calls; a call inside one costs the test of a flag, and no Python code of ours
    function = vars(torch.nn.Module).get("__call__")
    if not native.watch_outermost_calls(function, _forward_begins, _forward_ends):
        recorder.unavailable(
            COLLECTOR, "not_patched", f"Module.__call__ is a {type(function).__name__}, not a Python function"
        )
    # torch.autograd.backward and grad both enter the engine here; older ones are wrapped themselves.
    if not patching.replace(COLLECTOR, torch.autograd, "_engine_run_backward", _engine_call, needed=False):
        patching.replace(COLLECTOR, torch.autograd, "backward", _engine_call)
        patching.replace(COLLECTOR, torch.autograd, "grad", _engine_call)
    _hook_optimizers(torch)
    _watch_garbage_collection()


def install_grad_scaler(grad_scaler: ModuleType) -> None:
    """Patch ``GradScaler.step``."""
    patching.replace(COLLECTOR, grad_scaler.GradScaler, "step", _scaler_step)


def hide_from_dynamo(trace_rules: ModuleType) -> None:
    """Make Dynamo run our frames uncompiled inside a compiled region.

    ``annotations`` stays visible, since users call it in code that they compile.
    """
    for name in list(sys.modules):
        if name.startswith("stashtrace.probes.") and name != marks.__name__:
            trace_rules.add(name)


def _sets_threads(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_num_threads(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            recorder.record_fact("torch_threads_set", int(args[0]))
        except Exception as error:  # whatever torch took for a number
            recorder.failed(COLLECTOR, "set_num_threads", error)
        return result

    return set_num_threads


def _ranges(cpus: list[int]) -> str:
    """Return ``0-3,8`` for a list of numbers."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


# Forward ----------------------------------------------------------------------------------------


def _forward_begins() -> bytes | None:
    try:
        if is_compiling():
            return None
        window.forward_begins()
        if not thread_state.stack_watched:
            stacks.watch()
        if not window.open:
            return None
        if native.device_active():
            device_marks.phase_begins()
        return probe_begins(CLOCKS)
    except Exception as error:
        failed(COLLECTOR, "forward", error)
        return None


def _forward_ends(module: Any, begin: bytes, failed_inside: bool) -> None:
    try:
        flags = _FAILED if failed_inside else 0
        if not _grad_enabled():
            flags |= _NO_GRAD
        if module.training:
            flags |= _TRAINING
        if thread_state.in_backward:
            flags |= _NESTED  # recomputed by activation checkpointing
        phase_ends(begin, type(module).__name__, _FORWARD, flags)
    except Exception as error:
        failed(COLLECTOR, "forward", error)


# Backward ---------------------------------------------------------------------------------------


def _engine_call(original: Any) -> Any:
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or thread_state.in_backward or not window.open:
            return original(*args, **kwargs)
        thread_state.in_backward = True
        begin = None
        flags = _FAILED
        try:
            begin = _backward_begins()
            result = original(*args, **kwargs)
            flags = 0
            return result
        finally:
            thread_state.in_backward = False
            if begin is not None:
                _backward_ends(begin, flags)

    return run_backward


def _backward_begins() -> bytes | None:
    try:
        if native.device_active():
            device_marks.phase_begins()
        return probe_begins(CLOCKS)
    except Exception as error:
        failed(COLLECTOR, "backward", error)
        return None


def _backward_ends(begin: bytes, flags: int) -> None:
    try:
        if native.in_outermost_call():
            flags |= _NESTED
        phase_ends(begin, "backward", _BACKWARD, flags)
    except Exception as error:
        failed(COLLECTOR, "backward", error)


# Optimizer --------------------------------------------------------------------------------------


def _hook_optimizers(torch: ModuleType) -> None:
    # torch.optim deletes the name of this module, so it is not an attribute.
    hooks = sys.modules.get("torch.optim.optimizer", torch.optim)
    before = getattr(hooks, "register_optimizer_step_pre_hook", None)
    after = getattr(hooks, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        recorder.unavailable(COLLECTOR, "not_patched", "this torch has no global optimizer hooks")
        return
    # Dynamo compiles the steps of optimizers with their hooks, and would break the graph at a file of ours.
    step = getattr(torch.optim.Optimizer, "profile_hook_step", before)
    before(patching.look_like(_update_begins, step))
    after(patching.look_like(_update_ends, step))


def _update_begins(optimizer: Any, args: Any, kwargs: Any) -> None:
    if is_compiling():
        return
    try:
        mark_step_thread()
        owner = id(optimizer)
        pending = thread_state.open_updates
        # A step that raises calls no second hook; what it left is removed when its optimizer steps again.
        pending[:] = [update for update in pending[-_MOST_NESTED_UPDATES:] if update[0] != owner]
        # Kept outside the window of steps too: the forward that opens it may be in the closure of this step.
        pending.append((owner, probe_begins(CLOCKS if window.open else TICKS)))
    except Exception as error:
        failed(COLLECTOR, "optimizer", error)


def _update_ends(optimizer: Any, args: Any, kwargs: Any) -> None:
    if is_compiling():
        return
    try:
        thread_state.updates += 1
        window.updated()
        if window.open:
            device_marks.update_ends()
        pending = thread_state.open_updates
        while pending:
            owner, begin = pending.pop()
            if owner == id(optimizer):
                if window.open:
                    phase_ends(begin, _optimizer_name(optimizer), _OPTIMIZER, 0)
                break
    except Exception as error:
        failed(COLLECTOR, "optimizer", error)


_optimizers_of_class: dict[str, int] = {}


def _optimizer_name(optimizer: Any) -> str:
    """Return the class of an optimizer, with a number from the second one of a class on, as ``Adam 2``."""
    # Kept in the object, but in neither its state_dict() nor a copy of it.
    own: dict[str, Any] = vars(optimizer)
    name: str | None = own.get("_stashtrace_name")
    if name is None:
        kind = name = type(optimizer).__name__
        count = _optimizers_of_class[kind] = _optimizers_of_class.get(kind, 0) + 1
        if 1 < count <= _MOST_OF_A_CLASS:
            name = f"{kind} {count}"
        own["_stashtrace_name"] = name
    return name


def _scaler_step(original: Any) -> Any:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = thread_state.updates
        begin = probe_begins(CLOCKS) if window.open else None
        result = original(self, optimizer, *args, **kwargs)
        try:
            if thread_state.updates == before:
                mark_step_thread()
                window.updated()
                device_marks.update_ends()
                if begin is not None:
                    phase_ends(begin, _optimizer_name(optimizer), _SKIPPED, 0)
        except Exception as error:
            failed(COLLECTOR, "grad_scaler", error)
        return result

    return step


# Garbage collection -----------------------------------------------------------------------------


def _watch_garbage_collection() -> None:
    emit = recorder.RecordWriter("span").emit
    kind = recorder.code("SpanKind", "gc")
    threshold = GC_THRESHOLD_NS * native.tick_hz() // 1_000_000_000
    now, state, step_window, name, note = now_ticks, thread_state, window, "gc", stacks.note_garbage

    # All names are bound here, since collections still happen while the interpreter deletes the modules.
    def collected(moment: str, info: dict[str, int]) -> None:
        try:
            if moment == "start":
                state.gc_begin = now()
                return
            end = now()
            begin = state.gc_begin
            if begin and end - begin >= threshold and step_window.open:
                state.gc_begin = 0
                emit(begin, end, 0, info["generation"], intern(name), kind)
                note(begin)
        except Exception as error:
            failed(COLLECTOR, "gc", error)

    def watch(on: bool) -> bool:
        if on:
            state.gc_begin = 0
            gc.callbacks.append(collected)
        elif collected in gc.callbacks:
            gc.callbacks.remove(collected)
        return True

    if window.is_controlled:
        window.on_change(watch)  # a job that is idle makes many small collections, too
    else:
        watch(True)


def install_profiler(profiler: ModuleType) -> None:
    """Patch the method by which all profilers of torch start Kineto, to leave CUPTI to them.

    A process has room for one profiler, and that of the user comes first. The native hooks see Kineto subscribe as
    well, but not by the newer calls of CUPTI, which a preloaded library cannot offer without misleading programs that
    look for them.
    """
    patching.replace("cupti", profiler.profile, "_prepare_trace", _prepare)


def _prepare(original: Any) -> Any:
    def _prepare_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if any(getattr(activity, "name", "") == "CUDA" for activity in self.kineto_activities):
                native.kernels_step_aside("torch.profiler")
        except Exception as error:
            failed("cupti", "step_aside", error)
        return original(self, *args, **kwargs)

    return _prepare_trace
