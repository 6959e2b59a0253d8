"""A pipe, a device or an endless file in a folder that a team shares keeps no command waiting, nor fills the memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.record.directory import run_directory_of, scratch_of
from stashtrace.record.launchers import own_place

pytestmark = pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")

#: Ends what waits for ever; everything here takes much less.
_LIMIT_S = 60
HISTORY_NAME = "20261129T082911Z-aaaaaaaaaaaa-11111111.parquet"


@pytest.fixture(autouse=True)
def never_wait() -> Iterator[None]:
    def end(_: int, __: FrameType | None) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(_LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "1", "--steps", "6", "--calls-per-batch", "6"]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def put_hole(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


PUT = pytest.mark.parametrize("put", [put_pipe, put_device, put_hole])
Put = Callable[[Path], None]


@PUT
@pytest.mark.parametrize(
    "name", ["run.json", "launch.x.1.json", "live-x.json", "host.x.json", "events-x.jsonl", "a.1.0.stash"]
)
def test_files_of_a_run(name: str, put: Put, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / name).unlink(missing_ok=True)
    put(run / name)
    for command in (["status", str(run)], ["info", str(run)], ["summary", str(run)]):
        assert main(command) in (0, 4)
    assert "bug in stashtrace" not in capsys.readouterr().err


@PUT
def test_files_of_a_history(put: Put, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    put(tmp_path / HISTORY_NAME)
    assert main(["history", str(tmp_path)]) == 4
    assert HISTORY_NAME in capsys.readouterr().err


@PUT
def test_files_of_a_store(put: Put, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    assert main(["export", "parquet", str(run), "-o", str(tmp_path / "store")]) == 0
    part = next((tmp_path / "store").glob("phases/rank=0/*.parquet"))
    for path in (part, tmp_path / "store/stashtrace-store.json"):
        kept = path.read_bytes()
        path.unlink()
        put(path)
        capsys.readouterr()
        assert main(["summary", str(tmp_path / "store")]) == 4
        assert "error: " in capsys.readouterr().err
        path.unlink()
        path.write_bytes(kept)


@PUT
def test_baselines_and_calibration(put: Put, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "baselines"
    folder.mkdir()
    put(folder / "main.json")
    assert main(["check", str(run), "--against", "main", "--baselines", str(folder)]) == 4
    put(tmp_path / "calibration.toml")
    analysis = ["analyze", "link_efficiency", str(run), "--calibration", str(tmp_path / "calibration.toml")]
    assert main(analysis) == 4
    assert "bug in stashtrace" not in capsys.readouterr().err


def test_scrubbing_next_to_a_pipe(run: Path, tmp_path: Path) -> None:
    put_pipe(run / "launch.x.1.json")
    put_pipe(run / "a.1.0.stash")
    assert main(["scrub", str(run), "-o", str(tmp_path / "new")]) in (0, 4)


def test_a_run_from_elsewhere_names_no_other_folder(run: Path, tmp_path: Path) -> None:
    """What its run.json calls its scratch or run directory has to name it as well."""
    other = tmp_path / "other"
    other.mkdir()
    facts = json.loads((run / "run.json").read_text())
    named = {"records": str(other), "run_directory": str(other), "place": own_place()}
    (run / "run.json").write_text(json.dumps(facts | named))
    assert scratch_of(run) is None
    assert run_directory_of(run) == run
    (other / "run.json").write_text(json.dumps(facts | {"run_directory": str(run), "records": str(run)}))
    assert scratch_of(run) == other
    assert run_directory_of(run) == other
