"""The command that is traced in a layers study: starts the ranks of one run on this host, and waits for them.

``python -m stashtrace.lab.sweep.start_study_ranks TASK.json``. What torchrun would do, without its import of torch.
What ranks print goes into files beside the task; a rank that fails takes the others with it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from stashtrace.lab.processes import RankFailedError, last_line, rank_processes, wait_for_ranks

_WORKER = "stashtrace.lab.sweep.study_worker"


def main(argv: list[str]) -> int:
    """Run the ranks of one task; return the exit code of the first that failed."""
    task = Path(argv[0])
    ranks = int(json.loads(task.read_text(encoding="utf-8"))["ranks"])
    with rank_processes(_WORKER, [task] * ranks, rank_logs(task, ranks), os.environ) as workers:
        try:
            wait_for_ranks(workers)
        except RankFailedError as error:
            return abs(error.code)
    return 0


def rank_logs(task: Path, ranks: int) -> list[Path]:
    """Files for the output of each rank."""
    return [task.with_name(f"{task.stem}.rank{rank}.txt") for rank in range(ranks)]


def last_words(task: Path, ranks: int) -> str:
    """Last line that a rank printed, the lowest rank first."""
    said = (f"rank {rank}: {line}" for rank, log in enumerate(rank_logs(task, ranks)) if (line := last_line(log)))
    return next(said, "no rank said why")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
