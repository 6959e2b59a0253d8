"""Claims of a summary and their evidence, as rows of tables.

    trace -> facts (numbers of ranks) -> claims, each with its evidence and sentences -> tables -> stashtrace.summary

``summary_input`` takes the numbers, ``rules/`` find and word: ``rules/stalls`` where the time of a step went, of which
``verdicts`` chooses what is worth a claim, ``rules/steps`` the steps themselves. ``all_claims`` puts them into reading
order.
"""

from __future__ import annotations

from dataclasses import dataclass

from stashtrace.analysis.findings.all_claims import claims_of
from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.summary_input import RunFacts, gather
from stashtrace.analysis.findings.summary_input import budgets as budgets_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace


@dataclass(frozen=True, slots=True)
class Summary:
    """The tables that a summary is made of."""

    budgets: Table
    findings: Table
    evidence: Table

    @classmethod
    def of(cls, facts: RunFacts) -> Summary:
        """Make the tables from the facts of a run."""
        return cls(budgets_of(facts), *tables_of(claims_of(facts)))


@cached_on_trace
def summarize(trace: Trace) -> Summary:
    """Compute the three tables at the cost of one."""
    return Summary.of(gather(trace))


def findings(trace: Trace) -> Table:
    """Collect the claims of a run's summary, one row per claim.

    A verdict about a stall has the figures of the rank with the largest stall, per counted step, with their bounds;
    ``confidence`` follows from these. Rows of ``finding_evidence`` with the same ``finding_id`` are its evidence.

    Parameters
    ----------
    trace : Trace
        Anything that loads. Without steps there are no verdicts.

    Columns
    -------
    finding_id, order, section, kind, name, ranks, rank, items_count, share_ratio, least_ratio, stall_ns, low_ns,
    high_ns, least_ns, cause_kind, cause_rank, file, call, confidence, method, text, facts
    """
    return summarize(trace).findings


def finding_evidence(trace: Trace) -> Table:
    """Collect the evidence for the claims of ``findings``.

    Parameters
    ----------
    trace : Trace
        Anything that loads.

    Columns
    -------
    finding_id, order, code, source_table, source_index, text, facts
    """
    return summarize(trace).evidence


def budgets(trace: Trace) -> Table:
    """Sum the counted steps of each rank by the columns of the summary.

    Parameters
    ----------
    trace : Trace
        Without steps the table is empty.

    Columns
    -------
    rank, host, step_kind, steps_count, step_ns, median_step_ns, column, stall_ns, low_ns, high_ns, share_ratio
    """
    return summarize(trace).budgets
