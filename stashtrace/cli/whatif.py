"""``stashtrace whatif RUN``: how long a step would be if something were faster, by a replay of the run."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.errors import DataLossWarning, MissingDataError, UsageError

if TYPE_CHECKING:
    from stashtrace.analysis.graph import Graph
    from stashtrace.replay import Answer, Buckets, Change
    from stashtrace.replay.advice import Advice
    from stashtrace.schema.trace import Trace

_EPILOG = """Without --set, single changes are ranked by what they save. QUANTITY is compute,
launch, h2d, prep, fetch, checkpoint, straggler, workers, ranks, compression,
network.bandwidth, network.latency, interconnect.bandwidth or
interconnect.latency. VALUE is xN, or what it is to be: 0 or 5ms for a time,
10gbit for a bandwidth, 8 for a number, fp16 for compression.
bucket_mb=N is the bucket_cap_mb of DistributedDataParallel. With --apply the
command after -- is run again with that size, or with the one that is predicted
to be best, and measured beside the prediction; its script needs no edit."""


def parser() -> Parser:
    """Options of ``stashtrace whatif``."""
    parser = Parser("whatif", "Predict the step time of a recorded run with something changed.", _EPILOG)
    parser.add_argument("paths", metavar="PATH", nargs="+", help="run directory, or files of another tool")
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="QUANTITY=VALUE",
        action="append",
        default=[],
        help="as in network.bandwidth=x2; may be repeated, all hold together",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="aligned text (default) or JSON")
    parser.usage = (
        "stashtrace whatif [options] PATH [PATH ...]\n"
        "       stashtrace whatif [options] RUN --apply -- COMMAND [ARGUMENT ...]"
    )
    parser.add_argument("--apply", action="store_true", help="run COMMAND with the other buckets, and measure")
    parser.add_out("DIR", "of --apply: directory of that run (default: PATH-bucket-N)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Replay and print."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    arguments, command = parser().read(words[:at]), words[at + 1 :]
    import numpy as np

    from stashtrace.analysis.graph import build
    from stashtrace.analysis.graph.path import CriticalPath
    from stashtrace.cli.loading import load_watched
    from stashtrace.replay import Change, slowdown_of, what_if
    from stashtrace.replay.advice.report import advice_lines, advice_row
    from stashtrace.replay.report import (
        WORTH_SHARING,
        applied_lines,
        limit_lines,
        slowdown_lines,
        unreliable,
        whatif_lines,
    )
    from stashtrace.summary.critical import critical_lines, critical_sentence

    changes = [Change.parse(text) for text in arguments.changes]
    names = [change.quantity for change in changes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is set more than once", hint="each quantity can have one value")
    if arguments.apply or command or arguments.out:
        _check_apply(arguments, changes, command)
    found = [str(existing_run(path)) for path in arguments.paths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataLossWarning)
        trace = load_watched(found if len(found) > 1 else found[0])
    graph = build(trace)
    base = what_if(graph, [])
    if not base.is_reliable and (changes or arguments.apply):
        raise MissingDataError(
            f"nothing is predicted from this run: {unreliable(base)}",
            hint="without --set and --apply the command shows what is known of its critical path",
        )
    answers = _answers(trace, graph, changes, best_buckets=arguments.apply) if base.is_reliable else []
    measured = None
    if arguments.apply:
        from stashtrace.cli.applying import measured_with_buckets

        change = answers[0].changes[-1]
        measured = measured_with_buckets(command, change.factor or 0.0, _second_run(arguments, change))
    path, limits = CriticalPath.of(trace, graph), limit_lines(trace, graph)
    several = len(np.unique(graph.ends_rank)) > 1
    ranking = base.is_reliable and not changes and not arguments.apply
    alike = slowdown_of(graph, least_ratio=WORTH_SHARING) if several and ranking else None
    advice = _advice(trace, graph) if ranking else []
    if arguments.format == "json":
        held_ns = max(int(path.shares["held_ns"].sum()), 1)
        critical = {
            "sentence": critical_sentence(path),
            "ambiguous_ratio": float(path.shares["ambiguous_ratio"].sum()),
            "shares": [row | {"time_ratio": row["held_ns"] / held_ns} for row in path.shares.rows()],
        }
        whole: dict[str, Any] = {"run": _row(base), "answers": [_row(answer) for answer in answers]}
        whole["critical_path"] = critical
        whole["limits"] = limits
        if alike is not None:
            whole["slowdown"] = list(alike.rows())
        if measured is not None:
            whole["applied"] = {"measured_ns": measured, "error_ratio": answers[0].missed_ratio(measured)}
        elif not changes:
            whole["advice"] = [advice_row(item) for item in advice]
        sys.stdout.write(json.dumps(whole, indent=1) + "\n")
        return 0
    lines = whatif_lines(base, answers, asked=bool(changes) or arguments.apply, limits=limits)
    if measured is not None:
        lines += applied_lines(base, answers[0], measured)
    elif not changes:
        if alike is not None:
            lines += slowdown_lines(alike, base)
        lines += ["", *critical_lines(path)]
    lines += advice_lines(advice)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _answers(trace: Trace, graph: Graph, changes: Sequence[Change], *, best_buckets: bool) -> list[Answer]:
    """The answer to the question; without one the best size of buckets, or a ranking of single changes."""
    from stashtrace.replay import BUCKET, gradient_buckets, single_changes, what_if

    if changes:
        asked = any(change.quantity == BUCKET for change in changes)
        return [what_if(graph, changes, buckets=gradient_buckets(trace, graph) if asked else None)]
    if best_buckets:
        return [_best(graph, gradient_buckets(trace, graph))]
    buckets = None
    with contextlib.suppress(MissingDataError):  # a job without such buckets: nothing to rank
        buckets = gradient_buckets(trace, graph)
    return single_changes(graph, buckets=buckets)


def _check_apply(arguments: argparse.Namespace, changes: Sequence[Change], command: Sequence[str]) -> None:
    """Raise unless what is to be applied can be."""
    from stashtrace.replay import BUCKET

    example = "`stashtrace whatif RUN --apply -- torchrun --nproc-per-node 2 train.py`"
    if not arguments.apply:
        raise UsageError("a command and --out belong to --apply", hint=example)
    if not command:
        raise UsageError("--apply needs the command of the job after --", hint=example)
    other = [str(change) for change in changes if change.quantity != BUCKET]
    if other:
        raise UsageError(f"{other[0]} cannot be applied to a job", hint=f"--apply takes {BUCKET}=N alone")
    if len(arguments.paths) > 1:
        raise UsageError("--apply takes one run", hint=example)


def _best(graph: Graph, buckets: Buckets) -> Answer:
    from stashtrace.replay import BUCKET, best_buckets

    answer = best_buckets(graph, buckets)
    if answer is None:
        raise MissingDataError(
            "no other size of buckets is predicted to be better than those of the run",
            hint=f"try one all the same: --set {BUCKET}=25",
        )
    return answer


def _second_run(arguments: argparse.Namespace, change: Change) -> str:
    path = Path(arguments.paths[0]).resolve()
    return str(arguments.out or path.with_name(f"{path.name}-bucket-{change.factor:g}"))


def _advice(trace: Trace, graph: Graph) -> list[Advice]:
    """What overlapping, fusing or splitting collectives would save by the replay; nothing for a run without them."""
    from stashtrace.replay.advice import ReplayedAdvice, named_advice, overlap_advice

    if not len(trace.collectives):
        return []
    return named_advice(overlap_advice(trace), ReplayedAdvice(graph, trace).limited)


def _row(answer: Answer) -> dict[str, Any]:
    return {
        "changes": [str(change) for change in answer.changes],
        "measured_ns": answer.measured_ns,
        "replayed_ns": answer.replayed_ns,
        "error_ratio": answer.error_ratio,
        "gap_ratio": answer.gap_ratio,
        "low_ns": answer.low_ns,
        "high_ns": answer.high_ns,
        "noise_ns": answer.noise_ns,
        "steps_count": answer.steps_count,
        "bottleneck": answer.bottleneck,
        "budget_ns": answer.after_ns,
    }
