"""The calibration file: what the links of one machine can do. Load it, check it, ask it for expected times.

Written by ``stashtrace calibrate`` (``file`` renders it), read by the analyses. The format is described in
``docs/reference/calibration.md``; a reader takes every file of its major version and ignores keys it does not know.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.calibration.fit import Fit, Piece
from stashtrace.calibration.lines import Floats
from stashtrace.errors import FormatError, MissingDataError, UnsupportedVersionError

FORMAT_VERSION = 1
#: Where a run's own calibration is looked for.
FILE_NAME = "calibration.toml"
#: Sizes up to this far outside the measured ones are extrapolated without a word.
_NEAR = 2.0
#: Fewer repetitions have no quartiles of their own.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Points:
    """What was measured: one entry per size, ascending.

    Attributes
    ----------
    sizes_bytes, median_ns, low_ns, high_ns, repetitions_count : tuple
        Message size, median, quartiles and number of repetitions.
    """

    sizes_bytes: tuple[int, ...]
    median_ns: tuple[float, ...]
    low_ns: tuple[float, ...]
    high_ns: tuple[float, ...]
    repetitions_count: tuple[int, ...]

    def errors_ns(self) -> Floats:
        """Standard error of each median, from the quartiles: 1.2533 times the normal standard error of a mean.

        Quartiles of one or a few say nothing of a spread: such a size is taken to spread as others do, at least.
        """
        count, middle = np.array(self.repetitions_count), np.array(self.median_ns)
        spread = (np.array(self.high_ns) - np.array(self.low_ns)) / 1.349
        few = count < min(_FEW, int(count.max(initial=1)))
        if few.any():
            typical = float(np.median((spread / middle)[~few]))
            spread = np.where(few, np.maximum(spread, typical * middle), spread)
        found: Floats = 1.2533 * spread / np.sqrt(np.maximum(count, 1))
        return found


@dataclass(frozen=True, slots=True)
class Link:
    """One operation over one link.

    Attributes
    ----------
    kind : str
        ``collective``, ``copy`` or ``disk``.
    backend : str
        ``gloo``, ``nccl``, ``cuda``, ``posix``.
    op : str
        ``all_reduce``, ``h2d_pinned``, ``random_read``, ...
    ranks_count : int
        Ranks that took part, 1 for copies and reads.
    fit : Fit
        Alpha and beta.
    points : Points
        What was fitted.
    """

    kind: str
    backend: str
    op: str
    ranks_count: int
    fit: Fit
    points: Points

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"{self.backend} {self.op}" + (f", {self.ranks_count} ranks" if self.ranks_count > 1 else "")

    def misfit_ratio(self, sizes_bytes: Any) -> Floats:
        """How far the sizes measured next to these lie off the line, as a part of it: no line is right everywhere."""
        measured = np.array(self.points.sizes_bytes, dtype=np.float64)
        off = np.abs(self.fit.residuals(measured, self.points.median_ns))
        at = np.log(np.maximum(np.asarray(sizes_bytes, dtype=np.float64), 1.0))
        found: Floats = np.interp(at, np.log(np.maximum(measured, 1.0)), off)
        return found


@dataclass(frozen=True, slots=True)
class Expected:
    """Answer to "how long should these messages take".

    Attributes
    ----------
    time_ns, error_ns : float array
        Expected time of each message and its standard error.
    extrapolated : bool array
        True where the size lies more than a factor of two outside what was measured.
    """

    time_ns: Floats
    error_ns: Floats
    extrapolated: np.ndarray


@dataclass(frozen=True, slots=True)
class Calibration:
    """All links of one machine.

    Attributes
    ----------
    date : str
        When it was measured, ISO 8601 with time zone.
    command : str
        How to repeat it.
    machine : mapping
        ``cpu``, ``cores_count``, ``memory_bytes``, ``kernel``, ``devices``, ``host_hash``, ``load_average``.
    versions : mapping
        Of stashtrace, Python and what was measured with.
    links : tuple of Link
        In the order of the file.
    path : str
        Where it was loaded from, empty if it was not.
    left_out : mapping
        Name of an operation that could not be measured -> why.
    """

    date: str
    command: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    links: tuple[Link, ...]
    path: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    def link(self, op: str, *, ranks: int = 1, backend: str | None = None) -> Link | None:
        """The link of an operation with this number of ranks, None if it was not measured."""
        for link in self.links:
            if link.op == op and link.ranks_count == ranks and backend in (None, link.backend):
                return link
        return None

    def expected(self, op: str, sizes_bytes: Any, *, ranks: int = 1, backend: str | None = None) -> Expected | None:
        """How long messages of these sizes take here when nothing is in their way, None if nobody measured it.

        Parameters
        ----------
        op : str
            As in :class:`Link`.
        sizes_bytes : sequence of int
            Input of one rank, as in the ``collectives`` table; bytes of a copy or a read.
        ranks : int
            Ranks that take part. The times of another number of ranks are no answer.
        backend : str, optional
            ``gloo``, ``nccl``, ...; any if left out.
        """
        link = self.link(op, ranks=ranks, backend=backend)
        if link is None:
            return None
        size = np.asarray(sizes_bytes, dtype=np.float64)
        time, error = link.fit.expected(size)
        error = np.maximum(error, link.misfit_ratio(size) * time)
        outside = (size > _NEAR * link.fit.max_bytes) | (size * _NEAR < link.fit.min_bytes)
        return Expected(time, error, outside)

    def foreign_to(self, host_names: Iterable[str]) -> str:
        """One sentence if it was measured on none of these hosts, empty if it fits or the file does not say."""
        measured = str(self.machine.get("host_hash", ""))
        names = sorted(set(host_names))
        if not measured or not names or measured in {host_hash(n) for n in names}:
            return ""
        what = ", ".join(str(d) for d in self.machine.get("devices", [])) or self.machine.get("cpu", "unknown CPU")
        return (
            f"{self.path or 'the calibration'} was measured on another machine ({what}, {self.date[:10]}) than"
            f" {', '.join(names)}; its expected times may not hold here"
        )


def host_hash(name: str) -> str:
    """What stands for a host in a file that may be published."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def load_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read and check a calibration file.

    Raises
    ------
    MissingDataError
        If there is no such file.
    UnsupportedVersionError
        If a newer stashtrace wrote it.
    FormatError
        If it is no calibration file, or a value in it makes no sense; the message names it.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingDataError(f"{name} does not exist", hint="`stashtrace calibrate` writes one") from None
    except IsADirectoryError:
        hint = f"did you mean {name}/{FILE_NAME}?"
        raise FormatError(f"{name} is a directory, not a calibration file", hint=hint) from None
    except UnicodeDecodeError:
        raise _damaged(name, "it is not UTF-8 text") from None
    content = _parsed(name, text)
    version = content.get("version")
    if "link" not in content and version is None:
        raise _damaged(name, "neither version nor link stands in it")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _damaged(name, f"version is {version!r}")
    if version > FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{name} has calibration format {version}; this stashtrace reads up to {FORMAT_VERSION}",
            hint="a newer stashtrace reads it; `stashtrace calibrate` makes a new one",
        )
    links = content.get("link")
    if not isinstance(links, list) or not links:
        raise _damaged(name, "it holds no link")
    return Calibration(
        date=str(content.get("date", "")),
        command=str(content.get("command", "")),
        machine=_mapping(name, content, "machine"),
        versions={k: str(v) for k, v in _mapping(name, content, "versions").items()},
        links=tuple(_link(name, number, entry) for number, entry in enumerate(links, 1)),
        path=name,
        left_out={k: str(v) for k, v in _mapping(name, content, "left_out").items()},
    )


def find_calibration(run_paths: Iterable[str]) -> Calibration | None:
    """The file :data:`FILE_NAME` in one of the directories of a run, None if there is none."""
    for path in run_paths:
        candidate = Path(path) / FILE_NAME
        if candidate.is_file():
            return load_calibration(candidate)
    return None


def _parsed(name: str, text: str) -> dict[str, Any]:
    # The same code under two names: part of Python since 3.11.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        content: dict[str, Any] = toml.loads(text)
    except ValueError as error:
        raise _damaged(name, f"no TOML: {str(error).splitlines()[0][:120]}") from error
    return content


def _link(name: str, number: int, entry: Any) -> Link:
    where = f"link {number}"
    if not isinstance(entry, dict):
        raise _damaged(name, f"{where} is no table")
    kind, backend, op = (_text(name, where, entry, key) for key in ("kind", "backend", "op"))
    where = f"link {number} ({backend} {op})"
    ranks = _number(name, where, entry, "ranks_count", low=1)
    pieces = entry.get("piece")
    if not isinstance(pieces, list) or not pieces:
        raise _damaged(name, f"{where} has no piece")
    fit = Fit(tuple(_fit_piece(name, where, p) for p in pieces))
    if any(a.max_bytes >= b.min_bytes for a, b in zip(fit.pieces, fit.pieces[1:], strict=False)):
        raise _damaged(name, f"{where}: its pieces are not in the order of their sizes")
    return Link(kind, backend, op, int(ranks), fit, _points(name, where, entry))


def _fit_piece(name: str, where: str, entry: Any) -> Piece:
    if not isinstance(entry, dict):
        raise _damaged(name, f"{where}: a piece is no table")

    def value(key: str, low: float | None = None, high: float | None = None) -> float:
        return _number(name, where, entry, key, low=low, high=high)

    piece = Piece(
        min_bytes=int(value("min_bytes", 0)),
        max_bytes=int(value("max_bytes", 0)),
        alpha_ns=value("alpha_ns"),
        alpha_error_ns=value("alpha_error_ns", 0),
        beta_ns_per_byte=value("beta_ns_per_byte", 0),
        beta_error_ns_per_byte=value("beta_error_ns_per_byte", 0),
        correlation_ratio=value("correlation_ratio", -1, 1),
        residual_ratio=value("residual_ratio", 0),
        points_count=int(value("points_count", 1)),
        outliers_count=int(value("outliers_count", 0)),
    )
    if piece.min_bytes > piece.max_bytes or (piece.alpha_ns <= 0 and piece.beta_ns_per_byte == 0):
        raise _damaged(name, f"{where}: a piece from {piece.min_bytes} to {piece.max_bytes} bytes makes no sense")
    return piece


def _points(name: str, where: str, entry: Mapping[str, Any]) -> Points:
    names = ("sizes_bytes", "median_ns", "low_ns", "high_ns", "repetitions_count")
    columns: list[list[Any]] = []
    for key in names:
        values = entry.get(key)
        if not isinstance(values, list) or not all(is_number(v) for v in values):
            raise _damaged(name, f"{where}: {key} is no list of numbers")
        columns.append(values)
    if len({len(c) for c in columns}) != 1 or not columns[0]:
        raise _damaged(name, f"{where}: its points have columns of different lengths")
    sizes, median, low, high, repetitions = columns
    return Points(
        tuple(int(v) for v in sizes),
        tuple(float(v) for v in median),
        tuple(float(v) for v in low),
        tuple(float(v) for v in high),
        tuple(int(v) for v in repetitions),
    )


def _text(name: str, where: str, entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise _damaged(name, f"{where}: {key} is {'missing' if value is None else f'{value!r}, not a text'}")
    return value


def _number(
    name: str, where: str, entry: Mapping[str, Any], key: str, *, low: float | None = None, high: float | None = None
) -> float:
    value = entry.get(key)
    if value is None:
        raise _damaged(name, f"{where}: {key} is missing")
    if not is_number(value):
        raise _damaged(name, f"{where}: {key} is {value!r}, not a number")
    if (low is not None and value < low) or (high is not None and value > high):
        raise _damaged(name, f"{where}: {key} is {value!r}, out of range")
    return float(value)


def is_number(value: Any) -> bool:
    """Whether what was read is a finite number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mapping(name: str, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise _damaged(name, f"{key} is no table")
    return value


def _damaged(name: str, why: str) -> FormatError:
    return FormatError(f"{name} is no usable calibration file: {why}", hint="`stashtrace calibrate` makes a new one")


# Text of a calibration file. TOML with the few kinds of values that the format has.

_HEAD = (
    "# What the links of one machine can do, measured by `stashtrace calibrate`.",
    "# time = alpha + bytes * beta; errors are standard errors. Format: docs/reference/calibration.md",
)
_LINE = 100


def calibration_text(calibration: Calibration) -> str:
    """The whole file."""
    out = [*_HEAD, f"version = {FORMAT_VERSION}"]
    out += _entries({"date": calibration.date, "command": calibration.command})
    out += ["", "[machine]", *_entries(calibration.machine), "", "[versions]", *_entries(calibration.versions)]
    if calibration.left_out:
        out += ["", "[left_out]", *_entries(calibration.left_out)]
    for link in calibration.links:
        out += ["", "[[link]]", *_link_text(link)]
    return "\n".join(out) + "\n"


def _link_text(link: Link) -> list[str]:
    fit, points = link.fit, link.points
    facts: dict[str, Any] = {
        "kind": link.kind,
        "backend": link.backend,
        "op": link.op,
        "ranks_count": link.ranks_count,
        "alpha_ns": fit.alpha_ns,
        "alpha_error_ns": fit.alpha_error_ns,
    }
    if math.isfinite(fit.bandwidth_bytes_per_s):
        facts["bandwidth_bytes_per_s"] = fit.bandwidth_bytes_per_s
        facts["bandwidth_error_bytes_per_s"] = fit.bandwidth_error_bytes_per_s
    facts |= {
        "sizes_bytes": points.sizes_bytes,
        "median_ns": points.median_ns,
        "low_ns": points.low_ns,
        "high_ns": points.high_ns,
        "repetitions_count": points.repetitions_count,
    }
    out = _entries(facts)
    for piece in fit.pieces:
        out += ["", "[[link.piece]]"]
        out += _entries({name: getattr(piece, name) for name in piece.__slots__})
    return out


def _entries(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items()]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _quoted(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _array([_value(v) for v in value])
    return _quoted(str(value))


def _float(value: float) -> str:
    """Seven significant digits: more than any measurement has."""
    short = f"{value:.7g}"
    if short.lstrip("-").isdigit():
        return short + ".0"
    return short.replace("e+", "e")


def _array(parts: list[str]) -> str:
    """In one line if it fits, else in lines of some length."""
    flat = "[" + ", ".join(parts) + "]"
    if len(flat) <= _LINE:
        return flat
    lines, line = [], "  "
    for part in parts:
        if len(line) + len(part) > _LINE:
            lines.append(line.rstrip())
            line = "  "
        line += part + ", "
    return "[\n" + "\n".join([*lines, line.rstrip()]) + "\n]"


def _quoted(value: str) -> str:
    # A TOML basic string is a JSON string, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
