"""Start the worker processes of ``calibrate``, wait for them, and collect what they measured.

One host, one process per rank; they meet through a file. A worker that fails takes the others with it, and its last
line becomes the error.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError
from stashtrace.lab.processes import RankFailedError, last_line, rank_processes, wait_for_ranks
from stashtrace.record.environment import untraced_environment
from stashtrace.whole_files import write_whole

_WORKER = "stashtrace.lab.calibrate.calibrate_worker"
#: Importing torch, meeting, allocating and the last round, on a busy machine.
_SLACK_S = 180.0
_PROBE_S = 120.0


def probe_machine() -> dict[str, Any]:
    """Run ``worker.probe`` in a process of its own: the caller never imports torch."""
    return run_ranks({"what": "probe"}, 1, _PROBE_S)[0]


def run_ranks(
    task: Mapping[str, Any], ranks: int, seconds: float, *, on_wait: Callable[[float], None] = lambda seconds: None
) -> list[dict[str, Any]]:
    """Run workers with the same task, and return their answers.

    ``task``: as ``calibrate_worker`` reads it; rank, number of ranks and paths are added. ``ranks``: how many
    processes. ``seconds``: how long they mean to measure; they are stopped three minutes after that. ``on_wait``: told
    the seconds since the start, now and then. Raises CaptureError if a worker fails or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="stashtrace-calibrate-") as name:
        folder = Path(name)
        tasks, logs, answers = (
            [folder / f"{kind}{rank}" for rank in range(ranks)] for kind in ("task", "printed", "answer")
        )
        for rank, (path, answer) in enumerate(zip(tasks, answers, strict=True)):
            place = {"rank": rank, "ranks": ranks, "rendezvous": str(folder / "meet"), "answer": str(answer)}
            write_whole(path, json.dumps({**task, **place}))
        begin, limit_s = time.monotonic(), seconds + _SLACK_S

        def watch(running: Sequence[int]) -> None:
            waited_s = time.monotonic() - begin
            if waited_s > limit_s:
                stuck = ", ".join(map(str, running))
                raise CaptureError(f"workers {stuck} of {ranks} did not end within {limit_s:.0f} s")
            on_wait(waited_s)

        with rank_processes(_WORKER, tasks, logs, untraced(os.environ)) as workers:
            try:
                wait_for_ranks(workers, on_wait=watch)
            except RankFailedError as error:
                why = f"signal {-error.code}" if error.code < 0 else f"exit code {error.code}"
                said = last_line(logs[error.rank]) or "it said nothing"
                raise CaptureError(
                    f"worker {error.rank} of {ranks} failed ({why}): {said}",
                    hint="`stashtrace doctor` says what this machine has; `--ranks` and `--sizes` make it smaller",
                ) from error
        return [json.loads(answer.read_text(encoding="utf-8")) for answer in answers]


def untraced(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove what makes the tracer record from an environment; one thread per rank, as launchers set it."""
    return {"OMP_NUM_THREADS": "1", **untraced_environment(environment)}
