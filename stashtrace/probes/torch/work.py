"""A collective after its launch: when it ended, and which thread waited for it.

The recorder writes the end of a Work of gloo on the thread that runs it (csrc/hooks/hooks_gloo.cpp), once a first Work
of its class has ended in a callback. For others, whichever comes first shows the end: the callback of the future (on a
backend thread, late if that must wait for the GIL), or the return of ``Work.wait``. A Work holds tensors, so we keep it
only while it is in flight; afterwards only a weak reference, as long as the caller keeps it.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

from stashtrace.probes import native, patching, recorder, stacks
from stashtrace.probes.process import thread_state
from stashtrace.probes.recorder import cost, failed, now_ticks

COLLECTOR = "torch_distributed"
FINE, FAILED, SEEN_BY_WAIT, UNSEEN = 0, 1, 2, 3
_emit_done = recorder.RecordWriter("collective_done").emit
_emit_wait = recorder.RecordWriter("collective_wait").emit
#: How long the process waits at its end for callbacks still to come.
_EXIT_PATIENCE_S = 2.0


class Launch:
    """One collective between its launch and its end.

    ``collective_id``, ``call_ticks``: as in ``collective_call``. ``group``: of ``groups``, not torch's.
    """

    __slots__ = ("_token", "by_callback", "call_ticks", "collective_id", "group", "return_ticks", "work")

    def __init__(self, collective_id: int, call_ticks: int, group: Any = None) -> None:
        self.collective_id = collective_id
        self.call_ticks = call_ticks
        self.group = group
        self.return_ticks = 0
        self.by_callback = False
        self.work: Any = None
        self._token = [True]

    def finish(self, end_ticks: int, status: int) -> bool:
        """Write ``collective_done``; return False if another thread has."""
        try:
            self._token.pop()
        except IndexError:
            return False
        # A fast backend may end before the launch returns; the end is never earlier than the return.
        _emit_done(self.return_ticks or end_ticks, 0, end_ticks, self.collective_id, status)
        return True

    def leave_to_recorder(self) -> None:
        """Write no end: the recorder does."""
        self._token.clear()


_by_work: dict[int, Launch] = {}
#: Those whose end the recorder writes, by the address of the Work. A later one takes the place of one not waited for.
_by_address: dict[int, int] = {}
_by_storage: dict[int, Launch] = {}
_MOST_STORAGES = 4096
_backend_threads: set[int] = set()


def launched(launch: Launch, work: Any, *, blocking: bool, end_visible: bool) -> None:
    """Follow a collective that has been launched, to its end.

    ``launch``: the collective. ``work``: what torch returned; None if the backend has none, on the CPU because the
    operation has ended. ``blocking``: whether the caller waits for it now (``async_op=False``), so that no callback is
    needed. ``end_visible``: false on an accelerator, whose work ends on a stream, unseen by the host.
    """
    if not end_visible:
        # Before the test of work: NCCL returns none for a blocking call, although its kernel has yet to run.
        launch.finish(0, UNSEEN)
    if work is None:
        launch.finish(launch.return_ticks, FINE)
        return
    if end_visible and not blocking:
        address = native.follow_work(work, launch.collective_id, launch.call_ticks, launch.return_ticks)
        if address:
            launch.leave_to_recorder()
            if len(_by_address) > _MOST_STORAGES:
                _by_address.clear()
            _by_address[address] = launch.collective_id
            return
    launch.work = work
    key = id(work)
    _by_work[key] = launch
    if end_visible and not blocking:
        future = _future(work)
        if future is not None:
            launch.by_callback = True
            # Called at once if the collective has ended.
            future.add_done_callback(_Ended(launch, key))
            return
    # Without a callback, the Work is released when this thread launches the next collective.
    thread_state.lingering = launch


def let_go() -> None:
    """Keep only a weak reference to the last Work of this thread, so that the caller alone decides when it goes."""
    launch = thread_state.lingering
    if launch is not None:
        thread_state.lingering = None
        work, launch.work = launch.work, None
        if work is not None:
            key = id(work)
            # From now on the entry lives as long as the caller's reference.
            launch.work = weakref.ref(work, lambda _: _abandoned(key, launch))


def _abandoned(key: int, launch: Launch) -> None:
    if _by_work.get(key) is launch:
        del _by_work[key]
    launch.finish(0, UNSEEN)


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except (RuntimeError, NotImplementedError):
        return None  # as for send and recv of gloo


class _Ended:
    """The callback of a future; runs on a thread of the backend."""

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
            work, launch.work = launch.work, None
            if work is not None:
                native.learn_work(work)
            # The wait that raises reports a failure; to ask the future would make tensors.
            launch.finish(end, FINE)
            ident = threading.get_ident()
            if ident not in _backend_threads:
                _backend_threads.add(ident)
                if threading.main_thread().ident != ident and not thread_state.launches:
                    native.set_thread_role(recorder.code("ThreadRole", "backend"), "collectives")
            cost.add(now_ticks() - end)
        except Exception as error:
            failed(COLLECTOR, "callback", error)


# Waiting ----------------------------------------------------------------------------------------


def install_wait(work_class: Any) -> None:
    """Patch ``Work.wait``."""
    patching.replace(COLLECTOR, work_class, "wait", _wait)


def _wait(original: Any) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _by_work and not _by_address:
            return original(self, *args, **kwargs)
        launch = _by_work.get(id(self))
        # A new Work may lie at this address as soon as this one has ended.
        followed = _by_address.pop(native.work_address(self), None) if launch is None and _by_address else None
        begin = now_ticks()
        status = FAILED
        try:
            result = original(self, *args, **kwargs)
            status = FINE
            return result
        finally:
            if followed is None:
                _waited(launch, id(self), begin, now_ticks(), status)
            else:
                _followed_waited(followed, begin, now_ticks())

    return wait


def _followed_waited(collective_id: int, begin: int, end: int) -> None:
    try:
        _emit_wait(begin, end, collective_id)
        stacks.note_wait(begin)
        cost.add(2 * (now_ticks() - end))
    except Exception as error:
        failed(COLLECTOR, "wait", error)


def _waited(launch: Launch | None, key: int, begin: int, end: int, status: int) -> None:
    try:
        if launch is None:
            return  # it has ended before, or its launch was not seen
        _emit_wait(begin, end, launch.collective_id)
        stacks.note_wait(begin)
        if launch.by_callback and status == FINE:
            status = SEEN_BY_WAIT
        if launch.finish(end, status) and not launch.by_callback:
            _by_work.pop(key, None)
            launch.work = None
        cost.add(2 * (now_ticks() - end))
    except Exception as error:
        failed(COLLECTOR, "wait", error)


def remember_storages(launch: Launch, tensors: Any) -> None:
    """Note the memory that a functional collective fills, by which ``wait_tensor`` finds it."""
    if len(_by_storage) > _MOST_STORAGES:
        _by_storage.clear()
    for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
        _by_storage[tensor.data_ptr()] = launch


def functional_waited(tensor: Any, begin: int, end: int, status: int) -> None:
    """Write that a functional collective was waited for."""
    launch = _by_storage.pop(tensor.data_ptr(), None)
    if launch is not None:
        _waited(launch, 0, begin, end, status)


def forget_waits() -> None:
    """Forget what nobody may have waited for, in a pause: another one may lie at its address when that ends."""
    _by_address.clear()
    _by_storage.clear()


# The end ----------------------------------------------------------------------------------------


def settle() -> None:
    """Wait briefly for ends still to come: a callback that finds the interpreter gone would stop its thread."""
    deadline = time.monotonic() + _EXIT_PATIENCE_S
    while time.monotonic() < deadline and _pending():
        time.sleep(0.002)


def _pending() -> bool:
    return native.works_in_flight() > 0 or any(launch.by_callback for launch in list(_by_work.values()))


def forget() -> None:
    """Forget everything, in a forked child, which has no backend threads."""
    native.forget_works()
    _by_work.clear()
    _by_address.clear()
    _by_storage.clear()
    _backend_threads.clear()
