"""``stashtrace run -- CMD``: launch, wait, merge, sum up. The job's stdin, stdout and exit code stay its own."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal
from collections.abc import Sequence

from stashtrace.cli import say_error
from stashtrace.cli.merging import merge_and_report
from stashtrace.cli.parsing import Parser
from stashtrace.cli.screen import Screen
from stashtrace.errors import StashtraceError
from stashtrace.launch.environment import COLLECTORS, KERNEL_STEPS, NCCL_SOURCES
from stashtrace.launch.run import Outcome, run_command


def parser() -> Parser:
    """Options of ``stashtrace run``."""
    parser = Parser(
        "run",
        "Run a command (python, torchrun, mpirun, a shell script) and record where its\n"
        "step time goes. The script needs no edit; the exit code is the command's own.",
        "example: stashtrace run --out ./first -- torchrun --nproc-per-node 2 train.py",
    )
    parser.usage = "stashtrace run [options] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--out", metavar="DIR", help="run directory (default: ./stash-MMDD-HHMMSS)")
    parser.add_argument("--steps", metavar="A:B", help="record steps A to B-1 only; the others are counted")
    parser.add_argument(
        "--collectors", metavar="NAMES", type=lambda text: text.split(","),
        help="comma list of what to record (default: all): " + ", ".join(COLLECTORS),
    )  # fmt: skip
    parser.add_argument(
        "--nvml-hz", metavar="N", type=int, help="samples of device counters per second, 0 for none (default: 10)"
    )
    parser.add_argument("--nvml-links", action="store_true", help="sample each NVLink of a device beside their sum")
    parser.add_argument(
        "--kernels", action="store_true",
        help="deep mode: also every kernel and copy of the GPU, for a few steps; gives way to another profiler",
    )  # fmt: skip
    parser.add_argument(
        "--kernels-steps", metavar="A:B",
        help=f"steps A to B-1 of deep mode (default: {KERNEL_STEPS}); the step before A is slow; turns --kernels on",
    )  # fmt: skip
    parser.add_argument(
        "--event-budget", metavar="N", type=int,
        help="timing events on devices per second; above it whole steps go without, 0: no limit (default: 10000)",
    )  # fmt: skip
    parser.add_argument(
        "--lookup-hook", action="store_true",
        help="also see CUDA calls of CuPy, Triton and JAX, by standing in front of dlsym",
    )  # fmt: skip
    parser.add_argument(
        "--nccl-source", choices=NCCL_SOURCES,
        help="device times of NCCL from its plugin, from events, or (auto) from what works here without harm",
    )  # fmt: skip
    parser.add_argument(
        "--no-merge", action="store_true", help="leave the records as they are; `stashtrace merge` does it later"
    )
    parser.add_argument(
        "--grace", metavar="SECONDS", type=float, default=10.0,
        help="wait so long for processes that outlive the command (default: 10)",
    )  # fmt: skip
    return parser


def main(argv: Sequence[str]) -> int:
    """Run a command traced; return its exit code."""
    options, command = split_command(list(argv))
    arguments = parser().read(options)
    screen = Screen()
    outcome = run_command(
        command,
        out=arguments.out,
        collectors=arguments.collectors,
        steps=arguments.steps,
        nvml_hz=arguments.nvml_hz,
        nvml_links=arguments.nvml_links,
        kernels=arguments.kernels,
        kernels_steps=arguments.kernels_steps,
        nccl_source=arguments.nccl_source,
        event_budget=arguments.event_budget,
        lookup_hook=arguments.lookup_hook,
        grace_s=arguments.grace,
        version=_version(),
        on_wait=lambda pids: screen.say(f"stashtrace: waiting for {_processes(pids)} of the job that still run"),
    )
    _say_how_it_ended(screen, outcome)
    later = f"`stashtrace merge {_shown(outcome)}`"
    if arguments.no_merge or outcome.interrupts_count > 1:
        screen.say(f"stashtrace: not merged; {later} does it")
        return outcome.exit_code
    if not any(outcome.directory.glob("*.stash")):
        say_error("nothing was recorded", f"`stashtrace doctor -- {command[0]}` says whether it can be")
        return outcome.exit_code
    try:
        merge_and_report(outcome.directory, screen, shown=_shown(outcome))
    except KeyboardInterrupt:
        screen.say(f"\nstashtrace: merge stopped, nothing is lost; {later} does it again")
    except StashtraceError as error:
        if arguments.debug:
            raise
        say_error(str(error), error.hint or f"what was recorded is in {_shown(outcome)}")
    except Exception as error:
        # The job is done and its exit code is the answer; what we made of its records is not.
        if arguments.debug:
            raise
        say_error(
            f"the merge failed: {type(error).__name__}: {error}",
            f"the records are untouched; {later} --debug shows where",
        )
    return outcome.exit_code


def split_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Part our options from the command: at ``--``, or at the first word that is no option."""
    if "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    takes_value = {
        "--out", "--steps", "--kernels-steps", "--collectors", "--nvml-hz", "--event-budget", "--nccl-source",
        "--grace",
    }  # fmt: skip
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in takes_value else 1
    return argv[:at], argv[at:]


def _version() -> str:
    from stashtrace import __version__

    return str(__version__)


def _shown(outcome: Outcome) -> str:
    from stashtrace.cli.merging import short_path

    return short_path(outcome.directory)


def _processes(pids: Sequence[int]) -> str:
    listed = ", ".join(map(str, pids[:4])) + (", ..." if len(pids) > 4 else "")
    return f"{len(pids)} process{'es' if len(pids) != 1 else ''} ({listed})"


def _say_how_it_ended(screen: Screen, outcome: Outcome) -> None:
    if outcome.signal_number:
        try:
            name = signal.Signals(outcome.signal_number).name
        except ValueError:
            name = "a real-time signal"
        screen.say(f"stashtrace: the command was ended by {name} ({outcome.signal_number}); what it recorded is kept")
    elif outcome.exit_code:
        screen.say(f"stashtrace: the command ended with exit code {outcome.exit_code}")
    if outcome.survivors:
        screen.say(
            f"stashtrace: {_processes(outcome.survivors)} of the job still run; "
            f"what they record from now on needs `stashtrace merge {_shown(outcome)}`"
        )
    if outcome.complaint:
        screen.say(f"stashtrace: {outcome.complaint}")
