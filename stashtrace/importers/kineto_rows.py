"""The file that is being imported, with tracks for its threads and streams. Used by the rooms of ``kineto``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stashtrace.importers.context import ImportContext
from stashtrace.importers.kineto_reading import ABSENT, Codes, EventRows, Int64, KinetoFile

#: Native id of a stream: the device above, CUPTI's number of the stream below.
_STREAM_BITS = 32


class FileRows:
    """One file with its process.

    Attributes
    ----------
    file : KinetoFile
    context : ImportContext
    process_id : int
    """

    def __init__(self, file: KinetoFile, context: ImportContext, process_id: int) -> None:
        self.file = file
        self.context = context
        self.process_id = process_id
        self._threads: dict[int, int] = {}
        self._name_threads()

    def _name_threads(self) -> None:
        names = self.file.rows["names"]
        chosen = np.array([self.file.text(n) == "thread_name" for n in names.name.tolist()], dtype=bool)
        named = names.take(chosen)
        of_host = self.file.integers(named.pid, -1) == self.context.processes[self.process_id].pid
        for tid, text in zip(named.tid[of_host].tolist(), named.texts["name"][of_host].tolist(), strict=True):
            self._threads[tid] = text

    def threads(self, tids: Codes) -> Int64:
        """Track of the thread of each row."""
        distinct, inverse = np.unique(tids, return_inverse=True)
        return np.array([self._thread(t) for t in distinct.tolist()], dtype=np.int64)[inverse]

    def _thread(self, tid: int) -> int:
        number = int(self.file.integers(np.array([tid], dtype=np.int32), 0)[0])
        track = self.context.tracks.thread(self.process_id, number)
        name = self.file.text(self._threads.get(tid, -1))
        if name:
            self.context.tracks.describe_thread(self.process_id, number, name=name)
        return track

    def devices(self, rows: EventRows) -> Int64:
        """Ordinal of the device of each row."""
        device = rows.ints["device"]
        return np.where(device == ABSENT, self.file.integers(rows.pid, 0), device)

    def streams(self, rows: EventRows, device: Int64) -> Int64:
        """Track of the stream of each row."""
        stream = rows.ints["stream"]
        stream = np.where(stream == ABSENT, self.file.integers(rows.tid, 0), stream)
        key = (device << _STREAM_BITS) | (stream & ((1 << _STREAM_BITS) - 1))
        distinct, inverse = np.unique(key, return_inverse=True)
        tracks = [self._stream(k) for k in distinct.tolist()]
        return np.array(tracks, dtype=np.int64)[inverse]

    def _stream(self, key: int) -> int:
        device, stream = key >> _STREAM_BITS, key & ((1 << _STREAM_BITS) - 1)
        return self.context.tracks.stream(self.process_id, key, f"stream {stream} · GPU {device}")

    def codes(self, numbers: Codes, text_of: Callable[[str], str] = str) -> Int64:
        """String codes of texts of the file, each changed by ``text_of`` first."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return self.context.codes([text_of(self.file.text(n)) for n in distinct.tolist()])[inverse]

    def coded(self, numbers: Codes, code_of: Callable[[str], int]) -> Int64:
        """A number for each text of the file, found once per distinct text."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return np.array([code_of(self.file.text(n)) for n in distinct.tolist()], dtype=np.int64)[inverse]
