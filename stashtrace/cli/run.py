"""``stashtrace run -- CMD``: launch, wait, merge, sum up. The job's stdin, stdout and exit code stay its own."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from typing import Any

from stashtrace.cli.merging import conclude, processes_text, shown_directory
from stashtrace.cli.parsing import OUT_OPTIONS, Parser
from stashtrace.cli.screen import Screen
from stashtrace.record.directory import file_rights
from stashtrace.record.options import KERNEL_STEPS, NCCL_SOURCES, default_collectors
from stashtrace.record.run import Outcome, run_command

#: Two tell whether batches are alike, and fill no device that holds one in use and the next.
_SYNTHETIC_BATCHES = 2


def parser() -> Parser:
    """Options of ``stashtrace run``."""
    parser = Parser(
        "run",
        "Run a command (python, torchrun, mpirun, a shell script) and record where its\n"
        "step time goes. The script needs no edit; the exit code is the command's own.",
        "example: stashtrace run --out ./first -- torchrun --nproc-per-node 2 train.py",
    )
    parser.usage = "stashtrace run [options] -- COMMAND [ARGUMENT ...]"
    parser.add_out(
        "DIR",
        "run directory, or URL of one (s3://...); shared by all hosts of a job or one for each"
        " (default: ./stash-MMDD-HHMMSS, ./stash-JOB)",
    )
    parser.add_argument(
        "--scratch", metavar="DIR", help="record below DIR on a local disk, copy to --out when the command has ended"
    )
    parser.add_argument(
        "--run-id",
        metavar="JOB",
        help="name of the job, the same on all hosts; SLURM, MPI and torchrun's rendezvous are known without",
    )
    recording_options(parser)
    parser.add_argument(
        "--until-step", metavar="K", type=int, help="end the command when its ranks have made K steps; exit code 0"
    )
    parser.add_argument("--staged", metavar="LIST", help="open copies of files: a list that `stashtrace stage` wrote")
    parser.add_argument(
        "--synthetic", action="store_true", help="let DataLoaders return their first two batches again and again"
    )
    parser.add_argument(
        "--no-merge", action="store_true", help="leave the records as they are; `stashtrace merge` does it later"
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=float,
        default=10.0,
        help="wait so long for processes that outlive the command (default: 10)",
    )
    return parser


def recording_options(parser: Parser) -> None:
    """What is recorded: the options that ``run`` and ``env`` have in common."""
    parser.add_argument("--steps", metavar="A:B", help="record steps A to B-1 only; the others are counted")
    parser.add_argument(
        "--collectors",
        metavar="NAMES",
        type=lambda text: text.split(","),
        help="comma list of what to record (default: all): " + ", ".join(default_collectors()),
    )
    parser.add_argument(
        "--nvml-hz", metavar="N", type=int, help="samples of device counters per second, 0 for none (default: 10)"
    )
    parser.add_argument("--nvml-links", action="store_true", help="sample each NVLink of a device beside their sum")
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="deep mode: also every kernel and copy of the GPU, for a few steps; gives way to another profiler",
    )
    parser.add_argument(
        "--kernels-steps",
        metavar="A:B",
        help=f"steps A to B-1 of deep mode (default: {KERNEL_STEPS}); the step before A is slow; turns --kernels on",
    )
    parser.add_argument(
        "--event-budget",
        metavar="N",
        type=int,
        help="timing events on devices per second; above it whole steps go without, 0: no limit (default: 10000)",
    )
    parser.add_argument(
        "--lookup-hook",
        action="store_true",
        help="also see CUDA calls of CuPy, Triton and JAX, by standing in front of dlsym",
    )
    parser.add_argument(
        "--nccl-source",
        choices=NCCL_SOURCES,
        help="device times of NCCL from its plugin, from events, or (auto) from what works here without harm",
    )

    parser.add_argument(
        "--share", action="store_true", help="let the group read the run (0750, 0640); else the user alone (0700, 0600)"
    )


def recording_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """What :func:`recording_options` was given, under the names of ``traced_environment``."""
    names = (
        "collectors",
        "steps",
        "nvml_hz",
        "nvml_links",
        "kernels",
        "kernels_steps",
        "nccl_source",
        "event_budget",
        "lookup_hook",
        "share",
    )
    return {name: getattr(arguments, name) for name in names}


def main(argv: Sequence[str]) -> int:
    """Run a command traced; return its exit code."""
    options, command = split_command(list(argv))
    arguments = parser().read(options)
    screen = Screen()
    outcome = run_command(
        command,
        out=arguments.out,
        run_id=arguments.run_id,
        scratch=arguments.scratch,
        **recording_arguments(arguments),
        until_step=arguments.until_step,
        synthetic_batches=_SYNTHETIC_BATCHES * arguments.synthetic,
        staged=arguments.staged,
        grace_s=arguments.grace,
        version=_version(),
        on_wait=lambda pids: screen.say(f"stashtrace: waiting for {processes_text(pids)} of the job that still run"),
        on_changed=lambda count, names: screen.say(_changed_text(count, names)),
    )
    _say_how_it_ended(screen, outcome)
    merge = not arguments.no_merge and outcome.interrupts_count < 2
    with file_rights(arguments.share):
        conclude(outcome, screen, merge=merge, debug=arguments.debug, command=command)
    return outcome.exit_code


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Part our options from the command: at ``--``, or at the first word that is no option."""
    if "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    takes_value = {
        "-o",
        *OUT_OPTIONS,
        "--scratch",
        "--run-id",
        "--steps",
        "--kernels-steps",
        "--collectors",
        "--nvml-hz",
        "--event-budget",
        "--nccl-source",
        "--grace",
        "--until-step",
        "--staged",
    }
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in takes_value else 1
    return argv[:at], argv[at:]


def _changed_text(count: int, names: Sequence[str]) -> str:
    """Of staged files that changed since they were copied."""
    which = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"
    return (
        f"stashtrace: {which} changed since the copying, or the copy is gone: read where it is; {count} copies are used"
        " (`stashtrace stage` copies again)"
    )


def _version() -> str:
    from stashtrace import __version__

    return str(__version__)


def _say_how_it_ended(screen: Screen, outcome: Outcome) -> None:
    if outcome.goal_reached:
        screen.say(f"stashtrace: ended the command at step {outcome.facts['until_step']}, as told")
    elif outcome.signal_number:
        try:
            name = signal.Signals(outcome.signal_number).name
        except ValueError:
            name = "a real-time signal"
        screen.say(f"stashtrace: the command was ended by {name} ({outcome.signal_number}); what it recorded is kept")
    elif outcome.exit_code:
        screen.say(f"stashtrace: the command ended with exit code {outcome.exit_code}")
    if outcome.survivors:
        screen.say(
            f"stashtrace: {processes_text(outcome.survivors)} of the job still run; "
            f"what they record from now on needs `stashtrace merge {shown_directory(outcome)}`"
        )
    if outcome.complaint:
        screen.say(f"stashtrace: {outcome.complaint}")
