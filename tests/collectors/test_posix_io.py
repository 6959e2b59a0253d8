"""posix_io: every hooked call by real programs, traced and not; what was recorded must be what was done."""

from __future__ import annotations

import errno
import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from collectors.recorded import IoRow, Recording, compiled, plain_environment, record
from forked_commands import EAGER_JOBS
from measurements import Measurements

from stashtrace.record.environment import preload_path
from stashtrace.schema.kinds import IoFlag, IoOp

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = IoFlag.SAMPLED | IoFlag.BLOCKED | IoFlag.BLOCK_INPUT
#: Case of native/io_cases.c -> its rows, in order: call[@offset]=result, a negative result is minus errno.
EXPECTED = {
    "open": "open=0",
    "open64": "open=0",
    "openat": "open=0",
    "openat64": "open=0",
    "open_fortified": "open=0 open=0 open=0 open=0",
    "creat": "open=0 open=0",
    "create_mode": "open=0 open=-17",
    "absent": "open=-2 stat=-2 unlink=-2 fopen=-2 readdir=-2",
    "bad_pointers": "open=0 read@0=-14 pread@0=-14 readv@0=-14 stat=-14 close=0",
    "read": "open=0 read@0=100 read@100=50 lseek@5000=0 read@5000=5000 read@10000=0 lseek@9990=0 read@9990=10 close=0",
    "pread": "open=0 pread@200=100 pread@300=100 pread@400=100 pread@500=100 pread@-5=-22 close=0",
    "readv": "open=0 readv@0=150 preadv@1000=150 preadv@2000=150 preadv@3000=150 preadv@150=150 read@300=1 close=0",
    "write": "open=0 write@0=100 pwrite@200=100 pwrite@300=100 writev@100=150 pwritev@1000=150 "
    "pwritev@2000=150 pwritev@3000=150 pwritev@250=150 write@400=1 close=0",
    "append": "open=0 write=100 close=0",
    "sync": "open=0 fsync=0 fsync=0 fsync@0=0 close=0",
    "length": "open=0 truncate@5000=0 truncate@6000=0 truncate=0 truncate=0 truncate@0=0 truncate@0=0 "
    "truncate@0=0 truncate@0=0 truncate=-22 close=0",
    "advice": "open=0 fadvise@0=0 fadvise@0=0 fadvise@0=-22 fadvise@0=0 close=0",
    "stat": "open=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 close=0",
    "xstat": "open=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 stat=0 close=0",
    "mmap": "open=0 mmap@0=10000 mmap@4096=4096 fadvise=0 msync=0 munmap=0 munmap=0 mmap@17=-22 close=0",
    "between": "open=0 sendfile@100=200 sendfile@0=150 read@150=10 sendfile@300=500 close=0",
    "copy_range": "open=0 sendfile@50=200 sendfile@0=300 read@300=1 close=0",
    "stdio_read": "fopen=0 fread=300 fread=100 fread=100 fread=100 fseek=0 fread=1 fread=10 fread=20 fread=20 "
    "fread=20 fread=20 fread=20 fseek=0 fseek=0 fseek=0 fseek=0 fread=0 fseek=-22 fclose=0",
    "stdio_write": "fopen=0 fwrite=300 fwrite=30 fwrite=12 fwrite=5 fflush=0 fflush=0 fclose=0",
    "stdio_descriptor": "open=0 fopen=0 fread=10 fclose=0 fopen=0 fread=20 fclose=0",
    "unlink": "unlink=0",
    "unlinkat": "unlink=0",
    "remove": "unlink=0",
    "folder": "mkdir=0 readdir=0 readdir=0 readdir=0 readdir=0 readdir=0 readdir=0 close=0 open=0 readdir=0 "
    "readdir=0 close=0 readdir=0 readdir=0 unlink=-39 unlink=0",
    "rename": "rename=0 rename=0 rename=0",
    "mkdirat": "mkdir=0 mkdir=-17",
    "relative": "open=0 open=0 open=0 read@0=11 read@0=12 read@0=13 unlink=0 close=0 close=0 close=0",
    "copies": "open=0 read=1 read=2 read=3 read=4 read=5 lseek@15=0 close=0 close=0 close=0 close=0 close=0",
    "high": "open=0 pread@0=7 pread@0=8",
    "inherited": "read=10 pread@40=20 close=0",
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Recording]:
    """Output of io_cases without the recorder, the folder it worked in with it, and that recording."""
    plain, traced = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("traced")
    program = compiled("io_cases.c")
    bare = subprocess.run([program, plain], env=plain_environment(), capture_output=True, text=True, check=True)
    return bare.stdout, traced, record([program, traced], tmp_path_factory.mktemp("run") / "run")


def test_results_and_errno_are_untouched(cases) -> None:
    bare, _, recording = cases
    assert recording.stdout == bare
    assert recording.stderr == ""


@pytest.mark.parametrize("name", EXPECTED)
def test_calls(cases, name: str) -> None:
    _, folder, recording = cases
    assert " ".join(map(str, recording.of(folder / f"case-{name}"))) == EXPECTED[name]


def test_no_row_but_of_the_cases(cases) -> None:
    _, folder, recording = cases
    others = {r.path for r in recording.io if not r.path.startswith(f"{folder}/case-")}
    assert others <= {"", "/dev/null", str(folder), "/memfd:copy (deleted)"}
    assert not recording.of(folder / "case-memory_stream")


def test_flags_of_streams_and_kinds(cases) -> None:
    _, folder, recording = cases
    streams = recording.of(folder / "case-stdio_read")
    assert all(IoFlag.STDIO in r.flags for r in streams)
    assert all(IoFlag.STDIO not in r.flags for r in recording.of(folder / "case-pread"))
    assert all(IoFlag.PIPE in r.flags for r in recording.of("/dev/null", IoOp.PREAD))


# Through Python's and other libraries, one file per case ------------------------------------------

SEEN_SCRIPT = """
import mmap, os, pathlib, shutil, sqlite3, sys
import numpy as np

folder = pathlib.Path(sys.argv[1])
DATA = bytes(range(256)) * 40

def case(function):
    path = folder / function.__name__
    path.write_bytes(DATA)
    function(str(path))

def open_read(p): open(p, "rb").read()
def path_read_bytes(p): pathlib.Path(p).read_bytes()
def text_lines(p): list(open(p, encoding="latin-1"))
def buffered_reader(p):
    with open(p, "rb", buffering=512) as f:
        f.read(100); f.seek(5000); f.read(100)
def os_calls(p):
    fd = os.open(p, os.O_RDWR)
    os.read(fd, 10); os.pread(fd, 20, 100); os.readv(fd, [bytearray(30), bytearray(5)])
    os.preadv(fd, [bytearray(40)], 200); os.pwrite(fd, b"x" * 7, 0); os.writev(fd, [b"ab", b"c"])
    os.pwritev(fd, [b"de"], 0); os.fsync(fd); os.close(fd)
def np_fromfile(p): np.fromfile(p, dtype=np.uint8)
def np_tofile(p): np.arange(500, dtype=np.int64).tofile(p)
def np_save_load(p):
    np.save(p + ".npy", np.arange(1000)); np.load(p + ".npy")
def np_memmap(p): int(np.memmap(p, dtype=np.uint8, mode="r").sum())
def mmap_module(p):
    with open(p, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m: m[:10]
def shutil_copyfile(p): shutil.copyfile(p, p + "-copy")
def sqlite(p):
    os.unlink(p)
    with sqlite3.connect(p) as db: db.execute("create table t (a)"); db.execute("insert into t values (1)")
def listing(p):
    os.mkdir(p + "-folder"); os.listdir(p + "-folder"); list(os.scandir(p + "-folder")); os.rmdir(p + "-folder")
def renaming(p): os.replace(p, p + "-new"); os.stat(p + "-new"); os.unlink(p + "-new")
def h5py_file(p):
    import h5py
    with h5py.File(p, "w") as f: f["a"] = np.arange(1000)
    with h5py.File(p) as f: f["a"][:]
def arrow_read(p):
    import pyarrow
    with pyarrow.OSFile(p, "rb") as f: f.read(); f.seek(0); f.read(10)
def pillow_image(p):
    from PIL import Image
    Image.new("RGB", (64, 64)).save(p, "PNG"); Image.open(p).load()
def torch_save_load(p):
    import torch
    torch.save({"a": torch.zeros(250000)}, p); torch.load(p)
def torch_mmap(p):
    import torch
    torch.from_file(p, shared=False, size=1000, dtype=torch.uint8).sum()

for name in sys.argv[2:]:
    case(globals()[name])
"""

#: Case -> (suffix of the path, calls that must be there, bytes read at least, bytes written at least).
SEEN: dict[str, tuple[str, set[IoOp], int, int]] = {
    "open_read": ("", {IoOp.OPEN, IoOp.STAT, IoOp.READ, IoOp.CLOSE}, 10240, 0),
    "path_read_bytes": ("", {IoOp.OPEN, IoOp.READ, IoOp.CLOSE}, 10240, 0),
    "text_lines": ("", {IoOp.OPEN, IoOp.READ}, 10240, 0),
    "buffered_reader": ("", {IoOp.READ, IoOp.LSEEK}, 600, 0),
    "os_calls": ("", {IoOp.READ, IoOp.PREAD, IoOp.READV, IoOp.PREADV, IoOp.PWRITE, IoOp.WRITEV, IoOp.PWRITEV}, 105, 12),
    "np_fromfile": ("", {IoOp.FOPEN, IoOp.FREAD, IoOp.FCLOSE}, 10240, 0),
    "np_tofile": ("", {IoOp.FOPEN, IoOp.FWRITE, IoOp.FCLOSE}, 0, 4000),
    "np_save_load": (".npy", {IoOp.FREAD, IoOp.READ}, 8000, 8000),
    "np_memmap": ("", {IoOp.MMAP, IoOp.MUNMAP}, 0, 0),
    "mmap_module": ("", {IoOp.MMAP, IoOp.MUNMAP}, 0, 0),
    "shutil_copyfile": ("", {IoOp.SENDFILE}, 10240, 0),
    "sqlite": ("", {IoOp.PREAD, IoOp.PWRITE, IoOp.FSYNC}, 0, 4096),
    "listing": ("-folder", {IoOp.MKDIR, IoOp.READDIR, IoOp.UNLINK}, 0, 0),
    "renaming": ("-new", {IoOp.STAT, IoOp.UNLINK}, 0, 0),
    "h5py_file": ("", {IoOp.PREAD, IoOp.PWRITE}, 8000, 8000),
    "arrow_read": ("", {IoOp.OPEN, IoOp.READ}, 10250, 0),
    "pillow_image": ("", {IoOp.READ, IoOp.WRITE}, 80, 80),
    "torch_save_load": ("", {IoOp.READ, IoOp.WRITEV}, 1_000_000, 1_000_000),
    "torch_mmap": ("", {IoOp.MMAP}, 0, 0),
}
NEEDS = {"h5py_file": "h5py", "arrow_read": "pyarrow", "pillow_image": "PIL"}
NEEDS |= {"torch_save_load": "torch", "torch_mmap": "torch"}
EAGER = {"PYTHONPATH": os.pathsep.join(filter(None, [str(EAGER_JOBS), os.environ.get("PYTHONPATH")]))}
READS = {IoOp.READ, IoOp.PREAD, IoOp.READV, IoOp.PREADV, IoOp.FREAD, IoOp.SENDFILE}
WRITES = {IoOp.WRITE, IoOp.PWRITE, IoOp.WRITEV, IoOp.PWRITEV, IoOp.FWRITE}


def have(case: str) -> bool:
    return case not in NEEDS or importlib.util.find_spec(NEEDS[case]) is not None


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recording]:
    folder = tmp_path_factory.mktemp("seen")
    script = folder.parent / "seen_script.py"
    script.write_text(SEEN_SCRIPT, encoding="utf-8")
    names = [name for name in SEEN if have(name)]
    return folder, record(
        [sys.executable, script, folder, *names], tmp_path_factory.mktemp("run") / "run", env=EAGER, timeout_s=240
    )


def moved(rows: list[IoRow], ops: set[IoOp]) -> int:
    return sum(r.result for r in rows if r.op in ops and r.result > 0)


@pytest.mark.parametrize("case", SEEN)
def test_seen(seen, case: str) -> None:
    if not have(case):
        pytest.skip(f"{NEEDS[case]} is not installed")
    folder, recording = seen
    suffix, calls, read_bytes, written_bytes = SEEN[case]
    rows = recording.of(folder / (case + suffix))
    assert calls <= {r.op for r in rows}
    assert moved(rows, READS) >= read_bytes
    assert moved(rows, WRITES) >= written_bytes


def test_seen_from_a_cpp_stream(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"x" * 50_000)
    recording = record([compiled("stream_read.cpp"), data], tmp_path / "run")
    assert recording.stdout == "50000\n"
    assert moved(recording.of(data), READS) == 50_000


def test_relative_paths_and_spawned_programs(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 777)
    recording = record(
        ["sh", "-c", f"cd {shlex.quote(str(tmp_path))} && cat ./data | cat > /dev/null"], tmp_path / "run"
    )
    assert moved(recording.of(tmp_path / "data"), READS) == 777


CONNECTS = """
import select, socket, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    nobody = free.getsockname()
listener = socket.create_server(("127.0.0.1", 0))
try:
    socket.create_connection(nobody, timeout=5)
except ConnectionRefusedError:
    print("refused")
with socket.create_connection(listener.getsockname(), timeout=5) as client:
    client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
with socket.socket() as other:
    other.setblocking(False)
    other.connect_ex(nobody)
    select.select([], [other], [], 5)
    other.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR, 4)[0]
    other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
print(*nobody, sep=":")
print(*listener.getsockname(), sep=":")
"""


def test_connects_that_are_refused_after_the_call(tmp_path: Path) -> None:
    recording = record([sys.executable, "-c", CONNECTS], tmp_path / "run")
    refused, nobody, listening = recording.stdout.split()
    assert refused == "refused"
    attempt = [f"connect={-errno.EINPROGRESS}", f"connect_error={-errno.ECONNREFUSED}", "close=0"]
    rows = recording.of(nobody)
    assert [str(row) for row in rows] == 2 * attempt
    assert all(IoFlag.SOCKET in row.flags for row in rows)
    assert IoOp.CONNECT_ERROR not in {row.op for row in recording.of(listening)}


# Life of processes and threads --------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(4096))
    return path


def test_threads(tmp_path: Path, data: Path) -> None:
    recording = record([compiled("io_scenes.c"), "threads", data, "2000"], tmp_path / "run")
    rows = recording.of(data, IoOp.PREAD)
    assert len(rows) + recording.lost_rows() == 16_000
    assert recording.lost_rows() == 0
    assert len({r.tid for r in rows}) == 8


def test_sigkill_loses_nothing(tmp_path: Path, data: Path) -> None:
    # Three rings full: what was drained and what lay in the ring must add up.
    recording = record([compiled("io_scenes.c"), "killed", data, "100000"], tmp_path / "run", exit_code=-9)
    assert len(recording.of(data, IoOp.PREAD)) + recording.lost_rows() == 100_000
    assert recording.lost_rows() == 0


def test_signal_handlers_are_recorded(tmp_path: Path, data: Path) -> None:
    recording = record([compiled("io_scenes.c"), "signals", data, "60000"], tmp_path / "run")
    handled = int(recording.stdout)
    rows = recording.of(data, IoOp.PREAD)
    assert handled > 10
    assert sum(r.result == 1 for r in rows) == handled
    assert sum(r.result == 64 for r in rows) == 60_000


@pytest.mark.parametrize("scene", ["cancelled", "cancelled_open"])
def test_cancelled_thread(tmp_path: Path, data: Path, scene: str) -> None:
    recording = record([compiled("io_scenes.c"), scene, data, "10"], tmp_path / "run")
    assert recording.stdout == "1\n"
    assert len(recording.of(data, IoOp.PREAD)) == 10


def test_positions_after_fork(tmp_path: Path, data: Path) -> None:
    recording = record([compiled("io_scenes.c"), "forked", data, "5"], tmp_path / "run")
    parent, child = map(int, recording.stdout.split())
    of_parent = [r for r in recording.of(data, IoOp.READ) if r.pid == parent]
    of_child = [r for r in recording.of(data, IoOp.READ, IoOp.PREAD) if r.pid == child]
    assert [(r.offset, r.result) for r in of_parent] == [(0, 10), (-1, 30), (5, 40)]
    assert [(r.op, r.offset, r.result) for r in of_child] == [(IoOp.READ, -1, 20)] + [
        (IoOp.PREAD, i, 64) for i in range(5)
    ]


def test_vfork_child_does_not_confuse_its_parent(tmp_path: Path, data: Path) -> None:
    recording = record([compiled("io_scenes.c"), "vforked", data, "5"], tmp_path / "run")
    assert len(recording.of(data, IoOp.PREAD)) == 5
    assert [r.result for r in recording.of("/dev/null", IoOp.PREAD)] == [0]


def test_files_of_the_recorder_are_not_recorded(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    script = "import os, sys; p = sys.argv[1]; open(p, 'w').write('y'); print(open(p).read()); os.stat(p); os.unlink(p)"
    recording = record([sys.executable, "-c", script, run_dir / "x"], run_dir)
    assert recording.stdout == "y\n"
    assert recording.io
    assert not [r for r in recording.io if r.path.startswith(str(run_dir))]


def test_inert_without_a_run_directory(tmp_path: Path, data: Path) -> None:
    from stashtrace.record.environment import LIBRARY_PATH

    environment = plain_environment({"LD_PRELOAD": preload_path(LIBRARY_PATH)})
    done = subprocess.run([compiled("io_scenes.c"), "threads", data, "10"], env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.torch
@pytest.mark.parametrize(
    "start_method", ["fork", *(pytest.param(way, marks=pytest.mark.thorough) for way in ("spawn", "forkserver"))]
)
def test_dataloader_workers(tmp_path: Path, start_method: str) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "loader.py"
    script.write_text(
        "import sys, torch, torch.utils.data\n"
        "class Files(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 32\n"
        "    def __getitem__(self, i):\n"
        "        with open(f'{sys.argv[1]}/item-{i}', 'rb') as f: return torch.tensor(list(f.read()))\n"
        "if __name__ == '__main__':\n"
        "    how = {'num_workers': 2, 'multiprocessing_context': sys.argv[2]}\n"
        "    print(sum(int(b.sum()) for b in torch.utils.data.DataLoader(Files(), batch_size=4, **how)))\n",
        encoding="utf-8",
    )
    for i in range(32):
        (tmp_path / f"item-{i}").write_bytes(bytes([i]) * 100)
    recording = record([sys.executable, script, tmp_path, start_method], tmp_path / "run", env=EAGER, timeout_s=240)
    assert recording.stdout == f"{sum(100 * i for i in range(32))}\n"
    rows = [r for r in recording.io if r.path.startswith(f"{tmp_path}/item-") and r.op == IoOp.READ and r.result > 0]
    assert sorted(r.path for r in rows) == sorted(f"{tmp_path}/item-{i}" for i in range(32))
    assert len({r.pid for r in rows}) == 2


# Blocked in storage, or served from the page cache ------------------------------------------------


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(16 << 20))
    return path


@pytest.mark.truth
def test_cold_reads_are_blocked(tmp_path: Path, big: Path) -> None:
    program = compiled("io_blocking.c")
    runs = Measurements(lambda folder: record([program, "cold", big], folder), tmp_path)
    runs.agree(lambda run: cold_reads_are_blocked(big, run))


def cold_reads_are_blocked(big: Path, recording: Recording) -> None:
    before, after = map(int, recording.stdout.split())
    if before > 400 or after < 4096:
        pytest.skip(f"the page cache would not be dropped: {before} of 4096 pages stayed")
    rows = recording.of(big, IoOp.READ)
    assert sum(r.result for r in rows) == 16 << 20
    blocked = [r for r in rows if IoFlag.BLOCKED in r.flags]
    assert blocked
    assert all(IoFlag.SAMPLED in r.flags for r in blocked)
    assert any(IoFlag.BLOCK_INPUT in r.flags for r in rows)
    # Read-ahead serves most calls without a wait; those that did wait must be the long ones.
    others = [r for r in rows if IoFlag.BLOCKED not in r.flags]
    assert typical_ns(blocked) > 2 * typical_ns(others)


def typical_ns(rows: list[IoRow]) -> float:
    return median([r.end_ns - r.begin_ns for r in rows] or [0])


@pytest.mark.parametrize("scene", ["warm", "crowded"])
def test_slow_reads_are_sampled(tmp_path: Path, big: Path, scene: str) -> None:
    rows = record([compiled("io_blocking.c"), scene, big], tmp_path / "run").of(big, IoOp.PREAD)
    assert all(r.result == 1 << 20 for r in rows)
    slow = [r for r in rows if r.end_ns - r.begin_ns > 25_000]
    assert slow, "a MiB cannot be copied in 25 us"
    assert all(IoFlag.SAMPLED in r.flags for r in slow)


@pytest.mark.truth
@pytest.mark.parametrize("scene", ["warm", "crowded"])
def test_page_cache_reads_are_not_blocked(tmp_path: Path, big: Path, scene: str) -> None:
    program = compiled("io_blocking.c")

    def never_blocked(run: Recording) -> None:
        assert [r for r in run.of(big, IoOp.PREAD) if IoFlag.BLOCKED in r.flags] == []

    runs = Measurements(lambda folder: record([program, scene, big], folder), tmp_path)
    runs.agree(never_blocked)  # the kernel may drop pages between two reads


@pytest.mark.truth
@pytest.mark.parametrize(
    ("scene", "call", "kind"), [("socket", IoOp.RECV, IoFlag.SOCKET), ("pipe", IoOp.READ, IoFlag.PIPE)]
)
def test_waiting_for_a_peer_is_blocked(tmp_path: Path, data: Path, scene: str, call: IoOp, kind: IoFlag) -> None:
    def waited(recording: Recording) -> None:
        rows = [r for r in recording.io if r.op == call and r.result == 1]
        assert len(rows) == 1
        assert rows[0].end_ns - rows[0].begin_ns > 20_000_000
        assert kind in rows[0].flags
        assert rows[0].flags & EVIDENCE == IoFlag.SAMPLED | IoFlag.BLOCKED

    program = compiled("io_blocking.c")
    Measurements(lambda folder: record([program, scene, data], folder), tmp_path).agree(waited)


def test_without_preload_the_loss_is_reported(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    script = "from stashtrace import _native; _native.set_thread_role(1, 'main')"
    recording = record([sys.executable, "-c", script], run_dir, env={"PYTHONPATH": str(ROOT)}, preload=False)
    trace = recording.trace
    assert recording.io == []
    assert "not_preloaded" in {trace.text(r["name_code"]) for r in trace.losses.rows()}
