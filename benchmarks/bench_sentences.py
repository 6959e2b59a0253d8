"""Does a summary speak the truth? Each claim about jobs and traces whose facts are known, judged one by one.

    python benchmarks/bench_sentences.py [--only NAME ...] [--traces FOLDER] [--texts FOLDER] [--write]

A job's facts come from its clock of the same run, a foreign trace's from plain arithmetic on its raw files. Each
row of findings is a claim (kind, ranks, amount, cause, advice): true, true within its bounds, or false; rows that
nothing but the recording knows (own cost, stolen time, hidden communication) are left out. Bar: no false claim, and the
largest true stall is the first verdict in 58 of 60. --write puts results/sentences.md and
.json; --texts keeps the rendered summaries, to be read. Exit code 1 if the bar is missed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
from ground_truth import machine
from sentences import cases, check, record, traces

FRAMEWORKS = ("lightning", "accelerate", "transformers")
#: Largest stalls that may stand behind another verdict, of 60 cases.
NOT_FIRST_OF_60 = 2


@dataclass
class Outcome:
    """A case and the judgement on each of its claims."""

    name: str
    title: str
    checked: list[check.Checked] = field(default_factory=list)
    not_first: str = ""
    missed: list[str] = field(default_factory=list)
    truth: str = ""
    verdict: str = ""
    error: str = ""

    def count(self, result: str) -> int:
        """Claims with this result."""
        return sum(c.result == result for c in self.checked)


def main() -> int:
    """Run, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--traces", type=Path, default=harness.ROOT.parent / "shared" / "corpus")
    parser.add_argument("--texts", type=Path, default=None, metavar="FOLDER")
    parser.add_argument(
        "--keep", type=Path, default=None, metavar="FOLDER", help="keep the recordings here, judge those that are"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    missing: dict[str, str] = {}
    kept = 0
    with tempfile.TemporaryDirectory(prefix="stashtrace-sentences-") as folder:
        for case in [*cases.JOBS, *traces.of(options.traces)]:
            if options.only and case.name not in options.only:
                continue
            begin = time.monotonic()
            kept += bool(options.keep) and (options.keep / case.name / "run").exists()
            try:
                outcome = judge(case, (options.keep or Path(folder)) / case.name, Path(folder), options.texts)
            except machine.Missing as error:
                missing[case.name] = str(error)
                continue
            outcomes.append(outcome)
            print(line(outcome, time.monotonic() - begin), flush=True)
            if not options.keep:
                shutil.rmtree(Path(folder) / case.name, ignore_errors=True)
    print(totals(outcomes))
    if options.write:
        command = "python benchmarks/bench_sentences.py --write" + (" --keep FOLDER" if options.keep else "")
        write(outcomes, missing, command, kept)
    return 0 if good(outcomes) else 1


def judge(case: cases.Case | traces.Foreign, folder: Path, base: Path, texts: Path | None) -> Outcome:
    """Run or read a case and judge its claims; a case that fails is an outcome with an error."""
    outcome = Outcome(case.name, case.title)
    try:
        if isinstance(case, cases.Case):
            recorded = record.run(case, folder, images(base) if case.program == "example" else base)
        else:
            recorded = traces.read(case)
    except machine.Missing:
        raise
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        print(traceback.format_exc(), file=sys.stderr)
        return outcome
    outcome.checked = check.check(recorded.findings, recorded.evidence, recorded.truth, case.expected)
    outcome.not_first = check.first_verdict(recorded.findings, recorded.truth)
    outcome.missed = check.missed(recorded.findings, recorded.truth)
    outcome.truth, outcome.verdict = stalls_text(recorded), first_line(recorded.text)
    if texts is not None:
        texts.mkdir(parents=True, exist_ok=True)
        judged = "".join(f"{c}\n" for c in outcome.checked)
        head = f"{case.name}: {case.title}\ntruth: {outcome.truth}\n{judged}"
        (texts / f"{case.name}.txt").write_text(f"{head}\n{recorded.text}\n", encoding="utf-8")
    return outcome


def images(base: Path) -> Path:
    """The example's images, made once."""
    folder = base / "images"
    if not folder.exists():
        command = [sys.executable, str(record.EXAMPLE), "--data", str(folder), "--images", "400", "--image-size", "96"]
        subprocess.run([*command, "--generate-only"], check=True, timeout=300)
    return folder


def stalls_text(recorded: record.Recorded) -> str:
    """The largest true stalls, of the ranks that they hit hardest."""
    found = []
    for column in check.STALLS:
        worst = max(recorded.truth.ranks.values(), key=lambda r: r.share(column).low_ns, default=None)
        if worst is not None and worst.share(column).high_ns >= check.WORTH_RATIO:
            own, share = worst.columns[column], worst.share(column)
            wide = f" to {own.high_ns / 1e6:.3g}" if own.high_ns - own.low_ns > 0.05 * own.high_ns else ""
            found.append(
                (share.low_ns, f"{column} {own.low_ns / 1e6:.3g}{wide} ms ({share.low_ns:.0%}) on rank {worst.rank}")
            )
    found.sort(reverse=True)
    return "; ".join(text for _, text in found[:3]) or ("no stall" if recorded.truth.ranks else "no steps")


def first_line(text: str) -> str:
    """The first verdict as worded."""
    lines = text.splitlines()
    for number, line_ in enumerate(lines):
        if line_.lstrip().startswith("▶"):
            words = [line_.strip().removeprefix("▶").strip()]
            for more in lines[number + 1 :]:
                if not more.startswith("    ") or more.startswith("      "):
                    break
                words.append(more.strip())
            return " ".join(words)
    return ""


def line(outcome: Outcome, seconds: float) -> str:
    """A case on the terminal, what is wrong below it."""
    if outcome.error:
        return f"{outcome.name:18} ERROR {outcome.error}"
    counts = [outcome.count(r) for r in (check.TRUE, check.BOUNDS, check.FALSE)]
    text = f"{outcome.name:18} {seconds:4.0f} s  true {counts[0]}  within bounds {counts[1]}  false {counts[2]}"
    wrong = [f"    FALSE {c}" for c in outcome.checked if c.result == check.FALSE]
    wrong += [f"    FIRST {outcome.not_first}"] if outcome.not_first else []
    wrong += [f"    MISSED {m}" for m in outcome.missed]
    return "\n".join([text, *wrong])


def totals(outcomes: list[Outcome]) -> str:
    """One line about all."""
    counts = [sum(o.count(r) for o in outcomes) for r in (check.TRUE, check.BOUNDS, check.FALSE)]
    first = sum(not o.not_first and not o.error for o in outcomes)
    return (
        f"{len(outcomes)} cases, {sum(counts)} claims: {counts[0]} true, {counts[1]} true within their bounds,"
        f" {counts[2]} false; the largest stall first in {first}; {sum(bool(o.error) for o in outcomes)} failed"
    )


def good(outcomes: list[Outcome]) -> bool:
    """Whether the bar is met."""
    false = sum(o.count(check.FALSE) for o in outcomes) + sum(bool(o.error) for o in outcomes)
    return not false and sum(bool(o.not_first) for o in outcomes) * 60 <= NOT_FIRST_OF_60 * len(outcomes)


def write(outcomes: list[Outcome], missing: dict[str, str], command: str, kept: int) -> None:
    """results/sentences.md and .json; of ``kept`` jobs the recording was there before."""
    facts, versions = harness.machine(), harness.versions("torch", "numpy")
    loops = [f"{name} {metadata.version(name)}" for name in FRAMEWORKS if importlib.util.find_spec(name) is not None]
    lines = [
        "# The bench of sentences",
        "",
        (__doc__ or "").split("\n\n")[2].replace("\n", " ").split(" --write")[0],
        "",
        f"`{command}`, commit {versions['commit']}, {facts['cores_count']} cores of {facts['cpu']}"
        f"{' (virtual)' if facts['virtual'] else ''}, torch {versions['torch']}, {', '.join(loops) or 'no framework'},"
        f" load {facts['load_average'][0]}"
        f"{f'; {kept} recordings are of an earlier call with --keep, and were judged again' if kept else ''}",
        "",
        f"**{totals(outcomes)}**",
        "",
        "| case | what it is | first verdict | largest true stalls | claims | true | within bounds | false |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        counts = [o.count(r) for r in (check.TRUE, check.BOUNDS, check.FALSE)]
        cells = (o.name, o.title, o.error or o.verdict, o.truth, sum(counts), *counts)
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    wrong = [f"- {o.name}: {c}" for o in outcomes for c in o.checked if c.result == check.FALSE]
    wrong += [f"- {o.name}: not first: {o.not_first}" for o in outcomes if o.not_first]
    wrong += [f"- {o.name}: no verdict names {', '.join(o.missed)}" for o in outcomes if o.missed]
    wrong += [f"- {name}: not possible here: {reason}" for name, reason in missing.items()]
    lines += ["", "## What is wrong", "", *(wrong or ["Nothing."])]
    (harness.RESULTS / "sentences.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    figures = {
        "cases_count": len(outcomes),
        "claims_count": sum(len(o.checked) for o in outcomes),
        "true_count": sum(o.count(check.TRUE) for o in outcomes),
        "within_bounds_count": sum(o.count(check.BOUNDS) for o in outcomes),
        "false_count": sum(o.count(check.FALSE) for o in outcomes),
        "largest_first_count": sum(not o.not_first and not o.error for o in outcomes),
        "recorded_before_count": kept,
        "failed_count": sum(bool(o.error) for o in outcomes),
        "not_possible_here": missing,
    }
    harness.write_result("sentences", figures, command=command, modules=("torch", "numpy"))


if __name__ == "__main__":
    sys.exit(main())
