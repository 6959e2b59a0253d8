"""Imports stopwatch files: a line ``# stopwatch RANK``, then ``phase,begin_ns,end_ns`` in order of time."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from stashtrace.plugins import ImportContext, ImporterError, Phase, Source

_MARK = b"# stopwatch "


def sniff(head: bytes, path: Path) -> bool:
    """Whether this is a stopwatch file."""
    return head.startswith(_MARK)


def load(source: Source, context: ImportContext) -> None:
    """Read the phases of one rank."""
    with source.open() as stream:
        first, *rest = io.TextIOWrapper(stream, "utf-8").readlines()
    context.realtime = False  # a stopwatch counts from when it was started
    rank = int(first.removeprefix(_MARK.decode()))
    process_id = context.process(pid=0, rank=rank, host="here", rank_from="file")
    track_id = context.tracks.thread(process_id, 0)
    rows, damaged = [], 0
    for row in csv.reader(rest):
        try:
            name, begin, end = row
            rows.append((int(Phase[name.upper()]), int(begin), int(end)))
        except (ValueError, KeyError):
            damaged += 1
    if damaged:
        context.lose(
            "line_damaged", damaged, process_id=process_id, advice=f"{source.path.name}: lines without a phase"
        )
    if not rows:
        raise ImporterError(f"{source.path} holds no phase", hint="record again")
    codes, begins, ends = zip(*rows, strict=True)
    context.add("phases", process_id=process_id, track_id=track_id, phase_code=codes, begin_ns=begins, end_ns=ends)
