"""``stashtrace model``: fit the cost of communication to a run or to a sweep of networks, and predict with it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.cli.option_values import read_size, read_wholes
from stashtrace.cli.parsing import (
    DOCUMENT_FORMATS,
    OUT_OPTIONS,
    RUN_OR_FILES,
    Parser,
    add_flag,
    add_value,
    existing_run,
)
from stashtrace.cli.print_results import check_plot, print_blocks, write_plot
from stashtrace.cli.screen import Screen
from stashtrace.errors import MissingDataError, UsageError

_EPILOG = """With RUN it fits the collectives of a recorded run and predicts its exposed
communication. With --sweep it trains small networks on this machine, on one
rank and on all, and fits how the stall grows with messages and bytes. To see a
finished sweep again, give its folder as RUN; a sweep into the same folder adds
its networks to those that are there."""
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
    """Return the parser of ``stashtrace model``."""
    from stashtrace.lab.sweep.shapes import FAMILIES

    parser = Parser(
        "model",
        "Fit the cost of gradient messages and bytes, and predict with it.",
        _EPILOG,
        usage="stashtrace model RUN [options]\n       stashtrace model --sweep depth|width|bucket [options]",
    )
    path = f"{RUN_OR_FILES}; or folder of a sweep or of characterize"
    parser.add_argument("path", metavar="RUN", nargs="?", help=path)
    parser.add_plot("fit and residuals")
    parser.add_format(DOCUMENT_FORMATS)
    predict = "predict the stall of a network that the sweep did not measure: resnet101, or 400:90M (messages:bytes)"
    add_value(parser, "--predict", "NAME", predict, action="append")
    sweep = parser.add_argument_group("sweeps")
    kinds = ("depth", "width", "bucket")
    sweep.add_argument("--sweep", choices=kinds, help="start a sweep of networks that differ in this")
    sweep.add_argument("--family", choices=FAMILIES, default=None, help="family of the networks (default resnet)")
    add_value(sweep, "--depths", "N,N", "depths of a depth sweep, or the one depth of other sweeps", read_wholes)
    add_flag(sweep, "--no-residual", "networks without residual links")
    add_flag(sweep, "--no-batch-norm", "networks without batch norms")
    bucket = "bucket_cap_mb of depth and width sweeps (default 0: one message per tensor)"
    add_value(sweep, "--bucket-mb", "MB", bucket, type=float)
    add_value(sweep, "--ranks", "N", "ranks of the large runs (default: one per GPU, else 2)", type=int)
    add_value(sweep, "--iterations", "K", "steps of a run, 5 of them to warm up (default 25)", type=int)
    add_value(sweep, "--repeat", "R", "repetitions of the whole sweep (default 3)", type=int)
    add_value(sweep, "--batch-size", "B", "samples per rank and step (default 8)", type=int)
    sweep.add_argument("-o", *OUT_OPTIONS, dest="out", metavar="DIR", help=f"folder of the sweep (default {_OUT})")
    return parser


def main(argv: Sequence[str]) -> int:
    """Fit a run, or run and fit a sweep."""
    arguments = parser().read(argv)
    check_plot(arguments.plot)
    if (arguments.path is None) == (arguments.sweep is None):
        number = "neither is given" if arguments.path is None else "both are given"
        raise UsageError(
            f"stashtrace model takes a run or --sweep, and {number}",
            hint="`stashtrace model RUN` or `stashtrace model --sweep depth`",
        )
    if arguments.sweep is not None:
        return _sweep(arguments)
    given = [f"--{name.replace('_', '-')}" for name in _SWEEP_ONLY if getattr(arguments, name) not in (None, False)]
    if given:
        raise UsageError(f"{given[0]} is for sweeps", hint=f"`stashtrace model --sweep depth {given[0]} ...`")
    from stashtrace.lab.sweep.fit_study import FILE_NAME

    path = existing_run(arguments.path)
    if (path / FILE_NAME).exists():
        from stashtrace.lab.sweep.layers_study import read_study

        return _show_study(arguments, read_study(path))
    if arguments.predict:
        raise UsageError("--predict needs a sweep", hint="`stashtrace model --sweep depth --predict resnet101`")
    return _show_run(arguments, path)


def _show_run(arguments: argparse.Namespace, path: Path) -> int:
    from stashtrace.lab.sweep.fit_study import plot_model
    from stashtrace.loading.load import load_trace
    from stashtrace.replay.communication.communication_model import communication_model
    from stashtrace.replay.communication.communication_text import model_json, model_lines
    from stashtrace.report.blocks import Block, Code, Paragraph

    heading: list[Block | None] = []
    characterized: dict[str, Any] = {}
    if (path / "characterization.json").exists():
        from stashtrace.lab.characterize.answer import run_of_all_ranks
        from stashtrace.lab.characterize.characterization_document import characterized_json, characterized_text

        folder, (path, stall) = path, run_of_all_ranks(path)
        heading = [Paragraph(characterized_text(str(path.relative_to(folder)), stall))]
        characterized = characterized_json(str(path.relative_to(folder)), stall)
    model = communication_model(load_trace(str(path)))
    blocks = [*heading, Code("", model_lines(model))]
    print_blocks(arguments.format, blocks, {**model_json(model), **characterized})
    write_plot(arguments.plot, plot_model, model)
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from stashtrace import __version__
    from stashtrace.lab.sweep.layers_study import StudyRequest, run_study

    options: dict[str, Any] = {}
    for name, attribute in _SWEEP_ONLY.items():
        value = getattr(arguments, name)
        if attribute and value not in (None, False):
            options[attribute] = not value if attribute in ("residual", "batch_norm") else value
    _networks(arguments.predict)  # raises before minutes are spent
    screen = Screen()
    with screen.progress("sweep") as bar:
        content = run_study(
            StudyRequest(arguments.sweep, **options),
            Path(arguments.out or _OUT),
            version=__version__,
            on_progress=bar.step,
        )
    code = _show_study(arguments, content)
    screen.say(
        f"\nthe sweep is kept in {arguments.out or _OUT}; to see it again: stashtrace model {arguments.out or _OUT}"
    )
    return code


def _show_study(arguments: argparse.Namespace, content: dict[str, Any]) -> int:
    from stashtrace.lab.sweep.fit_study import plot_study, prediction_text, study_blocks, study_json, study_of
    from stashtrace.report.blocks import Listing

    study = study_of(content)
    whole = study_json(study)
    whole["predictions"] = []
    predictions: list[str] = []
    refused: MissingDataError | None = None
    for name, messages, sent in _networks(arguments.predict):
        try:
            stall, error = study.predict(messages, sent)
        except MissingDataError as refusal:  # what was measured is shown all the same
            refused = refusal
            break
        predictions.append(prediction_text(name, messages, sent, stall, error, study))
        whole["predictions"].append(
            {"name": name, "messages_count": messages, "message_bytes": sent, "stall_ns": stall, "error_ns": error}
        )
    print_blocks(arguments.format, [*study_blocks(study), Listing(predictions, "predicted")], whole)
    write_plot(arguments.plot, plot_study, study)
    if refused is not None:
        raise refused
    return 0


def _networks(names: Sequence[str] | None) -> list[tuple[str, int, int]]:
    """Return name, messages and bytes of each network to predict: a known one with a message per tensor, or numbers."""
    from stashtrace.lab.sweep.shapes import named

    networks = []
    for name in names or ():
        if ":" in name:
            count, _, size = name.partition(":")
            if not re.fullmatch(r"\d+", count) or int(count) < 1:
                raise UsageError(
                    f"--predict {name}: {count!r} is not a number of messages", hint="for example --predict 400:90M"
                )
            networks.append((name, int(count), read_size(size, "--predict")))
        else:
            net = named(name)
            networks.append((net.name, net.tensors_count, net.gradient_bytes))
    return networks
