"""``stashtrace view``: a part of a run, with the meaning that ``export`` gives to the same options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from stashtrace.cli import main
from stashtrace.exporters.registry import export
from stashtrace.lab import synth
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.loading.load import load_trace
from stashtrace.timeline import serve
from stashtrace.timeline.serve import Opening, read_opening

JOB = SyntheticJob(ranks=3, steps=12, calls_per_batch=12, late_rank=1, late_ns=40_000_000)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    write(folder, JOB)
    return folder


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bytes, Opening]]:
    """What the viewer is given, in place of a viewer: path, bytes and first view of each timeline."""
    seen: list[tuple[Path, bytes, Opening]] = []

    def view(path: Path, **_: Any) -> None:
        seen.append((path, path.read_bytes(), read_opening(path)))

    monkeypatch.setattr(serve, "view", view)
    return seen


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        (["--window", "0.2:0.45"], {"window_ns": (200_000_000, 450_000_000)}),
        (["--steps", "3:5"], {"steps": (3, 5)}),
        (["--ranks", "0,2"], {"ranks": [0, 2]}),
        (["--steps", "3:5", "--ranks", "1"], {"steps": (3, 5), "ranks": [1]}),
    ],
)
def test_a_part_is_what_export_writes_and_leaves_no_file(
    run: Path, shown: list[tuple[Path, bytes, Opening]], tmp_path: Path, options: list[str], cut: dict[str, Any]
) -> None:
    before = sorted(path.name for path in run.iterdir())
    assert main(["view", str(run), *options]) == 0
    ((path, written, _),) = shown
    expected = export(load_trace(str(run)), "perfetto", tmp_path / "timeline.pftrace.gz", **cut)
    assert written == expected.path.read_bytes()
    assert not path.exists()
    assert not path.parent.exists()
    assert sorted(path.name for path in run.iterdir()) == before


def test_one_of_several_runs_is_chosen(
    run: Path, shown: list[tuple[Path, bytes, Opening]], tmp_path: Path, capsys, monkeypatch
) -> None:
    both = tmp_path / "both"
    write(both, SyntheticJob(ranks=1, steps=4, calls_per_batch=4))
    for file in sorted(both.glob("*.stash")):
        file.rename(both / f"other-{file.name}")
    monkeypatch.setattr(synth, "RUN_ID", "0" * 32)
    write(both, JOB)
    before = sorted(path.name for path in both.iterdir())
    assert main(["view", str(both)]) == 4
    assert "--run" in capsys.readouterr().err
    assert main(["view", str(both), "--run", "0000"]) == 0
    ((path, written, _),) = shown
    expected = export(load_trace(str(both), run_id="0000"), "perfetto", tmp_path / "timeline.pftrace.gz")
    assert written == expected.path.read_bytes()
    assert not path.exists()
    assert sorted(path.name for path in both.iterdir()) == before

    page = tmp_path / "page.md"
    assert main(["report", str(both), "--run", "0000", "--format", "markdown", "-o", str(page)]) == 0
    commands = [shlex.split(line) for line in re.findall(r"stashtrace (?:view|analyze|info) [^`\n]*", page.read_text())]
    assert commands
    assert all(words[words.index("--run") + 1] == "0000" for words in commands)


def test_parts_of_one_job_are_one_timeline(
    shown: list[tuple[Path, bytes, Opening]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    whole = tmp_path / "whole"
    write(whole, JOB)
    for file in sorted(whole.glob("*.stash")):
        part = tmp_path / f"node{len(parts) % 2}"
        part.mkdir(exist_ok=True)
        file.rename(part / file.name)
        parts.append(str(part))
    paths = sorted(set(parts))
    monkeypatch.chdir(tmp_path)
    assert main(["view", *paths, "--steps", "3:5"]) == 0
    assert main(["view", *paths]) == 0
    trace = load_trace(paths)
    for (path, written, _), cut in zip(shown, ({"steps": (3, 5)}, {}), strict=True):
        expected = export(trace, "perfetto", tmp_path / "timeline.pftrace.gz", **cut)
        assert written == expected.path.read_bytes()
        assert not path.parent.exists()


def test_a_timeline_file_is_no_part_of_a_job(run: Path, tmp_path: Path, capsys, shown: list[Any]) -> None:
    path = export(load_trace(str(run)), "perfetto", tmp_path / "t.pftrace").path
    assert main(["view", str(run), str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path} is a timeline file: several paths are parts of one job\n")
    assert shown == []


def test_the_view_opens_on_the_window_and_the_rank_that_was_late_in_it(
    run: Path, shown: list[tuple[Path, bytes, Opening]]
) -> None:
    trace = load_trace(str(run))
    assert main(["view", str(run), "--window", "0.5:0.75"]) == 0
    ((_, _, opening),) = shown
    assert opening.begin_ns == trace.origin_ns + 500_000_000
    assert opening.end_ns == trace.origin_ns + 750_000_000
    assert opening.process_name.startswith("rank 001")


def test_a_timeline_file_cannot_be_cut(run: Path, tmp_path: Path, capsys, shown: list[Any]) -> None:
    path = export(load_trace(str(run)), "perfetto", tmp_path / "t.pftrace").path
    assert main(["view", str(path), "--window", "0:1"]) == 2
    said = capsys.readouterr().err
    assert said == f"error: {path} is a timeline file: --window cuts a run\n\nhint: give the run directory instead\n"
    assert main(["view", str(path)]) == 0
    assert [seen[0] for seen in shown] == [path]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--window", "9000:9001"], "the window begins after the end of the run, which lasts"),
        (["--steps", "90:91"], "no step is in 90:91"),
        (["--ranks", "7"], "the trace holds no rank 7"),
        (["--window", "2:1"], "--window 2:1 is not a range A:B with A < B"),
    ],
)
def test_a_part_that_is_not_there_is_one_line(
    run: Path, capsys, shown: list[Any], options: list[str], error: str
) -> None:
    assert main(["view", str(run), *options]) == 2
    assert f"error: {error}" in capsys.readouterr().err
    assert shown == []
