"""An iterator of a DataLoader, as its process and its workers know it, and what the loader says of its samples."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import sys
from typing import Any

from stashtrace.probes import recorder
from stashtrace.probes.recorder import now_ticks

#: Metadata key of an iterator: this and 16 digits of its ``loader_id``; the same in ``analysis/loader_samples``.
FACT = "dataloader "
#: Iterators of a process that say something of themselves: a job that makes one for each step would fill its strings.
_MOST_FACTS = 64


class Loader:
    """One iterator, as both sides see it.

    Parameters
    ----------
    owner_pid : int
        Process that iterates.
    base_seed : int
        The iterator's own; handed to its workers by torch.
    ordinal : int
        Process counter of worker 0, or minus the number of the iterator if it has no workers: tells
        iterators apart that were given the same seed.

    Attributes
    ----------
    loader_id : int
        64 bits, other for each epoch of persistent workers, whose batches count from 0 again.
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
        """The workers are told to begin another epoch."""
        self.epoch += 1
        self.yielded = 0
        self.begin_ticks = now_ticks()
        self.loader_id = self._hash()


class _Told:
    """Iterators of this process that have said something."""

    count = 0


def tell_samples(loader: Any, iterator: Loader) -> None:
    """Record samples of a batch, samples of this process in an epoch, and of the data set; 0 for what nobody knows.

    Asks the sampler and a map-style data set for their lengths, as torch did when it made the loader; an iterable one
    is not asked, since torch checks what it answers. Called once for each iterator.
    """
    if _Told.count >= _MOST_FACTS:
        return
    _Told.count += 1
    batch = _batch_samples(loader)
    epoch = every = 0
    if batch and not isinstance(loader.dataset, sys.modules["torch"].utils.data.IterableDataset):
        batches = _length(loader.batch_sampler)
        epoch = min(batches * batch, _length(loader.sampler) if loader.batch_size else batches * batch)
        every = _length(loader.dataset)
    recorder.record_fact(f"{FACT}{iterator.loader_id:016x}", f"{batch} {epoch} {every}")


def _batch_samples(loader: Any) -> int:
    """Samples of a whole batch of this process."""
    size = loader.batch_size
    if size is None:
        sampler = loader.batch_sampler
        size = getattr(sampler, "batch_size", None)
        # accelerate's sampler that cuts each batch into one for each process
        if type(size) is int and getattr(sampler, "split_batches", False):
            size //= max(getattr(sampler, "num_processes", 1), 1)
    return size if type(size) is int and size > 0 else 0


def _length(sized: Any) -> int:
    """0 where it has none, or does not know it."""
    try:
        return len(sized)
    except Exception:
        return 0
