"""The native code for aarch64, built by a cross compiler and run by qemu-user: never on such a machine.

Every native test, and a program that is recorded under emulation and on this machine: both leave the same rows. Pages
of 4, 16 and 64 KiB are those that the emulator reports; how strongly memory is ordered is that of this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from native.emulated import command_of, emulator
from native.native_build import OPTIONS, ROOT, SHIPPED, build

from stashtrace.format.ring import RING_MAGIC, read_ring
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import IoFlag
from stashtrace.schema.trace import Trace

PROGRAMS = sorted(Path(__file__).parent.glob("test_*.cpp"))
#: Says how long a call took, which differs from run to run; all else of a row is what the program did.
EVIDENCE = IoFlag.SAMPLED | IoFlag.BLOCKED | IoFlag.BLOCK_INPUT
#: Tests of collectors whose programs are in C and C++ alone: each hooked call of I/O; NCCL by its hooks, by import
#: tables, by each version of its plugin.
COLLECTORS = {
    "test_posix_io.py": "untouched or test_calls or no_row_but or flags_of_streams",
    "test_nccl.py": "not attach",
}
CALLS = Path(__file__).parent / "aarch64" / "calls.c"
pytestmark = pytest.mark.slow


def needed_emulator() -> str:
    found = emulator()
    if found is None:
        pytest.skip("no qemu-aarch64, or no cross compiler (qemu-user-static, g++-aarch64-linux-gnu)")
    return found


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest) -> Path:
    """Folder of the build for aarch64, without a warning; kept between runs."""
    needed_emulator()
    folder = Path(request.config.cache.mkdir("native-aarch64"))  # type: ignore[union-attr]
    try:
        return build(folder, "native_programs stashtrace_lookup", "aarch64")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def emulated(
    command: list[str], environment: dict[str, str], *, page_bytes: int = 4096, preload: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program for aarch64; ``environment`` is all that it gets."""
    base = {"PATH": os.environ["PATH"], "LD_PRELOAD": ":".join(map(str, preload))}
    return subprocess.run(
        command_of(needed_emulator(), command, page_bytes=page_bytes),
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("source", [pytest.param(path, id=path.stem) for path in PROGRAMS])
def test_native(built: Path, tmp_path: Path, source: Path) -> None:
    # Emulated programs cannot start themselves again: those that want to be traced are traced from the start.
    traced = "TRACED(argv)" in source.read_text(encoding="utf-8")
    environment = {"STASHTRACE_DIR": str(tmp_path)} if traced else {}
    done = emulated([str(built / "bin" / source.stem)], environment)
    assert done.returncode == 0, done.stderr
    assert bool(list(tmp_path.iterdir())) == traced


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program that is recorded, for aarch64 and for this machine."""
    needed_emulator()
    folder = tmp_path_factory.mktemp("calls")
    compilers = {"aarch64": "aarch64-linux-gnu-gcc", "here": "cc"}
    for name, compiler in compilers.items():
        subprocess.run(
            [compiler, "-O1", "-Wall", "-Werror", "-pthread", str(CALLS), "-o", str(folder / name)], check=True
        )
    return {name: folder / name for name in compilers}


def rows_by_thread(trace: Trace) -> list[tuple[tuple[object, ...], ...]]:
    """Rows of I/O of each thread in their order, without times, of all threads in any order."""
    io = trace.io
    columns = [io[name].tolist() for name in ("op_code", "offset_bytes", "result_bytes")]
    flags = (io["io_flags"] & ~int(EVIDENCE)).tolist()
    paths = [trace.strings.text(code).rpartition("/")[2] for code in io["path_code"].tolist()]
    of_track: dict[int, list[tuple[object, ...]]] = {}
    for track, *row in zip(io["track_id"].tolist(), paths, flags, *columns, strict=True):
        of_track.setdefault(track, []).append(tuple(row))
    return sorted(tuple(rows) for rows in of_track.values())


@pytest.fixture(scope="module")
def recorded_here(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Trace:
    run, work = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("work") / "files"
    work.mkdir()
    environment = {"LD_PRELOAD": str(SHIPPED), "STASHTRACE_DIR": str(run), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(programs["here"]), str(work)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    return load_trace(run)


@pytest.mark.parametrize("page_bytes", [4096, 16384, 65536])
@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_program_leaves_the_same_rows(
    built: Path, programs: dict[str, Path], recorded_here: Trace, tmp_path: Path, page_bytes: int, ends: str
) -> None:
    run, work = tmp_path / "run", tmp_path / "files"
    run.mkdir()
    work.mkdir()
    command = [str(programs["aarch64"]), str(work), *(["kill"] if ends == "killed" else [])]
    library = built / "stashtrace" / "libstashtrace.so"
    done = emulated(command, {"STASHTRACE_DIR": str(run)}, page_bytes=page_bytes, preload=(library,))
    assert done.returncode == (-signal.SIGKILL if ends == "killed" else 3), done.stderr
    rings = list(run.glob("*.ring"))
    assert len(rings) == (ends == "killed")
    for ring in rings:
        image = read_ring(str(ring))
        assert image is not None
        assert image.damaged_rings == 0
        data = ring.read_bytes()
        begins = [at for at in range(0, len(data), 4096) if data[at : at + 4] == RING_MAGIC.to_bytes(4, sys.byteorder)]
        assert len(begins) == len(image.rings) > 5
        assert all(at % page_bytes == 0 for at in begins)  # else the kernel could not map them
    heads = [path.read_bytes()[:30_000] for path in run.glob("*.stash")]
    assert len(heads) == 3
    assert all(b'"clock": "cntvct"' in head for head in heads)
    trace = load_trace(run)
    assert rows_by_thread(trace) == rows_by_thread(recorded_here)
    assert (trace.io["end_ns"] >= trace.io["begin_ns"]).all()
    assert len(trace.waits) == len(recorded_here.waits)
    lost = Counter(trace.strings.text(code) for code in trace.losses["name_code"].tolist())
    assert lost == Counter(recorded_here.strings.text(code) for code in recorded_here.losses["name_code"].tolist())


def test_the_look_up_hook(built: Path, tmp_path: Path) -> None:
    """dlsym answers as before, finds the next definition behind its caller, and hands out our function for CUDA's."""
    folder = Path(__file__).parent / "aarch64"
    compiler = ["aarch64-linux-gnu-gcc", "-O1", "-Wall", "-Werror"]
    subprocess.run(
        [*compiler, "-shared", "-fPIC", str(folder / "driver.c"), "-o", str(tmp_path / "libcuda.so.1")], check=True
    )
    subprocess.run([*compiler, str(folder / "look_up.c"), "-o", str(tmp_path / "look_up"), "-ldl"], check=True)
    ours = built / "stashtrace"
    environment = {
        "STASHTRACE_DIR": str(tmp_path / "run"),
        "STASHTRACE_LOOKUP_HOOK": "1",
        "LD_LIBRARY_PATH": str(tmp_path),
    }
    (tmp_path / "run").mkdir()
    command = [str(tmp_path / "look_up")]
    plain = emulated(command, environment, preload=(ours / "libstashtrace.so",))
    hooked = emulated(command, environment, preload=(ours / "libstashtrace.so", ours / "libstashtrace_lookup.so"))
    assert (plain.returncode, plain.stdout) == (0, "driver: libcuda.so.1\n"), plain.stderr
    assert (hooked.returncode, hooked.stdout) == (0, "driver: libstashtrace.so\n"), hooked.stderr


@pytest.mark.parametrize("name", COLLECTORS)
def test_collectors(built: Path, name: str) -> None:
    """What holds of a collector on this machine holds there: the same tests, on emulated programs."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("STASHTRACE_", "PYTEST_"))}
    environment |= OPTIONS | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/support'}",
        "STASHTRACE_TEST_LIBRARY": str(built / "stashtrace" / "libstashtrace.so"),
    }
    plugins = ["-p", "native.emulated", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "-k", COLLECTORS[name], f"tests/collectors/{name}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 5
