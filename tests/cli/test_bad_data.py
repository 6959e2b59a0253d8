"""Directories that are not what they should be: one line, a hint, exit code 4, and nothing is changed or lost."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer
from stash_files import StashWriter, ms

Run = Callable[..., Answer]
COMMANDS = ["info", "merge", "status", "export perfetto -o x.pftrace", "analyze steps"]


def process(directory: Path, pid: int = 100, *, rank: int = 0, world: int = 1, **options: object) -> StashWriter:
    env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    writer = StashWriter(directory, pid=pid, env=env, **options)  # type: ignore[arg-type]
    path_id = writer.intern("/data/a.jpg")
    rows = [
        writer.row("io_op", begin_ticks=ms(i), duration_ticks=1000, result_bytes=10, path_id=path_id, op_code=1)
        for i in range(50)
    ]
    writer.add("io_op", rows)
    writer.save()
    return writer


def words_of(command: str, path: Path) -> list[str]:
    name, *rest = command.split()
    before, after = (rest[:1], rest[1:]) if name in ("export", "analyze") else ([], rest)
    return [name, *before, path.name, *after]


def fingerprint(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_there(run: Run, tmp_path: Path, command: str) -> None:
    answer = run(*words_of(command, tmp_path / "nowhere"))
    assert answer == Answer(4, "", "error: nowhere does not exist\n\nhint: `stashtrace run -- CMD` makes one\n")


def test_a_path_not_found_names_the_newest_run(run: Run, tmp_path: Path) -> None:
    for begin_ns, name in enumerate(("stash-0411-080000", "stash-0412-090000"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node7.1.0.stash").touch()
        (tmp_path / name / "run.json").write_text(f'{{"begin_realtime_ns": {begin_ns}}}', encoding="utf-8")
    answer = run("info", "stash-0413")
    assert answer.err == "error: stash-0413 does not exist\n\nhint: the newest run here is stash-0412-090000\n"


def test_an_analysis_in_the_place_of_a_run_names_its_command(run: Run, tmp_path: Path) -> None:
    answer = run("summary", "causes")
    assert answer == Answer(
        4, "", "error: causes does not exist\n\nhint: it is an analysis: `stashtrace analyze causes RUN`\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_without_a_trace(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("hello")
    answer = run(*words_of(command, tmp_path / "empty"))
    assert (answer.code, answer.out) == (4, "")
    what = "run of stashtrace" if command == "status" else "trace"
    assert answer.err.splitlines()[0] == f"error: empty holds no {what}"
    assert "stashtrace run" in answer.err.splitlines()[2]
    assert fingerprint(tmp_path / "empty").keys() == {"notes.txt"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_newer_major_version(run: Run, tmp_path: Path, command: str) -> None:
    writer = process(tmp_path / "new")
    content = bytearray(writer.path.read_bytes())
    content[8:10] = struct.pack("<H", 9)
    writer.path.write_bytes(content)
    before = fingerprint(tmp_path / "new")
    answer = run(*words_of(command, tmp_path / "new"))
    assert (answer.code, answer.out) == (4, "")
    assert answer.err.splitlines()[0].endswith("has format 9.0; this stashtrace reads up to 1.x")
    assert answer.err.splitlines()[2].startswith("hint: ")
    assert fingerprint(tmp_path / "new") == before


@pytest.mark.parametrize("command", ["info", "merge", "status"])
def test_two_runs_in_one_directory(run: Run, tmp_path: Path, command: str) -> None:
    process(tmp_path / "mixed", 100, run_id="aaaa" * 8)
    process(tmp_path / "mixed", 200, run_id="bbbb" * 8)
    before = fingerprint(tmp_path / "mixed")
    answer = run(command, "mixed")
    assert answer.code == 4
    assert answer.err.startswith("error: mixed holds 2 runs: ")
    assert "--run" in answer.err
    assert fingerprint(tmp_path / "mixed") == before
    if command == "info":
        chosen = run("info", "mixed", "--run", "aaaa", "--format", "json")
        assert (chosen.code, json.loads(chosen.out)["processes"]) == (0, 1)
    else:
        assert run(command, "mixed", "--run", "aaaa").code == 0


@pytest.mark.parametrize("cut", [3, 40, 600, -1, -100])
def test_a_file_that_ends_early(run: Run, tmp_path: Path, cut: int) -> None:
    """Whatever is whole is read; what is not is counted; only a file without its head is an error."""
    writer = process(tmp_path / "torn")
    writer.path.write_bytes(writer.path.read_bytes()[:cut])
    answer = run("info", "torn", "--format", "json")
    assert "Traceback" not in answer.err
    if answer.code == 0:
        facts = json.loads(answer.out)
        assert any(row["severity"] == "data_loss" for row in facts["losses"]) or facts["records"].get("posix_io") == 50
    else:
        assert answer.code == 4
        assert answer.err.startswith("error: torn holds no readable trace")


def test_ranks_that_are_missing_are_named(run: Run, tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        process(tmp_path / "part", 100 + rank, rank=rank, world=4)
    facts = json.loads(run("info", "part", "--format", "json").out)
    assert (facts["ranks"], facts["missing_ranks"]) == ([0, 1, 3], [2])
    answer = run("merge", "part")
    assert answer.code == 0
    words = " ".join(answer.err.split())
    assert "rank 2 of 4: no file; part holds ranks 0,1,3;" in words
    assert "stashtrace merge ./part OTHER_DIR" in words


def test_parts_of_one_job_are_brought_together(run: Run, tmp_path: Path) -> None:
    for name, ranks, run_id in (("one", (0, 1), "aaaa" * 8), ("two", (2, 3), "bbbb" * 8)):
        for rank in ranks:
            process(tmp_path / name, 100 + rank, rank=rank, world=4, run_id=run_id, host=name)
        (tmp_path / name / "run.json").write_text(json.dumps({"format": 1, "run_id": run_id}))
    before = fingerprint(tmp_path / "two")
    assert run("merge", "one", "two").code == 0
    assert fingerprint(tmp_path / "two") == before
    facts = json.loads(run("info", "one", "--format", "json").out)
    assert (facts["ranks"], facts["missing_ranks"], facts["run_id"]) == ([0, 1, 2, 3], [], "aaaa" * 8)


def test_two_jobs_are_not_brought_together(run: Run, tmp_path: Path) -> None:
    for name, run_id in (("one", "aaaa" * 8), ("two", "bbbb" * 8)):
        process(tmp_path / name, run_id=run_id)
    before = fingerprint(tmp_path)
    answer = run("merge", "one", "two")
    assert answer.code == 4
    assert answer.err.startswith("error: one and two are not parts of one job")
    assert "hint: compare them instead: `stashtrace diff one two`" in answer.err
    assert fingerprint(tmp_path) == before


def test_an_unknown_analysis(run: Run, tmp_path: Path) -> None:
    process(tmp_path / "one")
    near = run("analyze", "stals", "one")
    assert near == Answer(2, "", "error: no analysis named 'stals'\n\nhint: did you mean 'stalls'?\n")
    far = run("analyze", "astrology", "one")
    assert far.code == 2
    assert "hint: choose from: steps, step_kinds, stalls" in far.err


def test_a_run_without_steps_is_an_answer_not_a_crash(run: Run, tmp_path: Path) -> None:
    process(tmp_path / "one")
    answer = run("analyze", "stalls", "one")
    assert (answer.code, answer.out) == (4, "")
    assert answer.err.startswith("error: no rank")
    assert "hint: " in answer.err
    assert run("status", "one").code == 0


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--ranks", "a-b"], "for example --ranks 0,2,8-15"),
        (["--steps", "9:3"], "for example --steps 10:20"),
        (["--window", "x"], "for example --window 1.5:4"),
    ],
)
def test_cuts_that_are_none(run: Run, tmp_path: Path, words: list[str], hint: str) -> None:
    process(tmp_path / "one")
    answer = run("export", "perfetto", "one", "-o", "x.pftrace", *words)
    assert answer.code == 2
    assert hint in answer.err
    assert not (tmp_path / "x.pftrace").exists()


def test_an_output_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    process(tmp_path / "one")
    answer = run("export", "perfetto", "one", "-o", "nowhere/x.pftrace")
    assert answer.code == 3
    assert "nowhere" in answer.err.splitlines()[0]
    assert "Traceback" not in answer.err
