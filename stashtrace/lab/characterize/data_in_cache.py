"""Bring the data set of a job into the page cache, or out of it, and verify that.

The caching itself is in ``lab.page_cache``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stashtrace.lab.characterize.answer import RunInvalidError
from stashtrace.lab.job_files import FileSet, file_set, files_read, reading
from stashtrace.lab.page_cache import COLD, WARM, CacheState, check, make_cold, make_warm, memory_room
from stashtrace.loading.load import load_trace
from stashtrace.schema.trace import Trace
from stashtrace.text.prose import list_some
from stashtrace.text.units import bytes_text, percent_text

#: Of a data set in memory, what must still be there after a run: the rest is what fetch may be too small by. Of what a
#: run reads, what must be in files that were brought into the state.
KEPT_RATIO = 0.95
#: Of what the measured steps of a cold run read, what may have been read before in the same run without a word.
_AGAIN_RATIO = 0.05
#: So many folders of one parent that hold files of one kind make its other folders a part of the data set.
_LEAST_SIBLINGS = 3
#: Of files that a run was seen to read: they were temporary, or are none.
_NO_DATA = ("no such file or directory", "not a regular file")


class DataStates:
    """Bring the files of a data set into a state of the page cache.

    ``whole``: the data set. ``seen``: what a short run was seen to read of it. ``drop_caches``: whether the page cache
    of the whole machine may be dropped. ``notes``: what a reader must know.
    """

    def __init__(self, whole: FileSet, seen: FileSet, *, drop_caches: bool) -> None:
        self._whole = whole
        self._warm = whole
        self._drop_caches = drop_caches
        self.notes: list[str] = []
        room = memory_room()
        if whole.bytes > room:
            self._warm = seen
            self.notes.append(
                f"the data set ({bytes_text(whole.bytes)}) does not fit into the {bytes_text(room)} of memory that are"
                f" free for it: configuration 4 has the {bytes_text(seen.bytes)} in memory that the job was seen to"
                " read"
            )
        if unknown := [(path, why) for path, why in whole.left_out if why not in _NO_DATA]:
            files = list_some([f"{path} ({why})" for path, why in unknown])
            self.notes.append(f"not examined, and neither cold nor warm: {files}")

    @classmethod
    def from_trial(cls, run: Path, data: Sequence[Path], *, drop_caches: bool) -> DataStates:
        """Take the files that are named, or those that a run was seen to read and their neighbours."""
        seen = files_read(load_trace(run))
        whole = file_set(data) if data else with_neighbours(seen)
        return cls(whole, seen, drop_caches=drop_caches)

    def facts(self) -> dict[str, Any]:
        """Size of the data set, for the answer."""
        return {"files_count": len(self._whole.paths), "bytes": self._whole.bytes}

    def prepare(self, state: str) -> CacheState:
        """Bring the data set into a state, and check that it is in it."""
        if not self._whole.bytes:
            return _without_files(state)
        if state == COLD:
            return make_cold(self._whole, drop_caches=self._drop_caches)
        return make_warm(self._warm)

    def require_still_warm(self, state: CacheState) -> None:
        """Check after a run that a warm data set stayed in memory; a cold one is read into it by the run.

        A host takes pages back now and then: a run that found nearly all of its data in memory counts.

        Raises RunInvalidError if less than :data:`KEPT_RATIO` of it is resident, or nobody knows.
        """
        if state.state != WARM or not state.files.paths:
            return
        now = check(state)
        if not now.share >= KEPT_RATIO:
            raise RunInvalidError(
                "the data set did not stay in memory: after the run"
                f" {now.instrument} finds {percent_text(now.share)} resident"
            )

    def require_prepared_files(self, state: CacheState, trace: Trace) -> None:
        """Check that a run read the files that were brought into the state; others belong to the data set from now on.

        Raises RunInvalidError if it read more than a little of other files.
        """
        bytes_of = reading(trace).bytes_of
        prepared = set(state.files.paths)
        others = {path: count for path, count in bytes_of.items() if path not in prepared}
        share = sum(others.values()) / max(sum(bytes_of.values()), 1)
        if share <= 1 - KEPT_RATIO:
            return
        names = sorted(others, key=lambda path: -others[path])
        if self._warm is self._whole:
            more = with_neighbours(file_set(names))
            self._whole = self._warm = file_set([*self._whole.paths, *more.paths])
        else:
            self._warm = file_set(bytes_of)  # of a job that reads the same in each run this is what the next one needs
        raise RunInvalidError(
            f"{percent_text(share)} of what the run read is in files that had not been made {state.state}:"
            f" {list_some(names)}"
        )

    def reread_note(self, state: CacheState, trace: Trace, first_step: int) -> str | None:
        """Note for a cold run that read its data again, from memory then; None if it did not."""
        if state.state != COLD:
            return None
        share = reading(trace, first_step).again_ratio
        if share <= _AGAIN_RATIO:
            return None
        return (
            f"{percent_text(share)} of what its measured steps read was read before in the same run and came from"
            " memory, so fetch is that of the rest: more data, or a smaller --warmup and --iterations, show all of it"
        )


def _without_files(state: str) -> CacheState:
    """State of a job that reads no file in its steps: nothing could be cold, and everything is in memory."""
    why = "the job was seen to read no file in its steps; what it read before them, or over a network, is as it is"
    sentence = f"not cold: {why}" if state == COLD else f"warm: {why}"
    return CacheState(state, "none", FileSet((), 0), float("nan"), state == WARM, "", (), sentence)


def with_neighbours(seen: FileSet) -> FileSet:
    """Add the files of the same kind in the same folders: the next epoch may read them in another order.

    Where several folders of one parent hold them, as those of classes do, its other folders count too.
    """
    kinds = {(os.path.dirname(path), os.path.splitext(path)[1]) for path in seen.paths}
    for (parent, kind), count in Counter((os.path.dirname(folder), kind) for folder, kind in kinds).items():
        if count >= _LEAST_SIBLINGS:
            kinds |= {(entry.path, kind) for entry in _entries(parent) if entry.is_dir(follow_symlinks=False)}
    paths = set(seen.paths)
    for folder in {folder for folder, _ in kinds}:
        paths.update(
            entry.path
            for entry in _entries(folder)
            if (folder, os.path.splitext(entry.name)[1]) in kinds and entry.is_file(follow_symlinks=False)
        )
    more = file_set(sorted(paths))
    return replace(more, left_out=(*seen.left_out, *more.left_out))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder; none if it cannot be listed, as where files may be opened by name alone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
