"""Facts of another type than they have, under right checksums: they are unknown, and the run is read all the same."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer
from lost_rows import write_with

from stashtrace import _native
from stashtrace.cli import main
from stashtrace.files.run_facts import json_object, valid_facts
from stashtrace.format.container import FILE_HEADER
from stashtrace.format.project import layout_of

Run = Callable[..., Answer]
MERGED = Path(__file__).resolve().parents[1] / "data/golden/v1/merged.stash"
DEEP = "[" * 100_000 + "]" * 100_000
ODD: list[dict[str, object]] = [
    {"pid": "12"},
    {"pid": 10**12},
    {"ppid": None},
    {"host": ["a"]},
    {"boot_id": {}},
    {"incarnation": float("nan")},
    {"incarnation": True},
    {"run_id": 7},
    {"pidns": [1]},
    {"env": ["RANK"]},
    {"env": {"RANK": [0]}},
    {"argv": [1, 2]},
    {"exe": 5},
    {"losses": [["core"]]},
    {"losses": [["core", "x", 2**70, 1, ""]]},
    {"losses": 3},
    {"tick_hz": "fast"},
    {"tick_hz": float("inf")},
    {"start_ticks": -1},
    {"start_monotonic_ns": 2**70},
    {"start_realtime_ns": "now"},
    {"clock": []},
    {"collectors": 0},
]


def check_reads(path: Path) -> None:
    for words in (["info", path], ["analyze", "summary", path], ["export", "perfetto", path, "-o", path.parent / "x"]):
        assert main(["--debug", *map(str, words)]) == 0
    if path.is_dir():
        for words in (
            ["status", path],
            ["merge", path, "--out", path.parent / "merged"],
            ["scrub", path, "-o", path.parent / "scrubbed"],
        ):
            assert main(["--debug", *map(str, words)]) == 0


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: json.dumps(odd))
def test_a_file_whose_head_says_so_is_read(tmp_path: Path, odd: dict[str, object]) -> None:
    write_with(MERGED, tmp_path / "odd.stash", metadata=odd)
    check_reads(tmp_path / "odd.stash")


@pytest.mark.parametrize(
    "odd",
    [
        {"begin_monotonic_ns": "x"},
        {"end_monotonic_ns": 1, "begin_monotonic_ns": None},
        {"parts": 3},
        {"parts": [3, {"host": 5, "exit_code": "x", "parts": [{}]}, {"host": "b"}]},
        {"command": "train.py"},
        {"exit_code": [1]},
        {"host": ["a"], "run_id": "x"},
        {"begin_realtime_ns": "now", "launcher_pid": 4},
        {"launcher_pid": "x", "place": 3},
        {"run_id": ["a"]},
        {"boot_id": 5},
        {"exit_code": 1, "end_monotonic_ns": "late"},
    ],
    ids=lambda odd: json.dumps(odd),
)
def test_a_run_json_that_says_so_is_read(tmp_path: Path, odd: dict[str, object]) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(MERGED, tmp_path / "run")
    (tmp_path / "run/run.json").write_text(json.dumps(odd))
    (tmp_path / "run/launch.node01.7.json").write_text(json.dumps(odd))
    check_reads(tmp_path / "run")


def test_a_run_json_of_endless_brackets_is_damaged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(MERGED, tmp_path / "run")
    (tmp_path / "run/run.json").write_text(DEEP)
    (tmp_path / "run/launch.node01.7.json").write_text(DEEP)
    assert "run.json is damaged: brackets inside brackets without end" in run("info", "run").out
    for words in (["status", "run"], ["merge", "run", "--out", "merged"], ["scrub", "run", "-o", "new"]):
        answer = run(*words)
        assert answer.code == 0, answer.err


@pytest.mark.parametrize("part", ["table", "metadata"])
def test_a_head_of_endless_brackets_is_refused(run: Run, tmp_path: Path, part: str) -> None:
    raw = MERGED.read_bytes()
    magic, major, minor, header_bytes, table_bytes, metadata_bytes, _, _, flags = FILE_HEADER.unpack_from(raw)
    table = raw[header_bytes : header_bytes + table_bytes]
    facts = raw[header_bytes + table_bytes : header_bytes + table_bytes + metadata_bytes]
    table, facts = (DEEP.encode(), facts) if part == "table" else (table, DEEP.encode())
    text = table + facts
    offset = (header_bytes + len(text) + 7) & ~7
    head = FILE_HEADER.pack(
        magic, major, minor, header_bytes, len(table), len(facts), offset, zlib.crc32(text), flags
    ).ljust(header_bytes, b"\0")
    (tmp_path / "deep.stash").write_bytes((head + text).ljust(offset, b"\0"))
    answer = run("info", "deep.stash")
    assert (answer.code, answer.err.splitlines()[0]) == (4, "error: deep.stash has a damaged field table")


def test_a_field_that_lies_beyond_all_memory_is_no_record() -> None:
    entry = dict(_native.schema()["records"][0])
    entry["fields"] = [dict(entry["fields"][0], offset=10**30)]
    assert layout_of(entry) is None


def test_sound_facts_are_kept_as_they_are() -> None:
    facts = {"pid": 1, "host": "a", "env": {"RANK": "0"}, "losses": [["a", "b", 1, 2, "c"]], "tick_hz": 2.5e9}
    facts |= {"parts": [{"host": "b", "exit_code": 0}], "of a later version": [1]}
    assert valid_facts(facts) == facts
    assert valid_facts({"parts": 1}) == {"parts": []}


@pytest.mark.parametrize("text", ["[1]", "3", "{", DEEP, '{"a": ' + "9" * 5_000 + "}"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        json_object(text)


@pytest.mark.parametrize(
    "text", [DEEP, "[1]", '{"begin_realtime_ns": "now", "exit_code": []}'], ids=["deep", "list", "odd"]
)
def test_the_status_of_what_recorded_nothing_and_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "run.json").write_text(text)
    assert main(["status", str(tmp_path)]) == 4
    assert f"error: {tmp_path} holds no trace" in capsys.readouterr().err
