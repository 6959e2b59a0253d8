"""Slow steps: false alarms of made-up balanced jobs, and the share of planted long steps that are found.

    python benchmarks/bench_spikes.py [--steps 10000] [--seeds 0:5] [--only NAME ...]

Each job is a series of steps of several ranks, made by seed: every rank works (computes, waits for batches, runs host
Python ...), the others wait for the last one, then all transfer. Data of varying lengths, noise of several shapes,
drift, warm-up, evaluation and checkpoints are planned: none of their steps is slow. A plant is extra time of one kind
on the rank that the others wait for, in one of about 100 steps. Its size is given in widths of the noise: the range of
95 % of what the noise alone adds to the length of a step. Bars: at most one false alarm in 10,000 steps of every job,
and of plants of three widths 95 % are found, with rank and kind, and with their amount to a third. The search judges by
noise alone here: that less than a part of a step is not worth a word, it leaves out.

The jobs were written before the search for slow steps was, and it was made on other seeds (from 1000 on) than those
that judge (from 0 on). Writes results/spikes.md and .json; exit code 1 if a bar is missed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(harness.ROOT))

from stashtrace.analysis.findings.spikes.policy import POLICY
from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS, STEP_TIMES, SlowStep, SlowSteps
from stashtrace.schema.table import Table

Floats = npt.NDArray[np.float64]
MS = 1_000_000
#: Mean and noise of each kind of a rank's time, and of the transfer that all ranks have, in ms.
WORK = {"compute": (100.0, 1.0), "prep": (2.0, 0.5), "fetch": (0.2, 0.3), "python": (5.0, 0.3), "other": (1.0, 0.2)}
LINK = (10.0, 0.5)
#: Kinds that extra time is planted in; of compute apart, where the size of each batch is known.
PLANTED = ("prep", "fetch", "python", "other", "network")
WIDTHS = (1.0, 2.0, 3.0, 5.0, 10.0)
PLANT_EVERY, FIRST_PLANT = 100, 600
FALSE_AT_MOST, FOUND_AT_LEAST, BAR_WIDTHS = 1e-4, 0.95, 3.0
#: Number of steps that come at once, as they do in a job that is followed.
CHUNK = 50
#: An amount is right if it differs from the planted one by less than this part of it.
AMOUNT_RATIO = 1 / 3


@dataclass(frozen=True)
class Job:
    """A made-up job; all that is not noise is planned."""

    name: str
    about: str
    ranks: int = 4
    #: Draws noise of mean 0 and about unit width, by generator and shape.
    noise: str = "normal"
    #: Draws by how much the data of each step and rank is longer than usual.
    data: Callable[[np.random.Generator, int, int], Floats] | None = None
    #: Whether the size of each batch is known, and follows the data.
    sizes: str = ""
    micro_batches: int = 1
    drift: float = 0.0
    warm_up: bool = False
    #: Steps between two of them: an evaluation whose steps are seen as such, one that nothing marks, a checkpoint.
    evaluation: int = 0
    unmarked: int = 0
    saves: int = 0
    noise_scale: float = 1.0
    #: A job that looks like one with slow steps: its alarms are shown, and no bar holds for them.
    barred: bool = True


def same_lengths(sigma: float) -> Callable[[np.random.Generator, int, int], Floats]:
    """Lengths of a log-normal distribution, the same on all ranks of a step."""
    return lambda draw, steps, ranks: np.repeat(draw.lognormal(0, sigma, (steps, 1)), ranks, axis=1)


def apart(sigma: float) -> Callable[[np.random.Generator, int, int], Floats]:
    """Lengths of a log-normal distribution, other ones for each rank."""
    return lambda draw, steps, ranks: draw.lognormal(0, sigma, (steps, ranks))


def two(share: float, factor: float) -> Callable[[np.random.Generator, int, int], Floats]:
    """Two lengths; so large a share of the steps of each rank has the longer one."""
    return lambda draw, steps, ranks: np.where(draw.random((steps, ranks)) < share, factor, 1.0)


JOBS = (
    Job("normal", "the same work in each step, normal noise"),
    Job("exponential", "noise with an exponential tail", noise="exponential"),
    Job("student", "noise with a heavy tail: Student's t with 4 degrees of freedom", noise="student"),
    Job("log-normal noise", "noise with a heavy tail: log-normal, sigma 0.8", noise="lognormal"),
    Job("lasting", "noise that lasts: each step keeps 0.95 of it", noise="lasting"),
    Job("quiet", "noise a hundredth of the usual", noise_scale=0.01),
    Job("lengths alike", "sequence lengths log-normal, sigma 0.4, the same on all ranks", data=same_lengths(0.4)),
    Job("lengths apart", "sequence lengths log-normal, sigma 0.4, other lengths on each rank", data=apart(0.4)),
    Job("lengths wide", "the same with sigma 0.8", data=apart(0.8)),
    Job("lengths two", "two sequence lengths: 10 % of the batches of a rank are 3 times as long", data=two(0.1, 3.0)),
    Job("lengths rare", "1 % of the batches of a rank are 3 times as long", data=two(0.01, 3.0)),
    Job("lengths told", "lengths apart, and the size of each batch is known", data=apart(0.4), sizes="tokens"),
    Job("samples told", "lengths apart, all batches of equal numbers of samples", data=apart(0.4), sizes="samples"),
    Job("accumulation", "lengths apart, 4 micro-batches a step", data=apart(0.4), micro_batches=4),
    Job("drift", "all work grows by 60 % over the run", drift=0.6),
    Job("warm-up", "the first steps are up to 20 times as long", warm_up=True),
    Job("evaluation", "ten evaluation steps after every 100 steps; the loader begins again after them", evaluation=100),
    Job("checkpoint", "rank 0 saves for 300 ms, give or take 20 %, every 50 steps", saves=50),
    Job("one rank", "one rank, lengths log-normal", ranks=1, data=apart(0.4)),
    Job("many ranks", "32 ranks, lengths apart", ranks=32, data=apart(0.4)),
    Job(
        "unmarked",
        "every 100th step evaluates for 600 ms, and nothing marks it: reported until it is known to come back",
        unmarked=100,
        barred=False,
    ),
)


def drawn(draw: np.random.Generator, shape: tuple[int, ...], how: str) -> Floats:
    """Noise of mean 0 and about the width of a normal one of deviation 1."""
    if how == "normal":
        return draw.standard_normal(shape)
    if how == "exponential":
        return draw.exponential(1.0, shape) - 1.0
    if how == "student":
        return np.asarray(draw.standard_t(4, shape) / np.sqrt(2.0))
    if how == "lognormal":
        return np.asarray((draw.lognormal(0, 0.8, shape) - np.exp(0.32)) / 1.3)
    out, now, fresh = np.empty(shape), draw.standard_normal(shape[1:]), draw.standard_normal(shape)
    for step in range(shape[0]):
        now = 0.95 * now + np.sqrt(1 - 0.95**2) * fresh[step]
        out[step] = now
    return out


class Made:
    """The steps of a job: time of each kind by step and rank, in ms."""

    def __init__(
        self, work: dict[str, Floats], link: Floats, kind: npt.NDArray[np.str_], samples: Floats | None
    ) -> None:
        self.work, self.link, self.kind, self.samples = work, link, kind, samples
        #: Work of each rank before it meets the others, and the length of each step on all ranks.
        self.own: Floats = np.sum(list(work.values()), axis=0)
        self.length: Floats = self.own.max(axis=1) + link
        self._ends_ns = np.cumsum((self.length * MS).astype(np.int64))

    def table(self, begin: int, end: int) -> tuple[Table, Floats | None]:
        """Rows of some steps, as the analyses make them."""
        own = self.own[begin:end]
        steps, ranks = own.shape
        last = own.argmax(axis=1)
        waits = own.max(axis=1)[:, None] - own
        length = (self.length[begin:end] * MS).astype(np.int64)
        ends = self._ends_ns[begin:end]
        columns: dict[str, Any] = {name: np.zeros(steps * ranks, dtype=np.int64) for name in KIND_COLUMNS.values()}
        for kind, spent in self.work.items():
            columns[KIND_COLUMNS[kind]] = (spent[begin:end] * MS).astype(np.int64).ravel()
        columns[KIND_COLUMNS["network"]] = np.repeat((self.link[begin:end] * MS).astype(np.int64), ranks)
        columns[KIND_COLUMNS["straggler"]] = (waits * MS).astype(np.int64).ravel()
        columns |= {
            "rank": np.tile(np.arange(ranks), steps),
            "step": np.repeat(np.arange(begin, end), ranks),
            "step_kind": np.repeat(self.kind[begin:end], ranks),
            "begin_ns": np.repeat(ends - length, ranks),
            "end_ns": np.repeat(ends, ranks),
            "cause_rank": np.where(waits > 0, last[:, None], -1).ravel(),
        }
        samples = None if self.samples is None else self.samples[begin:end].ravel()
        return Table(STEP_TIMES, columns), samples


def made(job: Job, steps: int, seed: int, *, noisy: bool = True) -> Made:
    """Make the steps of a job; without noise, all that is planned stays the same."""
    planned, noise = np.random.default_rng((seed, 1)), np.random.default_rng((seed, 2))
    parts = [
        np.ones((steps, job.ranks)) if job.data is None else job.data(planned, steps, job.ranks)
        for _ in range(job.micro_batches)
    ]
    data = np.mean(parts, axis=0)
    scale = (1.0 + job.drift * np.arange(steps) / steps)[:, None]
    if job.warm_up:
        scale = scale * (1 + 4 * np.exp(-np.arange(steps) / 10) + 15 * (np.arange(steps) < 3))[:, None]
    width = job.noise_scale * noisy
    work = {}
    for kind, (mean, wide) in WORK.items():
        grows = data if kind == "compute" else 0.7 + 0.3 * data if kind == "prep" else 1.0
        rest = wide * width * drawn(noise, (steps, job.ranks), job.noise)
        work[kind] = np.maximum(mean * grows * scale + rest * scale, 0.0)
    link = np.maximum((LINK[0] + LINK[1] * width * drawn(noise, (steps, 1), job.noise)[:, 0]) * scale[:, 0], 0.0)
    step_kind = np.full(steps, "train", dtype="U16")
    place = np.arange(steps)
    if job.evaluation:
        since = place % (job.evaluation + 10)
        quiet = since >= job.evaluation
        step_kind[quiet] = "validation"
        work["compute"][quiet] *= 0.35
        work["fetch"][(since == 0) & (place > 0)] += 30.0
    if job.unmarked:
        work["other"][place % job.unmarked == job.unmarked - 1] += 600.0
    if job.saves:
        work["checkpoint"] = np.zeros((steps, job.ranks))
        saving = place % job.saves == job.saves - 1
        work["checkpoint"][saving, 0] = 300.0 * (1 + 0.2 * planned.uniform(-1, 1, np.count_nonzero(saving)))
    reported = {"tokens": np.round(1000 * data), "samples": np.full(data.shape, 8.0)}
    return Made(work, link, step_kind, reported.get(job.sizes))


def noise_width(job: Job, steps: int, seed: int) -> Floats:
    """The range of 95 % of what noise adds to the steps of a job, in ms."""
    added = made(job, steps, seed).length - made(job, steps, seed, noisy=False).length
    low, high = np.quantile(added, (0.025, 0.975))
    return np.asarray(high - low)


def searched(steps: Made) -> list[SlowStep]:
    """What the search says, a few steps at a time."""
    search, found = SlowSteps(worth_ratio=0.0), list[SlowStep]()
    for begin in range(0, len(steps.kind), CHUNK):
        found += search.add(*steps.table(begin, min(begin + CHUNK, len(steps.kind))))
    return found


def alarms(found: list[SlowStep]) -> list[SlowStep]:
    """Slow steps that would be reported while the job runs: without those that come back at a regular distance."""
    return [slow for slow in found if not slow.every_count]


@dataclass(frozen=True)
class Plant:
    """Extra time of a rank and kind in a step, in ms."""

    step: int
    rank: int
    kind: str
    extra: float


def plant(job: Job, steps: int, seed: int, widths: float, kinds: tuple[str, ...]) -> tuple[Made, list[Plant]]:
    """The job with extra time in some of its steps, each on the rank that the others wait for."""
    out, draw, extra = made(job, steps, seed), np.random.default_rng((seed, 3)), widths * noise_width(job, steps, seed)
    work = {kind: spent.copy() for kind, spent in out.work.items()}
    link, last, planted = out.link.copy(), out.own.argmax(axis=1), []
    for place in range(FIRST_PLANT, steps - 1, PLANT_EVERY):
        step = place + int(draw.integers(0, PLANT_EVERY // 2))
        kind = kinds[int(draw.integers(0, len(kinds)))]
        busy = "checkpoint" in work and work["checkpoint"][min(step, steps - 1)].any()
        if step >= steps or out.kind[step] != "train" or busy:
            continue
        rank = int(last[step])
        if kind == "network":
            link[step] += extra
        else:
            work[kind][step, rank] += extra
        planted.append(Plant(step, rank, kind, float(extra)))
    return Made(work, link, out.kind, out.samples), planted


def found_shares(job: Job, steps: int, seeds: range, widths: float, kinds: tuple[str, ...]) -> dict[str, float]:
    """Share of the plants that are found, that are found with rank and kind, and of these with their amount."""
    count = seen = whose = much = 0
    for seed in seeds:
        table, planted = plant(job, steps, seed, widths, kinds)
        by_step = {slow.step: slow for slow in searched(table)}
        for one in planted:
            count += 1
            slow = by_step.get(one.step)
            seen += slow is not None
            right = slow is not None and slow.kind == one.kind and (one.kind == "network" or slow.rank == one.rank)
            whose += right
            much += right and abs(slow.extra_ns / MS - one.extra) < AMOUNT_RATIO * one.extra if slow else False
    return {
        "plants_count": count,
        "found_ratio": seen / count,
        "whose_ratio": whose / count,
        "right_ratio": much / count,
    }


def judged(job: Job, steps: int, seeds: range) -> dict[str, Any]:
    """All figures of a job."""
    begin, reported, steps_count = time.perf_counter(), 0, 0
    for seed in seeds:
        reported += len(alarms(searched(made(job, steps, seed))))
        steps_count += steps
    row: dict[str, Any] = {
        "about": job.about,
        "barred": job.barred,
        "steps_count": steps_count,
        "false_count": reported,
        "false_per_10000": 1e4 * reported / steps_count,
        "us_per_step": 1e6 * (time.perf_counter() - begin) / steps_count,
        "noise_width_ms": float(np.mean([noise_width(job, steps, seed) for seed in seeds])),
    }
    few = range(seeds.start, min(seeds.start + 2, seeds.stop))
    row["planted"] = {f"{widths:g}": found_shares(job, steps, few, widths, PLANTED) for widths in WIDTHS}
    if job.sizes == "tokens" or job.data is None:
        row["planted_compute"] = {
            f"{widths:g}": found_shares(job, steps, few, widths, ("compute",)) for widths in WIDTHS
        }
    return row


def missed(row: dict[str, Any]) -> list[str]:
    """The bars that a job misses."""
    if not row["barred"]:
        return []
    out = [] if row["false_count"] <= FALSE_AT_MOST * row["steps_count"] else ["false alarms"]
    return out + ([] if row["planted"][f"{BAR_WIDTHS:g}"]["right_ratio"] >= FOUND_AT_LEAST else ["found"])


PAGE = """\
# Slow steps: false alarms, and planted ones that are found

Made-up jobs by seed (`benchmarks/bench_spikes.py` says how), {steps} steps of about 120 ms for each of {seeds} seeds.
The jobs were written before the search, which was made on other seeds. A false alarm is a step that is called slow
although all in it is planned, or noise. A plant is extra time of one kind (waits for batches, storage, host Python,
other time, transfer) in one of 100 steps, on the rank that the others wait for; its size is given in widths of the
noise, each the range of 95 % of what noise adds to the length of a step. It is found if the step, the rank, the kind
and the amount (to a third) are right. The search judges by noise alone here; by default it also passes over what is
less than {worth:g} % of a step. Bars: at most 1 false alarm in 10,000 steps, and 95 % of plants of 3 widths found.

`{command}`, {date}, Python {python}

"""


COMPUTE = """\
Plants in compute. Where the size of each batch is known (`lengths told`), each of them is to be found. Where it is not,
long computing may be the data: only the first one is reported, as the same length again is no longer beyond all
that was seen.\
"""


def page(rows: dict[str, dict[str, Any]], facts: dict[str, Any]) -> str:
    """The page of results."""
    head = "| job | | noise, ms | false alarms in 10,000 | " + " | ".join(f"{w:g}" for w in WIDTHS) + " | us a step |"
    lines = [
        PAGE.format(**facts) + "Found, % of the plants by their number of widths:\n",
        head,
        "|---" * (5 + len(WIDTHS)) + "|",
    ]
    for name, row in rows.items():
        shares = " | ".join(f"{100 * row['planted'][f'{w:g}']['right_ratio']:.0f}" for w in WIDTHS)
        false = f"{row['false_per_10000']:.1f}" + ("" if row["barred"] else " (no bar)")
        lines.append(
            f"| {name} | {row['about']} | {row['noise_width_ms']:.2f} | {false} | {shares} | {row['us_per_step']:.0f} |"
        )
    lines += ["", COMPUTE, ""]
    lines += ["| job | " + " | ".join(f"{w:g}" for w in WIDTHS) + " |", "|---" * (1 + len(WIDTHS)) + "|"]
    for name, row in rows.items():
        if "planted_compute" in row:
            shares = " | ".join(f"{100 * row['planted_compute'][f'{w:g}']['right_ratio']:.0f}" for w in WIDTHS)
            lines.append(f"| {name} | {shares} |")
    misses = [f"{name}: {', '.join(missed(row))}" for name, row in rows.items() if missed(row)]
    lines += ["", "Bars missed: " + ("; ".join(misses) if misses else "none") + "."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Judge all jobs and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seeds", default="0:5", help="first and behind the last")
    parser.add_argument("--only", nargs="+", choices=[job.name for job in JOBS])
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    seeds = range(*map(int, options.seeds.split(":")))
    rows = {}
    for job in JOBS:
        if options.only and job.name not in options.only:
            continue
        rows[job.name] = row = judged(job, options.steps, seeds)
        shares = {w: round(100 * found["right_ratio"]) for w, found in row["planted"].items()}
        compute = {w: round(100 * found["right_ratio"]) for w, found in row.get("planted_compute", {}).items()}
        print(
            f"{job.name:18} false {row['false_per_10000']:5.1f}  right {shares}  compute {compute}"
            f"  {row['us_per_step']:.0f} us a step  {' '.join(missed(row))}",
            flush=True,
        )
    command = f"python benchmarks/bench_spikes.py --steps {options.steps} --seeds {options.seeds}"
    if not options.only:
        harness.write_result("spikes", rows, command=command, folder=options.out)
        versions = harness.versions()
        facts = {
            "steps": f"{options.steps:,}",
            "seeds": len(seeds),
            "worth": 100 * POLICY.worth_ratio,
            "command": command,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "python": versions["python"],
        }
        (options.out / "spikes.md").write_text(page(rows, facts), encoding="utf-8")
    return int(any(missed(row) for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
