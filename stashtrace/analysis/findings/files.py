"""What a run without steps did with files, as claims."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.rows import Claim, Evidence
from stashtrace.model.trace import Trace

_FILES_AT_MOST = 3


def files_claims(trace: Trace) -> list[Claim]:
    """Calls, bytes and time of all I/O, and the files that took longest."""
    summed = trace.io_totals
    if not trace.io_rows_count and not len(summed):
        if trace.strings.find("imported") in trace.metadata["key_code"].tolist():
            return []  # tools that record no files are no evidence of none
        return [Claim("files", "no_files")]
    moved = int(summed["read_bytes"].sum() + summed["write_bytes"].sum())
    path, size = summed["path_code"], len(trace.strings)
    spent = np.zeros(size)
    np.add.at(spent, path, summed["read_ns"] + summed["write_ns"] + summed["other_ns"])
    calls = np.zeros(size, dtype=np.int64)
    np.add.at(calls, path, summed["opens_count"] + summed["reads_count"] + summed["writes_count"])
    for io in trace.io_pieces():
        moved += int(np.maximum(io["result_bytes"], 0).sum())
        spent += np.bincount(io["path_code"], io["end_ns"] - io["begin_ns"], len(spent))
        calls += np.bincount(io["path_code"], minlength=len(calls))
    processes = len(np.unique(trace.processes["process_id"]))
    whole = Evidence(
        "io_calls", "io", amount_ns=spent.sum(), items_count=int(calls.sum()), of_count=processes, moved_bytes=moved
    )
    used = np.flatnonzero(calls)
    longest = used[np.argsort(-spent[used], kind="stable")[:_FILES_AT_MOST]].tolist()
    files = [
        Evidence("file_calls", "io", amount_ns=spent[c], items_count=int(calls[c]), name=trace.text(c)) for c in longest
    ]
    return [Claim("files", "files", items_count=int(calls.sum()), evidence=(whole, *files))]
