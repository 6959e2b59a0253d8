"""Run a case under the tracer, or read a foreign trace; what it claims and what is true of it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ground_truth import machine, plain_truth

import stashtrace
from sentences.cases import Case
from sentences.truth import Interval, Truth, of_clock
from stashtrace.analysis.findings import Summary
from stashtrace.analysis.findings.summary_input import RunFacts, gather
from stashtrace.errors import DataLossWarning
from stashtrace.schema.trace import Trace
from stashtrace.summary.style import Style
from stashtrace.summary.summary_text import render

ROOT = Path(__file__).resolve().parents[2]
JOBS = Path(__file__).with_name("jobs.py")
FRAMEWORKS, READER = JOBS.with_name("frameworks.py"), JOBS.with_name("reader.py")
EXAMPLE = ROOT / "examples" / "train_ddp.py"
LAUNCHER = ROOT / "tests" / "ground_truth" / "launch_ranks.py"
LINK_MEGABITS = 200
#: Longer than any case takes on a busy machine; a job that hangs is a failure of its case.
_PATIENCE_S = 300


@dataclass(frozen=True)
class Recorded:
    """What a summary says of a run, as rows and as text, and what is true."""

    findings: list[dict[str, Any]]
    evidence: list[dict[str, Any]]
    text: str
    truth: Truth


def run(case: Case, folder: Path, data: Path) -> Recorded:
    """Record a job; ``data`` holds the images of the example. A recording that is in the folder is judged as it is.

    Raises
    ------
    RuntimeError
        If the job fails.
    machine.Missing
        If this machine lacks what the case needs, a framework, a library or a network namespace.
    """
    clock = folder / "clock"
    if not (folder / "run").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run(case, folder, clock, data)
    with warnings.catch_warnings():
        if case.expected.lost:
            warnings.simplefilter("ignore", DataLossWarning)
        trace = stashtrace.load(folder / "run")
    return summed_up(trace, lambda windows: _handed_over(clock, windows))


def _handed_over(clock: Path, windows: Mapping[int, Sequence[Interval]]) -> Truth:
    """Truth by a job's clock; of the example, also what its tests know of its workers."""
    truth = of_clock(clock, windows)
    workers = {json.loads(line)[1] for path in clock.glob("samples-*.jsonl") for line in path.open()}
    if workers:
        # Within one epoch, as the example's cases are.
        steps = plain_truth.load(clock, link="interconnect", workers=max(workers) + 1)
        for rank in truth.ranks.values():
            own = [step.kinds["handoff"] for step in steps if step.rank == rank.rank][-rank.steps_count :]
            rank.handed_ns = sum(own) / len(own)
    return truth


def _run(case: Case, folder: Path, clock: Path, data: Path) -> None:
    words = case.arguments.split()
    if case.program == "example":
        script = [str(EXAMPLE), "--data", str(data), "--images", "400", "--image-size", "96", "--truth", str(clock)]
        script += ["--model-size", "medium", "--batch-size", "8", "--bucket-mb", "1000"]
        script += ["--log-every", "1000", *words]
        if "--checkpoint-every" in words:
            script += ["--checkpoint", str(folder / "checkpoint.pt")]
    elif case.program == "reader":
        script = [str(READER), "--clock", str(clock)]
    elif case.program == "jobs":
        if "--library" in words and not _loads(words[words.index("--library") + 1]):
            raise machine.Missing(f"no {words[words.index('--library') + 1]} on this machine")
        script = [str(JOBS), "--clock", str(clock), *words]
    else:
        if importlib.util.find_spec(case.program) is None:
            raise machine.Missing(f"{case.program} is not installed")
        script = [str(FRAMEWORKS), case.program, "--clock", str(clock), *words]
    with _link(case) as options:
        _record(_launched(case, script, options), folder, bool(case.expected.ending))


def _loads(library: str) -> bool:
    """Whether a process can load a library; another one tries it."""
    command = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({library!r})"]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def summed_up(trace: Trace, truth_of: Any) -> Recorded:
    """The summary of a trace, and the truth for the steps that it counts (rank -> monotonic ns).

    Steps other than those that train, as validation, are counted separately.
    """
    facts = gather(trace)
    summary = Summary.of(facts)
    windows = _windows(facts)
    findings, evidence = list(summary.findings.rows()), evidence_rows(summary)
    text = render(summary, Style(), "RUN")
    return Recorded(findings, evidence, text, _with_beside(truth_of(windows), facts, truth_of))


def evidence_rows(summary: Summary) -> list[dict[str, Any]]:
    """Rows of ``finding_evidence``, each with its facts as further fields."""
    return [{**json.loads(row["facts"] or "{}"), **row} for row in summary.evidence.rows()]


def _with_beside(truth: Truth, facts: RunFacts, truth_of: Any) -> Truth:
    for part in facts.others:
        of_kind = truth_of(_windows(part))
        truth.beside[part.step_kind] = of_kind
        # Each kind's mean length is known where its steps are counted.
        truth.steps = {k: of_kind.steps[k] if k == part.step_kind else own for k, own in truth.steps.items()}
    return truth


def _windows(facts: RunFacts) -> dict[int, list[Interval]]:
    windows: dict[int, list[Interval]] = {}
    if "steps" in facts.tables:
        origin = origin_ns(facts.trace)
        for row in facts.tables["steps"].sort_by("begin_ns").rows():
            windows.setdefault(row["rank"], []).append((row["begin_ns"] + origin, row["end_ns"] + origin))
    return windows


def origin_ns(trace: Trace) -> int:
    """The moment of the recorder's or the foreign file's clock that is 0 on the trace's timeline."""
    code = trace.strings.find("origin_monotonic_ns")
    values = trace.metadata["value_code"][trace.metadata["key_code"] == code]
    return int(trace.text(values[0])) if code >= 0 and len(values) else 0


@contextlib.contextmanager
def _link(case: Case) -> Iterator[list[str]]:
    if case.launcher != "namespaces":
        yield []
        return
    with machine.slow_link(LINK_MEGABITS) as link:
        yield link.launch_options


def _launched(case: Case, script: list[str], options: list[str]) -> list[str]:
    if case.launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
        return [*torchrun, *script]
    if case.ranks == 1:
        return [sys.executable, *script]
    return [sys.executable, str(LAUNCHER), "--ranks", str(case.ranks), *options, "--", sys.executable, *script]


def _record(command: list[str], folder: Path, fails: bool) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1")
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--"]
    log = folder / "log.txt"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*tracer, *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=_PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if bool(code) != fails:
        raise RuntimeError(f"exit code {code}\n{log.read_text(errors='replace')[-3000:]}")
