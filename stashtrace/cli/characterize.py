"""``stashtrace characterize -- CMD``: Stash's five configurations of an unedited command, and their stalls."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import Parser
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError
from stashtrace.output_files import complete_file

_EPILOG = """example: stashtrace characterize --emulate-network 10gbit -- torchrun \\
             --nproc-per-node 2 train.py

The command is run once per configuration and repetition, for --iterations
training steps each. Interrupted, the same command goes on where it was. Put
{ranks} into the command where a launcher other than torchrun, accelerate,
deepspeed or mpiexec wants their number."""
_QUICK = {"repeat": 3, "iterations": 30, "warmup": 5}
_FULL = {"repeat": 5, "iterations": 60, "warmup": 10}


def parser() -> Parser:
    """Options of ``stashtrace characterize``."""
    parser = Parser(
        "characterize",
        "Run a job on one device, on all, with its data cold and warm, and over a\nnetwork, and say what each costs.",
        _EPILOG,
    )
    parser.usage = "stashtrace characterize [options] -- COMMAND [ARGUMENT ...]"
    parser.add_out("DIR", "where runs and answer go (default ./characterization)", default="characterization")
    parser.add_argument(
        "--steps", metavar="LIST", default="1,2,3,4,5", help="some of the five configurations (default 1,2,3,4,5)"
    )
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of each configuration (default 5)")
    parser.add_argument("--iterations", type=int, metavar="K", help="training steps measured in a run (default 60)")
    parser.add_argument("--warmup", type=int, metavar="W", help="training steps before them (default 10)")
    parser.add_argument(
        "--quick", action="store_true", help="three short runs of each configuration; the answer says so"
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of a host, if the command does not say")
    network = parser.add_mutually_exclusive_group()
    network.add_argument(
        "--hosts", metavar="A,B", help="hosts of configuration 5, reached by ssh; localhost is this one"
    )
    network.add_argument(
        "--emulate-network",
        metavar="RATE[,DELAY]",
        help="configuration 5 between two network namespaces of this host: 10gbit, or 1gbit,50us",
    )
    network.add_argument(
        "--network-command", metavar="CMD", help="configuration 5: a command that spreads its ranks itself"
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        action="append",
        default=[],
        help="the data set, if not what the job is seen to read; may be given again",
    )
    parser.add_argument(
        "--drop-caches",
        action="store_true",
        help="empty the page cache of the whole machine for configuration 3 (root)",
    )
    parser.add_argument("--no-pin", action="store_true", help="let ranks use all processors in every configuration")
    parser.add_argument("--timeout", type=float, metavar="S", default=600.0, help="of one run (default 600)")
    parser.add_argument("--instance", default="", help="name of this machine in the catalog of `recommend`")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=0,
        metavar="B",
        help="samples per rank and step, if not what its DataLoaders say",
    )
    parser.add_argument("--as-published", action="store_true", help="show stalls as Stash's code computes them")
    parser.add_argument("--plot", metavar="FILE", help="draw steps and stalls (.png, .svg, .pdf)")
    parser.add_argument("--html", metavar="FILE", help="write the answer as a page")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text (default) or JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Make the runs, print the answer."""
    options, command = _split(list(argv))
    arguments = parser().read(options)
    from stashtrace import __version__
    from stashtrace.cli import INTERRUPTED
    from stashtrace.lab.characterize.answer import FILE_NAME
    from stashtrace.lab.characterize.network import parsed_shape
    from stashtrace.lab.characterize.plan import Request
    from stashtrace.lab.characterize.report import characterization_lines
    from stashtrace.lab.characterize.run import characterize
    from stashtrace.lab.plot import check_plot_file, check_plot_folder

    out = Path(arguments.out)
    if arguments.plot:
        check_plot_file(arguments.plot)
        check_plot_folder(arguments.plot, made=out)
    if arguments.html:
        check_plot_folder(arguments.html, option="--html", made=out)
    chosen = _QUICK if arguments.quick else _FULL
    request = Request(
        command=tuple(command),
        out=out,
        configurations=parsed_configurations(arguments.steps),
        repeats=chosen["repeat"] if arguments.repeat is None else arguments.repeat,
        iterations=chosen["iterations"] if arguments.iterations is None else arguments.iterations,
        warmup=chosen["warmup"] if arguments.warmup is None else arguments.warmup,
        ranks=arguments.ranks,
        hosts=tuple(filter(None, (arguments.hosts or "").split(","))),
        emulated=parsed_shape(arguments.emulate_network) if arguments.emulate_network else None,
        network_command=tuple(shlex.split(arguments.network_command or "")),
        data=tuple(Path(path) for path in arguments.data),
        drop_caches=arguments.drop_caches,
        pin=not arguments.no_pin,
        timeout_s=arguments.timeout,
        instance=arguments.instance,
        batch_samples=arguments.batch_size,
        quick=arguments.quick,
        version=__version__,
    )
    screen = Screen()
    try:
        with screen.progress("characterizing") as bar:
            answer = characterize(request, on_progress=bar.step)
    except KeyboardInterrupt:
        if arguments.debug or not (out / FILE_NAME).exists():
            raise
        screen.say(f"stashtrace: interrupted; the same command goes on where this stopped (runs are in {out})")
        return INTERRUPTED
    if arguments.format == "json":
        sys.stdout.write(json.dumps(answer.to_json(), indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(characterization_lines(answer, as_published=arguments.as_published)) + "\n")
        screen.say(f"\n  all of it    {out / FILE_NAME}")
    if arguments.plot:
        from stashtrace.lab.characterize.page import plot_characterization

        plot_characterization(answer, arguments.plot)
        screen.say(f"  picture      {arguments.plot}")
    if arguments.html:
        from stashtrace.lab.characterize.page import characterization_page

        with complete_file(Path(arguments.html), hint="choose another file with --html") as partial:
            partial.write_text(characterization_page(answer), encoding="utf-8")
        screen.say(f"  page         {arguments.html}")
    failed = [str(number) for number in request.configurations if answer.status(number)[0] == "failed"]
    if failed:
        which = "configuration" + "s" * (len(failed) > 1) + " " + ", ".join(failed)
        screen.say(f"\n  {which} failed; what it printed is in {out / 'runs'}/*.log; the same command tries again")
    return 0


def parsed_configurations(text: str) -> tuple[int, ...]:
    """Configurations of ``1,2,5``.

    Raises
    ------
    UsageError
        If it says something else.

    Examples
    --------
    >>> parsed_configurations("2,1")
    (1, 2)
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(word not in ("1", "2", "3", "4", "5") for word in words):
        raise UsageError(f"--steps {text} names no configuration of the five", hint="for example --steps 1,2,3,4")
    return tuple(sorted({int(word) for word in words}))


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    if "-h" in argv or "--help" in argv:
        return argv, []
    raise UsageError("no command to run", hint="put it after two dashes: `stashtrace characterize -- torchrun ...`")
