"""The settings that can be applied to a job whose script stays as it is, and what makes them permanent."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stashtrace.errors import UsageError

#: By name, in the order in which they were kept.
Settings = Mapping[str, str]
Where = Literal["loader", "ddp", "pinning", "files", "environment"]

BUCKET, PINNING, FILES, OMP = "bucket_cap_mb", "cpu_affinity", "staged_files", "OMP_NUM_THREADS"
WORKERS = "num_workers"
LOADER = (WORKERS, "prefetch_factor", "pin_memory", "persistent_workers")
#: Variables of NCCL and torch that change how fast messages move, each with the value that is tried. None chooses a
#: network, switches a check off, or can make a job hang; which order sums are made in may change.
NCCL = {
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "NCCL_BUFFSIZE": "8388608",
    "NCCL_MIN_NCHANNELS": "8",
}
NAMES = (*LOADER, BUCKET, OMP, PINNING, FILES, *NCCL)
#: Values that can be asked for: an example, and their form; a whole number where none is given.
_SWITCH, _WHOLE = ("1", "[01]"), ("2", r"\d{1,9}")
_CPUS = r"\d+(-\d+)?(,\d+(-\d+)?)*"
_VALUES = {
    "pin_memory": _SWITCH,
    "persistent_workers": _SWITCH,
    BUCKET: ("8", r"\d{1,6}(\.\d{1,6})?"),
    PINNING: ("0-1;2-3", rf"{_CPUS}(;{_CPUS})*"),
}
#: What may change the order of sums, and so the last bits of a loss; everything else promises equal losses.
_ROUNDING = frozenset({BUCKET, OMP, "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A setting with a value to try."""

    name: str
    value: str
    #: Value of the run it was derived from; empty if that is not known.
    present: str = ""
    #: Step with it, by the replay of `whatif`; None where it predicts nothing.
    low_ns: float | None = None
    high_ns: float | None = None

    @property
    def promises_equal(self) -> bool:
        """Whether losses have to stay equal to the bit."""
        return self.name not in _ROUNDING

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def wanted_settings(text: str, option: str) -> tuple[tuple[str, str], ...]:
    """Read a list of settings to try, each with the value that was asked for, or none.

    Raises UsageError if a setting is unknown, or a value is none that it takes.

    Examples
    --------
    >>> wanted_settings("num_workers=2,cpu_affinity=0,1;2,3,OMP_NUM_THREADS", "--only")
    (('num_workers', '2'), ('cpu_affinity', '0,1;2,3'), ('OMP_NUM_THREADS', ''))
    """
    wanted = []
    for part in re.split(r",(?!\d)", text):  # lists of CPUs contain commas
        name, equals, value = part.strip().partition("=")
        if name not in NAMES:
            raise UsageError(f"{option} {name}: no such setting", hint=f"choose from: {', '.join(NAMES)}")
        if equals and name == FILES:
            raise UsageError(f"{option} {part}: the list is named elsewhere", hint=f"{option} {FILES} --staged LIST")
        value = {"true": "1", "false": "0"}.get(value.lower(), value)
        example, form = _VALUES.get(name, _WHOLE)
        if equals and not re.fullmatch(form, value):
            raise UsageError(f"{option} {part}: no value of {name}", hint=f"for example {option} {name}={example}")
        wanted.append((name, value))
    return tuple(wanted)


def chosen(found: Sequence[Candidate], wanted: Sequence[tuple[str, str]], settings: Settings) -> list[Candidate]:
    """Return the candidates that were asked for: those found of a name, or the value given; all if none was."""
    if not wanted:
        return list(found)
    known = [one for one in found if {(one.name, ""), (one.name, one.value)}.intersection(wanted)]
    asked = [Candidate(name, value) for name, value in wanted if value and settings.get(name) != value]
    return [*known, *(one for one in asked if str(one) not in map(str, known))]


def where(name: str) -> Where:
    """Return what a setting belongs to."""
    if name in LOADER:
        return "loader"
    places: dict[str, Where] = {BUCKET: "ddp", PINNING: "pinning", FILES: "files"}
    return places.get(name, "environment")


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the variables that apply settings to a job under ``stashtrace run``.

    Examples
    --------
    >>> environment_of({"num_workers": "4", "OMP_NUM_THREADS": "2"})
    {'STASHTRACE_LOADER': 'num_workers=4', 'OMP_NUM_THREADS': '2'}
    """
    of_loader = [f"{name}={value}" for name, value in settings.items() if where(name) == "loader"]
    variables = {"STASHTRACE_LOADER": ",".join(of_loader)}
    names = {BUCKET: "STASHTRACE_BUCKET_MB", PINNING: "STASHTRACE_CPU_SHARES"}
    for name, value in settings.items():
        if where(name) not in ("loader", "files"):
            variables[names.get(name, name)] = value
    return variables


def options_of(settings: Settings) -> tuple[str, ...]:
    """Return the options of ``stashtrace run`` that apply settings."""
    return ("--staged", settings[FILES]) if FILES in settings else ()


def permanent_lines(settings: Settings, command: Sequence[str], loaders: Sequence[tuple[str, int]]) -> list[str]:
    """Return the lines that make settings permanent: the command, and what to write into the script.

    ``loaders``: file and line of each DataLoader.
    """
    lines: list[str] = []
    of_loader = [f"{name}={_python(name, value)}" for name, value in settings.items() if where(name) == "loader"]
    if of_loader:
        places = ", ".join(f"{Path(file).name}:{line}" for file, line in loaders) or "in the script"
        lines += [f"{places}:", f"  DataLoader(..., {', '.join(of_loader)})"]
    if BUCKET in settings:
        lines += ["in the script:", f"  DistributedDataParallel(..., {BUCKET}={settings[BUCKET]})"]
    if PINNING in settings:
        shares = ", ".join(_cpus(share) for share in settings[PINNING].split(";"))
        lines += [
            "first lines of the script:",
            "  import os",
            f'  os.sched_setaffinity(0, [{shares}][int(os.environ["LOCAL_RANK"])])',
        ]
    variables = [f"{name}={shlex.quote(value)}" for name, value in settings.items() if where(name) == "environment"]
    traced = ["stashtrace", "run", *options_of(settings), "--"] if FILES in settings else []
    if variables or traced:
        lines += ["command:", "  " + " ".join([*variables, shlex.join([*traced, *command])])]
    return lines


def _python(name: str, value: str) -> str:
    return str(bool(int(value))) if name in ("pin_memory", "persistent_workers") else value


def _cpus(share: str) -> str:
    """Write a list of CPUs such as ``0-3`` as a set of Python.

    Examples
    --------
    >>> _cpus("0-1,4")
    '{0, 1, 4}'
    """
    cpus: list[int] = []
    for part in share.split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return "{" + ", ".join(map(str, cpus)) + "}"
