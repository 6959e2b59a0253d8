"""What the probes remember per thread: which phase it is in, and which collective is being launched.

Shared by the step, loader and collective probes so that each can tell where it was called from.
A forked child starts with fresh state, because only the forking thread lives on.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from typing import Any

from stashtrace import _native
from stashtrace.probes import lifetime, recorder


class ThreadState(threading.local):
    """Defaults of a thread that no probe has seen yet.

    Attributes
    ----------
    is_step_thread : bool
        Known to drive the optimizer, or the steps the user marks.
    in_backward : bool
        Inside the autograd engine.
    open_updates : list
        Optimizer steps entered and not left, with their begin stamps.
    functional : bool
        Inside an operator of ``_c10d_functional``.
    in_checkpoint : bool
        Inside a save or a load.
    updates : int
        Optimizer steps made by this thread.
    batch : tuple or None
        Loader, index and worker of the batch being waited for or made.
    received, received_from, receive_begin
        The batch last taken from a queue: index, loader, and what ``probe_begins`` gave when its bytes came.
    in_pin : bool
        Inside ``pin_memory``, which calls itself.
    lingering, launches
        The collective this thread launched last, if it is still held, and how many it launched.
    gc_begin : int
        Ticks at which the running collection began.
    """

    is_step_thread = False
    in_backward = False
    functional = False
    in_checkpoint = False
    updates = 0
    batch: tuple[Any, int, int] | None = None
    received = -1
    received_from: Any = None
    receive_begin: bytes | None = None
    in_pin = False
    lingering: Any = None
    launches = 0
    functional_launch: Any = None
    gc_begin = 0

    def __init__(self) -> None:
        self.open_updates: list[tuple[int, Any]] = []


thread_state = ThreadState()


def mark_step_thread() -> None:
    """The thread that drives the optimizer, or marks steps, is the step thread; its blocking waits are recorded."""
    if not thread_state.is_step_thread:
        thread_state.is_step_thread = True
        _native.set_thread_role(recorder.code("ThreadRole", "step"), threading.current_thread().name)
        _native.watch_waits(True)


def _forget() -> None:
    thread_state.__dict__.clear()
    _native.forget_outermost_call()
    thread_state.open_updates = []


lifetime.in_forked_child(_forget)
