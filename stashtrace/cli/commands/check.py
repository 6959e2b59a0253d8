"""``stashtrace check RUN --against BASELINE``: is a run worse than the baseline, not worse, or inconclusive?"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stashtrace.cli.comparison_sides import DEFAULT_FOLDER, check_name, name_of, save, side_of
from stashtrace.cli.option_values import read_percent, read_whole
from stashtrace.cli.parsing import (
    NEWEST,
    RUN_OR_FILES,
    TEXT_FORMATS,
    Parser,
    add_flag,
    add_repeated,
    add_value,
    runs_or_newest,
    split_at_dashes,
)
from stashtrace.cli.print_results import ignore_broken_pipe, open_output, print_answer, print_lines, write_output
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError
from stashtrace.text.prose import count_noun
from stashtrace.text.visible import visible_line

if TYPE_CHECKING:
    import argparse

    from stashtrace.analysis.compare.change import Side
    from stashtrace.analysis.compare.gate_verdict import Gate
    from stashtrace.summary.gate_text import Command

_DESCRIPTION = """Say whether runs are worse than earlier ones, by intervals. KIND+N% allows the
mean of a kind of time over ranks and steps to grow by N % of the step before,
step+N% the step itself; KIND is a column of the summary (data, link, late) or
a part of one (prep, network), by its word or its id (straggler). Exit
codes: 0 not worse, 1 worse beyond doubt, 4 not comparable, 5 inconclusive."""
_EPILOG = """BASELINE is a name in the folder of --baselines, a baseline file, a run
directory, or the URL of one of these. With --rerun, the job before (--before,
--before-dir) and COMMAND are recorded alternately, N times each, in an order
that changes.

examples:
  stashtrace check ./stash-new --save-baseline main
  stashtrace check ./stash-new --against main --fail-if 'step+5%'
  stashtrace check --rerun 3 --before-dir ../main -- torchrun train.py"""
#: Where the version before belongs if both were recorded in one folder.
_BEFORE_FOLDER = "../before"
_HINT = "`stashtrace check --help` shows the options"


def parser() -> Parser:
    """Return the parser of ``stashtrace check``."""
    from stashtrace.analysis.compare.job_identity import DECIDING

    parser = Parser(
        "check",
        _DESCRIPTION,
        _EPILOG,
        usage="stashtrace check [options] [RUN ...] --against BASELINE\n"
        "       stashtrace check [options] --rerun N [--before CMD] -- COMMAND [ARG ...]",
    )
    what = f"{RUN_OR_FILES}; several are runs of one job (default: {NEWEST})"
    parser.add_argument("runs", metavar="RUN", nargs="*", help=what)
    add_repeated(parser, "--against", "BASELINE", "what was before; may be given again for more runs")
    add_repeated(parser, "--fail-if", "KIND+N%", "growth that is too much; may be given again (default step+5%%)")
    add_repeated(parser, "--allow", "FIELD", "compare although this differs", choices=DECIDING)
    allowance = "run-to-run allowance, in percent of the step, with fewer than three runs a side (default 2)"
    add_value(parser, "--allowance", "PERCENT", allowance, read_percent)
    add_value(parser, "--baselines", "DIR", f"folder of baselines (default {DEFAULT_FOLDER})", default=DEFAULT_FOLDER)
    add_value(parser, "--save-baseline", "NAME", "keep the runs as a baseline; with --against, if not worse")
    rerun = parser.add_argument_group("recording alternately")
    add_value(rerun, "--rerun", "N", "record N times", read_whole)
    add_value(rerun, "--before", "CMD", "command of the job before (default: COMMAND)")
    add_value(rerun, "--before-dir", "DIR", "folder in which the job before runs, such as a git worktree")
    parser.add_out("DIR", "folder for the runs of --rerun (default: ./check-MMDD-HHMMSS)")
    answers = parser.add_argument_group("answers")
    parser.add_format(TEXT_FORMATS)
    add_value(answers, "--junit", "FILE", "write a JUnit XML file")
    add_flag(answers, "--annotate", "print annotations of GitHub (default where GITHUB_ACTIONS is true)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Compare, answer in every form that was asked for, and return the exit code of the verdict."""
    words, command = split_at_dashes(argv)
    given = parser().read(words)
    _check(given, command)

    from stashtrace.analysis.compare.change import RUN_TO_RUN_RATIO
    from stashtrace.analysis.compare.gate_verdict import DEFAULT_CONDITION, Condition, judge

    conditions = [Condition.of(text) for text in given.fail_if or [DEFAULT_CONDITION]]
    screen = Screen()
    before, after = _sides(given, command, screen)
    if before is None:
        screen.say(f"saved {save(given.save_baseline, after.runs, given.baselines)}: {_runs(after)}")
        return 0
    gate = judge(
        before,
        after,
        conditions,
        allowed=given.allow,
        allowance_ratio=RUN_TO_RUN_RATIO if given.allowance is None else given.allowance / 100,
        by_turns=given.rerun is not None and not given.against,
    )
    command_line = _command_that_decides(gate, given)
    _write_files(gate, command_line, given, screen)
    with ignore_broken_pipe():
        _answer(gate, command_line, given, screen)
    if given.save_baseline and gate.exit_code == 0:
        screen.say(f"saved {save(given.save_baseline, after.runs, given.baselines)}: {_runs(after)}")
    elif given.save_baseline:
        screen.say(f"not saved as {given.save_baseline}: {gate.verdict}")
    return gate.exit_code


def _command_that_decides(gate: Gate, given: argparse.Namespace) -> Command | None:
    """Return a command that records both jobs alternately, so often that they are likely to differ clearly.

    None if nothing is to be decided, no reasonable number of runs would do, or the recordings hold no commands that can
    be run again here.
    """
    from stashtrace.summary.gate_text import Command

    rounds = max((one.needs.runs_count for one in gate.judged if one.verdict == "inconclusive"), default=0)
    before, after = _job_of(gate.before), _job_of(gate.after)
    if gate.verdict != "inconclusive" or not rounds or before is None or after is None:
        return None
    (old, old_directory), (command, directory) = before, after
    if old == command and any(word.startswith("/") and word.endswith(".py") for word in command):
        return None  # it would start this very script for both versions
    words, folder = ["stashtrace", "check", "--rerun", str(rounds)], ""
    if old != command:
        words += ["--before", shlex.join(old)]
    if old_directory != directory:
        words += ["--before-dir", old_directory]
    elif old == command:
        folder = _BEFORE_FOLDER
        words += ["--before-dir", folder]
    for one in gate.judged:
        words += ["--fail-if", str(one.condition)]
    for field in given.allow:
        words += ["--allow", field]
    if given.allowance is not None:
        words += ["--allowance", f"{given.allowance:g}"]
    text = shlex.join([*words, "--", *command])
    if Path(directory) != Path.cwd():
        text = f"cd {shlex.quote(directory)} && {text}"
    # What a terminal would obey, or not show, cannot be copied from it.
    return Command(text, folder) if visible_line(text) == text else None


def _job_of(side: Side) -> tuple[tuple[str, ...], str] | None:
    """Return the command of all runs of a side and its folder; None if they differ, or cannot be run again here."""
    from stashtrace.scrubbing.secrets import SCRUBBED

    jobs = {(run.launch, run.directory) for run in side.runs}
    launch, directory = next(iter(jobs))
    if len(jobs) > 1 or not launch or not Path(directory).is_dir():
        return None
    return None if any(SCRUBBED in word for word in launch) else (launch, directory)


def _check(given: argparse.Namespace, command: Sequence[str]) -> None:
    """Refuse what makes no sense before anything is recorded or read."""
    if given.rerun is None:
        without = {"COMMAND": command, "--before": given.before, "--before-dir": given.before_dir, "-o": given.out}
        extra = next((name for name, value in without.items() if value), None)
        if extra is not None:
            raise UsageError(f"{extra} needs --rerun N", hint=_HINT)
        if not given.against and not given.save_baseline:
            raise UsageError("nothing to compare with", hint="give --against BASELINE, or --save-baseline NAME")
    else:
        if not command:
            raise UsageError(
                "no command to run", hint="put it after two dashes: `stashtrace check --rerun 3 -- torchrun ...`"
            )
        if given.runs:
            raise UsageError("--rerun records its runs itself", hint=f"leave {given.runs[0]} out")
        if given.against and (given.before or given.before_dir):
            raise UsageError("--against and --before both say what was before", hint="leave one of them out")
        if not (given.against or given.before or given.before_dir or given.save_baseline):
            raise UsageError(
                "nothing says what was before", hint="give --before CMD, --before-dir DIR, or --against BASELINE"
            )
    if given.save_baseline:
        check_name(given.save_baseline)
    if given.junit:
        open_output(given.junit, "junit.xml", option="--junit")


def _sides(given: argparse.Namespace, command: Sequence[str], screen: Screen) -> tuple[Side | None, Side]:
    """Return the runs before, None if there is nothing to compare with, and after."""
    # What was before is read first: a baseline that is missing is reported before anything is recorded.
    before = side_of(name_of(given.against), given.against, given.baselines) if given.against else None
    if given.rerun is None:
        runs = runs_or_newest(given.runs)
        return before, side_of(name_of(runs), runs)

    from stashtrace.lab.alternating import Job, record_alternately

    end_on_terminate()
    jobs = [Job("after", tuple(command), Path())]
    if given.before or given.before_dir:
        old = tuple(_split_command(given.before)) if given.before else tuple(command)
        jobs.insert(0, Job("before", old, Path(given.before_dir or ".")))
    out = Path(given.out or time.strftime("check-%m%d-%H%M%S"))
    recorded = record_alternately(
        given.rerun,
        jobs,
        out,
        on_run=lambda done, whole, name: screen.say(f"stashtrace: run {done + 1} of {whole}: {out / name}"),
    )
    sides = {name: side_of(name, [str(path) for path in paths]) for name, paths in recorded.items()}
    return sides.get("before", before), sides["after"]


def _answer(gate: Gate, command: Command | None, given: argparse.Namespace, screen: Screen) -> None:
    """Print the answer, and the annotations of a CI system."""
    from stashtrace.summary.ci import annotation_lines
    from stashtrace.summary.gate_text import document, gate_lines

    print_answer(given.format, [f"{gate.verdict.upper()}", *gate_lines(gate, command)], document(gate, command))
    if gate.refused:
        options = " ".join(f"--allow {one.field.name}" for one in gate.refused)
        screen.say(f"\nhint: `{options}` compares them all the same")
    if given.annotate or os.environ.get("GITHUB_ACTIONS") == "true":
        # The runner of GitHub reads commands from stdout; JSON there is for others, and stderr reaches the runner too.
        for line in annotation_lines(gate):
            if given.format == "json":
                screen.say(line)
            else:
                print_lines([line])


def _write_files(gate: Gate, command: Command | None, given: argparse.Namespace, screen: Screen) -> None:
    """Write the answer where CI systems read it."""
    from stashtrace.summary.ci import junit_xml
    from stashtrace.summary.gate_text import markdown

    if given.junit:
        write_output(Path(given.junit), junit_xml(gate), option="--junit")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.write(markdown(gate, command) + "\n")
        except OSError as error:  # the verdict counts, not where it is shown
            screen.say(f"warning: cannot write {summary} of GITHUB_STEP_SUMMARY: {error.strerror}")


def _split_command(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--before {command}: {str(error).lower()}", hint="quote it as for a shell") from error
    if not words:
        raise UsageError("--before is empty", hint="give a command, or leave it out to run COMMAND")
    return words


def _runs(side: Side) -> str:
    return f"{count_noun(len(side.runs), 'run')}, {side.steps_count:,} steps"
