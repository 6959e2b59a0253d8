"""``stashtrace tune -- CMD``: try settings on a job, and keep those that make it faster with the same results."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from stashtrace.cli.find_runs import read_runs
from stashtrace.cli.option_values import read_percent, read_whole
from stashtrace.cli.parsing import DOCUMENT_FORMATS, Parser, add_flag, add_value, split_at_dashes
from stashtrace.cli.print_results import print_blocks
from stashtrace.cli.screen import Screen, end_on_terminate
from stashtrace.errors import UsageError
from stashtrace.record.program import find_program
from stashtrace.record.staged_files import check_staged_list

_DESCRIPTION = """Try settings on a job without an edit of its script, one at a time, in short
runs that take turns. A setting is kept only where `stashtrace check` would say
that the step is shorter beyond doubt, and where the losses of the first steps
stay the same."""
_EPILOG = """Tried are num_workers, prefetch_factor, pin_memory and persistent_workers of
DataLoaders (in place of what the script gives), bucket_cap_mb of
DistributedDataParallel, OMP_NUM_THREADS, a share of the CPUs for each rank
(cpu_affinity), staged_files, and some variables of NCCL. The order is that of
`stashtrace whatif`. Losses have to stay equal to the bit; OMP_NUM_THREADS,
bucket_cap_mb and buffers of NCCL may change their rounding unless --exact is
given. Where equal runs differ in their losses, as by random augmentation, mean
losses of several runs are compared instead (--losses).

example:
  stashtrace tune --until-step 60 -- torchrun --nproc-per-node 2 train.py"""


def parser() -> Parser:
    """Return the parser of ``stashtrace tune``."""
    from stashtrace.analysis.compare.change import LEAST_STEPS
    from stashtrace.analysis.steps.steps import WARMUP_STEPS

    parser = Parser("tune", _DESCRIPTION, _EPILOG, usage="stashtrace tune [options] -- COMMAND [ARGUMENT ...]")
    steps = "end each run when its ranks have made K steps (default 60)"
    why = f"the first {WARMUP_STEPS} are warm-up, and to compare runs takes {LEAST_STEPS} more"
    read_steps = partial(read_whole, least=WARMUP_STEPS + LEAST_STEPS, why=why)
    add_value(parser, "--until-step", "K", steps, read_steps, default=60)
    rounds = "runs a side before a setting is judged, twice as many where they do not decide (default 3)"
    add_value(parser, "--rounds", "N", rounds, read_whole, default=3)
    least = "keep what saves more than this, in percent of the step (default 3)"
    add_value(parser, "--least", "PERCENT", least, read_percent, default=3.0)
    only = "comma list of settings to try, NAME or NAME=VALUE, as in num_workers=2 (default: all)"
    add_value(parser, "--only", "LIST", only)
    add_flag(parser, "--exact", "keep nothing that changes the last bits of a loss")
    losses = (
        "how results are compared: equal, loss by loss; distribution, by the mean losses of several runs; auto, as two"
        " unchanged runs allow (default auto)"
    )
    parser.add_argument("--losses", choices=("auto", "equal", "distribution"), default="auto", help=losses)
    add_value(parser, "--staged", "LIST", "also try copies of files: a list that `stashtrace stage` wrote", type=Path)
    add_value(parser, "--most-runs", "N", "begin no setting after N runs (default 200)", read_whole, default=200)
    parser.add_out("DIR", "folder for the runs (default: ./tune-MMDD-HHMMSS)")
    parser.add_format(DOCUMENT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Tune the job, and print what was kept and how to make it permanent."""
    words, command = split_at_dashes(argv)
    given = parser().read(words)
    from stashtrace.lab.alternating import make_runs_folder
    from stashtrace.lab.tune.run_job import TunedJob
    from stashtrace.lab.tune.settings import FILES, wanted_settings
    from stashtrace.lab.tune.tune import trial_text, tune, tune_blocks, tune_document

    if given.exact and given.losses == "distribution":
        raise UsageError("--exact and --losses distribution contradict each other", hint="leave one of them out")
    find_program(command)
    only = wanted_settings(given.only, "--only") if given.only is not None else ()
    if (FILES, "") in only and given.staged is None:
        raise UsageError(
            f"--only {FILES}: no list of files is named",
            hint="--staged LIST names one, as `stashtrace stage` writes it",
        )
    if given.staged is not None:
        check_staged_list(given.staged)
    out = Path(given.out or time.strftime("tune-%m%d-%H%M%S"))
    make_runs_folder(out)
    end_on_terminate()
    screen = Screen()
    job = TunedJob(
        command,
        out,
        until_step=given.until_step,
        load=partial(read_runs, quiet=True),
        only=only,
        staged=given.staged,
        on_run=lambda number, settings: screen.say(f"stashtrace: run {number + 1}: {_text(settings)}"),
    )
    tuned = tune(
        job,
        rounds=given.rounds,
        least_percent=given.least,
        exact=given.exact,
        losses=given.losses,
        most_runs=given.most_runs,
        on_trial=lambda trial: screen.say(f"stashtrace: {trial_text(trial)}"),
    )
    content = tune_document(tuned, command, job.loaders)
    print_blocks(given.format, tune_blocks(tuned, command, job.loaders), content, width=79)
    if tuned.stopped is not None:
        sys.stdout.flush()
        raise tuned.stopped
    return 0


def _text(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "as it is"
