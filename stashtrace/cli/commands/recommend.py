"""``stashtrace recommend FILE...``: which instances to rent for a characterized job, by time and by cost."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from stashtrace.cli.option_values import read_count, read_hours, read_money, read_price, read_whole
from stashtrace.cli.parsing import ALL_FORMATS, Parser, add_flag, add_value
from stashtrace.cli.print_results import check_plot, ignore_broken_pipe, print_blocks, write_plot
from stashtrace.cli.print_tables import write_rows
from stashtrace.errors import UsageError

if TYPE_CHECKING:
    from stashtrace.lab.recommend.instance_catalog import Catalog
    from stashtrace.lab.recommend.profile import Profile
    from stashtrace.lab.recommend.recommend import Work

_EPILOG = """FILE is the characterization.json of `stashtrace characterize`, or its folder
(default ./characterization); give one for each kind of machine. The exit code
is 1 if a budget was given and no instance stays within it."""
_MISSED = 1
#: Where ``characterize`` writes by default.
_DIRECTORY = "characterization"


def parser() -> Parser:
    """Return the parser of ``stashtrace recommend``."""
    from stashtrace.lab.recommend.recommend import DATA

    parser = Parser("recommend", "Say which instances to rent for a job, by time and by cost.", _EPILOG)
    parser.add_argument("files", metavar="FILE", nargs="*", help="results of `stashtrace characterize`")
    work = parser.add_argument_group("amount of work")
    samples = "samples in an epoch, as in 1281167 or 1.28M (default: the job's)"
    add_value(work, "--samples", "N", samples, read_count)
    add_value(work, "--epochs", "N", "number of epochs (default 1)", type=float)
    steps = "instead: number of steps of the job of the first FILE, on all its devices"
    add_value(work, "--iterations", "N", steps, read_count)
    add_value(work, "--batch-size", "N", "samples per device and step (default: the job's)", read_whole)
    data = "what epochs read from: storage, the page cache, storage in the first epoch only, or no data"
    work.add_argument("--data", choices=DATA, default="auto", help=data)
    limits = parser.add_argument_group("budgets")
    add_value(limits, "--time-budget", "TIME", "longest time, as in 6h, 30m, 1d12h", read_hours)
    add_value(limits, "--cost-budget", "MONEY", "highest cost, in the currency of the prices", read_money)
    add_value(limits, "--max-count", "N", "most instances to rent (default 8)", read_whole, default=8)
    prices = parser.add_argument_group("instances and prices")
    catalog = "TOML file that adds instances, or changes keys of known ones; may be repeated"
    add_value(prices, "--catalog", "FILE", catalog, action="append", default=[])
    price = "price of an instance for an hour; may be repeated"
    add_value(prices, "--price", "NAME=VALUE", price, read_price, action="append", default=[])
    add_value(prices, "--instance", "NAME", "instance that FILE was measured on, if it does not say", default="")
    add_flag(prices, "--list", "print the catalog and stop")
    add_flag(parser, "--elasticity", "add throughput and efficiency by batch and devices")
    parser.add_plot("time against cost")
    parser.add_format(ALL_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Read the results, compare instances and print the comparison."""
    arguments = parser().read(argv)
    from stashtrace.lab.recommend import recommendation_text
    from stashtrace.lab.recommend.elasticity import elasticity, elasticity_block
    from stashtrace.lab.recommend.instance_catalog import Instance, catalog_blocks
    from stashtrace.lab.recommend.recommend import Budget, recommend
    from stashtrace.lab.recommend.recommendation_text import plot_recommendation

    check_plot(arguments.plot)
    catalog = _catalog(arguments)
    if arguments.list:
        if arguments.format in ("table", "markdown"):
            print_blocks(arguments.format, catalog_blocks(catalog), None)
        else:
            rows = [asdict(instance) for instance in catalog.instances.values()]
            write_rows(rows, [field.name for field in fields(Instance)], arguments.format, sys.stdout)
        return 0
    profiles = _profiles(arguments)
    work, work_text = _work(arguments, profiles)
    budget = Budget(arguments.time_budget, arguments.cost_budget)
    answer = recommend(profiles, catalog, work, budget, data=arguments.data, max_count=arguments.max_count)
    elastic = elasticity(answer.candidates, profiles, catalog) if arguments.elasticity else None
    with ignore_broken_pipe():
        if arguments.format == "csv":
            rows = [recommendation_text.candidate_row(candidate) for candidate in answer.candidates]
            write_rows(rows, list(rows[0]) if rows else [], "csv", sys.stdout)
        else:
            asked = {
                "samples": work.samples,
                "epochs": work.epochs,
                "iterations": work.iterations,
                "data": arguments.data,
            }
            blocks = recommendation_text.recommendation_blocks(answer, work_text)
            blocks += [elasticity_block(elastic)] if elastic is not None else []
            print_blocks(arguments.format, blocks, recommendation_text.answer_object(answer, asked, elastic))
    write_plot(arguments.plot, plot_recommendation, answer)
    return 0 if answer.met else _MISSED


def _catalog(arguments: argparse.Namespace) -> Catalog:
    from stashtrace.lab.recommend.instance_catalog import load_catalog

    catalog = load_catalog(arguments.catalog)
    for name, price in arguments.price:
        catalog = catalog.with_price(name, price)
    return catalog


def _profiles(arguments: argparse.Namespace) -> list[Profile]:
    from stashtrace.lab.characterize.answer import FILE_NAME
    from stashtrace.lab.recommend.profile import load_profile

    is_here = os.path.isfile(os.path.join(_DIRECTORY, FILE_NAME))
    files = arguments.files or ([_DIRECTORY] if is_here else [])
    if not files:
        raise UsageError(
            f"no FILE is given, and ./{_DIRECTORY} holds no {FILE_NAME}",
            hint="`stashtrace characterize -- CMD` makes one",
        )
    size = arguments.batch_size
    profiles = [load_profile(path, instance=arguments.instance) for path in files]
    if size is None:
        return profiles
    kept = [replace(profile, batch_samples=size) for profile in profiles if profile.batch_samples in (0, size)]
    if not kept:
        known = ", ".join(sorted({str(profile.batch_samples) for profile in profiles}))
        raise UsageError(f"nothing was measured with a batch size of {size}", hint=f"measured was --batch-size {known}")
    return kept


def _work(arguments: argparse.Namespace, profiles: Sequence[Profile]) -> tuple[Work, str]:
    """Return the amount of work, and its description."""
    from stashtrace.lab.recommend.recommend import Work

    if arguments.samples and arguments.iterations:
        raise UsageError("--samples and --iterations both state the amount of work", hint="give one of them")
    epochs = 1.0 if arguments.epochs is None else arguments.epochs
    if not 0 < epochs < math.inf:
        raise UsageError(f"--epochs {epochs:g} is not a number of epochs", hint="for example --epochs 90")
    first = profiles[0]
    if arguments.samples or (first.epoch_samples and not arguments.iterations):
        samples = arguments.samples or first.epoch_samples
        text = f"{epochs:g} epoch{'' if epochs == 1 else 's'} of {samples:,.0f} samples"
        text += "" if arguments.samples else ", as many as the job has"
        batches = sorted({profile.batch_samples for profile in profiles})
        return Work(samples=samples, epochs=epochs), f"{text}, {' or '.join(map(str, batches))} a step and device"
    if arguments.epochs is not None:
        raise UsageError("--epochs needs the number of samples in an epoch", hint="give --samples N")
    if not arguments.iterations:
        raise UsageError("the amount of work is not known", hint="give --samples N --epochs M, or --iterations N")
    steps = arguments.iterations
    return Work(iterations=steps), f"{steps:,.0f} steps as {first.path} makes them, with {first.devices_count} devices"
