"""``stashtrace metrics``: which series a followed run has for monitoring systems, and a dashboard of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from stashtrace.cli.parsing import TEXT_FORMATS, Parser, add_flag
from stashtrace.cli.print_results import print_answer
from stashtrace.text.prose import wrap


def parser() -> Parser:
    """Return the parser of ``stashtrace metrics``."""
    parser = Parser(
        "metrics",
        "List the series that `stashtrace run` hands to Prometheus or an OTLP collector\n"
        "(--metrics-file, --metrics-port, --otlp), or print a dashboard of them.",
        "example: stashtrace metrics --dashboard > stashtrace.json",
    )
    add_flag(parser, "--dashboard", "print a dashboard to import into Grafana, which asks for the data source")
    parser.add_format(TEXT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the series or the dashboard."""
    arguments = parser().read(argv)
    import stashtrace.live.metrics
    from stashtrace.live.metrics.series import SERIES

    if arguments.dashboard:
        [folder] = stashtrace.live.metrics.__path__
        sys.stdout.write((Path(folder) / "grafana.json").read_text(encoding="utf-8"))
        return 0
    lines = []
    for one in SERIES:
        labels = f"{{{','.join(one.labels)}}}" if one.labels else ""
        lines += [f"{one.full_name}{labels}  {one.type}", *wrap(one.doc, rest=2)]
    content = [
        {"name": one.full_name, "type": one.type, "labels": list(one.labels), "unit": one.unit, "doc": one.doc}
        for one in SERIES
    ]
    print_answer(arguments.format, lines, content)
    return 0
