"""Does a summary name the cause? Jobs and made-up traces with a planted cause each, and some with none.

    python benchmarks/bench_causes.py [--only NAME ...] [--jobs N] [--write] [--follow] [--texts FOLDER]
                                      [--keep FOLDER [--summaries]]

A member is right if the first verdict of its summary names the planted cause in words of the field, blames its ranks
and nobody else, and each length of time in its first sentence is within 15 % of one that the job's own stopwatches
know; of two causes the other stands in a later verdict; a cause that is not the same in each step is said to be so; and
no sentence is false. A balanced member is right if its summary blames nobody. Lengths of a made-up trace are those of
the simulation that made it. --follow runs the repaired job too, where an entry names one, and says what it saved.
Some jobs need packages besides torch (lightning, transformers): STASHTRACE_CAUSES_PYTHON names the Python of an
environment that has them, else they are left out. --write puts results/causes.md and .json. Exit code 1 if a member is
not right.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeGuard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
from causes import foreign, judge, members, record, truth
from causes.foreign import Foreign
from causes.members import Job
from causes.plan import Truth

FAILED = "failed"
Member = Job | Foreign


@dataclass
class Judged:
    """A member, its summary and the judgement."""

    member: Member
    outcome: judge.Outcome
    truth: Truth | None = None
    text: str = ""
    rows: str = ""
    seconds: float | None = 0.0
    load: float | None = None
    followed: str = ""
    error: str = ""

    @property
    def sort(self) -> str:
        """Return "job" or "trace", planted or balanced."""
        kind = "job" if isinstance(self.member, Job) else "trace"
        return f"{kind}, {'planted' if self.member.plan.causes else 'balanced'}"

    @property
    def result(self) -> str:
        """Return the one word that counts."""
        return FAILED if self.error else self.outcome.result


@dataclass(frozen=True)
class Options:
    """The command line."""

    only: list[str] = field(default_factory=list)
    jobs: int = 1
    write: bool = False
    follow: bool = False
    texts: Path | None = None
    keep: Path | None = None
    summaries: bool = False


def parse_options() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of members at a time")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--follow", action="store_true", help="run the repaired jobs too")
    parser.add_argument("--texts", type=Path, metavar="FOLDER", help="leave the summaries and what is true here")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="leave the recordings here; judge those that are there again"
    )
    parser.add_argument("--summaries", action="store_true", help="judge the summaries that are there, too, with --keep")
    return Options(**vars(parser.parse_args()))


def main() -> int:
    """Run, judge, print and write."""
    options = parse_options()
    everything: list[Member] = [*members.JOBS, *foreign.TRACES]
    chosen = [member for member in everything if not options.only or member.name in options.only]
    unknown = set(options.only) - {member.name for member in everything}
    if unknown:
        print(f"no such member: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    left_out = [member for member in chosen if cannot_run(member, options.keep)]
    for member in left_out:
        print(f"{member.name} is left out: no {member.needs}, also not in ${record.VARIABLE}", file=sys.stderr)
    chosen = [member for member in chosen if member not in left_out]
    judged: list[Judged] = []
    with tempfile.TemporaryDirectory(prefix="stashtrace-causes-") as temporary:
        base = options.keep or Path(temporary)
        with ThreadPoolExecutor(options.jobs) as pool:
            for result in pool.map(lambda member: judge_member(member, base, options), chosen):
                judged.append(result)
                print(describe(result), flush=True)
    print(totals(judged))
    if options.write:
        kept = f" --keep FOLDER{' --summaries' * options.summaries}" if options.keep else ""
        write(judged, f"python benchmarks/bench_causes.py --write{kept}")
    return 0 if all(j.result == judge.RIGHT for j in judged) else 1


def cannot_run(member: Member, kept: Path | None) -> TypeGuard[Job]:
    """Return whether a job has to be recorded and needs a package that is not to be had."""
    recorded = kept is not None and (kept / member.name / "run").exists()
    return isinstance(member, Job) and not recorded and not record.interpreter(member.needs)


def judge_member(member: Member, base: Path, options: Options) -> Judged:
    """Record or write a member, and judge its summary; what fails is a judgement with an error."""
    folder = base / member.name
    result = Judged(member, judge.Outcome((), ""))
    try:
        if isinstance(member, Job):
            path = folder / "run"
            if not path.exists():
                measure_recording(member, folder)
            facts = json.loads((folder / "recording.json").read_text(encoding="utf-8"))
            result.seconds, result.load = facts["wall_s"], facts["load_average"]
            result.truth = truth.of_clocks(folder / "clock", member.plan.causes)
        else:
            path = folder / "traces"
            result.truth = foreign.write(member, path)
        result.text, result.rows = (summary_of(path, form, options.summaries) for form in ("text", "json"))
        unlike = judge.unlike_rows(result.text, result.rows)
        if unlike:
            raise ValueError(f"not in the JSON of the summary: {'; '.join(unlike)}")
        result.outcome = judge.judge(result.text, member.plan, result.truth)
        if options.follow and isinstance(member, Job) and member.repaired is not None:
            result.followed = follow(member, folder, result)
    except Exception as error:
        result.error = f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[-1]}"
        print(f"{member.name}: {traceback.format_exc()}", file=sys.stderr)
    if options.texts is not None:
        leave_texts(result, options.texts)
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def measure_recording(member: Job, folder: Path) -> None:
    """Record a job, and leave how long that took and how busy the machine was."""
    begin = time.monotonic()
    try:
        record.run(member, folder)
    finally:
        facts = {"wall_s": time.monotonic() - begin, "load_average": os.getloadavg()[0]}
        (folder / "recording.json").write_text(json.dumps(facts), encoding="utf-8")


def summary_of(path: Path, form: str, again: bool) -> str:
    """Return the summary of a recording, and leave it next to it; ``again`` takes the one that is there."""
    file = path.with_name(f"summary.{form}")
    if not (again and file.exists()):
        file.write_text(record.summarize(path, form), encoding="utf-8")
    return file.read_text(encoding="utf-8").replace(str(path), "RUN")


def follow(member: Job, folder: Path, result: Judged) -> str:
    """Run the repaired job, and say what it saved and what the summary promised."""
    try:
        # It is recorded too, so that what the tracer costs stands on both sides.
        shutil.rmtree(folder / "repaired", ignore_errors=True)
        record.run(replace(member, arguments=member.repaired or ""), folder / "repaired")
    except RuntimeError as error:  # says nothing of the recording, which is judged all the same
        return f"the repaired job failed: {str(error).splitlines()[0]}"
    before = result.truth.step_ms if result.truth else 0.0
    after = truth.of_clocks(folder / "repaired" / "clock", ()).step_ms
    advice = re.search(r"do first:?\s*(.*?)(?:\n\s*\n|\Z)", result.text, re.S)
    said = re.sub(r"\s+", " ", advice.group(1)).strip() if advice else "no advice"
    return f"{before:.3g} ms a step, repaired {after:.3g} ms ({1 - after / before:.0%} less); said: {said}"


def leave_texts(result: Judged, folder: Path) -> None:
    """Leave a summary as text and as JSON, and above it what is true."""
    folder.mkdir(parents=True, exist_ok=True)
    name = result.member.name
    head = [f"{name}: {result.member.title}", f"result: {', '.join(result.outcome.faults) or result.result}"]
    head += [f"error: {result.error}"] if result.error else []
    head += [f"true: {line}" for line in true_lines(result)]
    head += [f"wrong: {sentence}" for sentence in result.outcome.wrong]
    (folder / f"{name}.txt").write_text("\n".join([*head, "", result.text]), encoding="utf-8")
    (folder / f"{name}.json").write_text(result.rows, encoding="utf-8")


def true_lines(result: Judged) -> list[str]:
    """Return what is true of a member, a line per cause."""
    causes = result.member.plan.causes
    if not causes:
        return ["nothing is planted"]
    lines = []
    for number, cause in enumerate(causes):
        amounts = result.truth.amounts[number] if result.truth and number < len(result.truth.amounts) else {}
        figures = ", ".join(f"{label} {ms:.3g} ms" for label, ms in amounts.items())
        lines.append(f"{cause.kind} of rank {', '.join(map(str, cause.ranks))}: {figures or 'no amount'}")
    return lines


def describe(result: Judged) -> str:
    """Return a member on the terminal; what is wrong, and what needs a reader, stands below it."""
    lines = [
        f"{result.member.name:20} {result.seconds or 0:4.0f} s  {', '.join(result.outcome.faults) or result.result}"
    ]
    if result.result != judge.RIGHT:
        lines += [f"    true: {line}" for line in true_lines(result)]
        lines += [f"    said: {result.error or result.outcome.first}"]
        lines += [f"    wrong: {sentence}" for sentence in result.outcome.wrong]
    if judge.READER in result.outcome.faults:
        lines += [f"    | {line}" for line in result.text.splitlines()]
    lines += [f"    followed: {result.followed}"] if result.followed else []
    return "\n".join(lines)


def totals(judged: Sequence[Judged]) -> str:
    """Return how many of each sort are right, and what is wrong with the others."""
    lines = []
    for sort in sorted({j.sort for j in judged}):
        of_sort = [j for j in judged if j.sort == sort]
        results = Counter(j.result for j in of_sort)
        wrong = ", ".join(f"{result} {count}" for result, count in results.most_common() if result != judge.RIGHT)
        lines.append(f"{sort}: {results[judge.RIGHT]} of {len(of_sort)} right{f' ({wrong})' if wrong else ''}")
    return "\n".join(lines)


def loads(judged: Sequence[Judged]) -> str:
    """Return how busy the machine was while the jobs ran."""
    known = [j.load for j in judged if j.load is not None]
    unknown = sum(isinstance(j.member, Job) and j.load is None for j in judged)
    text = f"load {min(known):.1f} to {max(known):.1f} while {len(known)} jobs ran" if known else "load not known"
    return text + (f", not noted for {unknown}" if known and unknown else "")


def write(judged: Sequence[Judged], command: str) -> None:
    """Write results/causes.md and .json."""
    facts, versions = harness.machine(), harness.versions("torch", "numpy")
    lines = [
        "# The bench of causes",
        "",
        " ".join((__doc__ or "").split("\n\n")[2].split(" --follow")[0].split()),
        "",
        f"`{command}`, commit {versions['commit']}, {facts['cores_count']} cores of {facts['cpu']}"
        f"{' (virtual)' if facts['virtual'] else ''}, torch {versions['torch']}, {loads(judged)}",
        "",
        *[f"- {line}" for line in totals(judged).splitlines()],
        "",
        "| member | what it is | result | first verdict | true |",
        "|---|---|---|---|---|",
    ]
    for result in judged:
        said = result.error or result.outcome.first
        faults = ", ".join(result.outcome.faults) or result.result
        cells = (result.member.name, result.member.title, faults, said, "; ".join(true_lines(result)))
        lines.append("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |")
    wrong = [f"- {j.member.name}: {sentence}" for j in judged for sentence in j.outcome.wrong]
    lines += ["", "## Sentences that are false", "", *(wrong or ["None."])]
    followed = [f"- {j.member.name}: {j.followed}" for j in judged if j.followed]
    lines += ["", "## Advice that was followed", "", *followed] if followed else []
    (harness.RESULTS / "causes.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    figures = {
        "members": {
            j.member.name: {
                "sort": j.sort,
                "result": j.result,
                "faults": list(j.outcome.faults),
                "first": j.outcome.first,
                "wrong": list(j.outcome.wrong),
                "wall_s": j.seconds,
                "load_average": j.load,
                **({"followed": j.followed} if j.followed else {}),
            }
            for j in judged
        },
        "right_count": sum(j.result == judge.RIGHT for j in judged),
        "members_count": len(judged),
    }
    harness.write_result("causes", figures, command=command, modules=("torch", "numpy"))


if __name__ == "__main__":
    sys.exit(main())
