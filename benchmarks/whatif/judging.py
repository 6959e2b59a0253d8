"""Predictions next to the recordings of the real thing, as rows."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

import stashtrace
from stashtrace.analysis.graph import Graph, build
from stashtrace.errors import DataLossWarning
from stashtrace.replay import Answer, Change, what_if

_MS = 1e6


@dataclass(frozen=True)
class Prediction:
    """What one recording says of another job, and what that job does.

    Attributes
    ----------
    kind : str
        Quantity that is changed.
    job, change, real : str
        The recorded job, what is asked, and the job that it makes of it.
    measured_ms, low_ms, middle_ms, high_ms : float
        Of the recorded job, and the prediction with its interval.
    real_ms : float
        Mean over the recordings of the other job.
    error_ratio : float
        Of the middle.
    covered : bool
        Whether the interval holds the real one.
    gap_ratio : float
        Part of the recorded step that follows from no recorded cause.
    """

    kind: str
    job: str
    change: str
    real: str
    measured_ms: float
    low_ms: float
    middle_ms: float
    high_ms: float
    real_ms: float
    error_ratio: float
    covered: bool
    gap_ratio: float

    @property
    def wide_ratio(self) -> float:
        """How far the interval reaches to a side."""
        return self.high_ms / self.middle_ms - 1


#: Column of an answer that holds a quantity, and in these jobs nothing else.
_COLUMN = {"compute": "compute", "python": "host"}


@dataclass(frozen=True)
class Replay:
    """How well the replay of a recording is the recording.

    Attributes
    ----------
    error_median_ratio, error_worst_ratio : float
        Of the length of single steps.
    gap_ratio : float
    """

    job: str
    step_ms: float
    error_median_ratio: float
    error_worst_ratio: float
    gap_ratio: float


@cache
def graph_of(folder: Path) -> Graph:
    """Graph of a recording."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return build(stashtrace.load(folder / "run"))


def answer_of(folder: Path, *changes: str) -> Answer:
    """What a recorded job would be with some changes."""
    return what_if(graph_of(folder), map(Change.parse, changes))


def predictions(folders: Mapping[str, Sequence[Path]], questions: Sequence[tuple[str, str, str]]) -> list[Prediction]:
    """Each question, asked of each recording of its job."""
    rows = []
    for job, change, other in questions:
        if job in folders and other in folders:
            real = float(np.mean([answer_of(folder).measured_ns for folder in folders[other]]))
            rows += [judged(folder, job, change, other, real) for folder in folders[job]]
    return rows


def judged(folder: Path, job: str, change: str, other: str, real_ns: float) -> Prediction:
    """One prediction next to the real mean step; ``compute=-30ms`` is 30 ms less than the recorded step has."""
    less = re.fullmatch(r"(compute|python)=([+-]\d+)ms", change)
    if less:
        before_ns = answer_of(folder).before_ns[_COLUMN[less[1]]]
        change = f"{less[1]}={before_ns / _MS + float(less[2]):.1f}ms"
    answer = answer_of(folder, *change.split())
    low, high = answer.interval_ns
    return Prediction(
        kind=" and ".join(one.partition("=")[0] for one in change.split()),
        job=job,
        change=change,
        real=other,
        measured_ms=answer.measured_ns / _MS,
        low_ms=low / _MS,
        middle_ms=answer.middle_ns / _MS,
        high_ms=high / _MS,
        real_ms=real_ns / _MS,
        error_ratio=answer.middle_ns / real_ns - 1,
        covered=low <= real_ns <= high,
        gap_ratio=answer.gap_ratio,
    )


def without_faults(runs: Path) -> list[Prediction]:
    """``straggler=0`` of each faulty job of ``bench_faults.py --runs``, next to its kind of job without a fault."""
    same = ("loop", "ranks", "workers", "steps", "lengths")
    folders = sorted(path.parent for path in runs.glob("*/config.json"))
    configs = {folder: json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in folders}
    keys = {folder: tuple(config[name] for name in same) for folder, config in configs.items()}
    real: dict[tuple[object, ...], list[float]] = {}
    for folder in folders:
        if folder.name.startswith("control-"):
            real.setdefault(keys[folder], []).append(answer_of(folder).measured_ns)
    return [
        judged(folder, folder.name, "straggler=0", "the job without its fault", float(np.mean(real[keys[folder]])))
        for folder in folders
        if configs[folder]["kind"] and keys[folder] in real
    ]


def replay_of(name: str, folder: Path) -> Replay:
    """Steps of a recording next to those of its replay."""
    graph = graph_of(folder)
    measured, replayed = graph.measured_step_ns, graph.step_ns(graph.replay())
    chosen = graph.ends_counted & (measured > 0)
    error = np.abs(replayed[chosen] / measured[chosen] - 1)
    answer = answer_of(folder)
    return Replay(name, answer.measured_ns / _MS, float(np.median(error)), float(error.max()), answer.gap_ratio)


def spreads(folders: Mapping[str, Sequence[Path]]) -> dict[str, float]:
    """By what the longest of a job's recordings differs from the shortest one, in mean step."""
    found = {}
    for name, same in folders.items():
        times = [answer_of(folder).measured_ns for folder in same]
        found[name] = max(times) / min(times) - 1
    return found


def as_row(row: Prediction | Replay) -> dict[str, object]:
    """For JSON."""
    return asdict(row)
