"""Starts the worker processes of ``calibrate``, waits for them, and collects what they measured.

One host, one process per rank, as a launcher of training jobs would start them; they meet through a file. A worker
that fails takes the others with it, and its last words become the error.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError
from stashtrace.record.own_program import own_program

_WORKER = "stashtrace.lab.calibrate.worker"
_POLL_S = 0.05
#: Importing torch, meeting, allocating and the last round, on a busy machine.
_SLACK_S = 180.0
_PROBE_S = 120.0


def probe_machine() -> dict[str, Any]:
    """What ``worker.probe`` finds, in a process of its own: the caller never imports torch."""
    return run_ranks({"what": "probe"}, 1, _PROBE_S)[0]


def run_ranks(
    task: Mapping[str, Any], ranks: int, seconds: float, *, on_wait: Callable[[float], None] | None = None
) -> list[dict[str, Any]]:
    """Answers of ``ranks`` workers that were given the same task.

    Parameters
    ----------
    task : mapping
        As ``worker`` reads it; rank, number of ranks and paths are added.
    ranks : int
        How many processes.
    seconds : float
        How long they mean to measure; they are stopped three minutes after that.
    on_wait : callable, optional
        Told the seconds since the start, now and then.

    Raises
    ------
    CaptureError
        If a worker fails or hangs.
    """
    with tempfile.TemporaryDirectory(prefix="stashtrace-calibrate-") as name:
        folder = Path(name)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(ranks):
                workers.append(_start(task, rank, ranks, folder))  # noqa: PERF401  (a failure leaves the others known)
            _wait(workers, folder, seconds + _SLACK_S, on_wait)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
        return [json.loads(_answer(folder, rank).read_text(encoding="utf-8")) for rank in range(ranks)]


def _start(task: Mapping[str, Any], rank: int, ranks: int, folder: Path) -> subprocess.Popen[bytes]:
    place = {"rank": rank, "ranks": ranks, "rendezvous": str(folder / "meet"), "answer": str(_answer(folder, rank))}
    own = {**task, **place}
    path = folder / f"task{rank}.json"
    path.write_text(json.dumps(own), encoding="utf-8")
    with open(folder / f"words{rank}.txt", "wb") as words:
        return subprocess.Popen(
            own_program(_WORKER, str(path)),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            env=worker_environment(os.environ, rank, ranks),
        )


def worker_environment(environment: Mapping[str, str], rank: int, ranks: int) -> dict[str, str]:
    """What a worker's environment is: ours without tracing, and what launchers of training jobs set."""
    kept = {k: v for k, v in environment.items() if not k.startswith("STASHTRACE_")}
    if "libstashtrace" in kept.get("LD_PRELOAD", ""):
        del kept["LD_PRELOAD"]
    package = str(Path(__file__).resolve().parents[3])
    kept["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [kept.get("PYTHONPATH")])])
    # All ranks are on this host; gloo would otherwise ask for the address of the host's name, which not all know.
    kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    kept.setdefault("OMP_NUM_THREADS", "1")
    kept["PYTHONSAFEPATH"] = "1"  # what is in the current folder is none of its business
    return {**kept, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}


def _wait(
    workers: list[subprocess.Popen[bytes]], folder: Path, limit_s: float, on_wait: Callable[[float], None] | None
) -> None:
    begin = time.monotonic()
    while True:
        codes = [worker.poll() for worker in workers]
        for rank, code in enumerate(codes):
            if code:
                why = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise CaptureError(
                    f"worker {rank} of {len(workers)} failed ({why}): {_last_words(folder, rank)}",
                    hint="`stashtrace doctor` says what this machine has; `--ranks` and `--sizes` make it smaller",
                )
        if None not in codes:
            return
        waited_s = time.monotonic() - begin
        if waited_s > limit_s:
            stuck = ", ".join(str(r) for r, c in enumerate(codes) if c is None)
            raise CaptureError(f"workers {stuck} of {len(workers)} did not end within {limit_s:.0f} s")
        if on_wait is not None:
            on_wait(waited_s)
        time.sleep(_POLL_S)


def _answer(folder: Path, rank: int) -> Path:
    return folder / f"answer{rank}.json"


def _last_words(folder: Path, rank: int) -> str:
    text = (folder / f"words{rank}.txt").read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[-1][:200] if text else "it said nothing"
