"""``stashtrace whatif RUN``: how long a step would be if something were faster, by a replay of the run."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.errors import DataLossWarning

if TYPE_CHECKING:
    from stashtrace.replay import Answer

_EPILOG = """Without --set, single changes are ranked by what they save. QUANTITY is compute,
launch, h2d, prep, fetch, straggler, network.bandwidth, network.latency,
interconnect.bandwidth or interconnect.latency; VALUE is xN, or 0 for a time."""


def parser() -> Parser:
    """Options of ``stashtrace whatif``."""
    parser = Parser("whatif", "Predict the step time of a recorded run with something changed.", _EPILOG)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="run directory, or files of another tool")
    parser.add_argument("--set", dest="changes", metavar="QUANTITY=VALUE", action="append", default=[],
                        help="as in network.bandwidth=x2; may be repeated, all hold together")  # fmt: skip
    parser.add_argument("--format", choices=("table", "json"), default="table", help="aligned text (default) or JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Replay and print."""
    arguments = parser().read(argv)
    from stashtrace.analysis.graph import build
    from stashtrace.analysis.graph.path import CriticalPath
    from stashtrace.cli.loading import load_watched
    from stashtrace.replay import Change, single_changes, slowdown_of, what_if
    from stashtrace.report.critical import critical_lines, critical_sentence
    from stashtrace.report.whatif import WORTH_SHARING, relied_on, slowdown_lines, whatif_lines

    changes = [Change.parse(text) for text in arguments.changes]
    found = [str(existing_run(path)) for path in arguments.paths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        trace = load_watched(found if len(found) > 1 else found[0])
    graph = build(trace)
    answers = [what_if(graph, changes)] if changes else single_changes(graph)
    base = what_if(graph, [])
    path = CriticalPath.of(trace, graph)
    alike = None if changes else slowdown_of(graph, least_ratio=WORTH_SHARING)
    if arguments.format == "json":
        critical = {
            "sentence": critical_sentence(path),
            "ambiguous_ratio": float(path.shares["ambiguous_ratio"].sum()),
            "shares": list(path.shares.rows()),
        }
        whole: dict[str, Any] = {"run": _row(base), "answers": [_row(answer) for answer in answers]}
        whole["critical_path"] = critical
        if alike is not None:
            whole["slowdown"] = list(alike.rows())
        sys.stdout.write(json.dumps(whole, indent=1) + "\n")
        return 0
    lines = whatif_lines(base, answers, asked=bool(changes))
    if alike is not None and relied_on(base):
        lines += slowdown_lines(alike)
    if not changes:
        lines += ["", *critical_lines(path)]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _row(answer: Answer) -> dict[str, Any]:
    return {
        "changes": [str(change) for change in answer.changes],
        "measured_ns": answer.measured_ns,
        "replayed_ns": answer.replayed_ns,
        "error_ratio": answer.error_ratio,
        "gap_ratio": answer.gap_ratio,
        "low_ns": answer.low_ns,
        "high_ns": answer.high_ns,
        "bottleneck": answer.bottleneck,
        "budget_ns": answer.after_ns,
    }
