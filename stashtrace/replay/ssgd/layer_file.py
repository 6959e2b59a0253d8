"""Layer-wise traces as text: one row per layer, repeated for each iteration.

    # update_us 1500
    id  name      forward_us  backward_us  communication_us  size_bytes
    0   conv1     812.5       1640.2       404               37632
    1   relu1     91          120.4        0                 0

Fields are separated by tabs, commas or blanks; the name may hold blanks and begin with a digit. Without the line of
column names times are microseconds. Ids ascend in the order of the forward pass; an id that comes again begins the next
iteration. ``-`` stands for communication that was not measured. Lines that begin with ``#`` are comments, except
``io_us``, ``copy_us`` and ``update_us``. Workload files of ASTRA-sim 1 (data parallelism) are read too: they have
nanoseconds and no measured communication.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.errors import FormatError, MissingDataError
from stashtrace.output_files import complete_file
from stashtrace.replay.ssgd.workload import Workload

_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_COLUMNS = ("forward", "backward", "communication", "size")
_HINT = "a row is: id name forward backward communication size"
_BEFORE_NAME, _AFTER_NAME = 1, 4
#: Times of a whole iteration that comments may give.
_WHOLE = re.compile(r"#\s*(io|copy|update)_(ns|us|ms|s)\s+(\S+)\s*")
_ASTRA_FIELDS = 12
#: An id or a count; Python rejects numbers of thousands of digits.
_NUMBER = re.compile(r"[0-9]{1,18}")
#: Parallelism that the first line of an ASTRA-sim workload names.
_ASTRA = re.compile(r"(DATA|MODEL|HYBRID\w*|MICRO|DISTRIBUTED_INFERENCE|TRANSFORMER\w*)\b")


def read_layers(path: str | Path) -> list[Workload]:
    """Read a file: one workload per iteration, with the layers in the order of the forward pass.

    Raises
    ------
    MissingDataError
        If there is no such file.
    FormatError
        If a row is not a layer, or iterations differ in their layers; the message names file and line.
    """
    place = Path(path)
    try:
        lines = place.read_text(encoding="utf-8-sig").splitlines()  # spreadsheets write a byte order mark
    except UnicodeDecodeError:
        raise FormatError(f"{place} is not a text file", hint=_HINT) from None
    except OSError as error:
        raise MissingDataError(f"cannot read {place}: {error.strerror}") from None
    first = next((line for line in lines if line.strip()), "")
    if _ASTRA.match(first):
        return [_astra(place, lines)]
    return _Reader(place).read(lines)


def typical(iterations: Sequence[Workload]) -> Workload:
    """Return the medians over iterations of the same layers."""
    first = iterations[0]
    columns: dict[str, Any] = {}
    for name in ("forward_ns", "backward_ns", "communication_ns"):
        columns[name] = np.median(np.stack([getattr(iteration, name) for iteration in iterations]), axis=0)
    whole: dict[str, Any] = {
        name: float(np.median([getattr(iteration, name) for iteration in iterations]))
        for name in ("io_ns", "copy_ns", "update_ns")
    }
    return replace(first, **columns, **whole)


def write_layers(path: str | Path, iterations: Sequence[Workload]) -> None:
    """Write iterations of the same layers; batches and update are the medians.

    Raises StashtraceError if the file cannot be written.
    """
    middle = typical(iterations)
    lines = [f"# {name}_us {getattr(middle, f'{name}_ns') / 1e3:.12g}" for name in ("io", "copy", "update")]
    lines.append("\t".join(("id", "name", "forward_us", "backward_us", "communication_us", "size_bytes")))
    for iteration in iterations:
        columns = (
            iteration.forward_ns / 1e3,
            iteration.backward_ns / 1e3,
            iteration.communication_ns / 1e3,
            iteration.gradient_bytes,
        )
        for number, (name, *values) in enumerate(zip(iteration.names, *(c.tolist() for c in columns), strict=True)):
            shown = ["-" if math.isnan(value) else f"{value:.12g}" for value in values]
            lines.append("\t".join((str(number), re.sub(r"\s+", " ", name), *shown)))
    with complete_file(Path(path)) as partial:
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")


class _Reader:
    """Reads and checks the rows of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scale = [1e3, 1e3, 1e3, 1.0]
        self.whole: dict[str, Any] = {"io_ns": 0.0, "copy_ns": 0.0, "update_ns": 0.0}
        self.layers: dict[int, str] = {}
        self.rows: list[dict[int, tuple[float, ...]]] = []

    def read(self, lines: Sequence[str]) -> list[Workload]:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if text.startswith("#"):
                self._comment(text, number)
            elif text and not self._names(text, number):
                self._row(text, number)
        if not self.rows:
            raise FormatError(f"{self.path} has no layers", hint=_HINT)
        self._complete(len(lines))
        return list(self._workloads())

    def _comment(self, text: str, number: int) -> None:
        match = _WHOLE.fullmatch(text)
        if match is not None:
            name, unit, value = match.groups()
            self.whole[f"{name}_ns"] = self._number(value, f"{name}_{unit}", number, _UNITS_NS[unit])

    def _names(self, text: str, number: int) -> bool:
        """Read the line of column names; return False for any other line."""
        fields = [field.lower() for field in _fields(text)]
        if self.rows or fields[0] != "id":
            return False
        if len(fields) != len(_COLUMNS) + 2:
            raise self._error(number, f"{len(fields)} column names instead of {len(_COLUMNS) + 2}")
        for at, (name, column) in enumerate(zip(fields[2:], _COLUMNS, strict=True)):
            start, _, unit = name.partition("_")
            known = {"bytes": 1.0, "": 1.0} if column == "size" else _UNITS_NS | {"": 1e3}
            if start != column or unit not in known:
                raise self._error(number, f"column {name!r} instead of {column} with its unit, as in {column}_us")
            self.scale[at] = known[unit]
        return True

    def _row(self, text: str, number: int) -> None:
        fields = _fields(text)
        if len(fields) < _BEFORE_NAME + 1 + _AFTER_NAME:
            raise self._error(number, f"{len(fields)} fields instead of {len(_COLUMNS) + 2}")
        name = " ".join(fields[_BEFORE_NAME:-_AFTER_NAME])
        if not _NUMBER.fullmatch(fields[0]):
            raise self._error(number, f"{fields[0][:20]!r} is not the id of a layer")
        values = []
        for value, column, scale in zip(fields[-_AFTER_NAME:], _COLUMNS, self.scale, strict=True):
            unknown = column == "communication" and value in ("-", "nan", "NaN")
            values.append(math.nan if unknown else self._number(value, column, number, scale))
        self._add(int(fields[0]), name, tuple(values), number)

    def _add(self, layer: int, name: str, values: tuple[float, ...], number: int) -> None:
        if not self.rows or layer in self.rows[-1]:
            if self.rows:
                self._complete(number - 1)
            self.rows.append({})
        if len(self.rows) > 1:
            if self.layers.get(layer) != name:
                known = self.layers.get(layer, "none")
                raise self._error(number, f"layer {layer} is {name!r} here and {known!r} in the first iteration")
            if values[3] != self.rows[0][layer][3]:
                raise self._error(number, f"layer {layer} has another size than in the first iteration")
        self.layers.setdefault(layer, name)
        self.rows[-1][layer] = values

    def _complete(self, number: int) -> None:
        if len(self.rows[-1]) < len(self.layers):
            missing = sorted(self.layers.keys() - self.rows[-1].keys())[0]
            raise self._error(number, f"iteration {len(self.rows)} ends here without layer {missing}")

    def _workloads(self) -> Iterator[Workload]:
        order = sorted(self.layers)
        names = tuple(self.layers[layer] for layer in order)
        for rows in self.rows:
            columns = np.array([rows[layer] for layer in order]).T
            yield Workload(names, *columns, **self.whole)

    def _number(self, text: str, name: str, number: int, scale: float) -> float:
        try:
            value = float(text) * scale
        except ValueError:
            raise self._error(number, f"{name} is {text!r}, not a number") from None
        if not (math.isfinite(value) and value >= 0):
            raise self._error(number, f"{name} cannot be {text}")
        return value

    def _error(self, number: int, problem: str) -> FormatError:
        return FormatError(f"{self.path}:{number}: {problem}", hint=_HINT)


def _fields(text: str) -> list[str]:
    for separator in ("\t", ","):
        if separator in text:
            return [field.strip() for field in text.split(separator)]
    return text.split()


def _astra(path: Path, lines: Sequence[str]) -> Workload:
    """Read a workload of ASTRA-sim: name, -, then time, collective and bytes of three passes, and the update."""
    numbered = [(number, line.split()) for number, line in enumerate(lines, start=1) if line.strip()]
    hint = "a row is: name -1 forward NONE 0 input-gradient NONE 0 weight-gradient ALLREDUCE bytes update"
    if not numbered[0][1][0] == "DATA":
        raise FormatError(f"{path}:1: {numbered[0][1][0]} parallelism cannot be replayed, only DATA", hint=hint)
    rows = [(number, fields) for number, fields in numbered[1:] if len(fields) > 1]
    count = numbered[1][1][0] if len(numbered) > 1 else ""
    if not (_NUMBER.fullmatch(count) and int(count) == len(rows)):
        raise FormatError(f"{path}: states {count[:20] or 'no number of'} layers and has {len(rows)}", hint=hint)
    if not rows:
        raise FormatError(f"{path} has no layers", hint=hint)
    names, table = [], []
    for number, fields in rows:
        if len(fields) != _ASTRA_FIELDS:
            raise FormatError(f"{path}:{number}: {len(fields)} fields instead of {_ASTRA_FIELDS}", hint=hint)
        try:
            values = [float(fields[at]) for at in (2, 5, 8, 10, 11)]
        except ValueError:
            raise FormatError(f"{path}:{number}: a time or size is not a number", hint=hint) from None
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise FormatError(f"{path}:{number}: a time or size is negative or infinite", hint=hint)
        names.append(fields[0])
        table.append(values)
    forward, inputs, weights, sizes, update = np.array(table).T
    unknown = np.full(len(names), np.nan)
    return Workload(_without_prefix(names), forward, inputs + weights, unknown, sizes, update_ns=float(update.sum()))


def _without_prefix(names: Sequence[str]) -> tuple[str, ...]:
    """Remove the number that some writers leave before all names but the first."""
    matches = [re.match(r"\d+", name) for name in names[1:]]
    prefixes = {match.group() if match is not None else "" for match in matches}
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    return tuple(name.removeprefix(prefix) or name for name in names)
