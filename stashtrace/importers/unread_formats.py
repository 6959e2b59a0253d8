"""Formats that are recognised but not read. Each has a hint what to do, or what to record instead.

``loading.foreign_files`` asks ``wrapper`` about each file, and ``unread_format`` about a file that no importer takes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class UnreadFormat:
    """A format that is not read."""

    #: Name of such a file, with its article.
    name: str
    #: Why it is of no use: continues "which is not read: ".
    lacks: str
    #: What to give or to record instead; ``FILE`` stands for the path of the file.
    hint: str
    #: bytes pattern; Occurs in the first 64 KiB of such a file and of no other.
    pattern: re.Pattern[bytes]
    #: Whether the viewer can show it.
    has_times: bool = False
    #: Whether a trace may be inside or behind it, so that the trace is missing from what was given.
    is_wrapper: bool = False


FORMATS = (
    UnreadFormat(
        "a timeline of Horovod",
        "it has the phases of each tensor as one rank coordinated them, and no steps, compute or other ranks",
        "record each rank with torch.profiler or `nsys profile`, or the job with `stashtrace run -- horovodrun ...`",
        re.compile(rb'"(NEGOTIATE_(ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER)|CYCLE_START)"'),
        has_times=True,
    ),
    UnreadFormat(
        "a result of the DLIO benchmark",
        "it has the seconds that batches and epochs took, and not when",
        "set DFTRACER_ENABLE=1 for the benchmark and give the .pfw files that it writes,"
        " or record it: `stashtrace run -- mpirun ... dlio_benchmark ...`",
        re.compile(rb'"potential_caching"\s*:|"train_au_percentage"\s*:|"block1"\s*:\s*\{\s*"start"\s*:'),
    ),
    UnreadFormat(
        "a drawing of a StragglerAnalysis trace",
        "it draws the workers of a tensor-parallel group as one",
        "give the trace-*.parquet that it was drawn from, with its meta-*.yaml beside it",
        re.compile(rb'"cat"\s*:\s*"(forward|backward)-compute"'),
        has_times=True,
    ),
    UnreadFormat(
        "a trace in Chrome's format by a tool that stashtrace does not know",
        "nothing says what its events mean for a step",
        "`stashtrace view FILE` shows it as it is; torch.profiler's own traces are read",
        re.compile(rb'"traceEvents"\s*:\s*\[\s*\{'),
        has_times=True,
    ),
)


#: Text and binary files of other kinds than JSON, by how they begin.
OTHERS = (
    UnreadFormat(
        "a log of nccl-tests",
        "it measures links between GPUs alone, without the steps of a job",
        "record the job: `stashtrace run -- CMD`; `stashtrace calibrate` measures what the links can do beside it",
        re.compile(rb"(?m)^# (?:nccl-tests version|nThread \d+ nGpus \d+ minBytes |  +size +count +type )"),
    ),
    UnreadFormat(
        "a log of NCCL (NCCL_DEBUG)",
        "it has what NCCL set up, and no times of its operations",
        "record the job with `stashtrace run -- CMD`, or give the JSON lines of NCCL Inspector",
        re.compile(rb"(?m)^\S{1,255}:\d+:\d+ \[\d+\] NCCL (?:INFO|WARN|TRACE) "),
    ),
    # tsl/profiler/protobuf/xplane.proto: an XSpace has planes (1), each with an id (1) and a name (2);
    # names as in tsl/profiler/utils/xplane_schema.cc.
    UnreadFormat(
        "an XPlane profile of JAX or TensorFlow (xplane.pb)",
        "it is the profiler's own format, and of one host",
        "record the job with `stashtrace run -- CMD` or `nsys profile`; Perfetto opens the *.trace.json.gz beside it",
        re.compile(
            rb"\A\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
            rb"\x12.(?:/host:|/device:|Task Environment)",
            re.DOTALL,
        ),
    ),
)
#: What a trace was packed into, or what came in its place; no importer is asked about such a file.
WRAPPERS = (
    UnreadFormat(
        "a Git LFS pointer",
        "it only names the trace, which Git has not fetched",
        "run `git lfs pull` in the clone that it comes from, then give the file again",
        re.compile(rb"\Aversion https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/"),
        is_wrapper=True,
    ),
    UnreadFormat(
        "a web page",
        "it was saved in place of the trace, as happens to links that ask for a login or show a file in a viewer",
        "fetch the raw file: `curl -fL -o FILE URL` with the address of its download button",
        re.compile(
            rb"\A(?:\xef\xbb\xbf)?\s*(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
        ),
        is_wrapper=True,
    ),
    UnreadFormat(
        "an error message of a storage service",
        "it was saved in place of the trace",
        "read it (`head FILE`), then fetch the file again with the rights to do so",
        re.compile(rb"\A(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?<Error>\s*<Code>"),
        is_wrapper=True,
    ),
    UnreadFormat(
        "compressed twice",
        "only one layer is taken off",
        "take one off: `gzip -dc FILE > trace.json.gz`",
        re.compile(rb"\A\x1f\x8b\x08"),
        is_wrapper=True,
    ),
    *(
        UnreadFormat(
            f"compressed with {name}",
            "files may be compressed with gzip or zstd",
            f"unpack it: `{program} FILE`",
            re.compile(magic),
            is_wrapper=True,
        )
        for name, program, magic in (
            ("xz", "xz -dk", rb"\A\xfd7zXZ\x00"),
            ("bzip2", "bzip2 -dk", rb"\ABZh[1-9]1AY&SY"),
            ("lz4", "lz4 -d", rb"\A\x04\x22\x4d\x18"),
            ("7-Zip", "7z x", rb"\A7z\xbc\xaf\x27\x1c"),
            ("RAR", "unrar x", rb"\ARar!\x1a\x07"),
        )
    ),
)


def unread_format(head: bytes) -> UnreadFormat | None:
    """Return the format of a file with this (decompressed) beginning, None if it is none of these."""
    known = FORMATS if head.lstrip()[:1] in (b"{", b"[") else OTHERS
    return _first_of(known, head)


def wrapper(head: bytes) -> UnreadFormat | None:
    """Return what a trace is wrapped in, or what came in its place; None if the file may be a trace itself."""
    return _first_of(WRAPPERS, head)


def _first_of(formats: Sequence[UnreadFormat], head: bytes) -> UnreadFormat | None:
    return next((known for known in formats if known.pattern.search(head[:_HEAD_BYTES])), None)
