"""``stashtrace recommend FILE...``: which instances to rent for a job that was characterized, by time and by money."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from stashtrace.cli.parsing import Parser
from stashtrace.cli.rows import FORMATS, write_rows
from stashtrace.errors import UsageError

if TYPE_CHECKING:
    from stashtrace.lab.recommend.candidates import Work
    from stashtrace.lab.recommend.catalog import Catalog
    from stashtrace.lab.recommend.profile import Profile

_UNITS = {"d": 24.0, "h": 1.0, "m": 1 / 60, "s": 1 / 3600}
_EPILOG = """FILE is the characterization.json of `stashtrace characterize`, or its folder
(default ./characterization); give one for each kind of machine. Exit code 1: a
budget was given and nothing keeps it."""
_MISSED = 1
#: Where ``characterize`` writes by default.
_DIRECTORY = "characterization"


def parser() -> Parser:
    """Options of ``stashtrace recommend``."""
    from stashtrace.lab.recommend.recommend import DATA

    parser = Parser("recommend", "Say which instances to rent for a job, by time and by money.", _EPILOG)
    parser.add_argument("files", metavar="FILE", nargs="*", help="what was measured, one or more")
    work = parser.add_argument_group("how much is to be done")
    work.add_argument("--samples", metavar="N", help="of one epoch, as in 1281167 or 1.28M (default: the job's)")
    work.add_argument("--epochs", metavar="N", type=float, help="how often (default 1)")
    work.add_argument("--iterations", metavar="N", help="or: steps of the first FILE, all its devices together")
    work.add_argument("--batch-size", metavar="N", type=int, help="samples of one device and step (default: the job's)")
    work.add_argument(
        "--data",
        choices=DATA,
        default="auto",
        help="what epochs read: storage, the page cache, storage in the first one, nothing",
    )
    limits = parser.add_argument_group("budgets")
    limits.add_argument("--time-budget", metavar="TIME", help="as in 6h, 30m, 1d12h")
    limits.add_argument("--cost-budget", metavar="MONEY", type=float, help="in the currency of the prices")
    limits.add_argument("--max-count", metavar="N", type=int, default=8, help="instances at most (default 8)")
    prices = parser.add_argument_group("instances and prices")
    prices.add_argument(
        "--catalog", metavar="FILE", action="append", default=[], help="TOML; adds instances, changes others key by key"
    )
    prices.add_argument("--price", metavar="NAME=VALUE", action="append", default=[], help="of an hour of one instance")
    prices.add_argument("--instance", metavar="NAME", default="", help="what FILE was measured on, if it does not say")
    prices.add_argument("--list", action="store_true", help="print the catalog and stop")
    parser.add_argument("--elasticity", action="store_true", help="throughput and efficiency by batch and devices too")
    parser.add_argument("--plot", metavar="FILE", help="draw time against cost (.png, .svg, .pdf)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="aligned text (default), JSON or CSV")
    return parser


def main(argv: Sequence[str]) -> int:
    """Read, compare, print."""
    arguments = parser().read(argv)
    from stashtrace.lab.recommend import report
    from stashtrace.lab.recommend.candidates import Budget
    from stashtrace.lab.recommend.elasticity import elasticity
    from stashtrace.lab.recommend.recommend import recommend

    if arguments.plot:
        from stashtrace.lab.plot import check_plot_file, check_plot_folder

        check_plot_file(arguments.plot)
        check_plot_folder(arguments.plot)
    catalog = _catalog(arguments)
    if arguments.list:
        if arguments.format == "table":
            sys.stdout.write("\n".join(report.catalog_lines(catalog)) + "\n")
        else:
            from stashtrace.lab.recommend.catalog import Instance

            rows = [asdict(one) for one in catalog.instances.values()]
            write_rows(rows, [field.name for field in fields(Instance)], arguments.format, sys.stdout)
        return 0
    profiles = _profiles(arguments)
    work, said = _work(arguments, profiles)
    budget = Budget(parsed_time(arguments.time_budget), _money(arguments.cost_budget))
    if arguments.max_count < 1:
        raise UsageError("--max-count is at least 1")
    answer = recommend(profiles, catalog, work, budget, data=arguments.data, max_count=arguments.max_count)
    elastic = elasticity(answer.candidates, profiles, catalog) if arguments.elasticity else None
    if arguments.format == "json":
        told = {"samples": work.samples, "epochs": work.epochs, "iterations": work.iterations, "data": arguments.data}
        sys.stdout.write(json.dumps(report.answer_object(answer, told, elastic), indent=1) + "\n")
    elif arguments.format == "csv":
        rows = [report.candidate_row(one) for one in answer.candidates]
        write_rows(rows, list(rows[0]) if rows else [], "csv", sys.stdout)
    else:
        lines = report.recommendation_lines(answer, said)
        lines += ["", *report.elasticity_lines(elastic)] if elastic is not None else []
        sys.stdout.write("\n".join(lines) + "\n")
    if arguments.plot:
        from stashtrace.lab.recommend.plot import plot_recommendation

        plot_recommendation(answer, arguments.plot)
        sys.stderr.write(f"wrote {arguments.plot}\n")
    return 0 if answer.met else _MISSED


def parsed_time(text: str | None) -> float | None:
    """Hours of ``1d12h``, ``6h``, ``30m``, ``1.5h``.

    Raises
    ------
    UsageError
        If it says something else, or no time at all.

    Examples
    --------
    >>> parsed_time("1d12h"), parsed_time("30m"), parsed_time("1h 30m"), parsed_time(None)
    (36.0, 0.5, 1.5, None)
    """
    if text is None:
        return None
    compact = re.sub(r"\s+", "", text.lower())
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", compact)
    hours = sum(float(number) * _UNITS[unit] for number, unit in parts)
    units = [unit for _, unit in parts]
    whole = "".join(number + unit for number, unit in parts) == compact
    if not parts or not whole or units != sorted(set(units), key="dhms".index) or not 0 < hours < math.inf:
        raise UsageError(f"--time-budget {text} is no time", hint="for example --time-budget 6h, or 1d12h")
    return hours


def parsed_count(text: str, option: str) -> float:
    """A number of things: ``1281167``, ``1.28M``.

    Raises
    ------
    UsageError
        If it says something else, or nothing.

    Examples
    --------
    >>> parsed_count("1.28M", "--samples"), parsed_count("500", "--iterations")
    (1280000.0, 500.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)([kmg]?)", text.strip().lower())
    count = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2]] if found else 0.0
    if not 0 < count < math.inf:
        raise UsageError(f"{option} {text} is no number of them", hint=f"for example {option} 1281167, or 1.28M")
    return count


def parsed_price(text: str) -> tuple[str, float]:
    """Name and price of ``p3.8xlarge=9.50``.

    Raises
    ------
    UsageError
        If it says something else.

    Examples
    --------
    >>> parsed_price("p3.8xlarge=9.50")
    ('p3.8xlarge', 9.5)
    """
    name, _, value = text.rpartition("=")
    try:
        price = float(value)
    except ValueError:
        price = math.nan
    if not name or not 0 <= price < math.inf:
        raise UsageError(f"--price {text} is no price", hint="for example --price p3.8xlarge=9.50")
    return name.strip(), price


def _catalog(arguments: argparse.Namespace) -> Catalog:
    from stashtrace.lab.recommend.catalog import load_catalog

    catalog = load_catalog(arguments.catalog)
    for text in arguments.price:
        catalog = catalog.with_price(*parsed_price(text))
    return catalog


def _profiles(arguments: argparse.Namespace) -> list[Profile]:
    from stashtrace.lab.characterize.answer import FILE_NAME
    from stashtrace.lab.recommend.profile import load_profile

    is_here = os.path.isfile(os.path.join(_DIRECTORY, FILE_NAME))
    files = arguments.files or ([_DIRECTORY] if is_here else [])
    if not files:
        raise UsageError(
            f"no characterization is given, and there is none in ./{_DIRECTORY}",
            hint="`stashtrace characterize -- CMD` makes one: characterization.json",
        )
    size = arguments.batch_size
    if size is not None and size < 1:
        raise UsageError(f"--batch-size {size} is no batch")
    every = [load_profile(path, instance=arguments.instance) for path in files]
    if size is None:
        return every
    kept = [replace(one, batch_samples=size) for one in every if one.batch_samples in (0, size)]
    if not kept:
        known = ", ".join(sorted({str(one.batch_samples) for one in every}))
        raise UsageError(f"nothing was measured with a batch of {size}", hint=f"--batch-size {known} was")
    return kept


def _work(arguments: argparse.Namespace, profiles: Sequence[Profile]) -> tuple[Work, str]:
    """The work, and in report."""
    from stashtrace.lab.recommend.candidates import Work

    if arguments.samples and arguments.iterations:
        raise UsageError("--samples and --iterations say the same thing twice", hint="give one of them")
    epochs = 1.0 if arguments.epochs is None else arguments.epochs
    if not 0 < epochs < math.inf:
        raise UsageError(f"--epochs {epochs:g} is no number of epochs")
    first = profiles[0]
    if arguments.samples or (first.epoch_samples and not arguments.iterations):
        own = not arguments.samples
        samples = first.epoch_samples if own else parsed_count(arguments.samples, "--samples")
        said = f"{epochs:g} epoch{'' if epochs == 1 else 's'} of {samples:,.0f} samples"
        said += ", as many as the job has" if own else ""
        batches = sorted({one.batch_samples for one in profiles})
        return Work(samples=samples, epochs=epochs), f"{said}, {' or '.join(map(str, batches))} a step and device"
    if arguments.epochs is not None:
        raise UsageError("--epochs needs to know of how many samples", hint="give --samples N")
    if not arguments.iterations:
        raise UsageError("how much is to be trained is not said", hint="give --samples N --epochs M, or --iterations N")
    steps = parsed_count(arguments.iterations, "--iterations")
    return Work(iterations=steps), f"{steps:,.0f} steps as {first.path} makes them, with {first.devices_count} devices"


def _money(value: float | None) -> float | None:
    if value is not None and not 0 <= value < math.inf:
        raise UsageError(f"--cost-budget {value:g} is no sum of money")
    return value
