"""Synthetic data of torchdata's StatefulDataLoader: batches are replayed as torch's are, and its state can be saved.

Its iterators derive from torch's, so ``torch.replay`` makes their batches; this module makes the iterators and keeps
``state_dict`` correct. With workers, a state is a snapshot of them and the number of batches since. The last real
snapshot stays, or that of the begin of an epoch, and the number grows: a real loader with such a state skips as many
batches and goes on after them. Without workers, counters and sampler are the current ones, and the state of an iterable
data set is its last real one.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from stashtrace.probes import patching
from stashtrace.probes.recorder import failed
from stashtrace.probes.torch.replay import COLLECTOR, attach, current_session, next_data


def install(module: ModuleType) -> None:
    """Patch ``torchdata.stateful_dataloader.stateful_dataloader`` before ``dataloader.install_torchdata`` does."""
    if current_session() is None:
        return
    single = module._StatefulSingleProcessDataLoaderIter
    multi = module._StatefulMultiProcessingDataLoaderIter
    patching.replace(COLLECTOR, single, "_next_data", next_data)
    patching.replace(COLLECTOR, multi, "_next_data", next_data)
    patching.replace(COLLECTOR, multi, "_reset", _reset)
    # Our classes derive from the patched ones, so they are made now.
    base = module._StatefulBaseDataLoaderIter
    ours = {single: _single_class(base, single), multi: _multi_class(base, multi)}
    patching.replace(COLLECTOR, module.StatefulDataLoader, "_get_iterator", lambda method: _get_iterator(method, ours))


def _get_iterator(original: Any, ours: dict[type, Any]) -> Any:
    def _get_iterator(self: Any) -> Any:
        session = current_session()
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
