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
    Columns: table ``findings`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Anything that loads. Without steps there are no verdicts.
    """
    return summarize(trace).findings


def finding_evidence(trace: Trace) -> Table:
    """Collect the evidence for the claims of ``findings``.

    Columns: table ``finding_evidence`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Anything that loads.
    """
    return summarize(trace).evidence


def budgets(trace: Trace) -> Table:
    """Sum the counted steps of each rank by the columns of the summary.

    Columns: table ``budgets`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Without steps the table is empty.
    """
    return summarize(trace).budgets
