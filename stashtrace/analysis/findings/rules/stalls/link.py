"""Time in transfers between ranks: what was moved, how fast, and whether a part of it may be waiting for a late rank.

``link``: ``cause_kind`` is ``network``, ``interconnect`` or ``unknown``, ``call`` the collective. ``all_arrived``,
``may_be_waiting`` (``reason``) and ``unrecorded_members`` say whether every rank had entered when a transfer began.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.collectives.shares import calibration_of_machine
from stashtrace.analysis.findings.batch_making import inside
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, evidence_by, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.stall_claims import stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.links.bandwidth import CERTAIN, NO_OPERATION, expected_transfers, transfer_certainty
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.prose import plural
from stashtrace.text.units import bytes_text, ranks_text

_PLACES = {"network": "over the network", "interconnect": "between ranks of one host", "unknown": "between ranks"}
#: Reason of ``transfer_certainty`` -> why a part may be waiting.
_DOUBTS = {
    "operation_unknown": "part of it may be waiting: what the operations wait for is not in the recording",
    "members_unknown": "part of it may be waiting: which ranks take part is not in the recording",
    "ranks_missing": "part of it may be waiting: some members left no record of these operations",
    "untimed": "part of it may be waiting: some ranks have no device times of these operations",
    "matched_by_order": "part of it may be waiting: the operations of the ranks were matched by order alone",
}


def link_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that spend time in transfers."""
    worst, base, steps = hit[0], stall_claim(hit, "link", COLUMNS["link"]), run.tables["steps"]
    between_hosts = worst.per_step_ns("network") >= worst.per_step_ns("interconnect")
    place_known = any(run.hosts) or bool((run.trace.groups["crosses_hosts"] == 0).any())
    place = "network" if between_hosts else "interconnect" if place_known else "unknown"
    company = evidence_by("whether all ranks had arrived", _company, run, base)
    is_sure = any(row.code == "all_arrived" for row in company)
    rows = [*company, *evidence_by("the bus bandwidth", _bus_bandwidth, run.trace, worst, steps, is_sure)]
    call = next((row["op"] for row in rows if row.code == "bus_bandwidth"), "")
    doubt = next((row["doubt"] for row in company if "doubt" in row.facts), "")
    behind = "; {doubt}" if doubt else ", after every rank had arrived"
    said = f"{{who}} {{who:spends|spend}} {{lost}} in transfers {_PLACES[place]}{behind}"
    others = ", or waiting for others in them" if doubt else ""
    short = f"{{who}} {{who:spends|spend}} {{share}} {{of_step}} in transfers{others}"
    return [verdict("link", said, run, base, rows, short=short, cause_kind=place, call=call, doubt=doubt)]


def _company(run: RunFacts, base: Claim) -> list[Evidence]:
    """Return evidence that every rank had arrived when a rank transferred, or why that is not certain."""
    table = transfer_certainty(run.trace, warmup=run.warmup_count == 0)
    of_rank = np.flatnonzero(table["rank"] == base.rank)
    doubts = of_rank[~np.isin(table["reason"][of_rank], (CERTAIN, NO_OPERATION))]
    doubtful = doubts[np.argsort(-table["link_ns"][doubts], kind="stable")]
    share = float(table["share_ratio"][doubtful].sum())
    bounded = base.confidence in ("exact", "at_least")
    if bounded and share <= POLICY.exact_ratio:
        return [fact("all_arrived", "", "transfer_certainty", rank=base.rank, sure_ratio=1 - share)]
    reason = str(table["reason"][doubtful[0]]) if len(doubtful) else ""
    if reason == "ranks_missing" and run.missing_ranks:
        count, named = len(run.missing_ranks), ranks_text(list(run.missing_ranks))
        whom = f"rank{plural(count)} {named}" if len(named) < POLICY.missing_ranks_characters else "most ranks"
        doubt = f"part of it may be waiting: {whom} left no record here"
        return [fact("unrecorded_members", "", "processes", ranks_count=count, ranks=named, doubt=doubt)]
    row, doubt = (
        int(doubtful[0]) if len(doubtful) else -1,
        _DOUBTS.get(reason, "part of it may be waiting for other ranks"),
    )
    known = Facts(rank=base.rank, doubtful_ratio=share, reason=reason, doubt=doubt)
    return [fact("may_be_waiting", "", "transfer_certainty", row, **known)]


def _bus_bandwidth(trace: Trace, rank: RankFacts, steps: Table, is_sure: bool) -> list[Evidence]:
    """Return the bandwidth of the collectives with most transfer time, and the part of what the link can do.

    Transfer begins when all ranks have entered; bandwidth is counted as in NCCL's tests. A rank without a device needs
    a calibration in the run directory. ``is_sure``: no part of the time may be waiting.
    """
    if not len(trace.collectives):
        return []
    calibration, table = calibration_of_machine(trace), trace.collectives
    known = np.full(len(table), True) if calibration is not None else table["device_begin_ns"] >= 0
    known &= (table["rank"] == rank.rank) & (table["message_bytes"] > 0)
    if not known.any():
        return []
    times = collective_rows(trace)
    rows = np.flatnonzero(known & (times["transfer_ns"] > 0))
    rows = rows[inside(times["begin_ns"][rows], steps, rank.rank)]
    if not len(rows):
        return []
    op, spent = times["op"][rows], times["transfer_ns"][rows]
    worst = max(np.unique(op).tolist(), key=lambda name: int(spent[op == name].sum()))
    rows, spent = rows[op == worst], spent[op == worst]
    sizes = {h: max(len(g.members), g.size) for h, g in group_table(trace).items()}
    if any(sizes[group] < 2 for group in np.unique(table["group_hash"][rows]).tolist()):
        return []  # how many ranks shared the bytes is not known
    messages = zip(table["message_bytes"][rows].tolist(), table["group_hash"][rows].tolist(), strict=True)
    carried = sum(bus_bytes(worst, sizes[group], size) for size, group in messages)
    expected = expected_transfers(trace, calibration).expected_ns[rows]
    share = float(expected.sum()) / float(spent.sum()) if (expected > 0).all() else -1.0
    rate, least = carried / float(spent.sum()) * 1e9, "" if is_sure else "at least "
    said = f"{{op:operation}} reached {least}{bytes_text(rate)}/s of bus bandwidth over {{transfers_count}} transfers"
    facts = Facts(rank=rank.rank, op=worst, rate_bytes_per_s=rate, transfers_count=len(rows))
    if share >= 0:
        said += ", {of_link_ratio:percent} of what this link can do by its calibration"
        facts |= Facts(of_link_ratio=share)
    return [fact("bus_bandwidth", said, "collectives", **facts)]
