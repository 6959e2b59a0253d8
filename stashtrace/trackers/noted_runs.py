"""Which run of a tracker a job wrote to, as its processes noted it (``probes/trackers.py``)."""

from __future__ import annotations

import json

import numpy as np

from stashtrace.schema.trace import Trace

#: Begin of the key of the fact, before the tracker's name; the same in ``probes/trackers.py``.
FACT = "tracker "


def noted_run(trace: Trace, tracker: str) -> dict[str, str] | None:
    """Return what was noted of the newest run of a tracker, of the lowest rank that has one; None if none was noted.

    A process without a rank counts after those with one. Notes that cannot be read are ignored.
    """
    code = trace.strings.find(FACT + tracker)
    if code < 0:
        return None
    rows = trace.metadata.take(trace.metadata["key_code"] == code)
    ranks = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    found: dict[int, dict[str, str]] = {}
    for process, value in zip(rows["process_id"].tolist(), rows["value_code"].tolist(), strict=True):
        note = _read(trace.text(value))
        if note is not None:
            rank = ranks.get(process, -1)
            found[rank if rank >= 0 else np.iinfo(np.int64).max] = note
    return found[min(found)] if found else None


def _read(text: str) -> dict[str, str] | None:
    try:
        note = json.loads(text)
    except ValueError:
        return None
    return {str(k): str(v) for k, v in note.items()} if isinstance(note, dict) else None
