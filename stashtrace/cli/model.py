"""``stashtrace model``: what communication costs, fitted to a run or to a sweep of networks, and what it would cost."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.cli.parsing import OUT_OPTIONS, Parser, existing_run
from stashtrace.cli.screen import Screen
from stashtrace.cli.whatif_cache import parsed_size
from stashtrace.errors import MissingDataError, UsageError

_EPILOG = """With RUN: fit the collectives of a recorded run, and predict its exposed
communication. With --sweep: train small networks on one rank and on all, here
and now, and fit how the stall grows with messages and bytes. A finished sweep
is shown again by giving its folder as RUN; a sweep into the same folder adds
its variants."""
_OUT = "layers-study"
#: Options of a sweep -> attribute of the request.
_SWEEP_ONLY = {
    "family": "family",
    "depths": "depths",
    "no_residual": "residual",
    "no_batch_norm": "batch_norm",
    "bucket_mb": "bucket_mib",
    "ranks": "ranks",
    "iterations": "iterations",
    "repeat": "repeat",
    "batch_size": "batch_samples",
    "out": "",
}


def parser() -> Parser:
    """Options of ``stashtrace model``."""
    from stashtrace.lab.sweep.shapes import FAMILIES

    parser = Parser("model", "Fit what messages and bytes of gradients cost, and predict.", _EPILOG)
    parser.usage = "stashtrace model RUN [options]\n       stashtrace model --sweep depth|width|bucket [options]"
    parser.add_argument(
        "path",
        metavar="RUN",
        nargs="?",
        help="run directory, trace of another tool, folder of a sweep or of characterize",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw fit and residuals (.png, .svg, .pdf)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text (default) or JSON")
    parser.add_argument(
        "--predict",
        metavar="NAME",
        action="append",
        help="of a sweep: the stall of a network that was not measured, as in resnet101 or 400:90M (messages:bytes)",
    )
    sweep = parser.add_argument_group("sweeps")
    sweep.add_argument("--sweep", choices=("depth", "width", "bucket"), help="what the networks differ in")
    sweep.add_argument("--family", choices=FAMILIES, default=None, help="of the networks (default resnet)")
    sweep.add_argument("--depths", metavar="N,N", type=_depths, help="depths, or the depth of the other sweeps")
    sweep.add_argument("--no-residual", action="store_true", help="leave the residual links out")
    sweep.add_argument("--no-batch-norm", action="store_true", help="leave the batch norms out")
    sweep.add_argument(
        "--bucket-mb",
        metavar="MB",
        type=float,
        default=None,
        help="bucket_cap_mb of depth and width sweeps (default 0: a message per tensor)",
    )
    sweep.add_argument("--ranks", metavar="N", type=int, help="all ranks (default: one per GPU, else 2)")
    sweep.add_argument("--iterations", metavar="K", type=int, help="steps of a run, 5 of them to warm up (default 25)")
    sweep.add_argument("--repeat", metavar="R", type=int, help="repetitions of all (default 3)")
    sweep.add_argument("--batch-size", metavar="B", type=int, help="samples of a rank and step (default 8)")
    sweep.add_argument("-o", *OUT_OPTIONS, dest="out", metavar="DIR", help=f"folder of the sweep (default {_OUT})")
    return parser


def main(argv: Sequence[str]) -> int:
    """Fit a run, or run and fit a sweep."""
    arguments = parser().read(argv)
    if arguments.plot:
        from stashtrace.lab.plot import check_plot_file, check_plot_folder

        check_plot_file(arguments.plot)
        check_plot_folder(arguments.plot)
    if (arguments.path is None) == (arguments.sweep is None):
        what = "neither a run nor a sweep" if arguments.path is None else "a run and a sweep"
        raise UsageError(f"stashtrace model: {what}", hint="`stashtrace model RUN` or `stashtrace model --sweep depth`")
    if arguments.sweep is not None:
        return _sweep(arguments)
    given = [f"--{name.replace('_', '-')}" for name in _SWEEP_ONLY if getattr(arguments, name) not in (None, False)]
    if given:
        raise UsageError(f"{given[0]} belongs to a sweep", hint=f"`stashtrace model --sweep depth {given[0]} ...`")
    from stashtrace.lab.sweep.fit import FILE_NAME

    path = existing_run(arguments.path)
    if (path / FILE_NAME).exists():
        from stashtrace.lab.sweep.study import read_study

        return _show_study(arguments, read_study(path))
    if arguments.predict:
        raise UsageError("--predict needs a sweep", hint="`stashtrace model --sweep depth --predict resnet101`")
    return _show_run(arguments, path)


def _show_run(arguments: argparse.Namespace, path: Path) -> int:
    from stashtrace.loading.load import load_trace
    from stashtrace.replay.communication.model import communication_model
    from stashtrace.replay.communication.report import model_json, model_lines

    said: list[str] = []
    beside: dict[str, Any] = {}
    if (path / "characterization.json").exists():
        from stashtrace.lab.characterize.answer import run_of_all_ranks
        from stashtrace.lab.characterize.report import characterized_json, characterized_lines

        folder, (path, stall) = path, run_of_all_ranks(path)
        said = characterized_lines(str(path.relative_to(folder)), stall)
        beside = characterized_json(str(path.relative_to(folder)), stall)
    model = communication_model(load_trace(str(path)))
    _print(arguments, [*said, *model_lines(model)], {**model_json(model), **beside})
    if arguments.plot:
        from stashtrace.lab.sweep.plot import plot_model

        plot_model(model, arguments.plot)
        sys.stderr.write(f"wrote {arguments.plot}\n")
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from stashtrace import __version__
    from stashtrace.lab.sweep.study import StudyRequest, run_study

    options: dict[str, Any] = {}
    for name, attribute in _SWEEP_ONLY.items():
        value = getattr(arguments, name)
        if attribute and value not in (None, False):
            options[attribute] = not value if attribute in ("residual", "batch_norm") else value
    _requests_of(arguments.predict)  # said before minutes are spent
    screen = Screen()
    with screen.progress("sweep") as bar:
        content = run_study(
            StudyRequest(arguments.sweep, **options),
            Path(arguments.out or _OUT),
            version=__version__,
            on_progress=bar.step,
        )
    code = _show_study(arguments, content)
    screen.say(f"\nkept in {arguments.out or _OUT}; show it again: stashtrace model {arguments.out or _OUT}")
    return code


def _show_study(arguments: argparse.Namespace, content: dict[str, Any]) -> int:
    from stashtrace.lab.sweep.fit import study_of
    from stashtrace.lab.sweep.report import prediction_lines, study_json, study_lines

    study = study_of(content)
    lines, whole = study_lines(study), study_json(study)
    whole["predictions"] = []
    said: list[str] = []
    refused: MissingDataError | None = None
    for name, messages, sent in _requests_of(arguments.predict):
        try:
            stall, error = study.predict(messages, sent)
        except MissingDataError as why:  # what was measured is shown all the same
            refused = why
            break
        said += prediction_lines(name, messages, sent, stall, error, study)
        whole["predictions"].append(
            {"name": name, "messages_count": messages, "message_bytes": sent, "stall_ns": stall, "error_ns": error}
        )
    _print(arguments, [*lines, "", "predicted:", *said] if said else lines, whole)
    if arguments.plot:
        from stashtrace.lab.sweep.plot import plot_study

        plot_study(study, arguments.plot)
        sys.stderr.write(f"wrote {arguments.plot}\n")
    if refused is not None:
        raise refused
    return 0


def _requests_of(names: Sequence[str] | None) -> list[tuple[str, int, int]]:
    """Name, messages and bytes of what is to be predicted: a network with a message per tensor, or two numbers."""
    from stashtrace.lab.sweep.shapes import named

    found = []
    for name in names or ():
        if ":" in name:
            count, _, size = name.partition(":")
            if not re.fullmatch(r"\d+", count) or int(count) < 1:
                raise UsageError(f"--predict {name}: {count!r} is no number of messages", hint="--predict 400:90M")
            found.append((name, int(count), parsed_size(size, "--predict") or 0))
        else:
            net = named(name)
            found.append((net.name, net.tensors_count, net.gradient_bytes))
    return found


def _print(arguments: argparse.Namespace, lines: list[str], whole: dict[str, Any]) -> None:
    if arguments.format == "json":
        sys.stdout.write(json.dumps(_finite(whole), indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(lines) + "\n")


def _depths(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} are no depths, for example 10,18,34")
    return tuple(int(part) for part in text.split(","))


def _finite(value: Any) -> Any:
    """JSON knows no infinity: null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
