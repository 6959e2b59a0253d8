"""What the report shows, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """How many rows, cells and lines a reader takes in, and from which part on one is shown, each with its reason."""

    # Groups of similar ranks.

    #: Ranks are similar if no column differs by more than this part of the step, nor their steps by this part of a
    #: step.
    similar_ranks_ratio: float = 0.05
    #: More groups are not distinguished: the ranks that are left become one group that is called mixed.
    groups_count: int = 8
    #: Budgets of more ranks are in the document by group only.
    ranks_listed_count: int = 2048

    # Cut-outs of waits.

    #: Cut-outs of waits in collectives, rows of the table of waits, and rows of ``late`` that both are chosen from.
    cut_outs_count: int = 4
    listed_waits_count: int = 20
    examined_waits_count: int = 100
    #: Ranks that waited which a cut-out shows: those that waited longest.
    waiting_ranks_count: int = 3
    #: Lengths of the wait that a cut-out shows before it begins and after the late rank has come.
    before_wait_times: int = 5
    after_wait_times: int = 2
    #: A step's wait for batches has a cut-out from this share of the step on.
    batch_wait_ratio: float = 0.03
    #: Waits that cost less than this part of the costliest one are not listed.
    worth_divisor: int = 10
    #: A piece shorter than this part of the window is less than a pixel wide: it is counted, not drawn.
    short_divisor: int = 1000
    #: Pieces of one kind closer than this part of the window are drawn as one.
    close_divisor: int = 500
    #: Bound of the pieces of a lane; the longest ones stay.
    pieces_count: int = 48

    # Tables and facts.

    #: A longer list of ranks in a command would select most of a large run: the command then shows all of them.
    ranks_of_command_count: int = 8
    #: Rows of each table: those whose transfers took longest together.
    listed_transfers_count: int = 12
    #: Values of a fact, hosts and kinds of loss that are listed.
    values_of_fact_count: int = 4
    hosts_count: int = 32
    losses_count: int = 40

    # Steps over time.

    #: Cells of a map; more ranks or steps share cells.
    rank_cells_count: int = 32
    step_cells_count: int = 48
    #: A kind that has less than this in every cell has no map.
    map_shown_ratio: float = 0.01
    #: Cells of the curve; more steps share cells.
    curve_cells_count: int = 200
    #: Slow steps that are marked, those that cost most.
    marked_steps_count: int = 60
    #: Slow steps listed.
    listed_steps_count: int = 10

    # The budget on the page.

    #: Verdicts that are open, of a job that ended well; the others are folded in, as the summary counts them.
    open_verdicts_count: int = 3
    #: Bars of the budget that are open.
    open_groups_count: int = 4
    #: A longer list of ranks is folded in.
    ranks_characters: int = 60
    #: More ranks than this are counted next to their list.
    counted_at_sight_count: int = 3
    #: Maps of kinds with less than this of all steps are folded in; up to this many rows of a map all have names.
    open_map_ratio: float = 0.01
    named_rows_count: int = 8

    # Flame graphs.

    #: Shorter parts of the whole would be less than two pixels wide on a wide screen: they are not drawn.
    drawn_box_ratio: float = 0.002
    #: Deeper functions are not drawn.
    drawn_depth_count: int = 32
    #: Lines of steps, of workers, and of each rank that is longer, at most.
    step_lines_count: int = 8
    worker_lines_count: int = 2
    longer_rank_lines_count: int = 2
    #: A line with a smaller part of a step or batch is left out.
    line_ratio: float = 0.01
    #: Graphs of groups that are open; the others are folded in.
    open_graphs_count: int = 2
    #: Shorter boxes than these are in the picture and the embedded JSON alone.
    table_rows_count: int = 60

    # Curves.

    #: Longer steps than this many times the usual are cut off, unless they are more than the rest of this part.
    cut_off_times: int = 4
    cut_off_unless_ratio: float = 0.95
    #: The upper edge of the step time by the longest step drawn: room for its mark and for the scale.
    curve_room_times: float = 1.25


POLICY = Policy()
