"""How well the clocks of the recording agree, and what they leave open.

``clocks`` and ``unordered`` have the error in ``stall_ns``: -1 if the clocks are not aligned. ``unordered`` counts
collectives in which no rank is called last (``nobody_last``), and those that are split into waiting and transfer by how
long they took (``by_durations``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.collectives.matching import contact_errors, match
from stashtrace.analysis.findings.claim_rows import Claim, claim, fact
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import SYNCHRONISING_OPS
from stashtrace.schema.trace import Trace


def clock_claim(trace: Trace) -> Claim:
    """Return the claim about the hosts, and by what their clocks were aligned."""
    alignment = trace.alignment
    methods = {trace.text(code) for code in np.unique(alignment["method_code"])}
    error = int(contact_errors(trace).max()) if len(alignment) else -1
    # Files that name no host may be of any.
    hosts = int(np.count_nonzero(alignment["method_code"] != trace.strings.find("assumed"))) or len(alignment)
    said = "clocks not aligned"
    if methods == {"assumed"}:
        said = "clocks assumed to agree"
    elif hosts:
        # One clock stamped everything that a file of one host holds: there is nothing to be wrong about.
        exact = error <= 0 and hosts == 1
        named = ", ".join(sorted(methods - {"same_clock", "assumed"}))
        said = f"clocks {'one host' if hosts == 1 else '{items_count} hosts'}{'' if exact else ', ±{stall_ns:time}'}"
        said += f" by {named}" if named else ""
        said += "; assumed to agree between files that name no host" if "assumed" in methods else ""
    rows = [fact("clock_method", "", "alignment", name=name) for name in sorted(methods)]
    if len(trace.device_clocks):
        rows.append(fact("device_clocks", "", "device_clocks", device_ns=int(trace.device_clocks["error_ns"].max())))
        said += "; devices ±{device_ns:time}" if methods != {"assumed"} else ""
    return claim("trust", "clocks", said, rows, items_count=hosts, stall_ns=error)


def unordered_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the order that the clocks of several hosts leave open."""
    if len(trace.alignment) < 2 or not len(trace.collectives):
        return []
    matched, table = match(trace), trace.collectives
    shared = np.isin(table["op_code"], SYNCHRONISING_OPS) & (matched.last_rank >= 0)
    operations = GroupBy(table["group_hash"][shared], table["sequence"][shared])
    nobody, durations = (int(operations.any(rows[shared]).sum()) for rows in (~matched.ordered, ~matched.by_clock))
    all_count, said, rows = len(operations), [], []
    if nobody:
        said.append("in {nobody_count} of {all_count} collectives no rank is called last")
        rows.append(fact("nobody_last", "", "collectives", nobody_count=nobody, all_count=all_count))
    if durations:
        said.append("{durations_count} of {all_count} are split into waiting and transfer by durations, not by clocks")
        rows.append(fact("by_durations", "", "collectives", durations_count=durations, all_count=all_count))
    head = f"the order of events on different hosts is unknown within {{stall_ns:time}}{': ' if said else ''}"
    error = 2 * int(contact_errors(trace).max())
    return [claim("machine", "unordered", head + "; ".join(said), rows, stall_ns=error)]
