"""Phases of a training step: forward, backward, optimizer, skipped updates; garbage collection pauses.

Installed by ``bootstrap`` when torch has been imported. Wrappers sit on ``nn.Module.__call__``, on the one
door to the autograd engine, and on the optimizers' global hooks; an inner module call costs one thread-local
look-up. Under Dynamo every wrapper is the original (``is_compiling`` is a constant there).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import os
import sys
from types import ModuleType
from typing import Any

from stashtrace import _native
from stashtrace.probes import annotations as marks
from stashtrace.probes import patching, recorder
from stashtrace.probes.device_marks import device_marks
from stashtrace.probes.recorder import cost, failed, intern, now_ticks, stamp
from stashtrace.probes.step_window import window
from stashtrace.probes.thread_state import mark_step_thread, thread_state

COLLECTOR = "torch_step"
#: Collections shorter than this are not worth a row.
GC_THRESHOLD_NS = 100_000
_MOST_NESTED_UPDATES = 8

_emit_phase = recorder.RecordWriter("phase_span").emit
_FORWARD = recorder.code("Phase", "forward")
_BACKWARD = recorder.code("Phase", "backward")
_OPTIMIZER = recorder.code("Phase", "optimizer")
_SKIPPED = recorder.code("Phase", "update_skipped")
_NO_GRAD = recorder.code("PhaseFlag", "no_grad")
_TRAINING = recorder.code("PhaseFlag", "training")
_NESTED = recorder.code("PhaseFlag", "nested")
_FAILED = recorder.code("PhaseFlag", "failed")

Stamp = tuple[int, int, int]
is_compiling = marks.never_compiling
_grad_enabled: Any = bool
_module_counts: dict[int, int] = {}
_MOST_MODULES = 1024


def install(torch: ModuleType) -> None:
    """Patch torch; called once, when ``import torch`` is done."""
    global is_compiling, _grad_enabled
    compiler = getattr(torch, "compiler", None)
    is_compiling = marks.is_compiling = (
        getattr(compiler, "is_dynamo_compiling", None) or getattr(compiler, "is_compiling", None) or is_compiling
    )
    _grad_enabled = torch.is_grad_enabled
    _describe_process(torch)
    patching.replace(COLLECTOR, torch.nn.Module, "__call__", _module_call)
    # torch.autograd.backward and grad both enter the engine here; older ones are wrapped themselves.
    if not patching.replace(COLLECTOR, torch.autograd, "_engine_run_backward", _engine_call, needed=False):
        patching.replace(COLLECTOR, torch.autograd, "backward", _engine_call)
        patching.replace(COLLECTOR, torch.autograd, "grad", _engine_call)
    _hook_optimizers(torch)
    _watch_garbage_collection()


def install_grad_scaler(grad_scaler: ModuleType) -> None:
    """Patch ``GradScaler.step``; called when its module has been imported."""
    patching.replace(COLLECTOR, grad_scaler.GradScaler, "step", _scaler_step)


def hide_from_dynamo(trace_rules: ModuleType) -> None:
    """Have Dynamo run our frames as they are, where it would compile them inside a compiled region.

    ``annotations`` stays visible: users call it in code that they compile.
    """
    for name in list(sys.modules):
        if name.startswith("stashtrace.probes.") and name != marks.__name__:
            trace_rules.add(name)


def _describe_process(torch: ModuleType) -> None:
    # Only blocking waits of the thread that imports torch are of interest: it becomes the step thread.
    _native.watch_waits(True)
    recorder.record_fact("torch_version", torch.__version__)
    recorder.record_fact("torch_threads", torch.get_num_threads())
    recorder.record_fact("omp_num_threads", os.environ.get("OMP_NUM_THREADS", ""))


# Forward ----------------------------------------------------------------------------------------


def _module_call(original: Any) -> Any:
    state = thread_state

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or state.in_forward:
            return original(self, *args, **kwargs)
        state.in_forward = True
        begin = None
        flags = _FAILED
        try:
            begin = _forward_begins()
            result = original(self, *args, **kwargs)
            flags = 0
            return result
        finally:
            state.in_forward = False
            if begin is not None:
                _forward_ends(self, begin, flags)

    return __call__


def _forward_begins() -> Stamp | None:
    try:
        window.forward_begins()
        device_marks.phase_begins()
        return stamp() if window.open else None
    except Exception as error:
        failed(COLLECTOR, "forward", error)
        return None


def _forward_ends(module: Any, begin: Stamp, flags: int) -> None:
    try:
        if not _grad_enabled():
            flags |= _NO_GRAD
        if module.training:
            flags |= _TRAINING
        if thread_state.in_backward:
            flags |= _NESTED  # recomputed by activation checkpointing
        _record(_FORWARD, begin, stamp(), type(module).__name__, flags, _inner_calls(module))
    except Exception as error:
        failed(COLLECTOR, "forward", error)


def _inner_calls(module: Any) -> int:
    """About how many module calls are inside one of this module: for the account of our own cost."""
    key = id(module)
    count = _module_counts.get(key)
    if count is None:
        if len(_module_counts) >= _MOST_MODULES:
            _module_counts.clear()
        count = _module_counts[key] = sum(1 for _ in module.modules()) - 1
    return count


def _record(phase: int, begin: Stamp, end: Stamp, name: str, flags: int, inner_calls: int = 0) -> None:
    _emit_phase(begin[0], end[0], begin[1], end[1], begin[2], end[2], intern(name), phase, flags)
    cost.add_recorded(end[0], inner_calls=inner_calls)


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


def _backward_begins() -> Stamp | None:
    try:
        device_marks.phase_begins()
        return stamp()
    except Exception as error:
        failed(COLLECTOR, "backward", error)
        return None


def _backward_ends(begin: Stamp, flags: int) -> None:
    try:
        if thread_state.in_forward:
            flags |= _NESTED
        _record(_BACKWARD, begin, stamp(), "backward", flags)
    except Exception as error:
        failed(COLLECTOR, "backward", error)


# Optimizer --------------------------------------------------------------------------------------


def _hook_optimizers(torch: ModuleType) -> None:
    # torch.optim takes the name of this module away again, so it is not an attribute.
    hooks = sys.modules.get("torch.optim.optimizer", torch.optim)
    before = getattr(hooks, "register_optimizer_step_pre_hook", None)
    after = getattr(hooks, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        recorder.unavailable(COLLECTOR, "not_patched", "this torch has no global optimizer hooks")
        return
    # Dynamo compiles the steps of optimizers with their hooks, and would stop at a file of ours.
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
        # A step that raises calls no hook, so what it left is found when its optimizer steps again.
        pending[:] = [update for update in pending[-_MOST_NESTED_UPDATES:] if update[0] != owner]
        # Kept outside the window too: the forward that opens it may be in the closure of this step.
        pending.append((owner, stamp()))
    except Exception as error:
        failed(COLLECTOR, "optimizer", error)


def _update_ends(optimizer: Any, args: Any, kwargs: Any) -> None:
    if is_compiling():
        return
    try:
        thread_state.updates += 1
        window.updated()
        device_marks.update_ends()
        pending = thread_state.open_updates
        while pending:
            owner, begin = pending.pop()
            if owner == id(optimizer):
                if window.open:
                    _record(_OPTIMIZER, begin, stamp(), type(optimizer).__name__, 0)
                break
    except Exception as error:
        failed(COLLECTOR, "optimizer", error)


def _scaler_step(original: Any) -> Any:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = thread_state.updates
        begin = stamp() if window.open else None
        result = original(self, optimizer, *args, **kwargs)
        try:
            if thread_state.updates == before:
                mark_step_thread()
                window.updated()
                device_marks.update_ends()
                if begin is not None:
                    _record(_SKIPPED, begin, stamp(), type(optimizer).__name__, 0)
        except Exception as error:
            failed(COLLECTOR, "grad_scaler", error)
        return result

    return step


# Garbage collection -----------------------------------------------------------------------------


def _watch_garbage_collection() -> None:
    emit = recorder.RecordWriter("span").emit
    kind = recorder.code("SpanKind", "gc")
    threshold = GC_THRESHOLD_NS * _native.tick_hz() // 1_000_000_000
    now, state, step_window, name = now_ticks, thread_state, window, "gc"

    # Every name is bound here: collections still happen while the interpreter takes modules apart.
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
        except Exception as error:
            failed(COLLECTOR, "gc", error)

    gc.callbacks.append(collected)
