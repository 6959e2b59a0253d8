"""Copies of runs that lack single rows, or hold odd ones, as a crash, a full disk or a bad medium leaves them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stashtrace.format.container import pack_head, pack_segment
from stashtrace.format.stash_file import StashFile

_REFERRED = ("tracks", "processes", "groups", "devices", "streams", "device_clocks", "metadata", "alignment")


def rows_of(path: Path) -> dict[str, int]:
    """How many rows of each record a .stash file holds."""
    return StashFile(str(path)).row_counts()


def write_without(source: Path, target: Path, record: str, row: int | None) -> None:
    """Copy a .stash file without one row of a record (counted through all segments), or without all of them."""
    seen = 0

    def without(name: str, rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        nonlocal seen
        if name != record:
            return rows
        kept = np.zeros(len(rows), dtype=bool) if row is None else np.arange(seen, seen + len(rows)) != row
        seen += len(rows)
        return rows[kept]

    _rewrite(source, target, without)


def write_with(
    source: Path, target: Path, record: str = "", *, metadata: Mapping[str, object] | None = None, **fields: object
) -> None:
    """Copy a .stash file with other values in the first row of a record, and other metadata, under right checksums."""
    done = False

    def changed(name: str, rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        nonlocal done
        if name != record or done:
            return rows
        done, rows = True, rows.copy()
        for field, value in fields.items():
            rows[field][0] = value
        return rows

    _rewrite(source, target, changed, metadata or {})
    assert done or not record, f"{source} has no {record}"


def _rewrite(
    source: Path,
    target: Path,
    change: Callable[[str, npt.NDArray[np.void]], npt.NDArray[np.void]],
    metadata: Mapping[str, object] | None = None,
) -> None:
    file = StashFile(str(source))
    segments = []
    for chunk in file.chunks():
        rows = change(chunk.layout.name, chunk.rows)
        if len(rows):
            segments.append(
                pack_segment(
                    rows.tobytes(),
                    record_id=chunk.layout.record_id,
                    codec=0,
                    tid=chunk.tid,
                    ring_id=chunk.ring_id,
                    row_count=len(rows),
                    first_sequence=chunk.first_sequence,
                )
            )
    head = pack_head(file.head.records, {**file.metadata, **(metadata or {})}, flags=file.head.flags)
    target.write_bytes(head + b"".join(segments))


def stores_without(
    store: Path, folder: Path, chosen: Mapping[str, Sequence[int]] | None = None
) -> Iterator[tuple[str, Path]]:
    """Copies of a store, each without one whole file, or without one row of a table that others refer to.

    ``chosen`` names the tables and rows; all that are worth it if it is not given.
    """
    import pyarrow
    import pyarrow.parquet

    for file in sorted(store.rglob("*.parquet")):
        table = file.parent.parent.name
        if chosen is not None and table not in chosen:
            continue
        rows = pyarrow.parquet.ParquetFile(file).read(use_threads=False)
        lost: list[int | None] = [None]
        if chosen is not None:
            lost += [row for row in chosen[table] if row < len(rows)]
        elif table in _REFERRED:
            lost += range(len(rows))
        for row in lost:
            copy = folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(store, copy)
            place = copy / file.relative_to(store)
            if row is None:
                place.unlink()
            else:
                kept = rows.filter(pyarrow.array(np.arange(len(rows)) != row))
                pyarrow.parquet.write_table(kept, place)
            yield f"{file.relative_to(store).parent} without {'the file' if row is None else f'row {row}'}", copy
