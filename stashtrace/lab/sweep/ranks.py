"""The command that is traced in a layers study: starts the ranks of one run on this host, and waits for them.

``python -m stashtrace.lab.sweep.ranks TASK.json``. What torchrun would do, without its import of torch. What
ranks say goes into files beside the task; a rank that fails takes the others with it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stashtrace.record.own_program import own_program

_WORKER = "stashtrace.lab.sweep.worker"
_POLL_S = 0.02


def main(argv: list[str]) -> int:
    """Run the ranks of one task; the exit code of the first that failed."""
    path = Path(argv[0])
    ranks = int(json.loads(path.read_text(encoding="utf-8"))["ranks"])
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            workers.append(_start(path, rank, ranks))  # noqa: PERF401  (a failure leaves the others known)
        return _wait(workers)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


def _start(task: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    with open(words_file(task, rank), "wb") as words:
        return subprocess.Popen(
            own_program(_WORKER, str(task)),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            env=rank_environment(os.environ, rank, ranks),
        )


def rank_environment(environment: Mapping[str, str], rank: int, ranks: int) -> dict[str, str]:
    """What launchers of training jobs set, beside what is there: the ranks are traced like any job's."""
    package = str(Path(__file__).resolve().parents[3])
    paths = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {**environment, "PYTHONPATH": os.pathsep.join(paths if package in paths else [*paths, package])}
    # All ranks are on this host; gloo would otherwise ask for the address of the host's name, which not all know.
    kept.setdefault("GLOO_SOCKET_IFNAME", "lo")
    kept["PYTHONSAFEPATH"] = "1"  # what is in the current folder is none of its business
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {**kept, **{name: str(number) for name, number in place.items()}}


def cores_of_ranks(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """The cores of each rank: equal, disjoint parts; nobody is pinned where there are more ranks than cores.

    Examples
    --------
    >>> cores_of_ranks([0, 1, 2, 3, 4], 2), cores_of_ranks([0, 1], 3)
    ([[0, 1], [2, 3]], [[], [], []])
    """
    each = len(cores) // ranks
    return [list(cores[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def words_file(task: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return task.with_name(f"{task.stem}.rank{rank}.txt")


def last_words(task: Path, ranks: int) -> str:
    """Last line that a failed rank said, the lowest rank first."""
    for rank in range(ranks):
        try:
            text = words_file(task, rank).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if text:
            return f"rank {rank}: {text.splitlines()[-1][:200]}"
    return "no rank said why"


def _wait(workers: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [worker.poll() for worker in workers]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            return abs(failed[0]) if failed else 0
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
