"""The answer of ``stashtrace characterize``: step times, stalls with intervals, and the attribution beside them.

``characterization.json`` is both the answer and the memory of an interrupted one: runs that are in it are not repeated.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.errors import FormatError, MissingDataError, UsageError
from stashtrace.lab.characterize.differential import STEPS, Estimate, Stall, stalls, step_time
from stashtrace.lab.characterize.figures import Figures
from stashtrace.whole_files import whole_file

FORMAT = 1
FILE_NAME = "characterization.json"
MEASURED, FAILED, NOT_MEASURED, SKIPPED = "measured", "failed", "not measured", "skipped"
#: Kinds of the attribution whose sum a differential stall should equal, taken as a difference of the same two steps.
LINK_KINDS = ("straggler", "network", "interconnect")
DATA_KINDS = ("fetch", "prep", "handoff", "h2d")
KINDS_OF = {"interconnect": LINK_KINDS, "network": LINK_KINDS, "prep": DATA_KINDS, "fetch": DATA_KINDS}


@dataclass(slots=True)
class StepRun:
    """One run of one step.

    Attributes
    ----------
    step, repeat : int
    status : str
        ``measured`` or ``failed``.
    directory : str
        Of the run, relative to that of the characterisation.
    why : str
        Of a failure.
    figures : Figures, optional
    cache : str
        What is known of the page cache before it began.
    """

    step: int
    repeat: int
    status: str
    directory: str
    why: str = ""
    figures: Figures | None = None
    cache: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        out: dict[str, Any] = {
            "step": self.step,
            "repeat": self.repeat,
            "status": self.status,
            "directory": self.directory,
            "why": self.why,
            "cache": self.cache,
        }
        if self.figures is not None:
            names = (
                "step_ns",
                "steps_count",
                "epochs_count",
                "ranks_count",
                "hosts_count",
                "workers_count",
                "messages_count",
                "message_bytes",
                "on_device",
            )
            out |= {name: getattr(self.figures, name) for name in names}
            out["stalls_ns"] = {kind: list(bounds) for kind, bounds in self.figures.stalls_ns.items()}
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepRun:
        """The reverse."""
        figures = None
        if "step_ns" in data:
            values = {name: data[name] for name in Figures.__slots__ if name in data}
            values["stalls_ns"] = {kind: tuple(bounds) for kind, bounds in data["stalls_ns"].items()}
            figures = Figures(**values)
        return cls(
            data["step"], data["repeat"], data["status"], data["directory"], data["why"], figures, data.get("cache", "")
        )


@dataclass(slots=True)
class Characterization:
    """Runs so far, and what they say.

    Attributes
    ----------
    plan : dict
        What was asked for; another plan in the same directory is refused.
    facts : dict
        Machine, instance, devices, network.
    runs : list of StepRun
    absent : dict of int to (str, str)
        Step that has no runs -> status and why.
    notes : list of str
        What a reader must know.
    """

    plan: dict[str, Any]
    facts: dict[str, Any]
    runs: list[StepRun] = field(default_factory=list)
    absent: dict[int, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of_step(self, step: int) -> list[StepRun]:
        """Runs of one step, by repetition."""
        return sorted((run for run in self.runs if run.step == step), key=lambda run: run.repeat)

    def times_ns(self) -> dict[int, list[float]]:
        """Step -> time of each repetition, NaN where it failed."""
        count = max((run.repeat + 1 for run in self.runs), default=0)
        out = {}
        for step in STEPS:
            row = [math.nan] * count
            for run in self.of_step(step):
                if run.figures is not None:
                    row[run.repeat] = run.figures.step_ns
            if any(math.isfinite(value) for value in row):
                out[step] = row
        return out

    def status(self, step: int) -> tuple[str, str]:
        """Status of a step, and why."""
        runs = self.of_step(step)
        if any(run.figures is not None for run in runs):
            return MEASURED, ""
        if runs:
            return FAILED, runs[-1].why
        return self.absent.get(step, (NOT_MEASURED, "not asked for"))

    def step_times(self) -> dict[int, Estimate]:
        """Measured steps and their times."""
        return {step: step_time(times) for step, times in self.times_ns().items()}

    def stalls(self) -> dict[str, Stall]:
        """The stalls whose steps were measured."""
        return stalls(self.times_ns())

    def cache(self, step: int) -> str:
        """What was done to the page cache before the runs of a step and what was then found in it, "" for no step."""
        return next((run.cache for run in reversed(self.of_step(step)) if run.cache and run.figures is not None), "")

    def attributed_ns(self, step: int) -> dict[str, tuple[float, float, float]]:
        """Kind -> time per step by the attribution, median over the runs; bounds are the widest of them."""
        found: dict[str, list[tuple[float, float, float]]] = {}
        runs = [run.figures for run in self.of_step(step) if run.figures is not None]
        for figures in runs:
            for kind, bounds in figures.stalls_ns.items():
                found.setdefault(kind, []).append(bounds)
        out = {}
        for kind, rows in found.items():
            rows = rows + [(0.0, 0.0, 0.0)] * (len(runs) - len(rows))
            middle = sorted(row[0] for row in rows)
            half = len(middle) // 2
            value = middle[half] if len(middle) % 2 else (middle[half - 1] + middle[half]) / 2
            out[kind] = (value, min(row[1] for row in rows), max(row[2] for row in rows))
        return out

    def attributed_difference_ns(self, stall: str) -> tuple[float, float, float] | None:
        """What the attribution of the same two steps makes of a stall, with its bounds; None if one is missing."""
        less, more = {"interconnect": (1, 2), "network": (2, 5), "prep": (2, 4), "fetch": (4, 3)}[stall]
        sides = [self.attributed_ns(step) for step in (less, more)]
        if not all(sides):
            return None
        kinds = KINDS_OF[stall]
        (value0, low0, high0), (value1, low1, high1) = (_sum(side, kinds) for side in sides)
        return value1 - value0, low1 - high0, high1 - low0

    # Files --------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Everything, as in ``characterization.json``."""
        times = self.step_times()
        steps: dict[str, Any] = {}
        for step in STEPS:
            status, why = self.status(step)
            time = times.get(step)
            steps[f"t{step}_ns"] = {
                "value_ns": time.value if time else None,
                "low_ns": _number(time.low) if time else None,
                "high_ns": _number(time.high) if time else None,
                "status": status,
                "why": why,
                "runs": [run.to_json() for run in self.of_step(step)],
            }
        attribution = {
            str(step): {kind: row[0] / time.value for kind, row in self.attributed_ns(step).items()}
            for step, time in times.items()
        }
        return {
            "format": FORMAT,
            **self.facts,
            "plan": self.plan,
            "steps": steps,
            "stalls": {name: _stall_json(stall) for name, stall in self.stalls().items()},
            "attribution": attribution,
            "attributed": {name: list(found) for name in KINDS_OF if (found := self.attributed_difference_ns(name))},
            "disagreements": self.disagreements(),
            "notes": list(self.notes),
        }

    def disagreements(self) -> list[str]:
        """A sentence for each stall where difference and attribution are further apart than both their intervals."""
        from stashtrace.units import duration_text

        out = []
        for name, stall in self.stalls().items():
            beside = self.attributed_difference_ns(name)
            lost = stall.lost_ns
            if beside is None or math.isnan(lost.low) or (beside[1] <= lost.high and lost.low <= beside[2]):
                continue
            a, b = duration_text(round(abs(lost.value))), duration_text(round(abs(beside[0])))
            sign_a, sign_b = "-" * (lost.value < 0), "-" * (beside[0] < 0)
            out.append(
                f"{name}: the steps differ by {sign_a}{a}, the attribution of the same runs says {sign_b}{b}; "
                + _REASONS[name]
            )
        return out

    def save(self, directory: Path) -> None:
        """Write ``characterization.json``, at once or not at all; only its owner may read the command in it."""
        with whole_file(directory / FILE_NAME, own_mode=True) as partial:
            partial.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


_REASONS = {
    "interconnect": "ranks that compute beside each other share memory and caches, which no trace of one run shows",
    "network": "sending and receiving over the other way takes processor time from the compute beside it",
    "prep": "workers that prepare batches take processor time from the compute beside them",
    "fetch": "a cold cache also delays what is not a batch: read-ahead and eviction burden the whole machine",
}


def _sum(side: Mapping[str, tuple[float, float, float]], kinds: Sequence[str]) -> tuple[float, float, float]:
    rows = [side[kind] for kind in kinds if kind in side]
    return sum(r[0] for r in rows), sum(r[1] for r in rows), sum(r[2] for r in rows)


def _stall_json(stall: Stall) -> dict[str, Any]:
    published = stall.as_published
    return {
        "clean": stall.clean.value,
        "low": _number(stall.clean.low),
        "high": _number(stall.clean.high),
        "as_published": published.value if published else None,
        "as_published_low": _number(published.low) if published else None,
        "as_published_high": _number(published.high) if published else None,
        "lost_ns": stall.lost_ns.value,
        "lost_low_ns": _number(stall.lost_ns.low),
        "lost_high_ns": _number(stall.lost_ns.high),
        "slowdown": stall.slowdown.value,
        "repeats": stall.clean.runs_count,
    }


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def read_characterization(path: Path) -> Characterization:
    """Read a file, or the one in a directory.

    Raises
    ------
    UsageError
        If it is none, or of a later format.
    """
    file = path / FILE_NAME if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise UsageError(
                f"{file} has format {data['format']}, this version reads {FORMAT}", hint="update stashtrace"
            )
        known = {"format", "plan", "steps", "stalls", "attribution", "attributed", "disagreements", "notes"}
        found = Characterization(
            data["plan"], {k: v for k, v in data.items() if k not in known}, notes=list(data.get("notes", ()))
        )
        for step in STEPS:
            entry = data["steps"][f"t{step}_ns"]
            found.runs += [StepRun.from_json(run) for run in entry["runs"]]
            if not entry["runs"]:
                found.absent[step] = (entry["status"], entry["why"])
        return found
    except FileNotFoundError as error:
        hint = "make one: stashtrace characterize -- COMMAND"
        raise UsageError(f"no characterisation in {path}", hint=hint) from error
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        hint = f"`stashtrace characterize` writes {FILE_NAME}"
        why = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{file} is no characterisation: {why}", hint=hint) from error


# The run of a characterisation that a model is fitted to: all ranks of one host, on synthetic data, and its stall.
#
# Used by ``stashtrace model`` where it is given the folder of ``stashtrace characterize``.

#: Step of all ranks on synthetic data.
_STEP = 2


def run_of_all_ranks(folder: Path) -> tuple[Path, Estimate | None]:
    """The run of step 2 whose step is nearest to the median, and the interconnect stall in ns; None if not measured.

    Raises
    ------
    FormatError
        If the file is damaged, or knows nothing of its runs.
    MissingDataError
        If there is no such run, or it has been removed.
    """
    try:
        found = read_characterization(folder)
    except UsageError as error:  # there the folder is an option; here it is the data
        raise FormatError(str(error), hint=error.hint) from error
    runs = [(run.figures.step_ns, run.directory) for run in found.of_step(_STEP) if run.figures is not None]
    here = sorted((step_ns, folder / name) for step_ns, name in runs if (folder / name).is_dir())
    if not here:
        gone = "its runs of step 2 are gone" if runs else "its step 2 was not measured"
        raise MissingDataError(
            f"{folder} holds no run of all ranks: {gone}", hint="`stashtrace characterize --steps 1,2 -- COMMAND`"
        )
    stall = found.stalls().get("interconnect")
    return here[(len(here) - 1) // 2][1], stall.lost_ns if stall is not None else None
