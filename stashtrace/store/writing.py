"""StoreWriter: partitions of a store, one rank at a time, so that memory is that of a rank.

Called by ``exporters.store``. The store's own file is written last: a store without it was not finished.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.model.strings import StringPool
from stashtrace.model.table import Table
from stashtrace.store.layout import STORE_FILE, VERSION, is_store, parquet_options, partition, require_pyarrow, to_arrow


class StoreWriter:
    """Writes a store into a folder.

    Parameters
    ----------
    path : Path
        Folder to make. One that holds a store is replaced, any other that is not empty is refused.
    strings : StringPool
        Behind the text codes of all tables.

    Raises
    ------
    StashtraceError
        If pyarrow is missing, or the folder cannot be made or holds something else.
    """

    def __init__(self, path: Path, strings: StringPool) -> None:
        require_pyarrow()
        self.path = path
        self.file_bytes = 0
        self.rows: Counter[str] = Counter()
        self.ranks: set[int] = set()
        self._strings = strings
        try:
            if is_store(path):
                shutil.rmtree(path)
            elif path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise StashtraceError(f"{path} is there and holds no store", hint="choose another folder with -o")
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error

    def write(self, rank: int, tables: Mapping[str, Table]) -> None:
        """Write tables of one rank (-1: of none); empty ones leave no file."""
        import pyarrow.parquet

        for name, table in tables.items():
            if not len(table):
                continue
            file = partition(self.path, name, rank)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                pyarrow.parquet.write_table(to_arrow(table, self._strings), file, **parquet_options(table.schema))
            except OSError as error:
                raise self._refused(error) from error
            self.file_bytes += file.stat().st_size
            self.rows[name] += len(table)
            if rank >= 0:
                self.ranks.add(rank)

    def finish(self, **facts: Any) -> None:
        """Write the store's own file; from now on it is one."""
        content = {
            "format": "stashtrace-store",
            "version": VERSION,
            "ranks": sorted(self.ranks),
            "rows": dict(sorted(self.rows.items())),
            **facts,
        }
        try:
            (self.path / STORE_FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StashtraceError:
        reason = error.strerror or str(error)
        return StashtraceError(f"cannot write {self.path}: {reason}", hint="choose another folder with -o")
