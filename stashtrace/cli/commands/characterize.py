"""``stashtrace characterize -- CMD``: the five configurations of Stash, and the stalls between them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.option_values import read_configurations
from stashtrace.cli.parsing import DOCUMENT_FORMATS, Parser, add_flag, add_value, split_at_dashes
from stashtrace.cli.print_results import check_picture, open_output, print_blocks, write_output, write_picture
from stashtrace.cli.screen import Screen
from stashtrace.errors import UsageError

_EPILOG = """example: stashtrace characterize --emulate-network 10gbit -- torchrun \\
             --nproc-per-node 2 train.py

Configurations: 1 one device with synthetic data, 2 all devices of a host with
synthetic data, 3 as 2 with real data, read from storage, 4 as 2 with real data
from the page cache, 5 as 2 over a network. Each run of COMMAND makes --warmup
and --iterations training steps. After an interrupt the same command goes on
where it stopped. If the launcher is not torchrun, accelerate, deepspeed or
mpiexec, write {ranks} where it takes the number of ranks."""
_QUICK = {"repeat": 3, "iterations": 30, "warmup": 5}
_FULL = {"repeat": 5, "iterations": 60, "warmup": 10}


def parser() -> Parser:
    """Return the parser of ``stashtrace characterize``."""
    parser = Parser(
        "characterize",
        "Run a job on one device, on all, with its data cold and warm, and over a\nnetwork, and say what each costs.",
        _EPILOG,
        usage="stashtrace characterize [options] -- COMMAND [ARGUMENT ...]",
    )
    parser.add_out("DIR", "folder for runs and answer (default ./characterization)", default="characterization")
    every = "1,2,3,4,5"
    add_value(parser, "--steps", "LIST", f"configurations to run (default {every})", read_configurations, default=every)
    add_value(parser, "--repeat", "N", "runs of each configuration (default 5)", type=int)
    add_value(parser, "--iterations", "K", "training steps measured in a run (default 60)", type=int)
    add_value(parser, "--warmup", "W", "training steps before them (default 10)", type=int)
    add_flag(parser, "--quick", "three short runs of each; the answer says so")
    add_value(parser, "--ranks", "N", "ranks on a host, if the command does not say", type=int)
    network = parser.add_mutually_exclusive_group()
    add_value(network, "--hosts", "A,B", "hosts of configuration 5, reached by ssh; localhost is this one")
    emulated = "run configuration 5 between two network namespaces of this host: 10gbit, or 1gbit,50us"
    add_value(network, "--emulate-network", "RATE[,DELAY]", emulated)
    add_value(network, "--network-command", "CMD", "command of configuration 5, if it spreads its ranks itself")
    data = "the data set, if other than what the job is seen to read; may be repeated"
    add_value(parser, "--data", "PATH", data, action="append", default=[])
    add_flag(parser, "--drop-caches", "empty the page cache of the whole machine before configuration 3 (needs root)")
    add_flag(parser, "--no-pin", "let ranks use all CPUs in every configuration")
    add_value(parser, "--timeout", "S", "limit for a run, seconds (default 600)", type=float, default=600.0)
    add_value(parser, "--instance", "NAME", "name of this machine in the catalog of `recommend`", default="")
    batch = "samples per rank and step, if other than that of its DataLoaders"
    add_value(parser, "--batch-size", "B", batch, type=int, default=0)
    add_flag(parser, "--as-published", "show stalls as Stash's code computes them")
    parser.add_plot("step times and stalls", ".svg")
    add_value(parser, "--html", "FILE", "write the answer as a web page")
    parser.add_format(DOCUMENT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the configurations and print the answer."""
    options, command = split_at_dashes(argv)
    if not command and not {"-h", "--help"} & set(options):
        raise UsageError("no command to run", hint="put it after two dashes: `stashtrace characterize -- torchrun ...`")
    arguments = parser().read(options)
    from stashtrace import __version__
    from stashtrace.cli import INTERRUPTED
    from stashtrace.lab.characterize.answer import FILE_NAME
    from stashtrace.lab.characterize.characterization_document import (
        characterization_blocks,
        characterization_page,
        characterization_picture,
        title,
    )
    from stashtrace.lab.characterize.five_configurations import characterize
    from stashtrace.lab.characterize.network import parsed_shape
    from stashtrace.lab.characterize.request import CharacterizationRequest
    from stashtrace.report.blocks import Paragraph

    out = Path(arguments.out)
    check_picture(arguments.plot, made=out)
    if arguments.html:
        open_output(arguments.html, "page.html", option="--html", made=out)
    lengths = _QUICK if arguments.quick else _FULL
    request = CharacterizationRequest(
        command=tuple(command),
        out=out,
        configurations=arguments.steps,
        repeats=lengths["repeat"] if arguments.repeat is None else arguments.repeat,
        iterations=lengths["iterations"] if arguments.iterations is None else arguments.iterations,
        warmup=lengths["warmup"] if arguments.warmup is None else arguments.warmup,
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
    blocks = [Paragraph(title(answer)), *characterization_blocks(answer, published=arguments.as_published)]
    print_blocks(arguments.format, blocks, answer.to_json(), width=80)
    if arguments.format == "table":
        screen.say(f"\n  all of it    {out / FILE_NAME}")
    write_picture(arguments.plot, characterization_picture, answer)
    if arguments.html:
        write_output(Path(arguments.html), characterization_page(answer), option="--html")
        screen.say(f"  page         {arguments.html}")
    failed = [str(number) for number in request.configurations if answer.status(number)[0] == "failed"]
    if failed:
        which = f"configuration{'s' * (len(failed) > 1)} {', '.join(failed)}"
        screen.say(f"\n  {which} failed: see {out / 'runs'}/*.log; the same command tries again")
    return 0
