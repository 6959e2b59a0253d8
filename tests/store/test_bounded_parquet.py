"""A small Parquet file takes no more memory than the largest real one of its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stashtrace.files import bounded_parquet
from stashtrace.files.bounded_parquet import TooLargeError, parquet_file, read_parquet
from stashtrace.files.whole_files import FREE_BYTES

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def read(path: Path, columns: list[str] | None = None) -> Any:
    with parquet_file(path) as file:
        return read_parquet(file, path.stat().st_size, columns)


def test_repeated_numbers(tmp_path: Path) -> None:
    rows = FREE_BYTES // 8 + 1
    path = written(tmp_path / "a.parquet", {"ns": np.zeros(rows, dtype=np.int64), "x": np.zeros(rows, dtype=np.int8)})
    assert path.stat().st_size < 100_000
    with pytest.raises(TooLargeError, match="of memory"):
        read(path)
    assert len(read(path, ["x"])) == rows, "a column that is not read costs nothing"


def test_one_long_text_for_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary holds it once; decoded it would stand in each row. It ends after the first batches."""
    held: list[int] = []
    really = bounded_parquet._require

    def require(size_bytes: int, most_bytes: int) -> None:
        held.append(size_bytes)
        really(size_bytes, most_bytes)

    monkeypatch.setattr(bounded_parquet, "_require", require)
    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(20_000, dtype=np.int32), ["x" * 200_000])
    path = written(tmp_path / "a.parquet", {"text": texts}, store_schema=False)
    assert path.stat().st_size < 100_000
    with pytest.raises(TooLargeError):
        read(path)
    assert FREE_BYTES < held[-1] <= 3 * FREE_BYTES


def test_texts_of_ordinary_files_are_read_whole(tmp_path: Path) -> None:
    texts = [f"{number:06}" * 10 for number in range(200_000)]
    path = written(tmp_path / "a.parquet", {"text": texts, "n": list(range(200_000))})
    table = read(path)
    assert table["text"].to_pylist() == texts
    assert table["n"].to_pylist() == list(range(200_000))
    assert read(written(tmp_path / "b.parquet", {"text": pyarrow.array([], pyarrow.string())})).num_rows == 0


def test_lists_are_counted_by_their_values(tmp_path: Path) -> None:
    values = pyarrow.array(np.zeros(FREE_BYTES // 8 + 1, dtype=np.int64))
    path = written(tmp_path / "a.parquet", {"a": pyarrow.ListArray.from_arrays([0, len(values)], values)})
    with pytest.raises(TooLargeError):
        read(path)
