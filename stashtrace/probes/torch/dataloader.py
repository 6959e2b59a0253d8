"""Batches of torch's DataLoader: how the main process waits for them, receives them and pins them.

Installed by ``bootstrap`` when ``torch.utils.data.dataloader`` has been imported. The worker's half is in
``dataloader_worker``; fetch and collate, which run in either process, are wrapped here. Nothing is added to what the
processes send each other: both derive the same ``loader_id`` from what torch hands over.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import weakref
from types import ModuleType
from typing import Any

from stashtrace.probes import child_ends, native, patching, recorder, stacks
from stashtrace.probes.device_marks import device_marks
from stashtrace.probes.process import thread_state, window
from stashtrace.probes.recorder import CLOCKS, TICKS, USAGE, batch_ends, failed, now_ticks, probe_begins
from stashtrace.probes.torch import dataloader_worker
from stashtrace.probes.torch.dataloader_worker import Loader, record_samples
from stashtrace.probes.torch.host_calls.timed_calls import time_sampler

COLLECTOR = "torch_dataloader"
_WAIT = recorder.code("BatchPhase", "wait")
_FETCH = recorder.code("BatchPhase", "fetch")
_COLLATE = recorder.code("BatchPhase", "collate")
_RECEIVE = recorder.code("BatchPhase", "receive")
_PIN = recorder.code("BatchPhase", "pin")
_WORKERS_END = recorder.code("BatchPhase", "workers_end")
#: Numbers of the iterators of this process that have no workers.
_ordinals = itertools.count(1)
#: Whether this torch says which worker made the batch that it returns (2.7 and later).
_worker_is_known = False
#: Iterators that have workers, which may be killed.
_with_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def install(dataloader: ModuleType) -> None:
    """Patch the iterators, the fetchers and, for later children, the worker loop."""
    base, multi, tools = dataloader._BaseDataLoaderIter, dataloader._MultiProcessingDataLoaderIter, dataloader._utils
    patching.replace(COLLECTOR, dataloader.DataLoader, "__iter__", timed_iter)
    patching.replace(COLLECTOR, base, "__next__", _next)
    time_sampler(COLLECTOR, base)
    patching.replace(COLLECTOR, multi, "_reset", counted_reset)
    patching.replace(COLLECTOR, multi, "_shutdown_workers", timed_shutdown)
    patching.replace(COLLECTOR, tools.signal_handling, "_error_if_any_worker_fails", _named_failure, needed=False)
    global _worker_is_known
    process_data = getattr(multi, "_process_data", None)
    _worker_is_known = process_data is not None and len(inspect.signature(process_data).parameters) > 2
    patching.replace(COLLECTOR, multi, "_process_data", wrap_process_data)
    patching.replace(COLLECTOR, dataloader._DatasetKind, "create_fetcher", _create_fetcher)
    patching.replace(COLLECTOR, tools.pin_memory, "pin_memory", _pin_memory)
    patching.replace(COLLECTOR, tools.pin_memory, "_pin_memory_loop", _pin_memory_loop)
    dataloader_worker.install(tools.worker)


# The main process -------------------------------------------------------------------------------


def install_torchdata(module: ModuleType) -> None:
    """Patch ``torchdata.stateful_dataloader.stateful_dataloader``, whose iterators derive from torch's.

    They call the same ``__next__``; the methods that they override get the same wrappers. Their worker loop is wrapped
    where it is defined, before the module of the loader imports it.
    """
    multi = module._StatefulMultiProcessingDataLoaderIter
    patching.replace(COLLECTOR, module.StatefulDataLoader, "__iter__", timed_iter)
    patching.replace(COLLECTOR, multi, "_reset", counted_reset)
    patching.replace(COLLECTOR, multi, "_process_data", wrap_process_data)
    patching.replace(COLLECTOR, multi, "_shutdown_workers", timed_shutdown, needed=False)


def timed_iter(original: Any) -> Any:
    """Wrap ``DataLoader.__iter__``: to make an iterator is a wait, too."""

    def __iter__(self: Any) -> Any:
        _batch_is_asked_for()
        begin = probe_begins(CLOCKS) if window.open else None
        iterator = original(self)
        try:
            loader = _loader_of(iterator)  # in a pause, too: its workers count the epochs
            if loader is not None:
                # While workers start or wake up, the step thread waits for data, as for a batch.
                if begin is not None:
                    batch_ends(begin, _WAIT, loader.loader_id, -1, -1)
                record_samples(self, loader)
        except Exception as error:
            failed(COLLECTOR, "iter", error)
        return iterator

    return __iter__


def _batch_is_asked_for() -> None:
    """Begin the next step if its thread asks for a batch, and not a data set that makes one of its batches."""
    try:
        if not thread_state.stack_watched:
            stacks.watch()
        if thread_state.is_step_thread and thread_state.batch is None:
            window.forward_begins()
    except Exception as error:
        failed(COLLECTOR, "next", error)


def _loader_of(iterator: Any) -> Loader | None:
    """Return the iterator's Loader, made on the first call; None if the iterator is not torch's."""
    loader: Loader | None = getattr(iterator, "_stashtrace_loader", None)
    if loader is None and hasattr(iterator, "_base_seed"):
        workers = getattr(iterator, "_workers", ())
        first = dataloader_worker.process_counter(workers[0]) if workers else -next(_ordinals)
        for number, worker in enumerate(workers):
            if dataloader_worker.process_counter(worker) != first + number:
                recorder.failures.add(
                    COLLECTOR, "workers_not_joined", "another thread started processes between the workers of a loader"
                )
        loader = iterator._stashtrace_loader = Loader(os.getpid(), iterator._base_seed, first)
        queue = getattr(iterator, "_worker_result_queue", None)
        if queue is not None:
            _watch_receive(queue, loader)
        if workers:
            _with_workers.add(iterator)
    return loader


def _next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        _batch_is_asked_for()
        if not window.open:
            return original(self)
        state = thread_state
        outer = state.batch
        loader = None
        index = worker = -1
        token = 0
        given: dict[int, int] = {}
        begin = probe_begins(CLOCKS)
        try:
            if native.device_active():
                token = device_marks.wait_begins()
            loader = _loader_of(self)
            if loader is not None:
                index, worker, given = _awaited(self)
                state.batch = (loader, index, worker)
                state.received = -1
        except Exception as error:
            failed(COLLECTOR, "next", error)
        try:
            result = original(self)
        except BaseException as error:
            _wait_ends(loader, begin, -1, worker, isinstance(error, StopIteration), token)
            if isinstance(error, RuntimeError):  # torch raises it when a worker is gone
                _note_killed(self, "unknown")
            raise
        finally:
            # An outer loader, whose data set iterates this one, goes on with its batch.
            ended, state.batch = state.batch, outer
        if ended is not None:
            index = _returned(self, index)
            _wait_ends(loader, begin, index, given.get(index, ended[2]), False, token)
        return result

    return __next__


def _awaited(iterator: Any) -> tuple[int, int, dict[int, int]]:
    """Return the index of the batch that is due, the worker that makes it, and the workers of all batches by index."""
    index = getattr(iterator, "_rcvd_idx", None)
    if index is None:
        return int(iterator._num_yielded), -1, {}
    tasks = iterator._task_info
    task = tasks.get(index)
    # Another batch is returned if the worker of this one has none left; a later torch names the worker then.
    given = {} if _worker_is_known else {i: int(t[0]) for i, t in tasks.items()}
    return int(index), int(task[0]) if task else -1, given


def _returned(iterator: Any, awaited: int) -> int:
    """Return the index of the batch that was returned: a worker that ended early leaves holes in the count."""
    following = getattr(iterator, "_rcvd_idx", None)
    if following is None:
        return awaited
    if getattr(iterator, "_in_order", True):
        return int(following) - 1
    return thread_state.received


def _wait_ends(loader: Loader | None, begin: bytes, index: int, worker: int, ended: bool, token: int) -> None:
    try:
        device_marks.wait_ends(token, index)
        if loader is None:
            return
        batch_ends(begin, _WAIT, loader.loader_id, index, worker)
        if ended:
            _emit_epoch(loader.begin_ticks, now_ticks(), loader.loader_id, loader.yielded)
        else:
            loader.yielded += 1
    except Exception as error:
        failed(COLLECTOR, "next", error)


_emit_span = recorder.RecordWriter("span").emit


def _emit_epoch(begin: int, end: int, loader_id: int, batches: int) -> None:
    kind = recorder.code("SpanKind", "loader")
    _emit_span(begin, end, loader_id, batches, recorder.intern("DataLoader"), kind)


def wrap_process_data(original: Any) -> Any:
    """Wrap ``_process_data``, which knows the worker that made the batch."""

    def _process_data(self: Any, data: Any, *rest: Any) -> Any:
        # torch 2.7 and later pass the worker; with an older one the index shows.
        batch = thread_state.batch
        if rest and batch is not None and type(rest[0]) is int:
            thread_state.batch = (batch[0], batch[1], rest[0])
        return original(self, data, *rest)

    return _process_data


def counted_reset(original: Any) -> Any:
    """Wrap ``_reset`` of an iterator whose workers stay: its batches count from 0 again."""

    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            loader = getattr(self, "_stashtrace_loader", None)
            if loader is not None:  # not the first epoch
                loader.restart()
        except Exception as error:
            failed(COLLECTOR, "reset", error)
        return original(self, *args, **kwargs)

    return _reset


def _watch_receive(queue: Any, loader: Loader) -> None:
    """Time how a batch is taken from the pipe, from when it can be read until it is unpickled.

    The wrappers sit on the queue object and refer to it weakly, so that its pipe is closed as early as without us.
    """
    receive_bytes = getattr(queue, "_recv_bytes", None)
    if receive_bytes is None:
        recorder.unavailable(COLLECTOR, "receive_not_seen", f"{type(queue).__name__} has no _recv_bytes")
        return
    get_original = type(queue).get
    weak = weakref.ref(queue)

    def _recv_bytes(*args: Any) -> Any:
        if window.open:
            thread_state.receive_begin = probe_begins(TICKS)
        return receive_bytes(*args)

    def get(*args: Any, **kwargs: Any) -> Any:
        result = get_original(weak(), *args, **kwargs)
        if not window.open:
            return result
        try:
            begin = thread_state.receive_begin
            if begin is not None and type(result) is tuple and type(result[0]) is int:
                thread_state.receive_begin = None
                thread_state.received = result[0]
                thread_state.received_from = loader
                batch_ends(begin, _RECEIVE, loader.loader_id, result[0], -1)
        except Exception as error:
            failed(COLLECTOR, "receive", error)
        return result

    queue._recv_bytes = _recv_bytes
    queue.get = get


# The end of workers -----------------------------------------------------------------------------


def timed_shutdown(original: Any) -> Any:
    """Wrap ``_shutdown_workers``, which waits until the workers have ended, some seconds for each at most."""

    def _shutdown_workers(self: Any) -> Any:
        loader = getattr(self, "_stashtrace_loader", None)
        # Also called when the iterator is collected; it may have been shut down, or Python may be ending.
        if loader is None or getattr(self, "_shutdown", True) or sys.is_finalizing():
            return original(self)
        _note_killed(self, "unknown")
        begin = probe_begins(CLOCKS) if window.open else None
        try:
            return original(self)
        finally:
            try:
                if begin is not None:
                    batch_ends(begin, _WORKERS_END, loader.loader_id, -1, -1)
            except Exception as error:
                failed(COLLECTOR, "workers_end", error)
            _note_killed(self, "loader")

    return _shutdown_workers


def _named_failure(original: Any) -> Any:
    """Wrap torch's check for dead workers, which its handler of SIGCHLD runs, so that it raises anywhere in the job."""

    def _error_if_any_worker_fails() -> Any:
        try:
            return original()
        except RuntimeError:
            for iterator in list(_with_workers):
                _note_killed(iterator, "unknown")
            raise

    return _error_if_any_worker_fails


def _note_killed(iterator: Any, sender: str) -> None:
    """Record which workers a signal has ended."""
    try:
        for number, worker in enumerate(iterator._workers):
            child_ends.note(COLLECTOR, worker.pid, worker.exitcode, f"worker {number}", sender)
    except Exception as error:
        failed(COLLECTOR, "worker_ends", error)


# Both sides -------------------------------------------------------------------------------------


def _create_fetcher(original: Any) -> Any:
    function = original.__func__ if isinstance(original, staticmethod) else original

    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = function(*args, **kwargs)
        try:
            fetcher.fetch = _timed_fetch(fetcher)
            if fetcher.collate_fn is not None:
                fetcher.collate_fn = _timed_collate(fetcher.collate_fn)
        except Exception as error:
            failed(COLLECTOR, "create_fetcher", error)
        return fetcher

    return staticmethod(create_fetcher)


def _timed_fetch(fetcher: Any) -> Any:
    weak = weakref.ref(fetcher)  # a cycle would keep the data set until the next garbage collection
    fetch_original = type(fetcher).fetch

    def timed_fetch(index: Any) -> Any:
        batch = thread_state.batch
        if batch is None or not window.open:
            return fetch_original(weak(), index)
        # Record the waits of a worker while it makes a batch; those of a step thread are recorded anyway.
        watched = not thread_state.is_step_thread
        begin = probe_begins(USAGE)
        if watched:
            native.watch_waits(True)
        try:
            return fetch_original(weak(), index)
        finally:
            try:
                if watched:
                    native.watch_waits(False)
                _record(_FETCH, begin, *batch)
            except Exception as error:
                failed(COLLECTOR, "fetch", error)

    return timed_fetch


def _timed_collate(collate: Any) -> Any:
    def timed_collate(samples: Any) -> Any:
        batch = thread_state.batch
        if batch is None or not window.open:
            return collate(samples)
        begin = probe_begins(TICKS)
        try:
            return collate(samples)
        finally:
            try:
                _record(_COLLATE, begin, *batch)
            except Exception as error:
                failed(COLLECTOR, "collate", error)

    return timed_collate


def _record(phase: int, begin: bytes, loader: Loader, index: int, worker: int) -> None:
    batch_ends(begin, phase, loader.loader_id, index, worker)


# Pinning ----------------------------------------------------------------------------------------


def _pin_memory(original: Any) -> Any:
    def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
        state = thread_state
        if state.in_pin or not window.open:  # pin_memory calls itself for each part of a batch
            return original(data, *args, **kwargs)
        state.in_pin = True
        begin = probe_begins(CLOCKS)
        try:
            return original(data, *args, **kwargs)
        finally:
            state.in_pin = False
            try:
                if state.batch is not None:
                    _record(_PIN, begin, *state.batch)
                elif state.received_from is not None:
                    _record(_PIN, begin, state.received_from, state.received, -1)
            except Exception as error:
                failed(COLLECTOR, "pin", error)

    return pin_memory


def _pin_memory_loop(original: Any) -> Any:
    def _pin_memory_loop(*args: Any, **kwargs: Any) -> Any:
        try:
            native.set_thread_role(recorder.code("ThreadRole", "pin_memory"), "pin_memory")
        except Exception as error:
            failed(COLLECTOR, "pin", error)
        return original(*args, **kwargs)

    return _pin_memory_loop
