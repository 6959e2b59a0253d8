"""Who and why: 50 injected faults on real jobs of two to four gloo ranks, and 20 jobs of varying lengths without one.

    python benchmarks/bench_faults.py [--runs DIR] [--only NAME ...]

A fault is a rank x kind x size x loop: at least 5 % of the step and three times its spread without the fault, by the
job's clocks. The late rank and its cause must be the first that the tables name in 48 of 50, among the first two in
all; and where nothing is injected no rank may be named that the ranks' clocks do not confirm. Writes
results/faults.md and .json; exit code 1 if a bar is missed. ``--runs`` keeps the recordings, and takes those that it
finds there instead of making them again: a change of an analysis is then judged within a minute.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
from fault_job import Config, faulty

sys.path.insert(0, str(harness.ROOT))

import stashtrace
from stashtrace.analysis.registry import ANALYSES, analyze
from stashtrace.analysis.steps.steps import WARMUP_STEPS
from stashtrace.analysis.stragglers.late import chance
from stashtrace.errors import DataLossWarning
from stashtrace.schema.trace import Trace

#: Kind of a fault -> the cause that ``late`` must name.
CAUSES = {
    "item": "prep",
    "disk": "fetch",
    "prep": "prep",
    "sleep": "sleep",
    "compute": "compute",
    "gc": "gc",
    "save": "checkpoint",
    "lock": "other",
}
LOOPS = ("ddp", "manual", "accumulate")
FAULTS, QUIET, FIRST_BAR = 50, 20, 48
LEAST_RATIO, SPREADS = 0.05, 3.0
#: Sizes aim above the least, so that a busy moment does not make them too small; a run that is too small is made again.
_AIM, _TRIES = 1.3, 4
_SIZES = (1.0, 1.5, 3.0)
FILE_BYTES = 256 << 20
#: A wait per step is confirmed by the clocks within this share and this much.
_AGREES_RATIO, _AGREES_NS = 0.25, 1_500_000
#: A cause is named if it has this share of the waits.
_NAMED_RATIO = 0.25

PAGE = """\
# Who and why: injected faults and what the tables name

Real jobs of two to four gloo ranks (`benchmarks/fault_job.py`). One rank is kept by one kind of fault; by the ranks'
clocks (`time.perf_counter_ns`) it comes later than all others by at least 5 % of the step, averaged over the steps,
and in a faulty step by three times the spread of a step of the same loop without the fault (1.4826 times the median
absolute deviation; the quieter one of two recordings). Ranks and causes are ordered by the straggler time that they
caused (`straggler_causes`, divided by the causes of `late`) over the steps after the warm-up. Bar: the right rank with
the right cause first in {bar} of 50, among the first two in 50.

In the quiet jobs each rank computes for a random length in each step, and nothing is injected. A false alarm is a
claim that the clocks do not confirm: a rank that is late again and again (`late_ranks`: always, often), a wait of one
rank for another (`straggler_causes`, within a quarter and 1.5 ms a step), a cause with a quarter of the waits or more
(`late`). Bar: none in 20.

`{command}`, {date}, {cores} cores of {cpu}{virtual}, kernel {kernel}, Python {python}, torch {torch}, load {load}

"""


def faults(controls: dict[tuple[str, int], tuple[float, float]]) -> Iterator[tuple[str, Config]]:
    """(name, job) of the 50 faults; ``controls`` has step and spread in ms without a fault, by loop and ranks."""
    for number, kind in zip(range(FAULTS), itertools.cycle(CAUSES), strict=False):
        round_, loop = number // len(CAUSES), LOOPS[number % 3]
        ranks = (2, 3, 2, 4, 2)[number % 5]
        in_loader = kind in ("item", "disk", "prep")
        workers = (0, 1 if kind == "prep" else 2)[round_ % 2]
        every = 1 if in_loader and workers else (1, 3)[(number // 2) % 2]
        step_ms, spread_ms = controls[loop, ranks]
        least_ms = max(LEAST_RATIO * step_ms * every, SPREADS * spread_ms)
        size_ms = round(_SIZES[(number + number // 3) % 3] * _AIM * max(least_ms, 4.0), 1)
        config = Config(loop, ranks, workers, kind, (number + round_) % ranks, size_ms, every, seed=number)
        yield f"{number:02d}-{kind}-{loop}-{ranks}", config


def quiet() -> Iterator[tuple[str, Config]]:
    """(name, job) of the jobs whose lengths vary."""
    for number in range(QUIET):
        loop, ranks = LOOPS[number % 3], (2, 2, 3, 2, 4)[number % 5]
        yield f"quiet-{number:02d}-{loop}-{ranks}", Config(loop, ranks, 2 * (number % 2), lengths=True, seed=number)


@dataclasses.dataclass(frozen=True)
class Clocks:
    """What the ranks wrote down: ranks x steps after the warm-up."""

    begin_ns: Any
    arrive_ns: Any
    cpu_ns: Any
    step: Any

    @property
    def step_ns(self) -> Any:
        """Length of each step but the last, by rank 0."""
        return np.diff(self.begin_ns[0])

    def behind_ns(self, rank: int) -> Any:
        """By how much later than all others a rank arrived in each step; negative if another was later."""
        return self.arrive_ns[rank] - np.delete(self.arrive_ns, rank, axis=0).max(axis=0)

    def waits_ns(self) -> Counter[tuple[int, int]]:
        """(rank, last one) -> mean wait per step, in one meeting per step."""
        out: Counter[tuple[int, int]] = Counter()
        last = self.arrive_ns.argmax(axis=0)
        for step, late in enumerate(last.tolist()):
            for rank in range(len(self.arrive_ns)):
                if rank != late:
                    out[rank, late] += float(self.arrive_ns[late, step] - self.arrive_ns[rank, step]) / len(last)
        return out


def clocks(folder: Path, config: Config) -> Clocks:
    """Clocks of a job."""
    ranks = [json.loads((folder / f"clock-{rank}.json").read_text())["steps"] for rank in range(config.ranks)]
    columns = {
        name: np.array([[row[name] for row in rank if row["step"] >= WARMUP_STEPS] for rank in ranks], dtype=np.int64)
        for name in ("begin_ns", "arrive_ns", "cpu_ns", "step")
    }
    return Clocks(columns["begin_ns"], columns["arrive_ns"], columns["cpu_ns"], columns["step"][0])


def record(config: Config, folder: Path) -> None:
    """Run a job under the recorder.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    launcher = harness.ROOT / "tests" / "ground_truth" / "launch_ranks.py"
    job = [str(Path(__file__).with_name("fault_job.py")), json.dumps(dataclasses.asdict(config)), str(folder)]
    command = [sys.executable, "-m", "stashtrace", "run", "--no-merge", "--out", str(folder / "run"), "--"]
    command += [sys.executable, str(launcher), "--ranks", str(config.ranks), "--", sys.executable, *job]
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT), OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{config}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)), encoding="utf-8")


def recorded(config: Config, folder: Path) -> Config | None:
    """The job whose recording is there, if it is this one, whatever its size came to."""
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
        found = Config(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        if dataclasses.replace(found, size_ms=0, file="") == dataclasses.replace(config, size_ms=0, file=""):
            return found
    return None


def loaded(folder: Path) -> Trace:
    """The recording of a job."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        return stashtrace.load(str(folder / "run"))


def named(trace: Trace) -> list[tuple[int, str, float]]:
    """(rank, cause, its straggler time in ns) of all ranks and steps after the warm-up, the costliest first."""
    causes = analyze(trace, "straggler_causes")
    causes = causes.take((causes["step"] >= WARMUP_STEPS) & (causes["cause_rank"] >= 0))
    stall: Counter[int] = Counter()
    for rank, ns in zip(causes["cause_rank"].tolist(), causes["stall_ns"].tolist(), strict=True):
        stall[rank] += ns
    late = analyze(trace, "late", top=1_000_000)
    late = late.take((late["step"] >= WARMUP_STEPS) & (late["late_rank"] >= 0))
    parts: Counter[tuple[int, str]] = Counter()
    of_rank: Counter[int] = Counter()
    for row in late.rows():
        parts[row["late_rank"], row["cause_kind"]] += row["total_wait_ns"]
        of_rank[row["late_rank"]] += row["total_wait_ns"]
    reported = [(rank, kind, stall[rank] * ns / of_rank[rank]) for (rank, kind), ns in parts.items() if of_rank[rank]]
    return sorted(reported, key=lambda row: -row[2])


def findings(trace: Trace) -> list[tuple[int, str]] | None:
    """(cause rank, cause) of the findings that name one, in order; None where there is no such analysis."""
    if not any(name == "findings" for name, _, _ in ANALYSES):
        return None
    table = analyze(trace, "findings")
    # That ranks alternate is not a cause; how long each waits for the other is judged by the waits.
    table = table.take((table["cause_rank"] >= 0) & ~np.isin(table["cause_kind"], ("alternates", "")))
    return list(zip(table["cause_rank"].tolist(), table["cause_kind"].tolist(), strict=True))


def judge_fault(name: str, config: Config, folder: Path) -> dict[str, Any]:
    """A row of the table of faults."""
    trace, clock = loaded(folder), clocks(folder, config)
    reported = named(trace)
    wanted = (config.rank, CAUSES[config.kind])
    places = [at for at, (rank, kind, _) in enumerate(reported) if (rank, kind) == wanted]
    hit = np.array([faulty(config, step) for step in clock.step.tolist()])
    behind = clock.behind_ns(config.rank)
    # What workers make late comes in bursts: no step is the typical one.
    bursts = config.kind in ("item", "disk", "prep") and config.workers > 0
    late_ns = float(behind.mean() if bursts else np.median(behind[hit]))
    said = findings(trace)
    return {
        "name": name,
        "config": dataclasses.asdict(config),
        "step_ms": float(clock.step_ns.mean()) / 1e6,
        "late_ms": late_ns / 1e6,
        "place": places[0] + 1 if places else 0,
        "rank_first": bool(reported) and reported[0][0] == config.rank,
        "named": [(rank, kind, ns / len(clock.step) / 1e6) for rank, kind, ns in reported[:3]],
        "findings_place": None if said is None else said.index(wanted) + 1 if wanted in said else 0,
    }


def judge_quiet(name: str, config: Config, folder: Path) -> dict[str, Any]:
    """A row of the table of quiet jobs: what was named, and which of it the clocks do not confirm."""
    trace, clock = loaded(folder), clocks(folder, config)
    alarms: list[str] = []
    claims = 0
    waits = clock.waits_ns()
    causes = analyze(trace, "straggler_causes")
    causes = causes.take((causes["step"] >= WARMUP_STEPS) & (causes["cause_rank"] >= 0))
    reported: Counter[tuple[int, int]] = Counter()
    for row in causes.rows():
        reported[row["rank"], row["cause_rank"]] += row["stall_ns"] / len(clock.step)
    for pair, ns in reported.items():
        claims += 1
        if abs(ns - waits[pair]) > _AGREES_RATIO * max(ns, waits[pair]) + _AGREES_NS:
            by_clock = f"by the clocks {waits[pair] / 1e6:.1f}"
            alarms.append(f"rank {pair[0]} waited {ns / 1e6:.1f} ms for rank {pair[1]}, {by_clock}")
    recurring = analyze(trace, "late_ranks")
    for row in recurring.rows():
        if row["verdict"] in ("always", "often"):
            claims += 1
            times, of = last_by_clock(clock, row["rank"])
            odds = config.ranks * chance(times, of, config.ranks)
            if odds >= 0.01:
                alarms.append(f"rank {row['rank']} is late {row['verdict']}, by the clocks in {times} of {of} steps")
    whole = sum(reported.values())
    for rank, kind, ns in named(trace):
        if whole and ns / len(clock.step) >= _NAMED_RATIO * whole:
            claims += 1
            part = ns / len(clock.step) / whole
            text = unconfirmed(clock, rank, kind)
            if text:
                alarms.append(f"rank {rank}, {kind} ({part:.0%} of the waits): {text}")
    said = findings(trace)
    for rank, kind in said or []:
        claims += 1
        text = unconfirmed(clock, rank, kind)
        if text:
            alarms.append(f"finding: rank {rank}, {kind}: {text}")
    return {
        "name": name,
        "config": dataclasses.asdict(config),
        "step_ms": float(clock.step_ns.mean()) / 1e6,
        "waits_ms": whole / 1e6,
        "claims_count": claims,
        "alarms": alarms,
        "verdicts": [(r["rank"], r["verdict"]) for r in recurring.rows()],
    }


def last_by_clock(clock: Clocks, rank: int) -> tuple[int, int]:
    """In how many of the steps that cost anything to speak of a rank was last, as ``late_ranks`` counts them."""
    cost = (clock.arrive_ns.max(axis=0) - clock.arrive_ns).sum(axis=0)
    matters = cost * 10 * len(cost) >= cost.sum()
    return int((clock.arrive_ns.argmax(axis=0)[matters] == rank).sum()), int(matters.sum())


def unconfirmed(clock: Clocks, rank: int, kind: str) -> str:
    """Why the clocks do not confirm a cause of a rank's lateness, empty if they do.

    In the steps in which it was last it must have computed longer than the median of the others, or been kept from its
    CPU longer, by a quarter of what it was late.
    """
    last = clock.arrive_ns.argmax(axis=0) == rank
    if not last.any():
        return "never last by the clocks"
    others = np.delete(np.arange(len(clock.arrive_ns)), rank)
    wall = clock.arrive_ns - clock.begin_ns

    def longer(spent: Any) -> float:
        return float((spent[rank] - np.median(spent[others], axis=0))[last].mean())

    late = float((clock.arrive_ns[rank] - np.median(clock.arrive_ns[others], axis=0))[last].mean())
    spent = {"compute": clock.cpu_ns, "cpu_contention": wall - clock.cpu_ns}
    if kind not in spent:
        return "nothing of the kind was done"
    more = longer(spent[kind])
    if more >= _NAMED_RATIO * late:
        return ""
    return f"{more / 1e6:.1f} ms more by the clocks, {late / 1e6:.1f} ms late"


def fair(row: dict[str, Any], spread_ms: float) -> bool:
    """Whether a fault is as large as it must be, by the clocks."""
    every = row["config"]["every"]
    return row["late_ms"] / every >= LEAST_RATIO * row["step_ms"] and row["late_ms"] >= SPREADS * spread_ms


def main() -> int:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the recordings, kept (default: a temporary one)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="jobs whose names begin so")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.runs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stashtrace-faults-")))
        folder.mkdir(parents=True, exist_ok=True)
        return run(folder.absolute(), options.only, options.out)


def run(folder: Path, only: list[str], out: Path) -> int:
    """The whole measure, with its recordings in a folder."""
    file = folder / "samples"
    if not file.exists():
        with open(file, "wb") as handle:
            for _ in range(FILE_BYTES >> 20):
                handle.write(os.urandom(1 << 20))
            handle.flush()
            os.fsync(handle.fileno())
    controls: dict[tuple[str, int], tuple[float, float]] = {}
    for loop, ranks in itertools.product(LOOPS, (2, 3, 4)):
        config, measured = Config(loop, ranks), []
        for again in ("", "-again"):
            control = folder / f"control-{loop}-{ranks}{again}"
            if recorded(config, control) is None:
                record(config, control)
            steps = clocks(control, config).step_ns / 1e6
            spread = 1.4826 * float(np.median(np.abs(steps - np.median(steps))))
            measured.append((spread, float(np.median(steps))))
        spread, step = min(measured)  # the spread of the loop, not that of what else the machine did
        controls[loop, ranks] = step, spread
        print(f"control-{loop}-{ranks}: step {step:.1f} ms, spread {spread:.2f} ms", flush=True)

    def chosen(name: str) -> bool:
        return not only or any(name.startswith(x) for x in only)

    faulty_rows: list[dict[str, Any]] = []
    small: list[str] = []
    for name, planned in faults(controls):
        if not chosen(name):
            continue
        config = dataclasses.replace(planned, file=str(file))
        spread = controls[config.loop, config.ranks][1]
        for attempt in range(_TRIES):
            before = recorded(config, folder / name)
            if before is None or attempt:
                record(config, folder / name)
            row = judge_fault(name, before if before and not attempt else config, folder / name)
            if fair(row, spread):
                break
            config = dataclasses.replace(config, size_ms=round(config.size_ms * 1.5, 1))
        else:
            small.append(name)
        row["spread_ms"] = spread
        faulty_rows.append(row)
        late = f"{row['late_ms']:.1f} of {row['step_ms']:.1f} ms"
        print(f"{name}: place {row['place']}, {late}, {row['named']}", flush=True)
    quiet_rows: list[dict[str, Any]] = []
    for name, config in quiet():
        if not chosen(name):
            continue
        if recorded(config, folder / name) is None:
            record(config, folder / name)
        row = judge_quiet(name, config, folder / name)
        quiet_rows.append(row)
        print(f"{name}: {row['claims_count']} claims {row['alarms']}", flush=True)
    first = sum(row["place"] == 1 for row in faulty_rows)
    second = sum(0 < row["place"] <= 2 for row in faulty_rows)
    false = sum(bool(row["alarms"]) for row in quiet_rows)
    print(f"first {first}, first two {second} of {len(faulty_rows)}; {false} of {len(quiet_rows)} with false alarms")
    if not only:
        write(faulty_rows, quiet_rows, small, out)
    bars = first >= FIRST_BAR and second >= FAULTS and not false and not small
    return 0 if only or bars else 1


def write(rows: list[dict[str, Any]], quiet_rows: list[dict[str, Any]], small: list[str], out: Path) -> None:
    """The page and the JSON."""
    command = "python benchmarks/bench_faults.py"
    figures = {
        "faults_count": len(rows),
        "first_count": sum(row["place"] == 1 for row in rows),
        "first_two_count": sum(0 < row["place"] <= 2 for row in rows),
        "rank_first_count": sum(row["rank_first"] for row in rows),
        "quiet_count": len(quiet_rows),
        "claims_count": sum(row["claims_count"] for row in quiet_rows),
        "quiet_with_false_alarms_count": sum(bool(row["alarms"]) for row in quiet_rows),
        "too_small": small,
    }
    if rows and rows[0]["findings_place"] is not None:
        figures["findings_first_count"] = sum(row["findings_place"] == 1 for row in rows)
        figures["findings_first_two_count"] = sum(0 < row["findings_place"] <= 2 for row in rows)
    for row in (*rows, *quiet_rows):
        row["config"].pop("file")
    reported = {"figures": figures, "faults": rows, "quiet": quiet_rows}
    path = harness.write_result("faults", reported, command=command, modules=("numpy", "torch"), folder=out)
    text = PAGE.format(
        bar=FIRST_BAR,
        **harness.page_facts(path),
    )
    text += f"**First in {figures['first_count']} of {len(rows)}, among the first two in {figures['first_two_count']}"
    text += f" (the rank alone first in {figures['rank_first_count']}); false alarms in"
    text += f" {figures['quiet_with_false_alarms_count']} of {len(quiet_rows)} quiet jobs"
    text += f" ({figures['claims_count']} claims checked).**\n"
    if "findings_first_count" in figures:
        text += f"\nBy `findings`: first in {figures['findings_first_count']}, among the first two in"
        text += f" {figures['findings_first_two_count']}.\n"
    if small:
        text += f"\nToo small by the clocks, {_TRIES} times: {', '.join(small)}.\n"
    text += "\n| fault | loop | ranks | workers | every | late rank | late ms | step ms | spread ms | wanted"
    text += " | named, ms a step | place |\n"
    text += "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    for row in rows:
        config = row["config"]
        said = "; ".join(f"rank {rank} {kind} {ms:.1f}" for rank, kind, ms in row["named"])
        cells = (
            config["kind"],
            config["loop"],
            config["ranks"],
            config["workers"],
            config["every"],
            config["rank"],
            f"{row['late_ms']:.1f}",
            f"{row['step_ms']:.1f}",
            f"{row['spread_ms']:.1f}",
            f"rank {config['rank']} {CAUSES[config['kind']]}",
            said,
            row["place"] or "none",
        )
        text += "| " + " | ".join(map(str, cells)) + " |\n"
    text += "\n| quiet job | step ms | waits ms | claims | not confirmed |\n|---|---|---|---|---|\n"
    for row in quiet_rows:
        cells = (
            row["name"].removeprefix("quiet-"),
            f"{row['step_ms']:.1f}",
            f"{row['waits_ms']:.1f}",
            row["claims_count"],
            "; ".join(row["alarms"]),
        )
        text += "| " + " | ".join(map(str, cells)) + " |\n"
    (out / "faults.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
