"""``stashtrace stage RUN --to DIR``: copy the files that gain most to a faster disk, and measure the gain."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.option_values import read_size, read_whole
from stashtrace.cli.parsing import DOCUMENT_FORMATS, Parser, add_flag, add_value, existing_run
from stashtrace.cli.print_results import print_blocks
from stashtrace.cli.screen import Screen
from stashtrace.errors import CaptureError, MissingDataError, UsageError
from stashtrace.record.directory import read_run_file
from stashtrace.scrubbing.secrets import SCRUBBED

if TYPE_CHECKING:
    from stashtrace.lab.stage_files import Gain, Staged
    from stashtrace.schema.table import Table

#: Share of the free space that is used: files end within a block, and others need some space too.
_ROOM_RATIO = 0.95

_EPILOG = """The files are those that `stashtrace analyze io_staging RUN` names. Under
`stashtrace run --staged DIR/staged.list -- CMD` the job opens their copies.
With --check the command of RUN is run so, in pairs with and without copies."""


def parser() -> Parser:
    """Return the parser of ``stashtrace stage``."""
    parser = Parser("stage", "Copy the files that gain most to a faster disk, and measure the gain.", _EPILOG)
    parser.add_argument("path", metavar="RUN", help="run directory")
    add_value(parser, "--to", "DIR", "folder on the faster disk", required=True)
    add_value(parser, "--size", "SIZE", "space to fill there, as in 20G (default: 95 %% of what is free)", read_size)
    add_value(parser, "--under", "DIR", "only files below this folder", type=os.path.abspath)
    add_value(parser, "--tier-latency", "TIME", "time of an empty request on the faster disk, as in 80us")
    bandwidth = "bandwidth of the faster disk, as in 2GB/s; with --tier-latency"
    add_value(parser, "--tier-bandwidth", "RATE", bandwidth)
    calibration = "instead of both: file of `stashtrace calibrate --disk` made there"
    add_value(parser, "--calibration", "FILE", calibration)
    add_flag(parser, "--check", "run the command of RUN with and without the copies")
    add_value(parser, "--repeat", "N", "pairs of runs of --check (default 5)", read_whole, default=5)
    add_value(parser, "--iterations", "K", "training steps measured in a run (default 60)", read_whole, default=60)
    warmup = partial(read_whole, least=0)
    add_value(parser, "--warmup", "W", "training steps before them (default 10)", warmup, default=10)
    parser.add_out("DIR", "folder for the runs of --check (default ./staging)", default="staging")
    parser.add_format(DOCUMENT_FORMATS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Choose the files, copy them, measure the gain and print it."""
    arguments = parser().read(argv)
    path = existing_run(arguments.path)
    import shutil

    from stashtrace.analysis.registry import analyze
    from stashtrace.lab.job_files import is_library
    from stashtrace.lab.stage_files import check_gain, check_runs_folder, held_bytes, stage, staging_blocks
    from stashtrace.loading.load import load_trace

    tier = Path(arguments.to)
    size = arguments.size
    if size is None:
        folder = next(folder for folder in (tier.absolute(), *tier.absolute().parents) if folder.exists())
        size = int(_ROOM_RATIO * (shutil.disk_usage(folder).free + held_bytes(tier)))
    if size <= 0:
        raise UsageError(f"there is no space for copies in {tier}", hint="choose another disk, or --size 20G")
    command, directory = _command(Path(path)) if arguments.check else ([], None)
    if arguments.check:
        check_runs_folder(Path(arguments.out), arguments.repeat)
    trace = load_trace(str(path))
    table = analyze(
        trace,
        "io_staging",
        tier_size=size,
        under=arguments.under,
        tier_latency=arguments.tier_latency,
        tier_bandwidth=arguments.tier_bandwidth,
        calibration=arguments.calibration,
    )
    chosen = [str(name) for name in table["path"][table["staged"] == 1]]
    if not chosen:
        raise MissingDataError(
            "no file would gain from a faster disk",
            hint="the job did not wait for storage, or no file fits into --size",
        )
    try:
        steps_count = len(analyze(trace, "steps"))
    except MissingDataError as error:
        if arguments.check:
            raise MissingDataError(
                f"--check compares training steps, and the run has none: {error}", hint="leave --check out"
            ) from error
        steps_count = 0
    screen = Screen()
    with screen.progress("staging") as bar:
        staged = stage(chosen, tier, room_bytes=size, on_progress=bar.step)
    gain = None
    if arguments.check:
        others = [str(name) for name in table["path"][table["staged"] == 0] if not is_library(str(name))]
        with screen.progress("checking") as bar:
            gain = check_gain(
                command,
                staged,
                Path(arguments.out),
                repeats=arguments.repeat,
                iterations=arguments.iterations,
                warmup=arguments.warmup,
                others=others,
                directory=directory,
                on_progress=bar.step,
            )
    answer = _answer(table, steps_count, staged, gain)
    print_blocks(arguments.format, staging_blocks(answer), answer, width=120)
    if gain is not None and gain.why:
        raise CaptureError(
            f"the gain was not measured: {gain.why}", hint=f"what the runs printed is in {arguments.out}"
        )
    return 0


def _command(path: Path) -> tuple[list[str], str | None]:
    """Return the command of a run and the folder that it ran in.

    Raises MissingDataError if the command cannot be run again here.
    """
    hint = "give the directory of a run that can be repeated here, or leave --check out"
    facts = read_run_file(path) if path.is_dir() else {}
    command = facts.get("command")
    if not command or not isinstance(command, list):
        raise MissingDataError("the run does not say which command it recorded", hint=hint)
    if any(SCRUBBED in str(word) for word in command):
        raise MissingDataError("the command held a secret that is not stored, so it cannot be run again", hint=hint)
    if int(facts.get("launchers_count") or 1) > 1:
        raise MissingDataError("the run was started on several hosts, and --check runs on this one only", hint=hint)
    directory = facts.get("working_directory")
    if directory and not Path(directory).is_dir():
        raise MissingDataError(f"the run was made in {directory}, which does not exist here", hint=hint)
    return [str(word) for word in command], directory


def _answer(table: Table, steps_count: int, staged: Staged, gain: Gain | None) -> dict[str, Any]:
    import numpy as np

    there = np.isin(table["path"], list(staged.copies))
    predicted = int(table["gain_ns"][there].sum())
    on_same = os.stat(staged.list_path).st_dev in {os.stat(path).st_dev for path in list(staged.copies)[:1]}
    answer: dict[str, Any] = {
        "list": str(staged.list_path),
        "files_count": len(staged.copies),
        "copied_count": staged.copied_count,
        "bytes": staged.bytes,
        "files_in_all_count": len(table),
        "left_out": [{"path": path, "why": why} for path, why in staged.left_out],
        "same_disk": on_same,
        "predicted_gain_ns": predicted,
        "predicted_step_gain_ns": round(predicted / steps_count) if steps_count else None,
        "steps_count": steps_count,
        "method": str(table["method"][0]),
        "check": None,
    }
    if gain is not None:
        answer["check"] = {"why": gain.why, "notes": list(gain.notes), "staged_opens_counts": list(gain.opens)}
        if gain.gain is not None and gain.plain is not None and gain.staged is not None:
            lost = gain.gain.lost_ns
            answer["check"] |= {
                "plain_ns": gain.plain.value,
                "staged_ns": gain.staged.value,
                "gain_ns": lost.value,
                "low_ns": None if math.isnan(lost.low) else lost.low,
                "high_ns": None if math.isnan(lost.high) else lost.high,
                "pairs_count": lost.runs_count,
            }
    return answer
