"""What the job of the five steps says by its clock of the runs of a characterization."""

from __future__ import annotations

from pathlib import Path
from statistics import median

READ, BURNT, BACKWARD, END = 1, 2, 3, 4


def exposed_ms(answer: Path, step: int, columns: tuple[int, ...], warmup: int, iterations: int) -> float:
    """Time per training step that the slowest rank spent reading, burning, or both: the others wait for it.

    Median over the runs of a step, mean over the training steps of a run.
    """
    runs = sorted({path.name.split(".")[0] for path in (answer / "runs").glob(f"step{step}-*.truth-*")})
    means = []
    for run in runs:
        ranks = [rows_of_rank(path) for path in (answer / "runs").glob(f"{run}.truth-*")]
        numbers = range(warmup, warmup + iterations)
        steps = [max(sum(rank[i][column] for column in columns) for rank in ranks) for i in numbers]
        means.append(sum(steps) / len(steps) / 1e6)
    return median(means)


def rows_of_rank(path: Path) -> list[list[int]]:
    """Number of the step, then the columns named above, in ns; a line that is still being written is left out."""
    lines = path.read_text().splitlines(keepends=True)
    return [[int(word) for word in line.split()] for line in lines if line.endswith("\n")]
