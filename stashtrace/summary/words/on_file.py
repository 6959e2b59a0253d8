"""Words for what the loop of a rank does with one file: reading it, writing it, or being in calls on it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

from stashtrace.summary.words.template_parts import Finding, Row, lost, ranks, verb
from stashtrace.text import count_noun
from stashtrace.units import duration_text, shortened

_NAME_WIDTH = 40
#: Way of the bytes -> what a rank does with a file.
_WAYS = {"reads": "reading {file}", "writes": "writing {file}", "calls": "in calls on {file}"}


def is_path(name: str) -> bool:
    """Return True for the path of a file; names of calls, kernels and annotations do not begin like one."""
    return name.startswith("/")


def doing(way: str, path: str) -> str:
    """Say what is done with a file: ``reading shard-0017.tar``."""
    return _WAYS[way].format(file=shortened(os.path.basename(path), _NAME_WIDTH))


def file_claim(f: Finding) -> str:
    """Word the whole time in calls on a file, and its parts by call."""
    calls = [f"{call['kind']}() {duration_text(call['amount_ns'])}" for call in f.all("file_call")]
    of_whom = f" on rank {f.row['rank']}" if f.row["items_count"] > 1 else ""
    parts = f": {', '.join(calls)}{of_whom}" if len(calls) > 1 else f", in {f.row['call']}()"
    return f"{ranks(f.row)} {verb(f.row, 'spends', 'spend')} {lost(f.row)} {_doing(f)}{parts}"


def file_short(f: Finding, part_of_step: str) -> str:
    """Word the same in a headline, given the share of the step in words."""
    return f"{ranks(f.row)} {verb(f.row, 'spends', 'spend')} {part_of_step} {_doing(f)}"


def _doing(f: Finding) -> str:
    row: Row = f.first("on_file") or {}
    if row["items_count"] > 1:
        files = count_noun(row["items_count"], "file")
        return _WAYS[row["kind"]].format(file=files if f.row["items_count"] == 1 else "files")
    if row["of_count"] > 1:
        name = shortened(os.path.basename(row["name"]), _NAME_WIDTH)
        return _WAYS[row["kind"]].format(file=f"a file each (rank {row['rank']} {name})")
    return doing(row["kind"], row["name"])
