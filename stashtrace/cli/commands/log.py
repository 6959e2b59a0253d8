"""``stashtrace log [RUN] --to TRACKER``: add the answers of a run to the tracker that its job used."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stashtrace.cli import say_error
from stashtrace.cli.find_runs import read_runs
from stashtrace.cli.option_values import read_trackers
from stashtrace.cli.parsing import Parser, runs_or_newest
from stashtrace.cli.screen import Screen
from stashtrace.errors import StashtraceError

_EPILOG = """The run of the tracker is the one that the script began under `stashtrace run`.
It gets numbers (stashtrace/link_ratio, stashtrace/straggler_rank, ...), the
sentences of the summary and the page of `stashtrace report`. `stashtrace run
--log TRACKERS` does this at the end of the job."""


def parser() -> Parser:
    """Return the parser of ``stashtrace log``."""
    parser = Parser("log", "Add the answers of a run to the experiment tracker that its job used.", _EPILOG)
    parser.add_runs()
    parser.add_argument(
        "--to", metavar="TRACKERS", required=True, help="comma list of wandb, mlflow, tensorboard, trackio"
    )
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Log the answers, and say where to on stderr."""
    arguments = parser().read(argv)
    names = read_trackers(arguments.to)
    paths = runs_or_newest(arguments.paths)

    from stashtrace.trackers.answers import log_answers

    trace = read_runs(paths, run_id=arguments.run, quiet=True)
    screen, code = Screen(), 0
    for name in names:  # one that refuses does not keep the answers from the others
        try:
            screen.say(f"logged to {name} run {log_answers(trace, name, shlex.join(paths))}")
        except StashtraceError as error:
            if arguments.debug:
                raise
            say_error(str(error), error.hint)
            code = code or error.exit_code
    return code
