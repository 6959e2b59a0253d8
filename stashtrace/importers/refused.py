"""Formats that are recognised but not read: they lack what an analysis needs. Each has a hint what to record instead.

``loading.foreign_files`` asks ``refused`` about a file that no importer takes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import dataclass

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Refused:
    """A format that is not read.

    Attributes
    ----------
    name : str
        Name of such a file, with its article.
    lacks : str
        Why it is of no use: continues "which is not read: ".
    hint : str
        What to give or to record instead.
    pattern : bytes pattern
        Occurs in the first 64 KiB of such a file and of no other.
    has_times : bool
        Whether the viewer can show it.
    """

    name: str
    lacks: str
    hint: str
    pattern: re.Pattern[bytes]
    has_times: bool


FORMATS = (
    Refused(
        "a timeline of Horovod",
        "it has the phases of each tensor as one rank coordinated them, and no steps, compute or other ranks",
        "record each rank with torch.profiler or `nsys profile`, or the job with `stashtrace run -- horovodrun ...`",
        re.compile(rb'"(NEGOTIATE_(ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER)|CYCLE_START)"'),
        has_times=True,
    ),
    Refused(
        "a result of the DLIO benchmark",
        "it has the seconds that batches and epochs took, and not when",
        "set DFTRACER_ENABLE=1 for the benchmark and give the .pfw files that it writes,"
        " or record it: `stashtrace run -- mpirun ... dlio_benchmark ...`",
        re.compile(rb'"potential_caching"\s*:|"train_au_percentage"\s*:|"block1"\s*:\s*\{\s*"start"\s*:'),
        has_times=False,
    ),
    Refused(
        "a drawing of a StragglerAnalysis trace",
        "it draws the workers of a tensor-parallel group as one",
        "give the trace-*.parquet that it was drawn from, with its meta-*.yaml beside it",
        re.compile(rb'"cat"\s*:\s*"(forward|backward)-compute"'),
        has_times=True,
    ),
)


def refused(head: bytes) -> Refused | None:
    """Return the format of a file with this (decompressed) beginning, None if it is none of these."""
    if head.lstrip()[:1] not in (b"{", b"["):
        return None
    return next((known for known in FORMATS if known.pattern.search(head[:_HEAD_BYTES])), None)
