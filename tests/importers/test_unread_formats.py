"""Files that are no traces but often stand in the place of one: what they are, and what to do, in one line."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from pathlib import Path

import pytest
from corpus import corpus
from kineto_job import write_job

import stashtrace
from stashtrace.cli import main
from stashtrace.errors import DataLossWarning, ImporterError
from stashtrace.importers.source import Source
from stashtrace.loading.foreign_files import FORMATS, OTHERS, WRAPPERS, unread_format, wrapper

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = b"<!DOCTYPE html>\n<html lang=en><head><title>Sign in</title></head></html>"
DENIED = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code></Error>'
# As all_reduce_perf of nccl-tests 2.13 prints it (src/common.cu).
NCCL_TESTS = b"""\
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid  33017 on       node00 device  0 [0x07] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    34.18    0.00    0.00      0    34.09    0.00    0.00      0
"""
NCCL_DEBUG = b"torchrun says something first\nnode00:33017:33101 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
XPLANE = b"\x0a\x20\x08\x01\x12\x09/host:CPU\x1a\x11" + bytes(17)
XPLANE_OF_GPU = b"\x0a\xa0\x81\x01\x12\x0d/device:GPU:0" + bytes(30)


def _gz(content: bytes) -> bytes:
    """Compress without the time of day: names of tests are made of it, and all workers must have the same ones."""
    return gzip.compress(content, mtime=0)


CHROME = b'{"displayTimeUnit": "ns", "traceEvents": [{"ph": "M", "pid": 1, "name": "process_name"}]}'


@pytest.mark.parametrize(
    ("name", "content", "reported", "instead"),
    [
        ("rank0.json", POINTER, "a Git LFS pointer", "git lfs pull"),
        ("rank0.json.gz", POINTER, "a Git LFS pointer", "git lfs pull"),
        ("report.sqlite", POINTER, "a Git LFS pointer", "git lfs pull"),
        ("job.darshan", POINTER, "a Git LFS pointer", "git lfs pull"),
        ("trace-a.parquet", POINTER, "a Git LFS pointer", "git lfs pull"),
        ("a.pfw", POINTER, "a Git LFS pointer", "git lfs pull"),
        ("rank0.json", PAGE, "a web page", "curl -fL -o PATH"),
        ("rank0.html", b"\xef\xbb\xbf\n<!-- saved -->\n<HTML>", "a web page", "curl"),
        ("rank0.json.gz", _gz(PAGE), "a web page", "curl"),
        ("rank0.json", DENIED, "an error message of a storage service", "head PATH"),
        ("rank0.json.gz", _gz(_gz(b"{}")), "compressed twice", "gzip -dc PATH"),
        ("rank0.json.xz", b"\xfd7zXZ\x00\x00\x04", "compressed with xz", "xz -dk PATH"),
        ("rank0.json.bz2", b"BZh91AY&SY" + bytes(9), "compressed with bzip2", "bzip2 -dk PATH"),
        ("traces.7z", b"7z\xbc\xaf\x27\x1c" + bytes(9), "compressed with 7-Zip", "7z x PATH"),
        ("all_reduce.log", NCCL_TESTS, "a log of nccl-tests", "stashtrace run -- CMD"),
        ("all_reduce", b"mpirun says hello\n" + NCCL_TESTS, "a log of nccl-tests", "stashtrace calibrate"),
        ("job.txt", NCCL_DEBUG, "a log of NCCL", "stashtrace run -- CMD"),
        ("host.xplane.pb", XPLANE, "an XPlane profile of JAX or TensorFlow", "nsys profile"),
        ("host.xplane.pb", XPLANE_OF_GPU, "an XPlane profile of JAX or TensorFlow", "nsys profile"),
        ("host.trace.json.gz", _gz(CHROME), "a trace in Chrome's format", "stashtrace view PATH"),
    ],
)
def test_what_it_is_and_what_to_do(
    name: str, content: bytes, reported: str, instead: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["info", str(path)]) == ImporterError.exit_code
    answer = capsys.readouterr()
    # A busy machine may say how far it has read.
    first, empty, hint = (line for line in answer.err.splitlines() if not line.startswith("reading: "))
    assert first.startswith(f"error: {path} is {reported}")
    assert "which is not read: " in first
    assert empty == answer.out == ""
    assert hint.startswith("hint: ")
    assert instead.replace("PATH", str(path)) in hint


def test_a_path_with_spaces_can_be_copied_from_the_hint(tmp_path: Path) -> None:
    (tmp_path / "my trace.json").write_bytes(gzip.compress(gzip.compress(b"{}")))
    with pytest.raises(ImporterError) as caught:
        stashtrace.load(tmp_path / "my trace.json")
    assert f"`gzip -dc '{tmp_path}/my trace.json' > trace.json.gz`" in str(caught.value.hint)


@pytest.mark.parametrize("content", [POINTER, PAGE, _gz(_gz(b"{}"))])
def test_next_to_other_ranks_it_is_a_loss(content: bytes, tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    (tmp_path / "job/rank2.json").write_bytes(content)
    with pytest.warns(DataLossWarning, match="unreadable_file"):
        trace = stashtrace.load(tmp_path / "job")
    assert sorted(trace.processes["rank"]) == [0, 1]
    with pytest.raises(ImporterError):
        stashtrace.load(tmp_path / "job", strict=True)


@pytest.mark.parametrize(("name", "content"), [("README.html", PAGE), ("all_reduce.log", NCCL_TESTS)])
def test_notes_next_to_traces_are_no_loss(name: str, content: bytes, tmp_path: Path) -> None:
    write_job(tmp_path / "job")
    without = len(stashtrace.load(tmp_path / "job").losses)
    (tmp_path / "job" / name).write_bytes(content)
    assert len(stashtrace.load(tmp_path / "job").losses) == without


def test_every_real_trace_is_none_of_these() -> None:
    files = [path for path in corpus("kineto").parent.rglob("*") if path.is_file() and "LICENSES" not in path.parts]
    known = {path: (wrapper(head), unread_format(head)) for path in files for head in [Source(path).head]}
    assert {str(path) for path, (wrapped_in, _) in known.items() if wrapped_in} == set()
    assert {str(path) for path, (_, known_as) in known.items() if known_as in OTHERS} == set()


def test_each_names_itself_alone() -> None:
    names = [known.name for known in (*FORMATS, *OTHERS, *WRAPPERS)]
    assert len(names) == len(set(names))


# Compressed traces that are cut or damaged -----------------------------------------------------------------


def kernels_of(path: Path) -> int:
    with pytest.warns(DataLossWarning, match="file_cut"):
        return len(stashtrace.load(path).kernels)


def trace_file(tmp_path: Path) -> bytes:
    """A trace whose kernels stand last, so that what is read of them says how far it was read."""
    write_job(tmp_path / "job")
    content = json.loads((tmp_path / "job/rank0.pt.trace.json").read_text())
    shutil.rmtree(tmp_path / "job")
    events = content["traceEvents"]
    one = next(event for event in events if event.get("cat") == "kernel")
    last = max(event["ts"] for event in events if "ts" in event)
    more = [{**one, "ts": last + n, "dur": 0.5, "args": {**one["args"], "correlation": -n}} for n in range(4000)]
    return json.dumps({**content, "traceEvents": [*events, *more]}).encode()


def test_damage_in_the_middle_loses_only_what_stands_behind(tmp_path: Path) -> None:
    """The whole of a small file is one piece for the decompressor, and damage took it all."""
    content = trace_file(tmp_path)
    packer = zlib.compressobj(wbits=31)
    half = len(content) // 2
    first = packer.compress(content[:half]) + packer.flush(zlib.Z_FULL_FLUSH)
    second = packer.compress(content[half:]) + packer.flush()
    (tmp_path / "rank0.json.gz").write_bytes(first + second)
    whole = len(stashtrace.load(tmp_path / "rank0.json.gz").kernels)
    # A block of type 3 is an error in itself, wherever it stands (RFC 1951, 3.2.3).
    (tmp_path / "rank0.json.gz").write_bytes(first + b"\xff" + second[1:])
    assert whole * 0.4 < kernels_of(tmp_path / "rank0.json.gz") < whole * 0.6


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    content = gzip.compress(trace_file(tmp_path))
    counts = []
    for share in (0.5, 0.7, 0.9):
        (tmp_path / "rank0.json.gz").write_bytes(content[: int(len(content) * share)])
        counts.append(kernels_of(tmp_path / "rank0.json.gz"))
    assert 0 < counts[0] < counts[1] < counts[2]


def test_a_file_cut_before_its_first_event_says_so(tmp_path: Path) -> None:
    content = gzip.compress(b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [' + b" " * 50)
    (tmp_path / "rank0.json.gz").write_bytes(content[:-12])
    with pytest.raises(ImporterError, match="is cut before its first event") as caught:
        stashtrace.load(tmp_path / "rank0.json.gz")
    assert caught.value.hint == "copy it again from where it was written"
