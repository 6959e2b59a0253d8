"""Programs that are hard on a recorder come to the same verdict with it as without it.

Each scene of ``programs/scenes.c`` checks itself: what it reads, what its children return, that nobody wrote into its
files. Compared are output, exit code and the files that it left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from other_users import let_others_in

from trust.pairs import LIMIT_S, Pair, compiled, plain_environment, recorded_rows, run_group


@dataclass(frozen=True)
class Scene:
    """Rounds of the quick form (0: none) and of the long one, and what it needs."""

    name: str
    quick: int
    long: int
    root: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    limit_s: float = LIMIT_S

    def case(self, *, long: bool) -> object:
        marks = [pytest.mark.trust] if long else []
        if self.root:
            marks.append(pytest.mark.root)
        return pytest.param(self, self.long if long else self.quick, id=self.name, marks=marks)


SCENES = (
    Scene("dup2_thread", 2, 200),
    Scene("dup2_handler", 1, 100),
    Scene("dup2_vfork", 5, 500),
    Scene("dup2_each_call", 1, 50),
    Scene("close_all", 12, 600),
    Scene("lowest_number", 30_000, 300_000, settings={"DRAINER": "thread", "SAMPLE_MS": "1"}),
    Scene("forks", 2, 200),
    Scene("vforks", 2, 200),
    Scene("clone_plain", 1, 100),
    Scene("clone_files", 1, 100),
    Scene("clone_vm", 1, 100),
    Scene("clone_vm_vfork", 1, 100),
    Scene("other_user", 20_000, 500_000, root=True),
    Scene("other_root", 20_000, 500_000, root=True),
    Scene("namespace_after_work", 20_000, 500_000),
    Scene("few_files", 5, 100),
    Scene("few_files_from_the_start", 1, 1),
    Scene("little_memory", 5, 500),
    Scene("small_files", 20_000, 500_000),
    Scene("jumps_from_handlers", 100, 10_000),
    Scene("small_signal_stack", 50, 5_000),
    Scene("execs", 20, 500),
    Scene("bare_calls", 3, 200),
    Scene("another_title", 20_000, 500_000),
    Scene("many_threads", 5, 500),
    Scene("ends_while_threads_work", 4, 100),
)
QUICK = [scene.case(long=False) for scene in SCENES if scene.quick]
LONG = [scene.case(long=True) for scene in SCENES]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("scenes", tmp_path_factory.mktemp("scenes"))


def open_folder(folder: Path) -> Pair:
    """A pair whose run directory others may write into: some scenes become another user."""
    pair = Pair(folder)
    pair.run_dir.mkdir()
    pair.run_dir.chmod(0o777)
    return pair


def check_scene(program: Path, folder: Path, scene: Scene, rounds: int) -> None:
    """Run both and compare; stderr is not compared: the recorder says there what it cannot write."""
    if scene.root and os.geteuid() != 0:
        pytest.skip(f"{scene.name} needs root")
    pair = open_folder(folder)
    if scene.root:
        let_others_in(folder)
    plain, traced = pair.run([program, scene.name, str(rounds)], limit_s=scene.limit_s, **scene.settings)
    if plain.code == 77:
        pytest.skip("a process may not trace another here")
    assert plain.code == 0, plain.output + plain.errors
    assert (traced.code, traced.output, traced.files) == (plain.code, plain.output, plain.files), traced.errors[-2000:]
    # Under a file-size limit from the first row on there is no record, and the recorder says so.
    assert scene.name == "small_files" or recorded_rows(pair.run_dir) > 0


@pytest.mark.parametrize(("scene", "rounds"), QUICK)
def test_same_verdict(program: Path, tmp_path: Path, scene: Scene, rounds: int) -> None:
    check_scene(program, tmp_path, scene, rounds)


@pytest.mark.parametrize(("scene", "rounds"), LONG)
def test_same_verdict_of_many_rounds(
    program: Path, tmp_path: Path, scene: Scene, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("rounds_count", rounds)
    check_scene(program, tmp_path, scene, rounds)


def delete(run_dir: Path) -> None:
    shutil.rmtree(run_dir)


def close_folder(run_dir: Path) -> None:
    run_dir.chmod(0o500)


def empty_files(run_dir: Path) -> None:
    for path in run_dir.iterdir():
        path.unlink()


def replace(run_dir: Path) -> None:
    run_dir.rename(run_dir.with_name("moved"))
    run_dir.mkdir()


@pytest.mark.parametrize("act", [delete, close_folder, empty_files, replace])
@pytest.mark.parametrize("rounds", [300, pytest.param(300_000, marks=pytest.mark.trust)])
def test_run_directory_changes_under_it(
    program: Path, tmp_path: Path, act: Callable[[Path], None], rounds: int
) -> None:
    """Deleted, closed, emptied, or replaced while the program runs: it goes on to its end."""
    pair = open_folder(tmp_path)
    with subprocess.Popen(
        [str(program), "until_told", str(rounds)],
        env=pair.traced_variables(),
        cwd=tmp_path,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        act(pair.run_dir)
        output, _ = process.communicate("go\n", timeout=LIMIT_S)
    assert (process.returncode, output) == (0, "went on\n")


@pytest.mark.parametrize("stops", [3, pytest.param(100, marks=pytest.mark.trust)])
def test_stopped_and_continued(program: Path, tmp_path: Path, stops: int) -> None:
    pair = open_folder(tmp_path)
    with subprocess.Popen(
        [str(program), "many_threads", str(10 * stops)],
        env=pair.traced_variables(),
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
    ) as process:
        for _ in range(stops):
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.01)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.005)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (0, "joined\n")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("a full disk needs root, to mount a small tmpfs")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.trust)])
def test_full_disk(program: Path, tmp_path: Path, small_disk: Path, rounds: int) -> None:
    """The run directory has room for a quarter of a ring: the program does not notice."""
    pair = Pair(tmp_path / "pair")
    variables = pair.traced_variables() | {"STASHTRACE_DIR": str(small_disk)}
    command = [str(program), "forks", str(rounds)]
    plain = run_group(command, cwd=tmp_path / "pair", env=plain_environment())
    traced = run_group(command, cwd=tmp_path / "pair", env=variables)
    assert (traced.code, traced.output) == (plain.code, plain.output) == (0, "forked\n")
