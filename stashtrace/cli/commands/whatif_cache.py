"""``stashtrace whatif-cache RUN``: forecast the step time with more or less of the data cached."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.cli.option_values import read_shares, read_size
from stashtrace.cli.parsing import ALL_FORMATS, RUN_OR_FILES, Parser, add_value, existing_run
from stashtrace.cli.print_results import check_plot, print_blocks, write_plot
from stashtrace.cli.print_tables import column_names, named_rows, write_rows
from stashtrace.errors import UsageError

_EPILOG = """The run must hold DataLoader batches and I/O calls. A run that was recorded
with part of its data cached shows the rates of both storage and page cache."""
_SHARES = "0:100"


def parser() -> Parser:
    """Return the parser of ``stashtrace whatif-cache``."""
    from stashtrace.lab.cache_model import LRU, POLICIES

    parser = Parser("whatif-cache", "Forecast step time against the cached share of the data set.", _EPILOG)
    parser.add_argument("path", metavar="RUN", help=RUN_OR_FILES)
    size = parser.add_mutually_exclusive_group()
    add_value(size, "--cache-size", "SIZE", "one row, for a cache of this size, as in 20G", read_size)
    shares = "a row for each share of the data from A to B percent (default 0:100:10)"
    add_value(size, "--cached", "A:B[:STEP]", shares, read_shares, default=_SHARES)
    policy = "lru: roughly the page cache (default); minio: what was cached first stays"
    parser.add_argument("--policy", choices=POLICIES, default=LRU, help=policy)
    add_value(parser, "--dataset-size", "SIZE", "size of the data set, if the run read only a part of it", read_size)
    calibration = "file of `stashtrace calibrate --disk`, for storage that the run did not read"
    add_value(parser, "--calibration", "FILE", calibration)
    parser.add_plot("step time and stalls")
    parser.add_format(ALL_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure, forecast, print."""
    arguments = parser().read(argv)
    path = str(existing_run(arguments.path))
    from stashtrace.analysis.registry import analyze
    from stashtrace.calibration.file import find_calibration, load_calibration
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.lab.cache_forecast import answers, cache_forecast, forecast_blocks, inputs_of, plot_forecast

    shares, dataset, cache = arguments.cached, arguments.dataset_size, arguments.cache_size
    if dataset == 0:
        raise UsageError("--dataset-size must be more than 0", hint="for example --dataset-size 140G")
    check_plot(arguments.plot)
    calibration = load_calibration(arguments.calibration) if arguments.calibration else None
    if calibration is None and Path(path).is_dir():
        calibration = find_calibration([path])
    trace = read_runs(path)
    rates = analyze(trace, "loader_rates")
    inputs = inputs_of(rates, calibration, dataset_bytes=dataset)
    if cache is not None and not inputs.dataset_bytes:
        raise UsageError(
            "--cache-size needs the size of the data set, which this run does not show",
            hint="add --dataset-size SIZE, or give --cached in percent instead",
        )
    if cache is not None:
        shares = [min(cache / max(inputs.dataset_bytes, 1), 1.0)]
    table = cache_forecast(inputs, shares, arguments.policy)
    rows = list(named_rows(table, trace.strings))
    whole: dict[str, Any] = {
        "policy": arguments.policy,
        "rates": list(rates.rows()),
        "not_measured": list(inputs.notes),
        "answers": answers(inputs),
        "forecast": rows,
    }
    if arguments.format == "csv":
        write_rows(rows, column_names(table), "csv", sys.stdout)
    else:
        print_blocks(arguments.format, forecast_blocks(inputs, rates, table, arguments.policy), whole)
    write_plot(arguments.plot, plot_forecast, inputs, table, arguments.policy)
    return 0
