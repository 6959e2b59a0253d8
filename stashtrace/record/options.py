"""The options of a run, each declared once, as a field of :class:`RecordOptions`.

A declaration says how an option is written on a command line and in the environment of the traced processes, which
values it takes and what holds without it; ``csrc/core/settings.def`` says that of what the recorder reads. From it
follow the parsers of ``stashtrace run`` and ``stashtrace env``, the command lines of runs that the lab starts, and the
variables of the traced processes. These are read by ``csrc/core/config.cpp`` and the probes, and explained in
``docs/reference/environment.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stashtrace.errors import UsageError, native_failure
from stashtrace.record.staged_files import check_staged_list

if TYPE_CHECKING:
    import argparse

#: Deep mode: recorded with ``kernels`` alone.
KERNEL_COLLECTOR = "cupti"
#: Batches that ``--synthetic`` keeps: two show whether batches are similar, and fit on a device that holds the current
#: batch and the next one.
SYNTHETIC_BATCHES = 2
_METADATA_KEY = "declaration"


class Setting(NamedTuple):
    """A setting of the recorder: its default, and its smallest and largest number, or the words that it may be."""

    default: str
    limits: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()


# Generated from csrc/core/settings.def by scripts/docs/generate_guest_words.py; do not edit.
SETTINGS = {
    "STASHTRACE_RUN_ID": Setting(""),
    "STASHTRACE_STEPS": Setting(""),
    "STASHTRACE_IDLE": Setting("0"),
    "STASHTRACE_FOLLOWED": Setting("0"),
    "STASHTRACE_STAGED": Setting(""),
    "STASHTRACE_COLLECTORS": Setting(""),
    "STASHTRACE_WAIT_THRESHOLD_NS": Setting("20000", limits=(0, 3_600_000_000_000)),
    "STASHTRACE_SAMPLE_MS": Setting("100", limits=(1, 3_600_000)),
    "STASHTRACE_STACK_HZ": Setting("50", limits=(0, 1_000)),
    "STASHTRACE_NVML_HZ": Setting("10", limits=(0, 1_000)),
    "STASHTRACE_NVML_LINKS": Setting("0"),
    "STASHTRACE_RING_BYTES": Setting(""),
    "STASHTRACE_FORCE_EVENTS": Setting("0"),
    "STASHTRACE_LOOKUP_HOOK": Setting("0"),
    "STASHTRACE_EVENT_BUDGET": Setting("10000", limits=(0, 1_000_000_000)),
    "STASHTRACE_NCCL_SOURCE": Setting("auto", choices=("auto", "plugin", "events")),
    "STASHTRACE_NCCL_CHAIN": Setting(""),
    "STASHTRACE_DRAINER": Setting("auto", choices=("auto", "thread", "self", "off")),
    "STASHTRACE_LOG": Setting("error", choices=("error", "info", "debug")),
    "STASHTRACE_KERNELS": Setting(""),
    "STASHTRACE_KERNELS_STEPS": Setting("10:13"),
}
# End of what is generated.


@functools.cache
def default_collectors() -> tuple[str, ...]:
    """Return the collectors that a run turns on by default: all of ``csrc/schema/records.def`` except deep mode's.

    Native collectors come first, then probes; ``annotations`` comes last. Raises CaptureError if the extension that
    knows them cannot be loaded.
    """
    try:
        from stashtrace import _native
    except ImportError as error:
        raise native_failure(error) from error
    named = [c for c in _native.schema()["collectors"] if c["name"] not in ("core", KERNEL_COLLECTOR)]
    named.sort(key=lambda c: (not c["native"], c["name"] == "annotations"))
    return tuple(c["name"] for c in named)


def step_range(name: str, text: str) -> str:
    """Return ``text`` if it is a range of steps, ``"A:B"``, ``"A:"`` or ``":B"``.

    Raises UsageError if it is not; ``name`` is the option that the hint shows.
    """
    first, colon, last = text.partition(":")
    well_formed = bool(colon) and all(part == "" or part.isdecimal() for part in (first, last))
    if not well_formed or (first and last and int(first) >= int(last)):
        raise UsageError(f"steps {text!r} is not a range A:B with A < B", hint=f"for example {name} 10:20")
    return text


@dataclass(frozen=True, slots=True)
class Declaration:
    """How one option is given."""

    #: Environment variable of the traced processes.
    variable: str
    #: What holds if the option is not given, in the words of the environment page.
    default: str
    #: Flag of the command line; empty if the option has none.
    flag: str = ""
    #: Help of the flag; ``{default}`` stands for ``default``.
    help: str = ""
    #: Placeholder of the flag's argument in the help.
    metavar: str | None = None
    #: Makes a value from the flag's argument.
    parse: Callable[[str], Any] = str
    #: Value of a flag without an argument; None if it takes one.
    const: Any = None
    #: The values that the option can have; empty if any text will do.
    choices: tuple[str, ...] = ()
    #: Smallest and largest value; None for no largest one.
    limits: tuple[int, int | None] | None = None
    #: Called with the name of the flag or variable and a value; returns the value to keep.
    check: Callable[[str, Any], Any] | None = None
    #: Returns names that are appended to the help.
    listed: Callable[[], Sequence[str]] | None = None
    #: Whether a variable of the caller stays in force when the option is not given.
    inherited: bool = True
    #: Whether the option works only with ``stashtrace run``, which stays while the job runs; ``stashtrace env`` lacks
    #: it.
    needs_launcher: bool = False
    #: Whether the value is written to ``run.json``.
    in_run_file: bool = False

    def checked(self, value: Any) -> Any:
        """Return the value to keep. Raises UsageError if the option cannot have this value."""
        name = self.flag or self.variable
        if self.choices and value not in self.choices:
            raise UsageError(f"{name} cannot be {value!r}", hint="choose from: " + ", ".join(self.choices))
        if self.limits is not None:
            low, high = self.limits
            if value < low or (high is not None and value > high):
                hint = f"{name} {low} or more" if high is None else f"{name} {low} to {high}"
                raise UsageError(f"{name} {value} is out of range", hint=hint)
        return value if self.check is None else self.check(name, value)


def _option(name: str, flag: str = "", help: str = "", *, default: str = "", value: Any = None, **declared: Any) -> Any:
    """A field of RecordOptions; ``value`` means that the option is not given.

    ``default``: of an option that the recorder does not read, or the words for its empty text.
    """
    variable = f"STASHTRACE_{name}"
    setting = SETTINGS.get(variable, Setting(""))
    declared = {"limits": setting.limits, "choices": setting.choices, **declared}
    declaration = Declaration(variable, default or setting.default, flag, help, **declared)
    return field(default=value, metadata={_METADATA_KEY: declaration})


def _switch(name: str, flag: str, help: str, **declared: Any) -> Any:
    """A field of RecordOptions that is on or off."""
    return _option(name, flag, help, value=False, const=True, **declared)


@dataclass(frozen=True)
class RecordOptions:
    """What is recorded of a job, and how. An option with its default value is not given.

    The help of each field says what it does. From Python, ``kernels`` may be ``"graphs"``, for one row per launch of a
    CUDA graph in place of its kernels, and ``synthetic_batches`` any number of batches. ``kernels`` and
    ``kernels_steps`` turn each other on.

    Raises UsageError if an option cannot have the value it is given.
    """

    steps: str | None = _option(
        "STEPS",
        "--steps",
        "record steps A to B-1 only; the others are counted",
        default="all",
        metavar="A:B",
        check=step_range,
        inherited=False,
        in_run_file=True,
    )
    collectors: Sequence[str] | None = _option(
        "COLLECTORS",
        "--collectors",
        "comma list of what to record (default: {default}): ",
        default="all",
        metavar="NAMES",
        parse=lambda text: text.split(","),
        check=lambda _, names: tuple(names),
        listed=default_collectors,
    )
    stack_hz: int | None = _option(
        "STACK_HZ",
        "--stack-hz",
        "samples of Python stacks per second and thread, 0 for none (default: {default})",
        metavar="N",
        parse=int,
        in_run_file=True,
    )
    nvml_hz: int | None = _option(
        "NVML_HZ",
        "--nvml-hz",
        "samples of device counters per second, 0 for none (default: {default})",
        metavar="N",
        parse=int,
    )
    nvml_links: bool = _switch("NVML_LINKS", "--nvml-links", "sample each NVLink of a device, not only their sum")
    kernels: bool | str = _switch(
        "KERNELS",
        "--kernels",
        "deep mode: also every kernel and copy of the GPU, for a few steps; gives way to another profiler",
        default="off",
        inherited=False,
    )
    kernels_steps: str | None = _option(
        "KERNELS_STEPS",
        "--kernels-steps",
        "steps A to B-1 of deep mode (default: {default}); the step before A is slow; turns --kernels on",
        metavar="A:B",
        check=step_range,
        inherited=False,
        in_run_file=True,
    )
    event_budget: int | None = _option(
        "EVENT_BUDGET",
        "--event-budget",
        "timing events on devices per second; above it whole steps go without, 0: no limit (default: {default})",
        metavar="N",
        parse=int,
    )
    lookup_hook: bool = _switch(
        "LOOKUP_HOOK",
        "--lookup-hook",
        "also see CUDA's and NCCL's calls of CuPy, Triton and JAX, by standing in front of dlsym",
        inherited=False,
    )
    nccl_source: str | None = _option(
        "NCCL_SOURCE",
        "--nccl-source",
        "device times of NCCL from its plugin, from events, or (auto) from what works here without harm",
    )
    share: bool = _switch(
        "SHARE",
        "--share",
        "let the group read the run (0750, 0640); else the user alone (0700, 0600)",
        default="unset",
        inherited=False,
    )
    idle: bool = _switch(
        "IDLE",
        "--idle",
        "record nothing until a window is asked for, by `stashtrace capture` or SIGUSR2 to the launcher",
        inherited=False,
        needs_launcher=True,
        in_run_file=True,
    )
    until_step: int | None = _option(
        "UNTIL_STEP",
        "--until-step",
        "end the command when its ranks have made K steps; exit code 0",
        default="unset",
        metavar="K",
        parse=int,
        limits=(1, None),
        inherited=False,
        needs_launcher=True,
    )
    staged: str | None = _option(
        "STAGED",
        "--staged",
        "open copies of files: a list that `stashtrace stage` wrote",
        default="unset",
        metavar="LIST",
        check=lambda _, path: str(Path(path).absolute()),
        inherited=False,
        needs_launcher=True,
        in_run_file=True,
    )
    synthetic_batches: int = _option(
        "SYNTHETIC",
        "--synthetic",
        "let DataLoaders return their first two batches again and again",
        default="unset: real data",
        value=0,
        const=SYNTHETIC_BATCHES,
        limits=(0, None),
        inherited=False,
        needs_launcher=True,
        in_run_file=True,
    )
    wait_threshold_ns: int | None = _option("WAIT_THRESHOLD_NS")
    sample_ms: int | None = _option("SAMPLE_MS")
    drainer: str | None = _option("DRAINER")
    log_level: str | None = _option("LOG")

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            object.__setattr__(self, name, DECLARATIONS[name].checked(value))
        if self.kernels or self.kernels_steps is not None:
            object.__setattr__(self, "kernels", self.kernels or True)
            object.__setattr__(self, "kernels_steps", self.kernels_steps or DECLARATIONS["kernels_steps"].default)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, *, launched: bool = True) -> None:
        """Add the flags of the options; without ``launched`` only those that ``stashtrace env`` has."""
        for name, declared in DECLARATIONS.items():
            if not declared.flag or (declared.needs_launcher and not launched):
                continue
            text = declared.help.format(default=declared.default)
            if declared.listed is not None:
                text += ", ".join(declared.listed())
            if declared.const is not None:
                parser.add_argument(
                    declared.flag,
                    dest=name,
                    action="store_const",
                    const=declared.const,
                    default=_VALUES_NOT_GIVEN[name],
                    help=text,
                )
            else:
                parser.add_argument(
                    declared.flag,
                    dest=name,
                    metavar=declared.metavar,
                    type=declared.parse,
                    choices=declared.choices or None,
                    help=text,
                )

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> RecordOptions:
        """Return the options that a parser with the flags of :meth:`add_arguments` has read.

        Raises UsageError if an option cannot have the value it is given.
        """
        named = (name for name, declared in DECLARATIONS.items() if declared.flag and hasattr(arguments, name))
        return cls(**{name: getattr(arguments, name) for name in named})

    def given(self) -> dict[str, Any]:
        """Return the values of the options that are given, by name."""
        values = {name: getattr(self, name) for name in DECLARATIONS}
        return {name: value for name, value in values.items() if value != _VALUES_NOT_GIVEN[name]}

    def to_arguments(self) -> list[str]:
        """Return words that give these options to ``stashtrace run``.

        Raises ValueError if the command line has no words for an option or its value.
        """
        words = []
        for name, value in self.given().items():
            declared = DECLARATIONS[name]
            if not declared.flag or (declared.const is not None and value != declared.const):
                raise ValueError(f"{name}={value!r} cannot be given on a command line")
            words += [declared.flag] if declared.const is not None else [declared.flag, _text(value)]
        return words

    def to_environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return a copy of ``base`` with the variables of these options.

        If an option is not given, its variable in ``base`` stays or goes, as declared: a traced command that traces
        another must not pass its steps on. Raises UsageError if a collector is unknown, or ``staged`` cannot be used.
        Raises FormatError if ``staged`` is not a list of staged files. Raises CaptureError if the extension that knows
        the collectors cannot be loaded.
        """
        values = self.given() | {"collectors": self.recorded_collectors()}
        if self.staged is not None:
            if not Path(self.staged).is_file():
                raise UsageError(
                    f"no list of staged files at {self.staged}", hint="`stashtrace stage RUN --to DIR` writes one"
                )
            if "posix_io" not in values["collectors"]:
                raise UsageError("--staged needs the collector posix_io", hint="it leads the opens to the copies")
            check_staged_list(Path(self.staged))
        environment = dict(base)
        for name, declared in DECLARATIONS.items():
            if name in values:
                environment[declared.variable] = _text(values[name])
            elif not declared.inherited:
                environment.pop(declared.variable, None)
        return environment

    def to_run_facts(self) -> dict[str, Any]:
        """Return what ``run.json`` says of the options."""
        return {name: value for name, value in self.given().items() if DECLARATIONS[name].in_run_file}

    def recorded_collectors(self) -> tuple[str, ...]:
        """Return the names of the collectors that are on.

        Raises UsageError if one of ``collectors`` is unknown. Raises CaptureError if the extension that knows them
        cannot be loaded.
        """
        deep = (KERNEL_COLLECTOR,) if self.kernels else ()
        known = default_collectors() + deep
        if self.collectors is None:
            return known
        unknown = [name for name in self.collectors if name not in known]
        if unknown:
            hint = "use --kernels" if unknown[0] == KERNEL_COLLECTOR else "choose from: " + ", ".join(known)
            raise UsageError(f"no collector named {unknown[0]!r}", hint=hint)
        return tuple(dict.fromkeys((*self.collectors, *deep)))


#: Declarations of the options by the names of their fields, in the order of the help.
DECLARATIONS: dict[str, Declaration] = {f.name: f.metadata[_METADATA_KEY] for f in fields(RecordOptions)}
_VALUES_NOT_GIVEN = {f.name: f.default for f in fields(RecordOptions)}
DEFAULT_OPTIONS = RecordOptions()


def _text(value: Any) -> str:
    """Return a value as the text of a variable, or of a flag's argument."""
    if value is True:
        return "1"
    return ",".join(value) if isinstance(value, tuple) else str(value)
