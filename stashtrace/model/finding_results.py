"""Tables of the summary: what it claims, what each claim rests on, and the budgets that it draws.

The text of a summary is made of these rows alone. ``analysis/findings`` computes them, ``report/words`` words them.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.model.columns import schema as _schema

FINDINGS = _schema(
    "findings",
    "What a summary claims, one row per claim; what it rests on stands in finding_evidence",
    ("finding_id", "i8", "", "row number; finding_evidence.finding_id"),
    ("order", "i8", "", "reading order, 0 first"),
    ("section", "U12", "", "headline, verdict, files, machine, beside, trust or loss"),
    ("kind", "U24", "", "what is claimed: a column of the budget, compute_bound, steps, loss, ..."),
    ("name", "U16", "", "what it is about where the kind alone does not say: a host, a kind of step, a reason"),
    ("ranks", "U16", "", "ranks that it holds for, as 0-3,7; empty if for the run"),
    ("rank", "i8", "", "the rank whose figures these are, the one hit hardest; -1 for the run"),
    ("items_count", "i8", "", "how many: steps, ranks, lost records; -1 where there is nothing to count"),
    ("share_ratio", "f8", "", "of the step time of that rank; -1 if it is no share"),
    ("least_ratio", "f8", "", "the same of the rank in ranks that is hit least"),
    ("stall_ns", "i8", "ns", "mean per step of that rank; -1 if it is no time"),
    ("low_ns", "i8", "ns", "not less than this; -1 if it is no time"),
    ("high_ns", "i8", "ns", "not more than this; -1 if it is no time"),
    ("least_ns", "i8", "ns", "stall_ns of the rank in ranks that is hit least; -1 if it is no time"),
    ("cause_kind", "U24", "", "what causes most of it, as far as rows of finding_evidence show it; empty if unknown"),
    ("cause_rank", "i8", "", "the rank that causes most of it, -1 if none does or it is unknown"),
    ("worker_id", "i8", "", "DataLoader worker of the cause, -1 if unknown"),
    ("file", "U16", "", "file of the cause, empty if unknown"),
    ("call", "U16", "", "kernel, call, collective or phase of the cause, empty if unknown"),
    ("advice_code", "U32", "", "what would help; its inputs are the rows of finding_evidence from that code on"),
    ("confidence", "U12", "", "exact, at_least, up_to or between, by the bounds; empty if it is no time"),
    ("method", "U16", "", "kernels, brackets, host or mixed, as in stalls; empty if it comes from elsewhere"),
)
FINDING_EVIDENCE = _schema(
    "finding_evidence",
    "What the claims of findings rest on; a code says what the numbers are",
    ("finding_id", "i8", "", "findings.finding_id"),
    ("order", "i8", "", "position within the finding, 0 first"),
    ("code", "U32", "", "what is said; docs/reference/findings.md lists them"),
    ("source_table", "U24", "", "table or analysis that the numbers come from"),
    ("source_index", "i8", "", "row of it; -1 for a sum of several"),
    ("rank", "i8", "", "rank that it is about, -1 if none"),
    ("worker_id", "i8", "", "DataLoader worker, -1 if none"),
    ("amount_ns", "i8", "ns", "a time; -1 if there is none"),
    ("low_ns", "i8", "ns", "not less than this; -1 if there is no time"),
    ("high_ns", "i8", "ns", "not more than this; -1 if there is no time"),
    ("items_count", "i8", "", "how many; -1 if nothing is counted"),
    ("of_count", "i8", "", "of how many; -1 if of none"),
    ("part_ratio", "f8", "", "a share or a number per step; -1 if there is none"),
    ("moved_bytes", "i8", "bytes", "payload; -1 if there is none"),
    ("rate_bytes_per_s", "f8", "", "bandwidth; -1 if there is none"),
    ("kind", "U24", "", "kind of time or work; empty if none"),
    ("name", "U16", "", "file, call, stream, operation or text; empty if none"),
)
BUDGETS = _schema(
    "budgets",
    "The bars of a summary: time of the counted steps of a rank by column; the columns of a rank sum to its step",
    ("rank", "i8", "", "global rank"),
    ("host", "U16", "", "where it ran"),
    ("step_kind", "U16", "", "validation or inference beside the steps that train; empty for these, or the only ones"),
    ("steps_count", "i8", "", "counted steps"),
    ("step_ns", "i8", "ns", "mean length of a step"),
    ("median_step_ns", "i8", "ns", "median length of a step"),
    ("column", "U12", "", "compute, data, link, late, copy, save, host or other"),
    ("stall_ns", "i8", "ns", "sum over the counted steps"),
    ("low_ns", "i8", "ns", "not less than this"),
    ("high_ns", "i8", "ns", "not more than this"),
    ("share_ratio", "f8", "", "of the counted steps"),
)
