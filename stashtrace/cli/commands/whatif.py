"""``stashtrace whatif RUN``: predict the length of a step with something changed, by a replay of the run."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import (
    TEXT_FORMATS,
    Parser,
    add_flag,
    runs_or_newest,
    split_at_dashes,
)
from stashtrace.cli.print_results import print_answer
from stashtrace.errors import CaptureError, MissingDataError, UsageError, guarded

if TYPE_CHECKING:
    from stashtrace.analysis.graph import Graph
    from stashtrace.analysis.graph.critical_path_tables import CriticalPath
    from stashtrace.replay import Answer, Buckets, Change
    from stashtrace.replay.advice import Advice
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace

_EPILOG = """Without --set, single changes are ranked by what they save. QUANTITY is
compute, late (or straggler), copy (h2d), save (checkpoint), other, storage
(fetch), prep, launch, python, compile, objects, slow_worker, workers,
persistent_workers, in_order, ranks, compression, network.bandwidth,
network.latency, in-host.bandwidth (interconnect.bandwidth), in-host.latency,
bucket_mb (bucket_cap_mb of DistributedDataParallel), or cause: cause=1 takes
the first cause of the summary away, cause=2 the second. A column of the summary
changes all of its parts: data, host, link.bandwidth, link.latency.
VALUE is xN for N times as much, or a new value: 0 or 5ms for a time, 10gbit
for a bandwidth, 8 for a number, fp16 for compression, 1 for
persistent_workers, false for in_order.

With --apply, COMMAND runs again with the given bucket_mb, or with the one that
is predicted to be best, and its step is printed beside the prediction. Its
script needs no edit."""
#: Variable with the size of buckets that probes of DistributedDataParallel apply.
_BUCKET_VARIABLE = "STASHTRACE_BUCKET_MB"


def parser() -> Parser:
    """Return the parser of ``stashtrace whatif``."""
    parser = Parser(
        "whatif",
        "Predict the step time of a recorded run with something changed.",
        _EPILOG,
        usage=(
            "stashtrace whatif [options] [PATH ...] [QUANTITY=VALUE ...]\n"
            "       stashtrace whatif [options] [RUN] --apply -- COMMAND [ARGUMENT ...]"
        ),
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
    add_flag(parser, "--apply", "run COMMAND with other buckets, and measure its step")
    parser.add_out("DIR", "run directory of --apply (default: PATH-bucket-N)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Replay the run and print the predictions."""
    options, command = split_at_dashes(argv)
    arguments = parser().read(options, intermixed=True)
    import numpy as np

    from stashtrace.analysis.graph import build
    from stashtrace.analysis.graph.critical_path_tables import CriticalPath
    from stashtrace.analysis.steps.step_time import step_time_of
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.replay import Change, known_changes, what_if
    from stashtrace.replay.advice.advice_text import advice_lines, advice_row
    from stashtrace.replay.causes import without_causes
    from stashtrace.replay.changes import of_cause, quantity_words
    from stashtrace.replay.whatif_text import (
        applied_lines,
        limit_lines,
        slowdown_lines,
        unreliable,
        whatif_lines,
    )
    from stashtrace.summary.critical_path_text import critical_lines

    words = [word for word in arguments.paths if _is_change(word)]
    causes = _causes_asked([*arguments.changes, *words])
    asked = [] if causes else [Change.parse_all(text) for text in (*arguments.changes, *words)]
    changes = [change for several in asked for change in several]
    names = [change.quantity for change in changes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{quantity_words(name)} is set more than once", hint="each quantity can have one value")
    arguments.paths = [path for path in arguments.paths if path not in words]
    if arguments.apply or command or arguments.out:
        _check_apply(arguments, changes, command)
    arguments.paths = runs_or_newest(arguments.paths)
    trace = read_runs(arguments.paths, quiet=True)
    graph = build(trace)
    base = what_if(graph, [])
    if not base.is_reliable and (changes or causes or arguments.apply):
        raise MissingDataError(
            f"this run allows no prediction: {unreliable(base)}",
            hint="without --set and --apply the command shows what is known of its critical path",
        )
    changes = [c for several in asked for c in (known_changes(graph, several) if len(several) > 1 else several)]
    unsaid: list[str] = []
    answers: list[Answer] = []
    if causes:
        answers = [replace(without_causes(trace, causes), changes=tuple(map(of_cause, causes)))]
    elif base.is_reliable:
        answers = _answers(trace, graph, changes, unsaid, best_buckets=arguments.apply)
    measured = None
    if arguments.apply:
        change = answers[0].changes[-1]
        measured = measured_with_buckets(command, change.factor or 0.0, _second_run(arguments, change))
    path = guarded("the critical path", partial(CriticalPath.of, trace, graph), unsaid.append)
    limits = guarded("what the recording lacks", partial(limit_lines, trace, graph), lambda line: [f"! {line}"])
    several = len(np.unique(graph.ends_rank)) > 1
    changes = changes or list(answers[0].changes if causes else ())
    ranking = base.is_reliable and not changes and not arguments.apply
    alike = guarded("ranks that are alike", partial(_alike, graph), unsaid.append) if several and ranking else None
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
    lines = whatif_lines(base, answers, step, asked=bool(changes) or arguments.apply, limits=limits)
    if alike is not None:
        content["slowdown"] = list(alike.rows())
    if measured is not None:
        content["applied"] = {"measured_ns": measured, "error_ratio": answers[0].missed_ratio(measured)}
        lines += applied_lines(base, answers[0], measured)
    elif not changes:
        content["advice"] = [advice_row(item) for item in advice or ()]
        lines += slowdown_lines(alike, base) if alike is not None else []
        lines += ["", *critical_lines(path)] if path is not None else []
    lines += advice_lines(advice or ())
    print_answer(arguments.format, [*lines, *(["", *(f"! {line}" for line in unsaid)] if unsaid else [])], content)
    return 0


def _alike(graph: Graph) -> Table | None:
    """Return how much longer ranks take than others like them; None if nothing can be said of that."""
    from stashtrace.replay import slowdown_of
    from stashtrace.replay.whatif_text import WORTH_SHARING

    with contextlib.suppress(MissingDataError):
        return slowdown_of(graph, least_ratio=WORTH_SHARING)
    return None


def _path_content(path: CriticalPath) -> dict[str, Any]:
    """Return the critical path for JSON."""
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


def _answers(
    trace: Trace, graph: Graph, changes: Sequence[Change], unsaid: list[str], *, best_buckets: bool
) -> list[Answer]:
    """Predict the changes asked for; without any, those of the best size of buckets, or a ranking of single changes."""
    from stashtrace.replay import BUCKET, buckets_if_any, gradient_buckets, single_changes, what_if

    if changes:
        asked = any(change.quantity == BUCKET for change in changes)
        return [what_if(graph, changes, buckets=gradient_buckets(trace, graph) if asked else None)]
    if best_buckets:
        return [_best(graph, gradient_buckets(trace, graph))]
    return single_changes(graph, buckets=buckets_if_any(trace, graph, unsaid), unsaid=unsaid)


def _check_apply(arguments: argparse.Namespace, changes: Sequence[Change], command: Sequence[str]) -> None:
    """Raise UsageError unless the options of --apply fit together."""
    from stashtrace.replay import BUCKET

    example = "`stashtrace whatif RUN --apply -- torchrun --nproc-per-node 2 train.py`"
    if not arguments.apply:
        raise UsageError("a command and --out need --apply", hint=example)
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
            "no other size of buckets is predicted to be better than that of the run",
            hint=f"to measure one all the same: --set {BUCKET}=25",
        )
    return answer


def _second_run(arguments: argparse.Namespace, change: Change) -> str:
    path = Path(arguments.paths[0]).resolve()
    return str(arguments.out or path.with_name(f"{path.name}-bucket-{change.factor:g}"))


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


def measured_with_buckets(command: Sequence[str], bucket_mib: float, out: str) -> float:
    """Record ``command`` with another ``bucket_cap_mb``; return its mean step in ns.

    What the command prints goes to stderr: stdout is for the answer.

    ``command``: the job, as `stashtrace run` takes it. ``out``: run directory. Raises CaptureError if the command
    fails, its script chose the size of a model itself, torch did not take the size, or the command makes no
    DistributedDataParallel.
    """
    from stashtrace.cli.commands import run

    sys.stderr.write(f"stashtrace: running {command[0]} with bucket_cap_mb={bucket_mib:g}, recorded in {out}\n")
    with _variable(_BUCKET_VARIABLE, f"{bucket_mib:.12g}"), _stdout_to_stderr():
        code = run.main(["--out", out, "--", *command])
    if code:
        raise CaptureError(
            f"{command[0]} ended with exit code {code}: nothing to compare with", hint=f"what it recorded is in {out}"
        )
    from stashtrace.analysis.graph import build
    from stashtrace.cli.find_runs import read_runs
    from stashtrace.replay import what_if
    from stashtrace.replay.communication.ddp import ddp_facts

    trace = read_runs(out, quiet=True) if any(Path(out).glob("*.stash")) else None
    sources = ddp_facts(trace).sources if trace is not None else ()
    if "script" in sources:
        part = (
            "to one of its models, which kept that" if "applied" in sources else "itself, so that nothing was applied"
        )
        raise CaptureError(
            f"the script gives bucket_cap_mb {part}",
            hint="take the option out of its DistributedDataParallel(...) call, or set it there",
        )
    if "default" in sources:
        raise CaptureError(
            f"DistributedDataParallel did not take bucket_cap_mb={bucket_mib:g} and kept torch's default",
            hint="a size in MiB, as in bucket_mb=25",
        )
    if trace is None or "applied" not in sources:
        raise CaptureError(
            "the command made no DistributedDataParallel, so that nothing was applied",
            hint="give the command of the recorded job",
        )
    return what_if(build(trace), []).measured_ns


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what this process and those that it starts print to stderr."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)
