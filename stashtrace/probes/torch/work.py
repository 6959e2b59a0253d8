"""The life of a launched collective: when it ended, and who blocked on it.

The end comes from the first of: the future's callback (a backend thread, late if it must wait for the GIL), the return
of ``Work.wait``. A Work, which holds tensors, is kept only while it is in flight; afterwards through a weak reference,
as long as the caller keeps it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from stashtrace import _native
from stashtrace.probes import patching, recorder
from stashtrace.probes.process import thread_state
from stashtrace.probes.recorder import cost, failed, now_ticks

COLLECTOR = "torch_distributed"
FINE, FAILED, SEEN_BY_WAIT, UNSEEN = 0, 1, 2, 3
_emit_done = recorder.RecordWriter("collective_done").emit
_emit_wait = recorder.RecordWriter("collective_wait").emit
#: How long the end of the process waits for callbacks that are still to come.
_EXIT_PATIENCE_S = 2.0


class Launch:
    """One collective between its launch and its end.

    Parameters
    ----------
    collective_id : int
        As in ``collective_call``.
    group : Group, optional
        Ours, not torch's.
    """

    __slots__ = ("_token", "by_callback", "collective_id", "group", "return_ticks", "work")

    def __init__(self, collective_id: int, group: Any = None) -> None:
        self.collective_id = collective_id
        self.group = group
        self.return_ticks = 0
        self.by_callback = False
        self.work: Any = None
        self._token = [True]

    def finish(self, end_ticks: int, status: int) -> bool:
        """Write ``collective_done``; False if another thread was first."""
        try:
            self._token.pop()
        except IndexError:
            return False
        # The end is not before the return of a launch that a fast backend overtook.
        _emit_done(self.return_ticks or end_ticks, 0, end_ticks, self.collective_id, status)
        return True

    @property
    def finished(self) -> bool:
        """Whether the end is written."""
        return not self._token


_by_work: dict[int, Launch] = {}
_by_storage: dict[int, Launch] = {}
_MOST_STORAGES = 4096
_backend_threads: set[int] = set()


def launched(launch: Launch, work: Any, *, blocking: bool, end_visible: bool) -> None:
    """Take over a collective that was launched.

    Parameters
    ----------
    launch : Launch
    work : Work or None
        None if the backend keeps nothing: on the CPU the operation has ended then.
    blocking : bool
        The caller is about to wait for it (``async_op=False``): no callback is needed.
    end_visible : bool
        False on an accelerator, whose work ends on a stream and not for the host.
    """
    if not end_visible:
        # Before the work is looked at: NCCL gives none back for a blocking call, whose kernel has yet to run.
        launch.finish(0, UNSEEN)
    if work is None:
        launch.finish(launch.return_ticks, FINE)
        return
    launch.work = work
    key = id(work)
    _by_work[key] = launch
    if end_visible and not blocking:
        future = _future(work)
        if future is not None:
            launch.by_callback = True
            # Runs at once if it has ended already.
            future.add_done_callback(_Ended(launch, key))
            return
    # Without a callback the Work is let go when this thread launches the next one.
    thread_state.lingering = launch


def let_go() -> None:
    """Hold the last Work of this thread only weakly from now on; its caller has it, or nobody has."""
    launch = thread_state.lingering
    if launch is not None:
        thread_state.lingering = None
        work, launch.work = launch.work, None
        if work is not None:
            key = id(work)
            # From here on the entry lives as long as the caller's reference.
            launch.work = weakref.ref(work, lambda _: _abandoned(key, launch))


def _abandoned(key: int, launch: Launch) -> None:
    if _by_work.get(key) is launch:
        del _by_work[key]
    launch.finish(0, UNSEEN)


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except (RuntimeError, NotImplementedError):
        return None  # gloo's send and recv have none


class _Ended:
    """Callback of a future, on a thread of the backend."""

    __slots__ = ("_key", "_launch")

    def __init__(self, launch: Launch, key: int) -> None:
        self._launch = launch
        self._key = key

    def __call__(self, future: Any) -> None:
        end = now_ticks()
        try:
            launch = self._launch
            if _by_work.get(self._key) is launch:
                del _by_work[self._key]
            launch.work = None
            # Whether it failed is told by the wait that raises: asking the future makes tensors again.
            launch.finish(end, FINE)
            _name_backend_thread()
            cost.add(now_ticks() - end)
        except Exception as error:
            failed(COLLECTOR, "callback", error)


def _name_backend_thread() -> None:
    ident = threading.get_ident()
    if ident not in _backend_threads:
        _backend_threads.add(ident)
        if threading.main_thread().ident != ident and not thread_state.launches:
            _native.set_thread_role(recorder.code("ThreadRole", "backend"), "collectives")


# Waiting ----------------------------------------------------------------------------------------


def install_wait(work_class: Any) -> None:
    """Patch ``Work.wait``."""
    patching.replace(COLLECTOR, work_class, "wait", _wait)


def _wait(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = _by_work.get(id(self))
        begin = now_ticks()
        status = FAILED
        try:
            result = original(self, *args, **kwargs)
            status = FINE
            return result
        finally:
            _waited(launch, id(self), begin, now_ticks(), status)

    return wait


def _waited(launch: Launch | None, key: int, begin: int, end: int, status: int) -> None:
    try:
        if launch is None:
            return  # it had ended before, or was never seen
        _emit_wait(begin, end, launch.collective_id)
        if launch.by_callback and status == FINE:
            status = SEEN_BY_WAIT
        if launch.finish(end, status) and not launch.by_callback:
            _by_work.pop(key, None)
            launch.work = None
        cost.add(2 * (now_ticks() - end))
    except Exception as error:
        failed(COLLECTOR, "wait", error)


def remember_storages(launch: Launch, tensors: Any) -> None:
    """Note which memory a functional collective fills, for the ``wait_tensor`` to come."""
    if len(_by_storage) > _MOST_STORAGES:
        _by_storage.clear()
    for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
        _by_storage[tensor.data_ptr()] = launch


def functional_waited(tensor: Any, begin: int, end: int, status: int) -> None:
    """A functional collective was waited for."""
    launch = _by_storage.pop(tensor.data_ptr(), None)
    if launch is not None:
        _waited(launch, 0, begin, end, status)


# The end ----------------------------------------------------------------------------------------


def settle() -> None:
    """Wait, briefly, for callbacks still to come: one that finds the interpreter gone would stop its thread."""
    deadline = time.monotonic() + _EXIT_PATIENCE_S
    while time.monotonic() < deadline and any(e.by_callback for e in list(_by_work.values())):
        time.sleep(0.002)


def forget() -> None:
    """Drop everything; in a forked child, which has no backend threads."""
    _by_work.clear()
    _by_storage.clear()
    _backend_threads.clear()
