"""TrackRegistry: numbers the lines of the timeline while rows are decoded or imported."""

from __future__ import annotations

import numpy as np

from stashtrace.schema.events import TRACKS
from stashtrace.schema.kinds import ThreadRole, TrackKind
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table

#: Tables whose rows are on another kind of track than a thread.
_KINDS = {
    "devices": TrackKind.DEVICE,
    "streams": TrackKind.STREAM,
    "device_brackets": TrackKind.STREAM,
    "kernels": TrackKind.STREAM,
}


def kind_of_rows(table: str) -> TrackKind:
    """Kind of the tracks that the rows of a table are on."""
    return _KINDS.get(table, TrackKind.THREAD)


class TrackRegistry:
    """Tracks of a whole trace: hands out ids, keeps names and roles, makes the ``tracks`` table."""

    def __init__(self, strings: StringPool) -> None:
        self.strings = strings
        self._ids: dict[tuple[int, int, int, str], int] = {}
        self._rows: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def _get(self, process_id: int, kind: TrackKind, native_id: int, name: str, unit: str, by_name: bool) -> int:
        key = (process_id, int(kind), native_id, name if by_name else "")
        track_id = self._ids.get(key)
        if track_id is None:
            track_id = self._ids[key] = len(self._rows)
            code = self.strings.code
            self._rows.append([track_id, process_id, int(kind), native_id, 0, code(name), code(unit)])
        return track_id

    def thread(self, process_id: int, tid: int) -> int:
        """Track of a thread, made at first use."""
        return self._get(process_id, TrackKind.THREAD, tid, "", "", False)

    def communicator(self, process_id: int, native_id: int, name: str) -> int:
        """Track of a communicator of one process; ``native_id`` is its group hash."""
        signed = native_id - (1 << 64) if native_id >= 1 << 63 else native_id
        return self._get(process_id, TrackKind.COMMUNICATOR, signed, name, "", False)

    def counter(self, process_id: int, name: str, unit: str, native_id: int = 0) -> int:
        """Track of a sampled quantity."""
        return self._get(process_id, TrackKind.COUNTER, native_id, name, unit, True)

    def stream(self, process_id: int, native_id: int, name: str) -> int:
        """Track of a stream of one process, by its key there; the first name stays."""
        signed = native_id - (1 << 64) if native_id >= 1 << 63 else native_id
        return self._get(process_id, TrackKind.STREAM, signed, name, "", False)

    def device(self, process_id: int, device_index: int, name: str) -> int:
        """Track of a device as one process sees it."""
        return self._get(process_id, TrackKind.DEVICE, device_index, name, "", False)

    def unknown(self, process_id: int, kind: TrackKind) -> int:
        """Track for rows of a process whose thread, stream or device is unknown."""
        return self._get(process_id, kind, -1, f"unknown {kind.name.lower()}", "", False)

    def placed(self, table: Table) -> tuple[Table, int]:
        """The table with a track for each row, and the number of rows that had none (-1) and are on an unknown one now.

        A table without the process of each row is returned as it is.
        """
        if "track_id" not in table or "process_id" not in table:
            return table, 0
        nowhere = table["track_id"] < 0
        if not nowhere.any():
            return table, 0
        tracks, owners, kind = table["track_id"].copy(), table["process_id"], kind_of_rows(table.schema.name)
        for process_id in np.unique(owners[nowhere]).tolist():
            tracks[nowhere & (owners == process_id)] = self.unknown(process_id, kind)
        return table.replace(track_id=tracks), int(np.count_nonzero(nowhere))

    def rename(self, track_id: int, name: str) -> None:
        """Give a track another name."""
        self._rows[track_id][5] = self.strings.code(name)

    def describe_thread(self, process_id: int, tid: int, *, name: str = "", role: int = ThreadRole.UNKNOWN) -> None:
        """Set name and role of a thread; empty name and unknown role leave what is there."""
        row = self._rows[self.thread(process_id, tid)]
        if name:
            row[5] = self.strings.code(name)
        if role != ThreadRole.UNKNOWN:
            row[4] = int(role)

    def assign_role(self, track_id: int, role: int) -> None:
        """Set the role of a thread in the job."""
        self._rows[track_id][4] = int(role)

    def table(self) -> Table:
        """The ``tracks`` table so far."""
        return Table.from_rows(TRACKS, self._rows)
