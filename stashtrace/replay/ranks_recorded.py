"""Of how many ranks of a job the work is recorded: what a change saves depends on all of them."""

from __future__ import annotations

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.threads import threads_without_steps
from stashtrace.schema.trace import Trace


def ranks_recorded(trace: Trace) -> tuple[int, int]:
    """Return of how many ranks the work is recorded, and how many ranks the job has as far as is known."""
    groups = group_table(trace).values()
    members = {rank for group in groups for rank in group.members.tolist()}
    present = {*find_steps(trace)["rank"].tolist(), *(thread.rank for thread in threads_without_steps(trace))}
    return len(present), max(int(trace.processes["world_size"].max(initial=-1)), len(members))


def others_unknown(trace: Trace) -> str:
    """Return that what most ranks of a job do is not recorded, in words; empty if it is.

    A step ends for all ranks together, so what makes one of them quicker need not make the step shorter.
    """
    present, count = ranks_recorded(trace)
    if not len(trace.collectives) or not present or (present > 1 and 2 * present >= count):
        return ""
    if count > present:
        recorded = f"{present} of {count} ranks {'is' if present == 1 else 'are'} recorded"
    elif (trace.processes["world_size"] > 0).any():
        return ""
    else:
        recorded = "one rank is recorded"
    return f"not predicted: {recorded}, and what a change saves depends on the others"
