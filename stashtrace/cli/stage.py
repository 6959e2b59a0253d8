"""``stashtrace stage RUN --to DIR``: put the files that gain most on a faster disk, and measure what that brings."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import Parser, existing_run
from stashtrace.cli.screen import Screen
from stashtrace.cli.whatif_cache import parsed_size
from stashtrace.errors import CaptureError, MissingDataError, UsageError
from stashtrace.record.directory import read_run_file
from stashtrace.scrubbing import SCRUBBED

if TYPE_CHECKING:
    from stashtrace.lab.stage.stage import Gain, Staged
    from stashtrace.schema.table import Table

#: Of a disk that is free: files end within a block, and a full disk does no good to anything else there.
_ROOM_RATIO = 0.95

_EPILOG = """The files are those of `stashtrace analyze io_staging RUN`. `stashtrace run
--staged DIR/staged.list -- CMD` opens the copies in their place; --check does
it for the command of the run, in pairs with and without."""


def parser() -> Parser:
    """Options of ``stashtrace stage``."""
    parser = Parser("stage", "Copy the files that gain most to a faster disk, and measure the gain.", _EPILOG)
    parser.add_argument("path", metavar="RUN", help="run directory")
    parser.add_argument("--to", metavar="DIR", required=True, help="folder on the faster disk")
    parser.add_argument("--size", metavar="SIZE", help="room there, as in 20G (default: 95 %% of what is free)")
    parser.add_argument("--under", metavar="DIR", help="only files below this folder")
    parser.add_argument("--tier-latency", metavar="TIME", help="of an empty request there, as in 80us (default: none)")
    parser.add_argument("--tier-bandwidth", metavar="RATE", help="of that disk, as in 2GB/s; both or none")
    parser.add_argument("--calibration", metavar="FILE", help="made there by `stashtrace calibrate --disk`, instead")
    parser.add_argument("--check", action="store_true", help="run the command of RUN with and without the copies")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="pairs of runs of --check (default 5)")
    parser.add_argument("--iterations", type=int, default=60, metavar="K", help="training steps of a run (default 60)")
    parser.add_argument("--warmup", type=int, default=10, metavar="W", help="steps before them (default 10)")
    parser.add_out("DIR", "where the runs of --check go (./staging)", default="staging")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text (default) or JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Choose, copy, measure, print."""
    arguments = parser().read(argv)
    for option in ("repeat", "iterations"):
        if getattr(arguments, option) < 1:
            raise UsageError(f"--{option} {getattr(arguments, option)} measures nothing", hint=f"--{option} 1 or more")
    if arguments.warmup < 0:
        raise UsageError(f"--warmup {arguments.warmup} is no number of steps", hint="--warmup 0 or more")
    path = existing_run(arguments.path)
    import shutil

    from stashtrace.analysis.registry import analyze
    from stashtrace.lab.job_files import is_library
    from stashtrace.lab.stage.report import staging_lines
    from stashtrace.lab.stage.stage import check_gain, check_runs_folder, held_bytes, stage
    from stashtrace.loading.load import load_trace

    tier = Path(arguments.to)
    size = parsed_size(arguments.size, "--size")
    if size is None:
        there = next(folder for folder in (tier.absolute(), *tier.absolute().parents) if folder.exists())
        size = int(_ROOM_RATIO * (shutil.disk_usage(there).free + held_bytes(tier)))
    if size <= 0:
        raise UsageError(f"--size {arguments.size or size} is no room", hint="for example --size 20G")
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
            "no file would gain by a faster disk", hint="the job did not wait for storage, or nothing fits into --size"
        )
    try:
        steps_count = len(analyze(trace, "steps"))
    except MissingDataError as error:
        if arguments.check:
            raise MissingDataError(
                f"--check compares training steps, and the run has none: {error}", hint="stage without --check"
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
    found = _answer(table, steps_count, staged, gain)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(staging_lines(found)) + "\n")
    if gain is not None and gain.why:
        hint = f"what the runs printed is in {arguments.out}"
        raise CaptureError(f"the gain was not measured: {gain.why}", hint=hint)
    return 0


def _command(path: Path) -> tuple[list[str], str | None]:
    """Command of a run, and where it ran."""
    hint = "give the directory of a native run, or leave --check out"
    facts = read_run_file(path) if path.is_dir() else {}
    command = facts.get("command")
    if not command or not isinstance(command, list):
        raise MissingDataError("the run does not say which command it was", hint=hint)
    if any(SCRUBBED in str(word) for word in command):
        raise MissingDataError("the command held a secret, which is not stored, so it cannot be run again", hint=hint)
    if int(facts.get("launchers_count") or 1) > 1:
        raise MissingDataError("the run was started on several hosts, --check runs on this one", hint=hint)
    directory = facts.get("working_directory")
    if directory and not Path(directory).is_dir():
        raise MissingDataError(f"the run was made in {directory}, which is not here", hint=hint)
    return [str(word) for word in command], directory


def _answer(table: Table, steps_count: int, staged: Staged, gain: Gain | None) -> dict[str, Any]:
    import numpy as np

    there = np.isin(table["path"], list(staged.copies))
    predicted = int(table["gain_ns"][there].sum())
    on_same = os.stat(staged.list_path).st_dev in {os.stat(path).st_dev for path in list(staged.copies)[:1]}
    found: dict[str, Any] = {
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
        found["check"] = {"why": gain.why, "notes": list(gain.notes), "staged_opens_counts": list(gain.opens)}
        if gain.gain is not None and gain.plain is not None and gain.staged is not None:
            lost = gain.gain.lost_ns
            found["check"] |= {
                "plain_ns": gain.plain.value,
                "staged_ns": gain.staged.value,
                "gain_ns": lost.value,
                "low_ns": None if math.isnan(lost.low) else lost.low,
                "high_ns": None if math.isnan(lost.high) else lost.high,
                "pairs_count": lost.runs_count,
            }
    return found
