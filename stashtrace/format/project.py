"""From the field table of a file to rows of today's schema: numpy dtypes, projected by field name.

A file carries its field table, so no code converts old versions. A field that the file lacks reads as 0, a field
that today's schema lacks is left out, and the reader skips and counts records that today's schema does not know.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace import _native

FIELD_DTYPES = {"u16": "<u2", "i32": "<i4", "u32": "<u4", "i64": "<i8", "u64": "<u8", "f64": "<f8", "text56": "S56"}
_MAX_ROW_BYTES = 1 << 15


@dataclass(frozen=True, slots=True)
class Layout:
    """One record type as a file has it."""

    #: As in the file's field table.
    name: str
    collector: str
    #: As in the file's field table.
    record_id: int
    version: int
    #: Whole rows, ``itemsize`` is the file's row size.
    dtype: np.dtype[np.void]


def layout_of(entry: Mapping[str, Any]) -> Layout | None:
    """Layout of one entry of a field table, None if the entry is damaged. Fields of unknown type are left out."""
    try:
        row_bytes = int(entry["row_bytes"])
        names, formats, offsets = [], [], []
        for field in entry["fields"]:
            known = FIELD_DTYPES.get(field["type"])
            if known is None:
                continue
            names.append(str(field["name"]))
            formats.append(known)
            offsets.append(int(field["offset"]))
        if not 0 < row_bytes <= _MAX_ROW_BYTES or not names or min(offsets) < 0:
            return None
        dtype: np.dtype[np.void] = np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": row_bytes}
        )
        return Layout(str(entry["name"]), str(entry["collector"]), int(entry["id"]), int(entry["version"]), dtype)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


class _Known(NamedTuple):
    table: object
    layouts: dict[int, Layout]


_known: dict[int, _Known] = {}
_MOST_KNOWN = 256


def layouts(table: Iterable[Any]) -> dict[int, Layout]:
    """Record id -> layout, of the entries that are not damaged. Callers must not change it.

    The processes of a run have few different field tables, and ``read_head`` returns the same object for equal ones, so
    the layouts of a table, some 100 kB of dtypes, are made once.
    """
    known = _known.get(id(table))
    if known is not None and known.table is table:
        return known.layouts
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    entries = (layout_of(entry) for entry in table if isinstance(entry, Mapping))
    made = {layout.record_id: layout for layout in entries if layout is not None}
    if isinstance(table, tuple):
        _known[id(table)] = _Known(table, made)
    return made


@functools.cache
def current_layouts() -> dict[str, Layout]:
    """Record name -> layout of today's schema."""
    return {layout.name: layout for layout in layouts(_native.schema()["records"]).values()}


def project(rows: npt.NDArray[np.void], target: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Rows with the fields of ``target``, matched by name; the same array if nothing differs.

    A field of another type is converted when that loses nothing, and reads as 0 otherwise.
    """
    if rows.dtype == target:
        return rows
    out = np.zeros(len(rows), dtype=target)
    assert target.names is not None
    assert rows.dtype.names is not None
    for name in target.names:
        if name in rows.dtype.names and np.can_cast(rows.dtype[name], target[name], casting="safe"):
            out[name] = rows[name]
    return out
