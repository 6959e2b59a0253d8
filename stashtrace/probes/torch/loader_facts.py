"""An iterator of a DataLoader, with the same id in its process and its workers; and the samples that the loader has."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from stashtrace.probes import recorder
from stashtrace.probes.recorder import now_ticks

#: Key of an iterator's fact, followed by 16 digits of its ``loader_id``; the same in
#: ``analysis/steps/samples_per_step.py``.
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
    batch = _batch_samples(loader)
    epoch = every = 0
    is_iterable = isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset)
    if batch and not is_iterable:
        batches = _length(loader.batch_sampler)
        epoch = min(batches * batch, _length(loader.sampler) if loader.batch_size else batches * batch)
        every = _length(loader.dataset)
    recorder.record_fact(f"{FACT}{iterator.loader_id:016x}", f"{batch} {epoch} {every}{' iterable' * is_iterable}")


def _batch_samples(loader: Any) -> int:
    """Return the samples of a full batch of this process, 0 if unknown."""
    size = loader.batch_size
    if size is None:
        sampler = loader.batch_sampler
        size = getattr(sampler, "batch_size", None)
        # accelerate's sampler, which splits each batch among the processes
        if type(size) is int and getattr(sampler, "split_batches", False):
            size //= max(getattr(sampler, "num_processes", 1), 1)
    return size if type(size) is int and size > 0 else 0


def _length(sized: Any) -> int:
    """Return the length, 0 if there is none or it is not known."""
    try:
        return len(sized)
    except Exception:
        return 0
