"""``stashtrace whatif-cache RUN``: how fast the job of a recorded run would be with more or less of its data cached."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.rows import FORMATS, column_names, named_rows, write_rows
from stashtrace.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_EPILOG = """The run must hold DataLoader batches and I/O calls. Recorded with part of the
data cached, it shows the rates of both storage and page cache."""
#: Rows of a range without a step of its own.
_RANGE_STEP = 10
_SHARES = "0:100"


def parser() -> Parser:
    """Options of ``stashtrace whatif-cache``."""
    from stashtrace.lab.cache.model import LRU, POLICIES

    parser = Parser("whatif-cache", "Forecast step time against the cached share of the data set.", _EPILOG)
    parser.add_argument("path", metavar="RUN", help="run directory, or trace of another tool")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--cache-size", metavar="SIZE", help="one row for a cache of this size, as in 20G")
    size.add_argument(
        "--cached", metavar="A:B[:STEP]", default=_SHARES, help="rows from A to B percent cached (default 0:100:10)"
    )
    parser.add_argument(
        "--policy",
        choices=POLICIES,
        default=LRU,
        help="lru: a page cache, roughly (default); minio: what came first stays",
    )
    parser.add_argument("--dataset-size", metavar="SIZE", help="of all data, if the run read only a part of them")
    parser.add_argument(
        "--calibration", metavar="FILE", help="of `stashtrace calibrate --disk`, for storage that the run did not use"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the simulation (default 0)")
    parser.add_argument("--plot", metavar="FILE", help="draw step time and stalls (.png, .svg, .pdf)")
    parser.add_argument("--format", choices=FORMATS, default="table", help="aligned text (default), JSON or CSV")
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure, forecast, print."""
    arguments = parser().read(argv)
    path = str(existing_run(arguments.path))
    from stashtrace.analysis.registry import analyze
    from stashtrace.calibration.file import find_calibration, load_calibration
    from stashtrace.cli.loading import load_watched
    from stashtrace.lab.cache.forecast import cache_forecast, inputs_of
    from stashtrace.lab.cache.report import answers, forecast_lines

    shares = parsed_shares(arguments.cached)
    dataset = parsed_size(arguments.dataset_size, "--dataset-size")
    cache = parsed_size(arguments.cache_size, "--cache-size")
    if dataset == 0:
        raise UsageError("--dataset-size 0 leaves nothing to cache", hint="for example --dataset-size 140G")
    if arguments.plot:
        from stashtrace.lab.plot import check_plot_file, check_plot_folder

        check_plot_file(arguments.plot)
        check_plot_folder(arguments.plot)
    calibration = load_calibration(arguments.calibration) if arguments.calibration else None
    if calibration is None and Path(path).is_dir():
        calibration = find_calibration([path])
    trace = load_watched(path)
    rates = analyze(trace, "loader_rates")
    inputs = inputs_of(rates, calibration, dataset_bytes=dataset)
    if cache is not None and not inputs.dataset_bytes:
        raise UsageError(
            f"how much of the data {arguments.cache_size} holds is not known: the run does not show their size",
            hint="give --dataset-size, or --cached in percent",
        )
    if cache is not None:
        shares = [min(cache / max(inputs.dataset_bytes, 1), 1.0)]
    table = cache_forecast(inputs, shares, arguments.policy, seed=arguments.seed)
    if arguments.format == "json":
        whole: dict[str, Any] = {
            "policy": arguments.policy,
            "rates": list(rates.rows()),
            "not_measured": list(inputs.notes),
            "answers": answers(inputs),
            "forecast": list(named_rows(table, trace.strings)),
        }
        sys.stdout.write(json.dumps(_finite(whole), indent=1) + "\n")
    elif arguments.format == "csv":
        write_rows(list(named_rows(table, trace.strings)), column_names(table), "csv", sys.stdout)
    else:
        sys.stdout.write("\n".join(forecast_lines(inputs, rates, table, arguments.policy)) + "\n")
    if arguments.plot:
        from stashtrace.lab.cache.report import plot_forecast

        plot_forecast(inputs, table, arguments.policy, arguments.plot)
        sys.stderr.write(f"wrote {arguments.plot}\n")
    return 0


def parsed_shares(text: str) -> list[float]:
    """Cached shares of ``A:B:STEP`` or ``A``, in percent, as parts of one.

    Raises
    ------
    UsageError
        If it says something else.

    Examples
    --------
    >>> parsed_shares("0:100:50"), parsed_shares("35")
    ([0.0, 0.5, 1.0], [0.35])
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?)?", text.strip().replace("%", ""))
    low, high, step = (float(part) if part else None for part in found.groups()) if found else (None, None, None)
    high, step = low if high is None else high, _RANGE_STEP if step is None else step
    if low is None or high is None or not 0 <= low <= high <= 100 or not step > 0:
        raise UsageError(f"--cached {text} is no range of percents", hint="for example --cached 0:100:10")
    count = math.floor((high - low) / step + 1e-9)
    shares = [low + step * i for i in range(count + 1)]
    if shares[-1] < high:
        shares.append(high)
    return [min(share / 100, 1.0) for share in shares]


def parsed_size(text: str | None, option: str) -> int | None:
    """Bytes of ``20G``, in powers of ten, or of ``20GiB``.

    Raises
    ------
    UsageError
        If it says something else.

    Examples
    --------
    >>> parsed_size("20G", "--cache-size"), parsed_size("1KiB", "--cache-size"), parsed_size(None, "--cache-size")
    (20000000000, 1024, None)
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.I)
    if found is None:
        raise UsageError(f"{option} {text} is no size", hint=f"for example {option} 20G")
    number, unit, binary = found.groups()
    scale = _UNITS[unit.upper()]
    if binary:
        scale = 1 << (10 * "KMGT".index(unit.upper()) + 10) if unit else 1
    return round(float(number) * scale)


def _finite(value: Any) -> Any:
    """JSON knows no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
