"""The data set of a job as the steps want it: none of it in the page cache, or all of it, and known to be so.

Called by ``characterize``; the caching itself is in ``page_cache``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.align.align import load_trace
from stashtrace.experiments.job_files import FileSet, file_set, files_read
from stashtrace.experiments.page_cache import CacheState, check, make_cold, make_warm, memory_room
from stashtrace.units import bytes_text, percent_text

COLD, WARM = "cold", "warm"
#: Of a data set in memory, what must still be there after a run: the rest is what fetch may be too small by.
KEPT_RATIO = 0.95


class DataStates:
    """Brings the files of a data set into a state.

    Parameters
    ----------
    whole : FileSet
        The data set.
    seen : FileSet
        What a short run was seen to read of it.
    drop_caches : bool
        Whether the page cache of the whole machine may be dropped.

    Attributes
    ----------
    notes : list of str
        What a reader must know.
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
                f" free for it: step 4 has the {bytes_text(seen.bytes)} in memory that the job was seen to read"
            )

    @classmethod
    def of(cls, run: Path, data: Sequence[Path], *, drop_caches: bool) -> DataStates:
        """For the files that are named, or those that a run was seen to read and their neighbours."""
        seen = files_read(load_trace(str(run)))
        whole = file_set(data) if data else with_neighbours(seen)
        return cls(whole, seen, drop_caches=drop_caches)

    def facts(self) -> dict[str, Any]:
        """For the answer."""
        return {"files_count": len(self._whole.paths), "bytes": self._whole.bytes}

    def prepare(self, state: str) -> CacheState:
        """Make it so, and look whether it is."""
        if state == COLD:
            return make_cold(self._whole, drop_caches=self._drop_caches)
        return make_warm(self._warm, subset=False)

    def after(self, state: CacheState) -> str:
        """Why a state did not last while the job ran, empty if it did; only a warm one should.

        A host takes pages back now and then: a run that found nearly all of its data in memory counts.
        """
        if state.state != WARM:
            return ""
        now = check(state)
        if now.share >= KEPT_RATIO:
            return ""
        found = f"after the run {now.instrument} finds {percent_text(now.share)} resident"
        return f"the data set did not stay in memory: {found}"


def with_neighbours(seen: FileSet) -> FileSet:
    """These files, and those of the same kind in the same folders: the next epoch may read them in another order."""
    kinds = {(os.path.dirname(path), os.path.splitext(path)[1]) for path in seen.paths}
    found = set(seen.paths)
    for folder in {folder for folder, _ in kinds}:
        with os.scandir(folder) as entries:
            found.update(
                entry.path
                for entry in entries
                if (folder, os.path.splitext(entry.name)[1]) in kinds and entry.is_file(follow_symlinks=False)
            )
    return file_set(sorted(found))
