"""Synthetic data without a change of the script: a DataLoader that returns its first batches again and again.

``bootstrap`` imports this file with ``STASHTRACE_SYNTHETIC=N`` alone, which only experiments set. The first N batches
of each loader are made as always; then its workers and its pinning thread are ended, and the kept batches are returned
in turn. The sampler, the lengths of epochs, ``StopIteration`` and what ``dataloader`` records of a wait stay the real
ones. ``replay_batches`` keeps a batch.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stashtrace.probes import native, patching, recorder
from stashtrace.probes.process import thread_state
from stashtrace.probes.recorder import failed
from stashtrace.probes.torch.replay_batches import KeptBatch, Notes

COLLECTOR = "torch_dataloader"
_MARK = patching.MARK
#: Key and value of the metadata row of a process that replays batches.
FACT = ("synthetic_data", "batches replayed")
#: Replays beyond the first round, after which it is known whether the batches of a loader stay on the device.
_SETTLED = 8
_DIFFER = "batches differ in shape: those that are replayed, the first ones, may be more or less work than the others"


class Replay:
    """The kept batches of one DataLoader.

    ``wanted``: batches to keep. ``is_iterable``: whether the data set is iterable, so that no sampler shows where an
    epoch ends. ``batches_count``: length of an epoch of such a data set, -1 if unknown. ``begins``: called when the
    first batch is replayed. ``complete``: whether all batches are kept, so that no more are made.
    """

    __slots__ = ("_begins", "batches", "batches_count", "complete", "handed_out", "is_iterable", "notes", "wanted")

    def __init__(self, wanted: int, is_iterable: bool, batches_count: int, begins: Callable[[], None]) -> None:
        self.wanted = wanted
        self.is_iterable = is_iterable
        self.batches_count = batches_count
        self.batches: list[KeptBatch] = []
        self.notes = Notes(COLLECTOR)
        self.complete = False
        self.handed_out = 0
        self._begins = begins

    def keep(self, batch: Any) -> Any:
        """Keep a batch of the real loader, and return what the script gets."""
        kept = KeptBatch(batch, self.notes)
        self.batches.append(kept)
        if kept.shapes != self.batches[0].shapes:
            self.notes.warn("replayed_batches_differ", _DIFFER)
        self.complete = len(self.batches) >= self.wanted
        return kept.hand_out()

    def ends_after(self, batches_count: int) -> None:
        """An epoch ended before all batches were kept that were wanted."""
        self.batches_count = batches_count
        self.complete = True

    def next(self) -> Any:
        """Return the next batch, as the loader made it."""
        number = self.handed_out
        self.handed_out += 1
        if number == 0:
            self._report_begin()
        elif number == len(self.batches) + _SETTLED:
            self._report_copies()
        return self.batches[number % len(self.batches)].hand_out()

    def _report_begin(self) -> None:
        self._begins()
        self.notes.inform("batches_replayed", f"synthetic data: {len(self.batches)} batches replayed")
        if self.is_iterable and self.batches_count < 0:
            self.notes.inform("replayed_epoch_does_not_end", "the iterable data set does not know its length")

    def _report_copies(self) -> None:
        """Warn if a job on a device copies every batch again."""
        if 2 * self.notes.moved_bytes < self.notes.host_bytes and native.device_active():
            self.notes.warn(
                "replayed_batches_copied_again", "the script changes its batches before it moves them to the device"
            )


class _Making(threading.local):
    """How many loaders are making a batch on this thread, one inside the other."""

    depth = 0


class _Session:
    """The loaders of this process.

    ``dataloader``: ``torch.utils.data.dataloader``. ``wanted``: batches to keep of each loader. ``epoch``: batches
    after which an epoch of unknown length ends; -1: never.
    """

    def __init__(self, dataloader: ModuleType, wanted: int, epoch: int) -> None:
        self.dataloader = dataloader
        self.wanted = wanted
        self.epoch = epoch
        self._making = _Making()
        self._reasons: set[str] = set()
        self._has_begun = False
        self._replays: weakref.WeakKeyDictionary[Any, Replay] = weakref.WeakKeyDictionary()
        self.iterator_class = _iterator_class(dataloader._BaseDataLoaderIter)

    def replay_of(self, loader: Any) -> Replay | None:
        """Return the kept batches of a loader; None if it returns real data."""
        if self.is_off():
            return None
        try:
            replay = self._replays.get(loader)
            if replay is None:
                is_iterable = loader._dataset_kind == self.dataloader._DatasetKind.Iterable
                length = self._epoch_batches(loader) if is_iterable else -1
                replay = self._replays[loader] = Replay(self.wanted, is_iterable, length, self.begins)
            return replay
        except Exception as error:  # not a DataLoader, or one that has no hash
            self.not_replayed(f"{type(loader).__module__}.{type(loader).__name__}: {error!r}")
            return None

    def begins(self) -> None:
        """The first batch is replayed in this process."""
        if not self._has_begun:
            self._has_begun = True
            recorder.record_fact(*FACT)

    def _epoch_batches(self, loader: Any) -> int:
        """Return the batches of an epoch of an iterable data set; if the loader were asked, torch would check it."""
        try:
            samples = len(loader.dataset)
        except Exception:
            return self.epoch
        size: int | None = loader.batch_size
        if size is None:
            return samples
        return samples // size if loader.drop_last else -(-samples // size)

    def not_replayed(self, reason: str) -> None:
        """Report, once for each reason, that a loader returns real data."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            recorder.unavailable(COLLECTOR, "batches_not_replayed", reason)

    def is_off(self) -> bool:
        """Return True while this thread makes a batch, in a worker or for a loader around this one."""
        return self._making.depth > 0 or self.dataloader._utils.worker.get_worker_info() is not None

    def make(self, original: Any, iterator: Any) -> Any:
        """Let the real loader make a batch; loaders that its data set uses return real data meanwhile."""
        self._making.depth += 1
        try:
            return original(iterator)
        finally:
            self._making.depth -= 1


_session: _Session | None = None


def wanted_batches(text: str) -> int:
    """Return the number in the text of a variable, 0 if it is not a number."""
    return int(text) if text.isdecimal() else 0


def install(dataloader: ModuleType) -> None:
    """Patch how iterators and batches are made; the wrappers of ``dataloader`` go around these."""
    global _session
    wanted = wanted_batches(os.environ.get("STASHTRACE_SYNTHETIC", ""))
    if not wanted:
        return
    _session = _Session(dataloader, wanted, wanted_batches(os.environ.get("STASHTRACE_SYNTHETIC_EPOCH", "")) or -1)
    patching.replace(COLLECTOR, dataloader.DataLoader, "_get_iterator", _get_iterator)
    patching.replace(COLLECTOR, dataloader._BaseDataLoaderIter, "__init__", _made)
    patching.replace(COLLECTOR, dataloader._SingleProcessDataLoaderIter, "_next_data", next_data)
    patching.replace(COLLECTOR, dataloader._MultiProcessingDataLoaderIter, "_next_data", next_data)


def _get_iterator(original: Any) -> Any:
    def _get_iterator(self: Any) -> Any:
        session = _session
        replay = None if session is None else session.replay_of(self)
        if session is not None and replay is not None and replay.complete:
            return session.iterator_class(self)  # starts no worker
        return original(self)

    return _get_iterator


def _made(original: Any) -> Any:
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        original(self, loader, *args, **kwargs)
        session = _session
        if session is None or session.is_off():
            return
        attach(session, self, loader)

    return __init__


def attach(session: _Session, iterator: Any, loader: Any) -> None:
    """Let a real iterator keep its batches, or report that it cannot."""
    kind = type(iterator)
    if hasattr(getattr(kind, "_next_data", None), _MARK):
        iterator._stashtrace_replay = session.replay_of(loader)
    else:
        session.not_replayed(f"{kind.__module__}.{kind.__name__} makes its batches in a way that is not known here")


def next_data(original: Any) -> Any:
    """Wrap ``_next_data`` of an iterator: it returns real batches first, then the kept ones."""

    def _next_data(self: Any) -> Any:
        session = _session
        replay: Replay | None = getattr(self, "_stashtrace_replay", None)
        if replay is None or session is None or session.is_off():
            return original(self)
        if replay.complete:
            return _replay_next(self, replay)
        try:
            batch = session.make(original, self)
        except StopIteration:
            if replay.batches:  # the epoch is shorter than the number of batches to keep
                replay.ends_after(_returned_batches(self))
                _retire(self, replay)
            raise
        batch = replay.keep(batch)
        if replay.complete:
            _retire(self, replay)
        return batch

    return _next_data


def _replay_next(iterator: Any, replay: Replay) -> Any:
    """Do what torch's ``_next_data`` does, without making a batch; raise StopIteration where torch does."""
    _retire(iterator, replay)
    if replay.is_iterable:
        if hasattr(iterator, "_sampler_iter_yielded"):
            iterator._next_index()  # torchdata's state has the number of calls of the endless sampler
        if 0 <= replay.batches_count <= _returned_batches(iterator):
            raise StopIteration
    elif getattr(iterator, "_task_info", None):
        iterator._task_info.popitem()  # its indices were drawn before the workers ended
    else:
        iterator._next_index()  # raises at the end of the epoch
    if hasattr(iterator, "_send_idx"):
        # A number that no worker was given, so that none of their rows seems to belong to this batch.
        iterator._send_idx += 1
        iterator._rcvd_idx = iterator._send_idx
        thread_state.received = iterator._send_idx - 1
    return replay.next()


def _returned_batches(iterator: Any) -> int:
    """Return the batches of this epoch so far; torchdata counts twice those that it skips after a restart."""
    return int(iterator._num_yielded) - getattr(iterator, "_stashtrace_counted_twice", 0)


def _retire(iterator: Any, replay: Replay) -> None:
    """End the workers and the pinning thread of a real iterator; the batches of drawn indices are still due."""
    if not hasattr(iterator, "_shutdown_workers") or getattr(iterator, "_stashtrace_retired", False):
        return
    iterator._stashtrace_retired = True
    try:
        iterator._task_info = dict.fromkeys(iterator._task_info, (-1,))  # their data is not needed
        try:
            iterator._shutdown_workers()
        except RuntimeError as error:
            # torch asks workers to end without waiting for the thread that sends their batches, and an interpreter
            # that ends before that thread aborts. Its batches are not needed; torch has ended the other workers.
            if "killed by signal" not in str(error):
                raise
            replay.notes.inform("worker_ended_by_signal", str(error))
            _note_lost_ends(iterator._workers)
        iterator._num_workers = 0  # so that `_reset` of persistent workers wakes none
        pinned = iterator._data_queue
        while isinstance(pinned, queue.Queue) and not pinned.empty():
            pinned.get_nowait()
    except Exception as error:
        failed(COLLECTOR, "end_of_workers", error)


def _note_lost_ends(workers: Any) -> None:
    """Mark workers whose exit status is lost as ended, with the code of multiprocessing for an unknown status.

    Torch raises from a signal handler, possibly after ``waitpid`` has taken the status and before it is stored. To
    multiprocessing such a process then never ends.
    """
    for worker in workers:
        process = worker._popen
        if process is None or process.returncode is not None or process.method == "forkserver":  # not our child
            continue
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            process.returncode = 255


def _iterator_class(base: Any) -> Any:
    class ReplayedDataLoaderIter(base):  # type: ignore[misc]
        """Iterates over kept batches, with sampler, seed and settings of a real iterator."""

        def _reset(self, loader: Any, first_iter: bool = False) -> None:
            super()._reset(loader, first_iter)
            loader_facts = getattr(self, "_stashtrace_loader", None)
            if loader_facts is not None:
                loader_facts.restart()

        def _next_data(self) -> Any:
            return _replay_next(self, self._stashtrace_replay)

    setattr(ReplayedDataLoaderIter._next_data, _MARK, base._next_data)
    return ReplayedDataLoaderIter


# torchdata's StatefulDataLoader. Its iterators derive from torch's, whose batches are replayed as above; what follows
# makes the iterators and keeps ``state_dict`` correct. With workers, a state is a snapshot of them and the number of
# batches since. The last real snapshot stays, or that of the begin of an epoch, and the number grows: a real loader
# with such a state skips as many batches and goes on after them. Without workers, counters and sampler are the current
# ones, and the state of an iterable data set is its last real one.


def install_torchdata(module: ModuleType) -> None:
    """Patch ``torchdata.stateful_dataloader.stateful_dataloader`` before ``dataloader.install_torchdata`` does."""
    if _session is None:
        return
    single = module._StatefulSingleProcessDataLoaderIter
    multi = module._StatefulMultiProcessingDataLoaderIter
    patching.replace(COLLECTOR, single, "_next_data", next_data)
    patching.replace(COLLECTOR, multi, "_next_data", next_data)
    patching.replace(COLLECTOR, multi, "_reset", _reset)
    # Our classes derive from the patched ones, so they are made now.
    base = module._StatefulBaseDataLoaderIter
    ours = {single: _single_class(base, single), multi: _multi_class(base, multi)}
    patching.replace(
        COLLECTOR, module.StatefulDataLoader, "_get_iterator", lambda method: _get_stateful_iterator(method, ours)
    )


def _get_stateful_iterator(original: Any, ours: dict[type, Any]) -> Any:
    def _get_iterator(self: Any) -> Any:
        session = _session
        replay = None if session is None else session.replay_of(self)
        if session is None or replay is None:
            return original(self)
        state, last = self.next_iter_state, self._iterator
        if replay.complete and state is None and last is not None:
            try:
                return _replaying(ours, self, last)  # starts no worker
            except Exception as error:
                failed(COLLECTOR, "replaying_iterator", error)
        # Batches that are made only to be skipped, after a restart, are not kept. A loader that is given a state in the
        # middle of a replay gets a real iterator, whose workers end with its first batch.
        iterator = session.make(original, self)
        try:
            if state is not None:
                # Note how many batches torchdata counts twice: it adds those that it skips to the number in the state
                snapshot = state.get("_snapshot")
                known = (
                    state["_num_yielded"]
                    if snapshot is None
                    else snapshot["_snapshot_step"] + state["_steps_since_snapshot"]
                )
                iterator._stashtrace_counted_twice = iterator._num_yielded - known
            attach(session, iterator, self)
        except Exception as error:
            session.not_replayed(f"{type(iterator).__module__}.{type(iterator).__name__}: {error!r}")
        return iterator

    return _get_iterator


def _replaying(ours: dict[type, Any], loader: Any, last: Any) -> Any:
    """Return an iterator over kept batches, of the kind of the loader's last one."""
    for kind, replaying in ours.items():
        if isinstance(last, kind):
            return replaying(loader, last)
    raise TypeError(f"{type(last).__name__} is not an iterator of torchdata")


def _reset(original: Any) -> Any:
    """Wrap ``_reset``, with which each epoch begins, so that states do not show that the workers have ended."""

    def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, loader, *args, **kwargs)
        try:
            self._stashtrace_counted_twice = 0
            if getattr(self, "_stashtrace_retired", False):
                _begin_epoch(self, loader.num_workers, self)
            else:
                self._stashtrace_begin = self._snapshot
        except Exception as error:
            failed(COLLECTOR, "state_of_epoch", error)
        return result

    return _reset


def _begin_epoch(iterator: Any, workers: int, last: Any) -> None:
    """Set the snapshot of the begin of an epoch: the sampler as it is, the workers as they began their last epoch."""
    iterator._stashtrace_begin = iterator._snapshot = {
        **last._stashtrace_begin,
        iterator._SNAPSHOT_STEP: 0,
        iterator._LAST_YIELDED_WORKER_ID: workers - 1,
        iterator._MAIN_SNAPSHOT: {**iterator._get_main_state(), iterator._NUM_WORKERS: workers},
    }


def _single_class(base: Any, single: Any) -> Any:
    class ReplayedSingleProcessIter(single):  # type: ignore[misc]
        """A later epoch without workers; ``state_dict`` asks the data set of the last real epoch."""

        def __init__(self, loader: Any, last: Any) -> None:
            base.__init__(self, loader)
            self._dataset_fetcher = last._dataset_fetcher

    return ReplayedSingleProcessIter


def _multi_class(base: Any, multi: Any) -> Any:
    class ReplayedMultiProcessingIter(multi):  # type: ignore[misc]
        """A later epoch with workers; these are not started."""

        #: There are no workers to end, for torchdata or for us.
        _shutdown = _stashtrace_retired = True

        def __init__(self, loader: Any, last: Any) -> None:
            base.__init__(self, loader)
            self._in_order = getattr(loader, "in_order", True)
            base._reset(self, loader, True)  # begins the sampler twice, as a real one does: the same random numbers
            _begin_epoch(self, loader.num_workers, last)

    return ReplayedMultiProcessingIter
