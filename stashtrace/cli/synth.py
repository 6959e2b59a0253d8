"""``python -m stashtrace.cli.synth OUT``: make up a run of any size whose stalls are known."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from stashtrace import cli
from stashtrace.cli.parsing import Parser, add_value
from stashtrace.cli.screen import Screen
from stashtrace.errors import OutputError, UsageError
from stashtrace.files.whole_files import write_whole, written_to

_EPILOG = """OUT becomes a run directory; its truth.json says how long each kind of time in
a step of each rank is."""
#: Option of a time -> default in ms, and what takes that time in a step of a rank.
_TIMES = {
    "wait": (20.0, "wait for the batch"),
    "forward": (30.0, "forward"),
    "backward": (50.0, "backward"),
    "transfer": (10.0, "transfer of gradients"),
    "optimizer": (5.0, "optimizer"),
    "late": (0.0, "how much longer --late-rank computes"),
}

_HINT = "choose another directory"
PROGRAM = "python -m stashtrace.cli.synth"


def parser() -> Parser:
    """Return the parser of this program."""
    parser = Parser("synth", "Make up a run of many ranks whose stalls are known.", _EPILOG)
    parser.prog = PROGRAM
    parser.add_argument("out", metavar="OUT", help="directory to make")
    add_value(parser, "--ranks", "N", "number of ranks (default 8)", type=int, default=8)
    add_value(parser, "--steps", "N", "number of steps (default 100)", type=int, default=100)
    add_value(parser, "--workers", "N", "DataLoader workers of a rank (default 2)", type=int, default=2)
    calls = "I/O calls of a worker for a batch, six for each file (default 60)"
    add_value(parser, "--calls-per-batch", "N", calls, type=int, default=60)
    add_value(parser, "--late-rank", "R", "rank that is late in every step", type=int, default=-1)
    add_value(parser, "--fetch-ratio", "X", "storage's share of a worker's time (default 0.3)", type=float, default=0.3)
    for name, (default, work) in _TIMES.items():
        add_value(parser, f"--{name}", "MS", f"{work}, ms per step (default {default:g})", type=float, default=default)
    add_value(parser, "--seed", "N", "seed of the lengths of calls (default 0)", type=int, default=0)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    return cli.main(argv, _write)


def _write(argv: Sequence[str]) -> int:
    """Write the run and its truth."""
    given = parser().read(argv)
    times = {f"{name}_ns": round(getattr(given, name) * 1e6) for name in _TIMES}
    if given.ranks < 1 or given.steps < 1 or min(given.workers, given.calls_per_batch, *times.values()) < 0:
        raise UsageError(
            "a run has at least one rank and one step, and no negative time or count",
            hint=f"`{PROGRAM} --help` shows the options",
        )
    if not 0 <= given.fetch_ratio <= 1:
        raise UsageError(f"--fetch-ratio {given.fetch_ratio:g} is not a share", hint="give a number from 0 to 1")
    if given.late_rank >= given.ranks:
        raise UsageError(f"--late-rank {given.late_rank} is none of {given.ranks} ranks", hint="ranks count from 0")
    out = Path(given.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"cannot write {out}: it exists and is not empty", hint=_HINT)

    from stashtrace.lab.synth import SyntheticJob, write

    job = SyntheticJob(
        ranks=given.ranks,
        workers=given.workers,
        steps=given.steps,
        calls_per_batch=given.calls_per_batch,
        late_rank=given.late_rank,
        fetch_ratio=given.fetch_ratio,
        seed=given.seed,
        **times,
    )
    with written_to(out, _HINT):
        events = write(out, job)
        truth = {str(rank): job.truth_ns(rank) for rank in range(job.ranks)}
        facts = {"unit": "ns per step", "step_ns": job.step_ns, "ranks": truth}
        write_whole(out / "truth.json", json.dumps(facts, indent=1) + "\n")
    Screen().say(f"wrote {out}: {job.ranks} ranks, {job.steps} steps, {events} events; truth.json has the stalls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
