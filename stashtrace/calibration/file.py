"""The calibration file: what the links of one machine can do. Load it, check it, ask it for expected times.

Written by ``stashtrace calibrate``, read by the analyses. The format is described in ``docs/reference/calibration.md``;
a reader takes every file of its major version and ignores keys it does not know.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.calibration.fit_link import Fit, Piece
from stashtrace.calibration.noise import OF_MEAN
from stashtrace.calibration.robust_line import Floats
from stashtrace.errors import ForeignCalibrationWarning
from stashtrace.files.checked_files import CheckedFile, is_number
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace

FORMAT_VERSION = 1
#: Where the calibration of a run is searched for.
FILE_NAME = "calibration.toml"
#: Sizes up to this far outside the measured ones are extrapolated without a word.
_NEAR = 2.0
#: Fewer repetitions have no quartiles.
_FEW = 4


@dataclass(frozen=True, slots=True)
class Points:
    """Measured times: one entry per size, ascending."""

    #: Message size, median, quartiles and number of repetitions.
    sizes_bytes: tuple[int, ...]
    median_ns: tuple[float, ...]
    low_ns: tuple[float, ...]
    high_ns: tuple[float, ...]
    repetitions_count: tuple[int, ...]

    def errors_ns(self) -> Floats:
        """Standard error of each median, from the quartiles: by that of a mean.

        Quartiles of one or a few say nothing of a spread: such a size is taken to spread as others do, at least.
        """
        count, middle = np.array(self.repetitions_count), np.array(self.median_ns)
        spread = (np.array(self.high_ns) - np.array(self.low_ns)) / 1.349
        few = count < min(_FEW, int(count.max(initial=1)))
        if few.any():
            typical = float(np.median((spread / middle)[~few]))
            spread = np.where(few, np.maximum(spread, typical * middle), spread)
        errors: Floats = OF_MEAN * spread / np.sqrt(np.maximum(count, 1))
        return errors


@dataclass(frozen=True, slots=True)
class Link:
    """One operation over one link."""

    #: ``collective``, ``copy`` or ``disk``.
    kind: str
    #: ``gloo``, ``nccl``, ``cuda``, ``posix``.
    backend: str
    #: ``all_reduce``, ``h2d_pinned``, ``random_read``, ...
    op: str
    #: Ranks that took part, 1 for copies and reads.
    ranks_count: int
    #: Alpha and beta.
    fit: Fit
    #: What was fitted.
    points: Points

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.backend} {self.op}" + (f", {self.ranks_count} ranks" if self.ranks_count > 1 else "")

    def misfit_ratio(self, sizes_bytes: Any) -> Floats:
        """Relative distance between line and measured points near these sizes: no line is right everywhere."""
        measured = np.array(self.points.sizes_bytes, dtype=np.float64)
        off = np.abs(self.fit.residuals(measured, self.points.median_ns))
        at = np.log(np.maximum(np.asarray(sizes_bytes, dtype=np.float64), 1.0))
        misfit: Floats = np.interp(at, np.log(np.maximum(measured, 1.0)), off)
        return misfit


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected times of messages."""

    #: Expected time of each message and its standard error.
    time_ns: Floats
    error_ns: Floats
    #: True where the size lies more than a factor of two outside what was measured.
    extrapolated: np.ndarray


@dataclass(frozen=True, slots=True)
class Calibration:
    """All links of one machine."""

    #: When it was measured, ISO 8601 with time zone.
    date: str
    #: How to repeat it.
    command: str
    #: ``cpu``, ``cores_count``, ``memory_bytes``, ``kernel``, ``devices``, ``host_hash``, ``load_average``.
    machine: Mapping[str, Any]
    #: Of stashtrace, Python and what was measured with.
    versions: Mapping[str, str]
    #: In the order of the file.
    links: tuple[Link, ...]
    #: Where it was loaded from, empty if it was not.
    path: str = ""
    #: Name of an operation that could not be measured -> why.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: Name of what was measured together -> what other programs took meanwhile, and what was measured again for that.
    others: Mapping[str, str] = field(default_factory=dict)

    def link(self, op: str, *, ranks: int = 1, backend: str | None = None) -> Link | None:
        """The link of an operation with this number of ranks, None if it was not measured."""
        fitting = (one for one in self.links if (one.op, one.ranks_count) == (op, ranks))
        return next((one for one in fitting if backend in (None, one.backend)), None)

    def expected(self, op: str, sizes_bytes: Any, *, ranks: int = 1, backend: str | None = None) -> Expected | None:
        """Expected times of messages of these sizes when nothing is in their way, None if nobody measured it.

        ``op``: as in :class:`Link`. ``sizes_bytes``: input of one rank, as in the ``collectives`` table; bytes of a
        copy or a read. ``ranks``: ranks that take part. The times of another number of ranks are not an answer.
        ``backend``: ``gloo``, ``nccl``, ...; any if left out.
        """
        link = self.link(op, ranks=ranks, backend=backend)
        if link is None:
            return None
        size = np.asarray(sizes_bytes, dtype=np.float64)
        time, error = link.fit.expected(size)
        error = np.maximum(error, link.misfit_ratio(size) * time)
        outside = (size > _NEAR * link.fit.max_bytes) | (size * _NEAR < link.fit.min_bytes)
        return Expected(time, error, outside)

    def is_foreign(self, host_names: Iterable[str]) -> bool:
        """Whether it was measured on none of these hosts; False if there are none or the file does not say where."""
        measured, names = str(self.machine.get("host_hash", "")), set(host_names)
        return bool(measured and names) and measured not in {host_hash(name) for name in names}

    @property
    def machine_text(self) -> str:
        """Devices of the machine that was measured, else its CPU."""
        devices = ", ".join(str(device) for device in self.machine.get("devices", []))
        return devices or str(self.machine.get("cpu", "unknown CPU"))


def host_hash(name: str) -> str:
    """Hash that stands for a host in a file that may be published."""
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
        If it is not a calibration file, or a value in it makes no sense; the message names it.
    """
    hint = "`stashtrace calibrate` makes a new one"
    file = CheckedFile(os.fspath(path), "calibration", "calibration file", hint)
    content = file.toml(file.read(inside=FILE_NAME))
    if "link" not in content and "version" not in content:
        raise file.damaged("neither version nor link stands in it")
    file.require_version(content.get("version"), FORMAT_VERSION)
    links = content.get("link")
    if not isinstance(links, list) or not links:
        raise file.damaged("it holds no link")
    return Calibration(
        date=str(content.get("date", "")),
        command=str(content.get("command", "")),
        machine=file.table(content, "machine"),
        versions={k: str(v) for k, v in file.table(content, "versions").items()},
        links=tuple(_link(file, number, entry) for number, entry in enumerate(links, 1)),
        path=file.path,
        left_out={k: str(v) for k, v in file.table(content, "left_out").items()},
        others={k: str(v) for k, v in file.table(content, "others").items()},
    )


def find_calibration(run_paths: Iterable[str]) -> Calibration | None:
    """Load :data:`FILE_NAME` from one of the directories of a run, None if there is none."""
    for path in run_paths:
        candidate = Path(path) / FILE_NAME
        if candidate.is_file():
            return load_calibration(candidate)
    return None


def _link(file: CheckedFile, number: int, entry: Any) -> Link:
    where = f"link {number}"
    if not isinstance(entry, dict):
        raise file.damaged(f"{where} is not a table")
    for key in ("kind", "backend", "op"):
        value = _present(file, where, entry, key)
        file.require(isinstance(value, str) and bool(value), f"{where}: {key}", value, ", not a text")
    kind, backend, op = entry["kind"], entry["backend"], entry["op"]
    where = f"link {number} ({backend} {op})"
    ranks = _number(file, where, entry, "ranks_count", low=1)
    pieces = entry.get("piece")
    if not isinstance(pieces, list) or not pieces:
        raise file.damaged(f"{where} has no piece")
    fit = Fit(tuple(_piece(file, where, p) for p in pieces))
    if any(a.max_bytes >= b.min_bytes for a, b in itertools.pairwise(fit.pieces)):
        raise file.damaged(f"{where}: its pieces are not in the order of their sizes")
    return Link(kind, backend, op, int(ranks), fit, _points(file, where, entry))


#: Field of a piece -> smallest value, largest value, type.
_PIECE_FIELDS: Mapping[str, tuple[float | None, float | None, type]] = {
    "min_bytes": (0, None, int),
    "max_bytes": (0, None, int),
    "alpha_ns": (None, None, float),
    "alpha_error_ns": (0, None, float),
    "beta_ns_per_byte": (0, None, float),
    "beta_error_ns_per_byte": (0, None, float),
    "correlation_ratio": (-1, 1, float),
    "residual_ratio": (0, None, float),
    "points_count": (1, None, int),
    "outliers_count": (0, None, int),
}


def _piece(file: CheckedFile, where: str, entry: Any) -> Piece:
    if not isinstance(entry, dict):
        raise file.damaged(f"{where}: a piece is not a table")
    fields = _PIECE_FIELDS.items()
    piece = Piece(**{k: kind(_number(file, where, entry, k, low=low, high=high)) for k, (low, high, kind) in fields})
    if piece.min_bytes > piece.max_bytes or (piece.alpha_ns <= 0 and piece.beta_ns_per_byte == 0):
        raise file.damaged(f"{where}: a piece from {piece.min_bytes} to {piece.max_bytes} bytes makes no sense")
    return piece


def _points(file: CheckedFile, where: str, entry: Mapping[str, Any]) -> Points:
    columns = []
    for name in Points.__slots__:
        values = entry.get(name)
        if not isinstance(values, list) or not all(is_number(v) for v in values):
            raise file.damaged(f"{where}: {name} is not a list of numbers")
        columns.append(tuple(map(int if name in ("sizes_bytes", "repetitions_count") else float, values)))
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        raise file.damaged(f"{where}: its points have columns of different lengths")
    return Points(*columns)  # type: ignore[arg-type]


def _present(file: CheckedFile, where: str, entry: Mapping[str, Any], key: str) -> Any:
    if entry.get(key) is None:
        raise file.damaged(f"{where}: {key} is missing")
    return entry[key]


def _number(
    file: CheckedFile, where: str, entry: Mapping[str, Any], key: str, *, low: float | None, high: float | None = None
) -> float:
    value = _present(file, where, entry, key)
    file.require(is_number(value), f"{where}: {key}", value, ", not a number")
    in_range = (low is None or value >= low) and (high is None or value <= high)
    return float(file.require(in_range, f"{where}: {key}", value, ", out of range"))


# Text of a calibration file. TOML with the few kinds of values that the format has.

_HEAD = (
    "# What the links of one machine can do, measured by `stashtrace calibrate`.",
    "# time = alpha + bytes * beta; errors are standard errors. Format: docs/reference/calibration.md",
)
_LINE = 100


def calibration_text(calibration: Calibration) -> str:
    """Text of the whole file."""
    out = [*_HEAD, f"version = {FORMAT_VERSION}"]
    out += _entries({"date": calibration.date, "command": calibration.command})
    out += ["", "[machine]", *_entries(calibration.machine), "", "[versions]", *_entries(calibration.versions)]
    for name, said in (("left_out", calibration.left_out), ("others", calibration.others)):
        if said:
            out += ["", f"[{name}]", *_entries(said)]
    for link in calibration.links:
        out += ["", "[[link]]", *_link_text(link)]
    return "\n".join(out) + "\n"


def _link_text(link: Link) -> list[str]:
    fit = link.fit
    facts: dict[str, Any] = {name: getattr(link, name) for name in ("kind", "backend", "op", "ranks_count")}
    facts |= {"alpha_ns": fit.alpha_ns, "alpha_error_ns": fit.alpha_error_ns}
    if math.isfinite(fit.bandwidth_bytes_per_s):
        facts["bandwidth_bytes_per_s"] = fit.bandwidth_bytes_per_s
        facts["bandwidth_error_bytes_per_s"] = fit.bandwidth_error_bytes_per_s
    out = _entries(facts | asdict(link.points))
    for piece in fit.pieces:
        out += ["", "[[link.piece]]", *_entries(asdict(piece))]
    return out


def _entries(values: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in values.items()]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _quote(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _array([_value(v) for v in value])
    return _quote(str(value))


def _float(value: float) -> str:
    """Number with seven significant digits: more than any measurement has."""
    short = f"{value:.7g}"
    if short.lstrip("-").isdigit():
        return short + ".0"
    return short.replace("e+", "e")


def _array(parts: list[str]) -> str:
    """Array in one line if it fits, else in lines of some length."""
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


def _quote(value: str) -> str:
    # A TOML basic string is a JSON string, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def calibration_of(trace: Trace, calibration: Calibration | str | os.PathLike[str] | None = None) -> Calibration | None:
    """Return the given calibration, or the one in the run directory; None if there is none.

    Warns with :class:`ForeignCalibrationWarning` if it was measured on none of the run's hosts.
    """
    if calibration is None:
        measured = find_calibration(trace.path.split(os.pathsep)) if trace.path else None
    elif isinstance(calibration, Calibration):
        measured = calibration
    else:
        measured = load_calibration(calibration)
    names = host_names(trace)
    if measured is not None and measured.is_foreign(names):
        warnings.warn(
            f"{measured.path or 'the calibration'} was measured on another machine ({measured.machine_text},"
            f" {measured.date[:10]}) than {', '.join(names)}; its expected times may not hold here",
            ForeignCalibrationWarning,
            stacklevel=3,
        )
    return measured


def host_names(trace: Trace) -> list[str]:
    """Return the names of the hosts of all ranks, sorted."""
    processes = trace.processes
    hosts = np.unique(processes["host_code"][processes["role_code"] == ProcessRole.RANK])
    return sorted({trace.text(code) for code in hosts.tolist()})
