"""The answer of ``stashtrace characterize``: step times, stalls with intervals, and their attribution.

``characterization.json`` is both the answer and the memory of an interrupted one: runs that are in it are not repeated.
Its keys call the configurations steps.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.errors import MissingDataError, StashtraceError
from stashtrace.files.checked_files import CheckedFile
from stashtrace.files.whole_files import whole_file
from stashtrace.lab.characterize.run_figures import CONFIGURATIONS, SIDES, Figures, Stall, stalls, step_time
from stashtrace.lab.number_intervals import Estimate, Interval, finite_or_none
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.text.units import duration_text

FORMAT = 1
FILE_NAME = "characterization.json"
MEASURED, FAILED, NOT_MEASURED, SKIPPED = "measured", "failed", "not measured", "skipped"
#: Kinds of the attribution whose sum a stall should equal, taken as a difference of the same two configurations.
LINK_KINDS = (*COLUMNS["late"], *COLUMNS["link"])
DATA_KINDS = (*COLUMNS["data"], *COLUMNS["copy"])
KINDS_OF = {stall: LINK_KINDS if stall in LINK_KINDS else DATA_KINDS for stall in SIDES}


class RunInvalidError(StashtraceError):
    """A run was made, and not in the configuration that was asked for; the message becomes its ``why``."""


@dataclass(slots=True)
class ConfigurationRun:
    """One run of the job in one configuration."""

    configuration: int
    repeat: int
    #: ``measured`` or ``failed``.
    status: str
    #: Of the run, relative to that of the characterization.
    directory: str
    #: Of a failure.
    why: str = ""
    figures: Figures | None = None
    #: What is known of the page cache before it began.
    cache: str = ""

    def to_json(self) -> dict[str, Any]:
        """Entry of the run in ``characterization.json``."""
        out: dict[str, Any] = {"step": self.configuration}
        out |= {name: getattr(self, name) for name in ("repeat", "status", "directory", "why", "cache")}
        return out if self.figures is None else out | asdict(self.figures)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConfigurationRun:
        """Read such an entry."""
        figures = None
        if "step_ns" in data:
            values = {name: data[name] for name in Figures.__slots__ if name in data}
            values["stalls_ns"] = {kind: tuple(bounds) for kind, bounds in data["stalls_ns"].items()}
            values["cpus"] = CpuUse(**values["cpus"]) if values.get("cpus") else None
            figures = Figures(**values)
        place = (data["step"], data["repeat"], data["status"], data["directory"])
        return cls(*place, data["why"], figures, data.get("cache", ""))


@dataclass(slots=True)
class Characterization:
    """Runs so far, and the stalls they show."""

    #: What was asked for; another plan in the same directory is refused.
    plan: dict[str, Any]
    #: Machine, instance, devices, network.
    facts: dict[str, Any]
    runs: list[ConfigurationRun] = field(default_factory=list)
    #: Configuration that has no runs -> status and why.
    absent: dict[int, tuple[str, str]] = field(default_factory=dict)
    #: What a reader must know.
    notes: list[str] = field(default_factory=list)

    def runs_of(self, configuration: int) -> list[ConfigurationRun]:
        """Runs of one configuration, by repetition."""
        of_configuration = (run for run in self.runs if run.configuration == configuration)
        return sorted(of_configuration, key=lambda run: run.repeat)

    def add(self, run: ConfigurationRun) -> None:
        """Keep a run, in place of an earlier one of the same configuration and repetition."""
        key = (run.configuration, run.repeat)
        self.runs = [old for old in self.runs if (old.configuration, old.repeat) != key] + [run]

    def times_ns(self) -> dict[int, list[float]]:
        """Configuration -> step time of each repetition, NaN where it failed."""
        count = max((run.repeat + 1 for run in self.runs), default=0)
        out = {}
        for configuration in CONFIGURATIONS:
            row = [math.nan] * count
            for run in self.runs_of(configuration):
                if run.figures is not None:
                    row[run.repeat] = run.figures.step_ns
            if any(math.isfinite(value) for value in row):
                out[configuration] = row
        return out

    def status(self, configuration: int) -> tuple[str, str]:
        """Status of a configuration, and why."""
        runs = self.runs_of(configuration)
        if any(run.figures is not None for run in runs):
            return MEASURED, ""
        if runs:
            return FAILED, runs[-1].why
        return self.absent.get(configuration, (NOT_MEASURED, "not asked for"))

    def step_times(self) -> dict[int, Estimate]:
        """Configurations that were measured, and their step times in ns."""
        return {configuration: step_time(times) for configuration, times in self.times_ns().items()}

    def stalls(self) -> dict[str, Stall]:
        """The stalls whose configurations were measured."""
        return stalls(self.times_ns())

    def cache(self, configuration: int) -> str:
        """State of the page cache before the last measured run, as a sentence; empty if none was prepared."""
        runs = reversed(self.runs_of(configuration))
        return next((run.cache for run in runs if run.cache and run.figures is not None), "")

    def attributed_ns(self, configuration: int) -> dict[str, Interval]:
        """Kind -> time per step by the attribution, median over the runs; bounds are the widest of them."""
        figures = [run.figures.stalls_ns for run in self.runs_of(configuration) if run.figures is not None]
        out = {}
        for kind in dict.fromkeys(kind for stalls_ns in figures for kind in stalls_ns):
            values, lows, highs = zip(*(stalls_ns.get(kind, (0.0, 0.0, 0.0)) for stalls_ns in figures), strict=True)
            out[kind] = Interval(statistics.median(values), min(lows), max(highs))
        return out

    def attributed_difference_ns(self, stall: str) -> Interval | None:
        """A stall as difference of two attributions, ns per step; None if a configuration is missing."""
        sides = [self.attributed_ns(configuration) for configuration in SIDES[stall]]
        if not all(sides):
            return None
        less, more = ([side[kind] for kind in KINDS_OF[stall] if kind in side] for side in sides)
        return Interval(
            sum(one.value for one in more) - sum(one.value for one in less),
            sum(one.low for one in more) - sum(one.high for one in less),
            sum(one.high for one in more) - sum(one.low for one in less),
        )

    # Files --------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Content of ``characterization.json``."""
        times = self.step_times()
        steps: dict[str, Any] = {}
        for configuration in CONFIGURATIONS:
            status, why = self.status(configuration)
            time = times.get(configuration)
            steps[f"t{configuration}_ns"] = {
                "value_ns": time.value if time else None,
                "low_ns": finite_or_none(time.low) if time else None,
                "high_ns": finite_or_none(time.high) if time else None,
                "status": status,
                "why": why,
                "runs": [run.to_json() for run in self.runs_of(configuration)],
            }
        attribution = {
            str(configuration): {
                kind: row.value / time.value for kind, row in self.attributed_ns(configuration).items()
            }
            for configuration, time in times.items()
        }
        attributed = {name: self.attributed_difference_ns(name) for name in KINDS_OF}
        return {
            "format": FORMAT,
            **self.facts,
            "plan": self.plan,
            "steps": steps,
            "stalls": {name: _stall_json(stall) for name, stall in self.stalls().items()},
            "attribution": attribution,
            "attributed": {name: [one.value, one.low, one.high] for name, one in attributed.items() if one is not None},
            "disagreements": self.disagreements(),
            "notes": list(self.notes),
        }

    def disagreements(self) -> list[str]:
        """A sentence for each stall where difference and attribution are further apart than both their intervals."""
        out = []
        for name, stall in self.stalls().items():
            attributed, lost = self.attributed_difference_ns(name), stall.lost_ns
            if attributed is not None and lost.known and not lost.overlaps(attributed):
                out.append(
                    f"{name}: the steps differ by {duration_text(lost.value)}, the attribution of the same runs says"
                    f" {duration_text(attributed.value)}; {_REASONS[name]}"
                )
        return out

    def save(self, directory: Path) -> None:
        """Write ``characterization.json``, at once or not at all; only its owner may read the command in it."""
        with whole_file(directory / FILE_NAME, own_mode=True) as partial:
            partial.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


_REASONS = {
    "interconnect": "ranks that compute at the same time share memory and caches, which no trace of one run shows",
    "network": "sending and receiving over the other link takes processor time from the compute",
    "prep": "workers that prepare batches take processor time from the compute",
    "fetch": "a cold cache also delays what is not a batch: read-ahead and eviction burden the whole machine",
}


def _stall_json(stall: Stall) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for keys, one in (
        (("clean", "low", "high"), stall.clean),
        (("as_published", "as_published_low", "as_published_high"), stall.as_published),
        (("lost_ns", "lost_low_ns", "lost_high_ns"), stall.lost_ns),
    ):
        numbers = (math.nan,) * 3 if one is None else (one.value, one.low, one.high)
        out |= {key: finite_or_none(number) for key, number in zip(keys, numbers, strict=True)}
    return out | {"slowdown": stall.slowdown.value, "repeats": stall.clean.runs_count}


def read_characterization(path: Path) -> Characterization:
    """Read ``characterization.json``, or the one in a directory; raise as ``CheckedFile`` does if it is none."""
    file, data = characterization_in(path)
    try:
        known = {"format", "plan", "steps", "stalls", "attribution", "attributed", "disagreements", "notes"}
        facts = {k: v for k, v in data.items() if k not in known}
        answer = Characterization(data["plan"], facts, notes=list(data.get("notes", ())))
        for configuration in CONFIGURATIONS:
            entry = data["steps"][f"t{configuration}_ns"]
            answer.runs += [ConfigurationRun.from_json(run) for run in entry["runs"]]
            if not entry["runs"]:
                answer.absent[configuration] = (entry["status"], entry["why"])
        return answer
    except (KeyError, TypeError) as error:
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise file.damaged(why) from error


def characterization_in(path: Path) -> tuple[CheckedFile, dict[str, Any]]:
    """Read ``characterization.json``, or the one in a directory, as far as its format is known."""
    hint = "`stashtrace characterize -- CMD` on each kind of machine writes one"
    name = str(path / FILE_NAME if path.is_dir() else path)
    file = CheckedFile(name, "characterization", "characterization", hint)
    content = file.json(file.read())
    if not isinstance(content.get("steps"), dict):
        raise file.damaged("no `steps` stand in it")
    file.require_version(content.get("format"), FORMAT, "format")
    return file, content


def run_of_all_ranks(folder: Path) -> tuple[Path, Estimate | None]:
    """Choose the run that a model is fitted to: all ranks of one host, on synthetic data.

    Returns the run of configuration 2 whose step time is nearest to the median, and the interconnect stall; None if it
    was not measured. Raises FormatError if the file is damaged, or knows nothing of its runs. Raises MissingDataError
    if there is no such run, or it has been removed.
    """
    answer = read_characterization(folder)
    runs = [(run.figures.step_ns, run.directory) for run in answer.runs_of(2) if run.figures is not None]
    present = sorted((step_ns, folder / name) for step_ns, name in runs if (folder / name).is_dir())
    if not present:
        gone = "its runs of configuration 2 are gone" if runs else "its configuration 2 was not measured"
        raise MissingDataError(
            f"{folder} holds no run of all ranks: {gone}", hint="`stashtrace characterize --steps 1,2 -- COMMAND`"
        )
    stall = answer.stalls().get("interconnect")
    return present[(len(present) - 1) // 2][1], stall.lost_ns if stall is not None else None
