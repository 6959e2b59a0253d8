"""Batches in a DataLoader worker: waiting for an index, putting a batch into the queue, pickling in the feeder thread.

Wraps ``_worker_loop``, which torch starts by name in forked, spawned and forkserver children. The wrappers sit on the
worker's queue objects, and end with the process.
"""

from __future__ import annotations

import collections
import hashlib
import inspect
import multiprocessing
import sys
from types import ModuleType
from typing import Any

from stashtrace.probes import native, patching, recorder, stacks
from stashtrace.probes import process as lifetime
from stashtrace.probes.process import thread_state, window
from stashtrace.probes.recorder import cost, failed, now_ticks

#: Key of an iterator's fact, followed by 16 digits of its ``loader_id``; the same in
#: ``analysis/steps/epochs.py``.
FACT = "dataloader "
#: Iterators of a process that are recorded; a job that makes one for each step would fill its string table.
_MOST_FACTS = 64


class Loader:
    """One iterator, in its process and in its workers.

    ``owner_pid``: process that iterates. ``base_seed``: the iterator's own; handed to its workers by torch.
    ``ordinal``: process counter of worker 0, or minus the number of the iterator if it has no workers; distinguishes
    iterators with the same seed. ``loader_id``: 64 bits; changes with each epoch of persistent workers, whose batches
    count from 0 again.
    """

    __slots__ = ("_key", "begin_ticks", "epoch", "loader_id", "yielded")

    def __init__(self, owner_pid: int, base_seed: int, ordinal: int) -> None:
        self._key = f"{owner_pid} {base_seed} {ordinal}"
        self.epoch = 0
        self.yielded = 0
        self.begin_ticks = now_ticks()
        self.loader_id = self._hash()

    def _hash(self) -> int:
        digest = hashlib.blake2b(f"{self._key} {self.epoch}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")

    def restart(self) -> None:
        """The workers begin another epoch."""
        self.epoch += 1
        self.yielded = 0
        self.begin_ticks = now_ticks()
        self.loader_id = self._hash()


_recorded_count = 0


def record_samples(loader: Any, iterator: Loader) -> None:
    """Record the samples of a batch, of this process in an epoch, and of the data set; 0 for what is not known.

    Also whether the data set is iterable, so that each worker makes the batches of its own part. Asks the sampler and a
    map-style data set for their lengths, as torch did when it made the loader. An iterable data set is not asked, since
    torch checks its answer. Called once for each iterator.
    """
    global _recorded_count
    if _recorded_count >= _MOST_FACTS:
        return
    _recorded_count += 1
    # The samples of a full batch of this process, 0 if unknown
    size = loader.batch_size
    if size is None:
        sampler = loader.batch_sampler
        size = getattr(sampler, "batch_size", None)
        # accelerate's sampler, which splits each batch among the processes
        if type(size) is int and getattr(sampler, "split_batches", False):
            size //= max(getattr(sampler, "num_processes", 1), 1)
    batch = size if type(size) is int and size > 0 else 0
    epoch = every = 0
    is_iterable = isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset)
    if batch and not is_iterable:
        batches = _length(loader.batch_sampler)
        epoch = min(batches * batch, _length(loader.sampler) if loader.batch_size else batches * batch)
        every = _length(loader.dataset)
    recorder.record_fact(f"{FACT}{iterator.loader_id:016x}", f"{batch} {epoch} {every}{' iterable' * is_iterable}")


def _length(sized: Any) -> int:
    """Return the length, 0 if there is none or it is not known."""
    try:
        return len(sized)
    except Exception:
        return 0


COLLECTOR = "torch_dataloader"
_emit = recorder.RecordWriter("batch").emit
_PUT = recorder.code("BatchPhase", "put")
_INDEX_WAIT = recorder.code("BatchPhase", "index_wait")
_SERIALIZE = recorder.code("BatchPhase", "serialize")


def install(worker: ModuleType) -> None:
    """Patch ``torch.utils.data._utils.worker``, or torchdata's module of that kind."""
    patching.replace(COLLECTOR, worker, "_worker_loop", _worker_loop)


def process_counter(process: Any) -> int:
    """Return the number of a process among the children of its parent; both get the same."""
    identity = getattr(process, "_identity", None)
    return int(identity[-1]) if identity else 0


def _worker_loop(original: Any) -> Any:
    signature = inspect.signature(original)

    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
            _begin(given["worker_id"], given["base_seed"], given["index_queue"], given["data_queue"])
        except Exception as error:
            failed(COLLECTOR, "worker", error)
        try:
            return original(*args, **kwargs)
        finally:
            # Children of multiprocessing skip atexit.
            lifetime.end()

    return _worker_loop


def _begin(worker_id: int, base_seed: int, index_queue: Any, data_queue: Any) -> None:
    lifetime.begin(ends_itself=True)
    window.always()
    native.watch_waits(False)
    parent = multiprocessing.parent_process()
    owner_pid = parent.pid if parent is not None and parent.pid is not None else 0
    recorder.record_fact("role", "worker")
    recorder.record_fact("worker_id", worker_id)
    recorder.record_fact("parent_pid", owner_pid)
    native.set_thread_role(recorder.code("ThreadRole", "worker"), f"worker {worker_id}")
    stacks.watch()
    loader = Loader(owner_pid, base_seed, process_counter(multiprocessing.current_process()) - worker_id)
    _watch_indices(index_queue, loader, worker_id)
    _watch_handover(data_queue, loader, worker_id)


def _record(phase: int, begin: int, end: int, loader: Any, index: int, worker: int) -> None:
    # The rows before and after it show where the time went, so ticks are enough.
    _emit(begin, end, loader.loader_id, index, -1, -1, worker, 0, 0, phase)
    cost.add(now_ticks() - end)


def _watch_indices(queue: Any, loader: Any, worker_id: int) -> None:
    get_original = queue.get
    idle_since: Any = None

    def get(*args: Any, **kwargs: Any) -> Any:
        nonlocal idle_since
        thread_state.batch = None
        begin = idle_since or now_ticks()
        idle_since = begin  # an empty queue raises after some seconds, but the wait goes on
        task = get_original(*args, **kwargs)
        idle_since = None
        window.follow()  # after the wait, so that this batch is recorded
        try:
            if not window.open and type(task) is tuple:
                return task
            if type(task) is tuple and type(task[0]) is int:
                thread_state.batch = (loader, task[0], worker_id)
                _record(_INDEX_WAIT, begin, now_ticks(), loader, task[0], worker_id)
            elif type(task).__name__ == "_ResumeIteration":
                loader.restart()
        except Exception as error:
            failed(COLLECTOR, "index_wait", error)
        return task

    queue.get = get


def _watch_handover(queue: Any, loader: Any, worker_id: int) -> None:
    put_original = queue.put
    _watch_feeder(queue, loader, worker_id)

    def put(item: Any, *args: Any, **kwargs: Any) -> Any:
        if not window.open:
            return put_original(item, *args, **kwargs)
        begin = now_ticks()
        result = put_original(item, *args, **kwargs)
        try:
            if type(item) is tuple and type(item[0]) is int:
                _record(_PUT, begin, now_ticks(), loader, item[0], worker_id)
        except Exception as error:
            failed(COLLECTOR, "put", error)
        return result

    queue.put = put


class _TimedBuffer(collections.deque[Any]):
    """The queue's buffer; notes when the feeder thread takes a batch out."""

    taken: tuple[int, int] | None = None

    def popleft(self) -> Any:
        item = super().popleft()
        if window.open and type(item) is tuple and type(item[0]) is int:
            self.taken = (now_ticks(), item[0])
        return item


def _watch_feeder(queue: Any, loader: Any, worker_id: int) -> None:
    """Time the pickling: from when the feeder thread takes a batch until it sends the bytes."""
    untouched = type(getattr(queue, "_buffer", None)) is collections.deque and not queue._buffer
    if not untouched or getattr(queue, "_thread", queue) is not None or not hasattr(queue, "_send_bytes"):
        recorder.unavailable(COLLECTOR, "serialize_not_seen", f"{type(queue).__name__} is not built as expected")
        return
    buffer = queue._buffer = _TimedBuffer()
    send_original = queue._send_bytes

    def send_bytes(*args: Any) -> Any:
        try:
            taken = buffer.taken
            if taken is not None:
                buffer.taken = None
                _record(_SERIALIZE, taken[0], now_ticks(), loader, taken[1], worker_id)
        except Exception as error:
            failed(COLLECTOR, "serialize", error)
        return send_original(*args)

    queue._send_bytes = send_bytes
