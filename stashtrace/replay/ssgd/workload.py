"""The work of one worker in an iteration, layer by layer: of a recorded run, or of a text file.

    # update_us 1500
    id  name      forward_us  backward_us  communication_us  size_bytes
    0   conv1     812.5       1640.2       404               37632
    1   relu1     91          120.4        0                 0

In files, fields are separated by tabs, commas or blanks; the name may hold blanks and begin with a digit. Without the
line of column names times are microseconds. Ids ascend in the order of the forward pass; an id that comes again begins
the next iteration. ``-`` stands for communication that was not measured. Lines that begin with ``#`` are comments,
except ``io_us``, ``copy_us`` and ``update_us``. Workload files of ASTRA-sim 1 (data parallelism) are read too: they
have nanoseconds and no measured communication.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.errors import FormatError, MissingDataError, UsageError
from stashtrace.files.whole_files import complete_file
from stashtrace.replay.communication.messages import Messages, gradient_messages
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import TIMES_NS

_PER_LAYER = ("forward_ns", "backward_ns", "communication_ns", "gradient_bytes")


@dataclass(frozen=True)
class Workload:
    """One iteration of one worker. Layers are in the order of the forward pass.

    Raises UsageError if columns have different lengths, there is no layer, or a number is negative or not finite.
    """

    names: tuple[str, ...]
    #: Time of each layer.
    forward_ns: Floats
    backward_ns: Floats
    #: Measured aggregation of each layer's gradients; NaN where it was not measured.
    communication_ns: Floats
    #: 0 for a layer without parameters.
    gradient_bytes: Floats
    #: Time to read a batch, to copy it to the device, and to update the model.
    io_ns: float = 0.0
    copy_ns: float = 0.0
    update_ns: float = 0.0

    def __post_init__(self) -> None:
        if not self.names:
            raise UsageError("a network without layers has no iteration")
        for name in _PER_LAYER:
            values = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            if values.shape != (len(self.names),):
                raise UsageError(f"{len(self.names)} layers, but {name} has {values.size} values")
            known = values[~np.isnan(values)] if name == "communication_ns" else values
            if not (np.isfinite(known) & (known >= 0)).all():
                raise UsageError(f"{name} of a layer is negative or no number")
        for name in ("io_ns", "copy_ns", "update_ns"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise UsageError(f"{name} is negative or no number")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sends(self) -> Int64:
        """Layers with gradients, in the order of the backward pass."""
        return np.flatnonzero(self.gradient_bytes > 0)[::-1]

    @property
    def ready_ns(self) -> Floats:
        """When the gradients of :attr:`sends` are ready, since the begin of the backward pass."""
        made: Floats = np.cumsum(self.backward_ns[::-1])[::-1]
        return made[self.sends]

    @property
    def sizes_bytes(self) -> Floats:
        """Size of the gradients of :attr:`sends`."""
        sizes: Floats = self.gradient_bytes[self.sends]
        return sizes

    @property
    def measured_ns(self) -> Floats | None:
        """Measured aggregation of :attr:`sends`, None if a layer has none."""
        measured: Floats = self.communication_ns[self.sends]
        return None if np.isnan(measured).any() else measured

    @property
    def alone_ns(self) -> float:
        """Computation of an iteration without batches and communication."""
        return float(self.forward_ns.sum() + self.backward_ns.sum() + self.update_ns)


def rounded(times_ns: Any) -> Int64:
    """Round to whole nanoseconds, which the replay counts."""
    return np.rint(np.asarray(times_ns, dtype=np.float64)).astype(np.int64)


def layers_of_run(trace: Trace) -> tuple[list[Workload], int]:
    """Return one workload per backward pass of the lowest rank, and the number of ranks in its messages.

    A run does not record its layers, but when each message was ready and how long the link worked for it. The
    computation between two messages is one "layer" here: all layers of the network that send their gradients together.
    Forward time is divided like backward time. Both are those of the host; where its device is still busy with the
    step before when they begin, all work of the device until the first message counts as backward. All-reduces that
    are sent in a backward pass are its gradients; other operations count as computation. The rest of a step counts as
    its update, so that the replay of the recorded tasks is as long as the step was.

    ``trace``: needs steps, phases and messages that are sent in backward passes. Raises MissingDataError if there are
    no such messages, or callers wait for each of them.
    """
    messages = gradient_messages(trace)
    rows = np.flatnonzero((messages.backward >= 0) & messages.within & (messages.op == "all_reduce"))
    if not len(rows):
        raise MissingDataError(
            "no gradients were all-reduced inside a counted backward pass",
            hint="layers come from gradients that are sent while others are made, as by DistributedDataParallel",
        )
    rows = rows[messages.rank[rows] == messages.rank[rows].min()]
    if messages.blocking[rows].any():
        raise MissingDataError(
            "callers wait for messages inside backward", hint="layer-wise tasks need messages without waiting callers"
        )
    rank = int(messages.rank[rows[0]])
    known = counted_steps(steps(trace))
    known = known.take(known["rank"] == rank)
    # Devices may have other warm-up steps than their hosts.
    rows = rows[np.isin(messages.step[rows], known["step"])]
    if not len(rows):
        raise MissingDataError("no counted step has gradients", hint="record more steps than those of the warm-up")
    rows = rows[np.lexsort((messages.ready_ns[rows], messages.backward[rows]))]
    passes = np.split(rows, np.flatnonzero(np.diff(messages.backward[rows])) + 1)
    # Passes of other sizes are from steps before the buckets were rebuilt, or of another model.
    sizes = [tuple(messages.bytes[one].tolist()) for one in passes]
    usual = Counter(sizes).most_common(1)[0][0]
    forwards = _forwards(trace, rank)
    workloads = [
        _workload(messages, one, known, forwards) for one, size in zip(passes, sizes, strict=True) if size == usual
    ]
    return workloads, int(messages.ranks_count[rows[0]])


def _forwards(trace: Trace, rank: int) -> Table:
    """Return the training forward passes of a rank in order."""
    processes = trace.processes
    mine = processes["process_id"][(processes["rank"] == rank) & (processes["worker_id"] < 0)]
    phases = trace.phases
    chosen = (phases["phase_code"] == Phase.FORWARD) & np.isin(phases["process_id"], mine)
    return phases.take(chosen & ((phases["phase_flags"] & (PhaseFlag.NESTED | PhaseFlag.NO_GRAD)) == 0)).sort_by(
        "begin_ns"
    )


def _workload(messages: Messages, chosen: Int64, known: Table, forwards: Table) -> Workload:
    """Make the workload of one backward pass, with the layers of its messages in the order of the forward pass."""
    step = int(np.flatnonzero(known["step"] == messages.step[chosen[0]])[0])
    first, last = int(known["begin_ns"][step]), int(known["end_ns"][step])
    # A host may begin backward while its device is still busy with the step before.
    begin = max(int(messages.backward_begin_ns[chosen[0]]), first)
    ready = np.maximum.accumulate(np.maximum(messages.ready_ns[chosen] - begin, 0)).astype(np.float64)
    backward = np.diff(np.append(0.0, ready))
    inside = (forwards["begin_ns"] >= first) & (forwards["end_ns"] <= begin)
    forward = float((forwards["end_ns"][inside] - forwards["begin_ns"][inside]).sum())
    done = max(int(messages.end_ns[chosen].max()), begin + int(ready[-1]))
    share = backward / backward.sum() if backward.sum() > 0 else np.full(len(chosen), 1 / len(chosen))
    names = tuple(f"message {number}" for number in range(len(chosen)))
    return Workload(
        names[::-1],
        (forward * share)[::-1],
        backward[::-1],
        messages.link_ns[chosen][::-1],
        messages.bytes[chosen][::-1].astype(np.float64),
        update_ns=max(last - first - forward - (done - begin), 0.0),
    )


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

    Raises MissingDataError if there is no such file. Raises FormatError if a row is not a layer, or iterations differ
    in their layers; the message names file and line.
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
            self.whole[f"{name}_ns"] = self._number(value, f"{name}_{unit}", number, TIMES_NS[unit])

    def _names(self, text: str, number: int) -> bool:
        """Read the line of column names; return False for any other line."""
        fields = [field.lower() for field in _fields(text)]
        if self.rows or fields[0] != "id":
            return False
        if len(fields) != len(_COLUMNS) + 2:
            raise self._error(number, f"{len(fields)} column names instead of {len(_COLUMNS) + 2}")
        for at, (name, column) in enumerate(zip(fields[2:], _COLUMNS, strict=True)):
            start, _, unit = name.partition("_")
            known = {"bytes": 1.0, "": 1.0} if column == "size" else TIMES_NS | {"": 1e3}
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
