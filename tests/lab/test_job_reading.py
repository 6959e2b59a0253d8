"""What a run read of its data, and that states of the page cache are claimed for these files alone."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest
from builders import MS, TraceBuilder

from stashtrace.lab.characterize import five_configurations
from stashtrace.lab.characterize.answer import RunInvalidError
from stashtrace.lab.characterize.five_configurations import DataStates, with_neighbours
from stashtrace.lab.job_files import FileSet, file_set, reading
from stashtrace.lab.page_cache import COLD, WARM
from stashtrace.schema.kinds import IoOp
from stashtrace.schema.trace import Trace

SIZE = 8192


def files(folder: Path, *names: str) -> list[Path]:
    made = [folder / name for name in names]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * SIZE)
    return made


def run_of(*steps: list[Path]) -> Trace:
    """A rank that reads these files, one after the other in halves, in each step."""
    build = TraceBuilder([socket.gethostname()])
    rank = build.rank(0)
    for number, paths in enumerate(steps):
        begin = number * 100 * MS
        rank.step_mark(begin)
        for place, path in enumerate(paths):
            for half in range(2):
                at = begin + (2 * place + half + 1) * MS
                rank.io(at, at + MS // 2, path=str(path), result_bytes=SIZE // 2, offset_bytes=half * SIZE // 2)
    rank.step_mark(len(steps) * 100 * MS)
    return build.trace()


def states(whole: list[Path], seen: list[Path] | None = None) -> DataStates:
    return DataStates(file_set(whole), file_set(whole if seen is None else seen), drop_caches=False)


def test_bytes_and_what_was_read_again(tmp_path: Path) -> None:
    a, b, gone = files(tmp_path, "a.bin", "b.bin", "gone.bin")
    (tmp_path / "link.bin").symlink_to(a)
    trace = run_of([a, gone], [b], [tmp_path / "link.bin"], [a])
    gone.unlink()
    found = reading(trace)
    assert found.bytes_of == {str(a): 3 * SIZE, str(b): SIZE}
    assert found.bytes == 4 * SIZE
    assert found.again_ratio == pytest.approx(1 / 4), "by the name that was used"
    later = reading(trace, first_step=3)
    assert later.bytes_of == {str(a): SIZE}
    assert later.again_ratio == 1.0
    assert reading(trace, first_step=9).bytes_of == {}
    assert reading(run_of([], [])).again_ratio == 0.0


def test_what_the_run_wrote_itself_is_no_data(tmp_path: Path) -> None:
    """A job may unpack its data to another place in each run."""
    a, unpacked = files(tmp_path, "a.bin", "unpacked.bin")
    build = TraceBuilder([socket.gethostname()])
    rank = build.rank(0)
    rank.io(0, MS, op=IoOp.WRITE, path=str(unpacked), result_bytes=SIZE)
    for step in range(2):
        rank.step_mark((10 * step + 10) * MS)
        for number, path in enumerate((a, unpacked)):
            rank.io((10 * step + 11 + number) * MS, (10 * step + 12 + number) * MS, path=str(path), result_bytes=SIZE)
    rank.step_mark(30 * MS)
    assert reading(build.trace()).bytes_of == {str(a): 2 * SIZE}


def test_links_to_folders_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    files(tmp_path, "disk/a.bin", "data/b.bin")
    (tmp_path / "data/train").symlink_to(tmp_path / "disk")
    (tmp_path / "data/self").symlink_to(tmp_path / "data")
    assert file_set([tmp_path / "data"]).paths == (str(tmp_path / "data/b.bin"), str(tmp_path / "disk/a.bin"))


def test_folders_of_classes_are_one_data_set(tmp_path: Path) -> None:
    read = files(tmp_path, "train/cat/1.jpg", "train/dog/1.jpg", "train/eel/1.jpg", "notes/1.txt", "runs/1.txt")
    files(tmp_path, "train/cat/2.jpg", "train/fox/1.jpg", "train/fox/list.csv", "other/1.txt")
    found = [Path(path).relative_to(tmp_path).as_posix() for path in with_neighbours(file_set(read)).paths]
    assert found == [
        "notes/1.txt",
        "runs/1.txt",
        "train/cat/1.jpg",
        "train/cat/2.jpg",
        "train/dog/1.jpg",
        "train/eel/1.jpg",
        "train/fox/1.jpg",
    ]


def test_a_folder_that_does_not_say_what_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files can be opened by those who know their names."""
    read = files(tmp_path, "a.bin")

    def refused(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(five_configurations.os, "scandir", refused)
    assert with_neighbours(file_set(read)).paths == (str(read[0]),)


@pytest.mark.parametrize("wanted", [COLD, WARM])
def test_a_run_that_reads_other_files_is_in_no_state(tmp_path: Path, wanted: str) -> None:
    known, others = files(tmp_path, "a/1.bin"), files(tmp_path, "b/1.bin", "c/1.bin")
    data = states(known)
    state = data.prepare(wanted)
    data.require_prepared_files(state, run_of(known, known))
    with pytest.raises(RunInvalidError) as raised:
        data.require_prepared_files(state, run_of(known, others))
    assert str(raised.value) == (
        f"67 % of what the run read is in files that had not been made {wanted}: {others[0]} and 1 more"
    )
    state = data.prepare(wanted)
    assert len(state.files.paths) == 3, "they belong to the data set from now on"
    data.require_prepared_files(state, run_of(known, others))


def test_a_data_set_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run was seen to read is what the next one needs, if the job reads the same each time."""
    paths = files(tmp_path, "1.bin", "2.bin", "3.bin", "4.bin")
    monkeypatch.setattr(five_configurations, "memory_room", lambda: 3 * SIZE)
    data = states(paths, paths[:1])
    data.require_prepared_files(data.prepare(WARM), run_of(paths[:1]))
    with pytest.raises(RunInvalidError, match=r"^100 % of what the run read"):
        data.require_prepared_files(data.prepare(WARM), run_of(paths[1:3]))
    assert data.prepare(WARM).files.paths == tuple(map(str, paths[1:3]))
    assert data.facts()["files_count"] == 4


def test_a_run_that_is_longer_than_its_data(tmp_path: Path) -> None:
    a, b = files(tmp_path, "a.bin", "b.bin")
    data = states([a, b])
    cold, trace = data.prepare(COLD), run_of([a], [b], [a], [b], [a])
    assert str(data.reread_note(cold, trace, 0)).startswith("60 % of what its measured steps read was read before")
    assert str(data.reread_note(cold, trace, 2)).startswith("100 % of what its measured steps read")
    assert data.reread_note(cold, run_of([a], [b]), 0) is None
    assert data.reread_note(data.prepare(WARM), trace, 0) is None, "as it should be"


def test_a_job_whose_data_is_in_memory_before_its_steps() -> None:
    data = states([])
    cold, warm = data.prepare(COLD), data.prepare(WARM)
    assert not cold.verified
    assert cold.sentence.startswith("not cold: the job was seen to read no file in its steps")
    assert warm.verified
    assert warm.sentence.startswith("warm: the job was seen to read no file in its steps")
    data.require_still_warm(warm)


def test_what_could_not_be_looked_at_is_named(tmp_path: Path) -> None:
    whole = dataclasses.replace(
        file_set(files(tmp_path, "a.bin")),
        left_out=(
            ("/data/1", "no permission to read"),
            ("/tmp/x", "no such file or directory"),
            ("/data/2", "read on another host"),
        ),
    )
    data = DataStates(whole, FileSet((), 0), drop_caches=False)
    assert data.notes == ["not examined, and neither cold nor warm: /data/1 (no permission to read) and 1 more"]
