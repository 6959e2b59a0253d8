"""Thresholds of the history of runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept of a run, and from which chance on a difference between runs is named, each with its reason."""

    # What is kept of a run.

    #: Values of a series of steps: means of neighbouring ones of longer runs.
    kept_steps: int = 128
    #: The number of ranks, those that were waited for longest, whose work is compared with that of the others.
    examined_ranks_count: int = 3
    #: The number of equal parts that the time of a run is cut into, of a second or more: clocks of hosts agree no
    #: better.
    parts_of_run_count: int = 512
    shortest_part_ns: int = 1_000_000_000
    #: File systems kept of a run, those with the longest reads first.
    file_systems_count: int = 3
    #: Checkpoints kept of a run, the longest ones.
    checkpoints_count: int = 200

    # Jobs that slow each other down.

    #: A pair is named if its chance is below the first, and its reads were slower by the second.
    pair_chance_ratio: float = 0.001
    slower_times: float = 1.2
    #: Checkpoints of a pair that are ranked: enough for any certainty; and what is slower by less is no evidence.
    ranked_checkpoints_count: int = 24
    slower_at_all_times: float = 1.1
    #: Runs whose series are in memory.
    runs_in_memory_count: int = 256
    #: Reads before and after a checkpoint that it is compared with: this many times its length on either side.
    around_times: int = 3
    #: Fewer reads than this say nothing of a stretch.
    fewest_reads_count: int = 5
    #: Places at which a stretch could be that are compared in one go: their arrays fit a processor's cache.
    places_at_once_count: int = 1 << 15

    # Commits that are slower.

    #: A cut is made if it is less likely by chance than this.
    cut_chance_ratio: float = 0.01
    #: Runs on either side of a cut that are compared, those next to it; and the fewest.
    compared_runs_count: int = 12
    fewest_runs_count: int = 2

    # Answers.

    #: Sentences of a question; its table has the rest.
    sentences_count: int = 3
    #: Rows of a table on the page; the command prints all.
    page_rows_count: int = 50
    #: Groups of the fleet with a bar.
    bars_count: int = 12
    #: Runs on the axis of dates, the newest; dates on it.
    runs_on_axis_count: int = 500
    dates_on_axis_count: int = 5
    #: Steps longer than this many times the median of their job are drawn at that height.
    drawn_step_times: float = 3.0


POLICY = Policy()
