"""``stashtrace bisect --good A --bad B -- CMD``: find the commit that made a job slower, and by what kind of time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.comparison_sides import steps_of
from stashtrace.cli.option_values import read_whole
from stashtrace.cli.parsing import DOCUMENT_FORMATS, Parser, add_flag, add_repeated, add_value, split_at_dashes
from stashtrace.cli.print_results import print_blocks
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError
from stashtrace.record.program import find_program

#: Of a bisection that ends with commits that do not clearly differ.
_INCONCLUSIVE = 5
_DESCRIPTION = """Find the first commit that made a job slower. `git bisect` runs in a working
tree of its own; each commit is judged by runs of COMMAND that take turns with
runs of the good commit, by the statistics of `stashtrace check`. Exit codes:
0 found, 3 the good or the bad commit does not run, 4 the bad one is not worse
or not comparable, 5 inconclusive."""
_EPILOG = """Without --fail-if a commit is bad if the kind that grew most from A to B has
grown by more than half of that. A commit that does not build or run, or whose
runs stay inconclusive, is skipped.

example:
  stashtrace bisect --good v1.0 --bad main --until-step 60 -- python train.py"""


def parser() -> Parser:
    """Return the parser of ``stashtrace bisect``."""
    from stashtrace.analysis.compare.job_identity import DECIDING

    parser = Parser(
        "bisect", _DESCRIPTION, _EPILOG, usage="stashtrace bisect [options] --good A --bad B -- COMMAND [ARGUMENT ...]"
    )
    add_value(parser, "--good", "COMMIT", "a commit that is fast", required=True)
    add_value(parser, "--bad", "COMMIT", "a later one that is slow", required=True)
    add_repeated(
        parser, "--fail-if", "KIND+N%", "growth that makes a commit bad, as for `stashtrace check`; repeatable"
    )
    add_repeated(parser, "--allow", "FIELD", "compare although this differs", choices=DECIDING)
    rounds = "runs of a commit before it is judged; two and three times as many where they do not decide (default 3)"
    add_value(parser, "--rounds", "N", rounds, read_whole, default=3)
    add_value(parser, "--until-step", "K", "end each run when its ranks have made K steps", read_whole)
    add_value(parser, "--build", "CMD", "shell command that prepares a commit, such as `make`", default="")
    add_repeated(parser, "--link", "PATH", "link a path that git does not track into the working trees; repeatable")
    add_flag(parser, "--ignore-changes", "leave out changes that are not committed, instead of refusing them")
    parser.add_out("DIR", "folder for the runs (default: ./bisect-MMDD-HHMMSS)")
    parser.add_format(DOCUMENT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Bisect, and print the first bad commit with its evidence."""
    words, command = split_at_dashes(argv)
    given = parser().read(words)
    from stashtrace.analysis.compare.gate_verdict import Condition
    from stashtrace.lab.alternating import make_runs_folder
    from stashtrace.lab.bisect.commits import CommitRunner, Repository
    from stashtrace.lab.bisect.find_commit import bisect_blocks, bisect_document, find_commit, judged_text

    conditions = [Condition.of(text) for text in given.fail_if]
    links = _check(given, command)
    repository = Repository(Path.cwd())
    good, bad = repository.commit(given.good, "--good"), repository.commit(given.bad, "--bad")
    commits_count = repository.require_range(good, bad)
    repository.require_files_of_commits(command)
    if not given.ignore_changes:
        repository.require_clean()
    out = Path(given.out or time.strftime("bisect-%m%d-%H%M%S"))
    make_runs_folder(out)
    screen = Screen()
    end_on_terminate()
    runner = CommitRunner(
        command,
        build=given.build,
        inside=repository.inside,
        links=links,
        options=[] if given.until_step is None else ["--until-step", str(given.until_step)],
        out=out,
        steps_of=steps_of,
        on_run=lambda number, path: screen.say(f"stashtrace: run {number}: {path.name}"),
    )
    with repository.worktrees(out / "worktrees", good, bad) as (good_tree, tested):
        found = find_commit(
            repository,
            runner.record,
            (good, good_tree),
            (bad, tested),
            conditions,
            rounds=given.rounds,
            allowed=given.allow,
            on_judged=lambda one: screen.say(f"stashtrace: {judged_text(one)}"),
        )
    print_blocks(given.format, bisect_blocks(found, commits_count), bisect_document(found, commits_count))
    return 0 if found.first_bad is not None else _INCONCLUSIVE


def _check(given: argparse.Namespace, command: Sequence[str]) -> list[Path]:
    """Return the paths to link; raise UsageError unless options and command can be used."""
    if not command or "/" not in command[0] or command[0].startswith("/"):
        find_program(command)  # one of the commits' own is looked for in their working trees
    links = [Path(path) for path in given.link]
    for path in links:
        if path.is_absolute() or ".." in path.parts or not path.exists():
            raise UsageError(f"--link {path}: no such path below this folder", hint="for example --link data")
    return links
