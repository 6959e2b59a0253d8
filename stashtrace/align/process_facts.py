"""What a process says of itself before its rows are decoded, for ``align.ranks``. Used by ``align.session``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.align.host_clocks import HostClock, start_ticks
from stashtrace.align.ranks import ProcessFacts
from stashtrace.format.stash_file import StashFile
from stashtrace.model.kinds import ThreadRole
from stashtrace.model.trace import RawProcess


def process_facts(raw: RawProcess, file: StashFile, clock: HostClock) -> ProcessFacts:
    """Facts of one process from its header and its core records."""
    learned: dict[str, str] = {}
    rows = raw.records.get("metadata")
    if rows is not None:
        for row in np.sort(rows.rows, order="ticks", kind="stable"):
            learned[raw.strings.get(int(row["key_id"]), "")] = raw.strings.get(int(row["value_id"]), "")
    threads = raw.records.get("thread_info")
    worker = threads is not None and bool((threads.rows["role_code"] == int(ThreadRole.WORKER)).any())
    counts = file.row_counts()
    if "worker_id" not in learned and counts.get("batch") and not counts.get("phase_span"):
        batches = file.load(("batch",)).records.get("batch")
        if batches is not None and (number := int(batches.rows["worker_id"].max())) >= 0:
            learned["worker_id"] = str(number)
    return ProcessFacts(raw.metadata, int(clock.map(start_ticks(raw.metadata))[0]), learned, counts, worker)
