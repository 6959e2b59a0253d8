"""``stashtrace whatif RUN``: predict the length of a step with something changed, by a replay of the run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import TEXT_FORMATS, Parser, runs_or_newest
from stashtrace.cli.print_results import print_answer
from stashtrace.errors import MissingDataError, UsageError, guarded

if TYPE_CHECKING:
    from stashtrace.analysis.graph import Graph
    from stashtrace.analysis.graph.critical_path_tables import CriticalPath
    from stashtrace.replay import Answer, Change
    from stashtrace.replay.advice import Advice
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace

_EPILOG = """Without --set, single changes are ranked by what they save. QUANTITY is
compute, late (or straggler), copy (h2d), save (checkpoint), other, storage
(fetch), prep, launch, python, compile, objects, slow_worker, workers,
persistent_workers, in_order, ranks, compression, network.bandwidth,
network.latency, in-host.bandwidth (interconnect.bandwidth), in-host.latency,
bucket_mb (bucket_cap_mb of DistributedDataParallel), or cause: cause=1 takes
the first cause of the summary away, cause=2 the second. A column of it changes
all of its parts: data, host, link.bandwidth, link.latency.
VALUE is xN for N times as much, or a new value: 0 or 5ms for a time, 10gbit
for a bandwidth, 8 for a number, fp16 for compression, 1 for
persistent_workers, false for in_order.

`stashtrace tune` applies settings, bucket_mb too, and measures what they save."""


def parser() -> Parser:
    """Return the parser of ``stashtrace whatif``."""
    parser = Parser(
        "whatif",
        "Predict the step time of a recorded run with something changed.",
        _EPILOG,
        usage="stashtrace whatif [options] [PATH ...] [QUANTITY=VALUE ...]",
    )
    parser.add_runs(", or a change as for --set")
    parser.add_argument(
        "--set",
        dest="changes",
        metavar="QUANTITY=VALUE",
        action="append",
        default=[],
        help="change, as in network.bandwidth=x2; may be repeated, and all hold together",
    )
    parser.add_format(TEXT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Replay the run and print the predictions."""
    arguments = parser().read(argv, intermixed=True)
    import numpy as np

    from stashtrace.analysis.graph import build
    from stashtrace.analysis.graph.critical_path_tables import CriticalPath
    from stashtrace.analysis.steps.step_time import step_time_of
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.replay import Change, known_changes, what_if
    from stashtrace.replay.advice.advice_text import advice_lines, advice_row
    from stashtrace.replay.causes import without_causes
    from stashtrace.replay.changes import example_of, of_cause, quantity_words
    from stashtrace.replay.whatif_text import limit_lines, slowdown_lines, unreliable, whatif_lines
    from stashtrace.summary.critical_path_text import critical_lines

    words = [word for word in arguments.paths if _is_change(word)]
    for word in arguments.paths:
        if not Path(word).exists() and (example := example_of(word)):
            raise UsageError(f"{word} needs a value", hint=f"as in `stashtrace whatif RUN {example}`")
    causes = _causes_asked([*arguments.changes, *words])
    asked = [] if causes else [Change.parse_all(text) for text in (*arguments.changes, *words)]
    changes = [change for several in asked for change in several]
    names = [change.quantity for change in changes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{quantity_words(name)} is set more than once", hint="each quantity can have one value")
    arguments.paths = [path for path in arguments.paths if path not in words]
    arguments.paths = runs_or_newest(arguments.paths)
    trace = read_runs(arguments.paths, quiet=True)
    graph = build(trace)
    base = what_if(graph, [])
    if not base.is_reliable and (changes or causes):
        raise MissingDataError(
            f"this run allows no prediction: {unreliable(base)}",
            hint="without a change the command shows what is known of its critical path",
        )
    changes = [c for several in asked for c in (known_changes(graph, several) if len(several) > 1 else several)]
    unsaid: list[str] = []
    answers: list[Answer] = []
    if causes:
        answers = [replace(without_causes(trace, causes), changes=tuple(map(of_cause, causes)))]
    elif base.is_reliable:
        answers = _answers(trace, graph, changes, unsaid)
    path = guarded("the critical path", partial(CriticalPath.of, trace, graph), unsaid.append)
    limits = guarded("what the recording lacks", partial(limit_lines, trace, graph), lambda line: [f"! {line}"])
    several = len(np.unique(graph.ends_rank)) > 1
    changes = changes or list(answers[0].changes if causes else ())
    ranking = base.is_reliable and not changes
    slowdown = (
        guarded("ranks that do equal work", partial(_slowdown, graph), unsaid.append) if several and ranking else None
    )
    advice: list[Advice] | None = None
    if ranking:
        advice = guarded("advice on overlapping", partial(_advice, trace, graph), unsaid.append)

    content: dict[str, Any] = {
        "run": _row(base),
        "answers": [_row(answer) for answer in answers],
        "critical_path": None if path is None else _path_content(path),
        "limits": limits,
        "not_said": unsaid,
    }
    step = step_time_of(trace)
    if step is not None:
        content["step_time"] = {"mean_ns": step.mean_ns, "steps_count": step.steps_count}
    lines = whatif_lines(base, answers, step, asked=bool(changes), limits=limits)
    if slowdown is not None:
        content["slowdown"] = list(slowdown.rows())
    if not changes:
        content["advice"] = [advice_row(item) for item in advice or ()]
        lines += slowdown_lines(slowdown, base) if slowdown is not None else []
        lines += ["", *critical_lines(path)] if path is not None else []
    lines += advice_lines(advice or ())
    print_answer(arguments.format, [*lines, *(["", *(f"! {line}" for line in unsaid)] if unsaid else [])], content)
    return 0


def _slowdown(graph: Graph) -> Table | None:
    """Return how much longer ranks take than others like them; None if nothing can be said of that."""
    from stashtrace.replay import slowdown_of
    from stashtrace.replay.whatif_text import WORTH_SHARING

    with contextlib.suppress(MissingDataError):
        return slowdown_of(graph, least_ratio=WORTH_SHARING)
    return None


def _path_content(path: CriticalPath) -> dict[str, Any]:
    from stashtrace.summary.critical_path_text import critical_sentence

    held_ns = max(int(path.shares["held_ns"].sum()), 1)
    return {
        "sentence": critical_sentence(path),
        "ambiguous_ratio": float(path.shares["ambiguous_ratio"].sum()),
        "shares": [row | {"time_ratio": row["held_ns"] / held_ns} for row in path.shares.rows()],
    }


def _causes_asked(texts: Sequence[str]) -> list[int]:
    """Return the numbers of ``cause=N``, of which all or none of the changes must be."""
    values = [text.partition("=")[2] for text in texts if text.startswith("cause=")]
    for value in values:
        if not re.fullmatch(r"[1-9]\d{0,3}", value):
            raise UsageError(f"cause cannot be {value or 'nothing'}", hint="as in cause=1, the first of the summary")
    numbers = list(map(int, values))
    if numbers and len(numbers) < len(texts):
        raise UsageError(
            "cause=N holds together with other causes alone", hint="ask for the other changes by themselves"
        )
    return sorted(set(numbers))


def _is_change(word: str) -> bool:
    """Return True for a word that reads like QUANTITY=VALUE and is not the name of a file."""
    return re.fullmatch(r"[a-z0-9_.-]+=[^/]*", word) is not None and not Path(word).exists()


def _answers(trace: Trace, graph: Graph, changes: Sequence[Change], unsaid: list[str]) -> list[Answer]:
    """Predict the changes asked for; without any, rank single changes."""
    from stashtrace.replay import BUCKET, buckets_if_any, gradient_buckets, single_changes, what_if

    if changes:
        asked = any(change.quantity == BUCKET for change in changes)
        return [what_if(graph, changes, buckets=gradient_buckets(trace, graph) if asked else None)]
    return single_changes(graph, buckets=buckets_if_any(trace, graph, unsaid), unsaid=unsaid)


def _advice(trace: Trace, graph: Graph) -> list[Advice]:
    """Return what overlapping, fusing or splitting collectives would save by the replay; empty without collectives."""
    from stashtrace.replay.advice import ReplayedAdvice, named_advice, overlap_advice

    if not len(trace.collectives):
        return []
    return named_advice(overlap_advice(trace), ReplayedAdvice(graph, trace).limited)


def _row(answer: Answer) -> dict[str, Any]:
    return {
        "changes": [change.option for change in answer.changes],
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
