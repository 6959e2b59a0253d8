"""STASHTRACE_STAGED: what is opened for reading is read from its copy, and recorded under the name that was asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import compiled, plain_environment, record

import stashtrace
from stashtrace.record.environment import traced_environment
from stashtrace.record.staged_files import Copy, write_staged_list
from stashtrace.schema.kinds import IoFlag, IoOp

SCRIPT = """
import ctypes, os, sys
def said(name, text): print(name, text.decode() if isinstance(text, bytes) else text, flush=True)
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = libc.fopen64.restype = libc.freopen.restype = ctypes.c_void_p
def by_stdio(path, mode, call=libc.fopen, *rest):
    stream = ctypes.c_void_p(call(path, mode, *rest))
    room = ctypes.create_string_buffer(16)
    libc.fread(room, 1, 15, stream)
    libc.fclose(stream)
    return room.value
def read(fd):
    with os.fdopen(fd, "rb") as file: return file.read()
data = os.path.abspath("data")
said("absolute", open(f"{data}/a.bin", "rb").read())
said("relative", open("data/a.bin", "rb").read())
folder = os.open("data", os.O_RDONLY | os.O_DIRECTORY)
said("at", read(os.open("a.bin", os.O_RDONLY, dir_fd=folder)))
said("dotted", open("./data/a.bin", "rb").read())
said("stdio", by_stdio(b"data/a.bin", b"r"))
said("stdio64", by_stdio(b"data/a.bin", b"rb", libc.fopen64))
said("open64", read(libc.open64(b"data/a.bin", os.O_RDONLY)))
said("size", os.path.getsize("data/a.bin") == os.fstat(os.open("data/a.bin", os.O_RDONLY)).st_size)
said("nofollow", read(os.open("data/a.bin", os.O_RDONLY | os.O_NOFOLLOW)))
said("create", read(os.open("data/a.bin", os.O_RDONLY | os.O_CREAT)))
said("reopened", by_stdio(b"data/a.bin", b"r", libc.freopen, ctypes.c_void_p(libc.fopen(b"data/other.bin", b"r"))))
said("both", open("data/both.bin", "r+b").read())
said("lost", open("data/lost.bin", "rb").read())
said("cut", open("data/cut.bin", "rb").read())
said("other", open("data/other.bin", "rb").read())
ctypes.set_errno(77)
os.close(libc.open(b"data/lost.bin", os.O_RDONLY))
said("errno", ctypes.get_errno())
said("missing", libc.open(b"data/missing.bin", os.O_RDONLY) == -1 and ctypes.get_errno())
with open("data/new.bin", "wb") as file: file.write(b"written")
said("exists", os.path.exists("fast/new"))
fd = os.open("data/a.bin", os.O_RDONLY)
child = os.fork()
if child == 0:
    said("inherited", os.pread(fd, 100, 0))
    said("forked", open("data/a.bin", "rb").read())
    os._exit(0)
os.waitpid(child, 0)
"""
#: A file that is changed is read where it is from then on, in all processes.
CHANGES = """
import os, subprocess, sys
def show(): print(open("data/a.bin", "rb").read().decode(), end=" ", flush=True)
show()
exec(sys.argv[1])
if os.path.exists("data/a.bin"):
    show()
    subprocess.run([sys.executable, "-I", "-S", "-c", "print(open('data/a.bin', 'rb').read().decode())"], check=True)
"""


def copy_of(path: Path, copy: Path) -> Copy:
    return Copy(str(copy), path.stat().st_size, path.stat().st_mtime_ns)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data, fast = tmp_path / "data", tmp_path / "fast"
    data.mkdir()
    fast.mkdir()
    for name in ("a", "both", "lost", "cut", "other", "new", "missing"):
        (data / f"{name}.bin").write_bytes(b"original")
        (fast / name).write_bytes(b"the copy")
    copies = {
        str(data / f"{name}.bin"): copy_of(data / f"{name}.bin", fast / name)
        for name in ("a", "both", "lost", "cut", "new", "missing")
    }
    copies |= {f"/nowhere/{i}": Copy(f"/fast/{i}", 1, 1) for i in range(5000)}
    write_staged_list(tmp_path / "list", copies)
    return tmp_path


def traced(folder: Path, *command: str, staged: str | None = "list") -> subprocess.CompletedProcess[str]:
    """With the list as it is: no launcher looked whether it still holds."""
    (folder / "run").mkdir()
    environment = traced_environment(plain_environment(), run_dir=folder / "run", run_id="1" * 32)
    if staged is not None:
        environment["STASHTRACE_STAGED"] = str(folder / staged)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stashtrace", "run", "--out", "run", "--no-merge", *options, "--"]
    return subprocess.run(
        [*command, sys.executable, "-S", "-c", SCRIPT], cwd=folder, capture_output=True, text=True, check=False
    )


def spoil(folder: Path) -> None:
    (folder / "fast/lost").unlink()
    (folder / "fast/cut").write_bytes(b"the")
    (folder / "data/missing.bin").unlink()
    (folder / "fast/missing").unlink()


def test_reading_is_led_to_the_copy(folder: Path) -> None:
    spoil(folder)
    done = traced(folder, sys.executable, "-S", "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    copied = ("absolute", "relative", "at", "dotted", "stdio", "stdio64", "open64", "inherited", "forked")
    kept = ("nofollow", "create", "reopened", "both", "lost", "cut", "other")
    assert said == dict.fromkeys(copied, "the copy") | dict.fromkeys(kept, "original") | {
        "errno": "77",
        "missing": "2",
        "exists": "True",
        "size": "True",
    }
    assert (folder / "data/new.bin").read_bytes() == b"written"
    assert (folder / "fast/new").read_bytes() == b"the copy"
    trace = stashtrace.load(folder / "run")
    rows = set()
    for piece in trace.io_pieces():
        names = map(trace.text, piece["path_code"].tolist())
        rows |= set(zip(names, piece["op_code"].tolist(), (piece["io_flags"] & IoFlag.STAGED).tolist(), strict=True))
    asked = str(folder / "data/a.bin")
    assert {op for name, op, staged in rows if name == asked and staged} == {
        IoOp.OPEN,
        IoOp.FOPEN,
        IoOp.READ,
        IoOp.FREAD,
        IoOp.PREAD,
        IoOp.CLOSE,
        IoOp.FCLOSE,
        IoOp.STAT,
        IoOp.LSEEK,
    }
    assert {name for name, _, staged in rows if staged} == {asked}
    fast = str(folder / "fast/")
    assert {name for name, _, _ in rows if name.startswith(fast)} <= {fast, str(folder / "fast/new")}


def test_the_launcher_leaves_out_what_changed(folder: Path) -> None:
    os.utime(folder / "data/a.bin", ns=(1, 1))
    done = run(folder, "--staged", "list")
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert said["absolute"] == said["forked"] == "original"
    assert said["lost"] == "the copy"
    assert "5000 more changed since the copying" in done.stderr
    assert "5 copies are used" in done.stderr
    assert not list((folder / "run").glob("*.list"))


@pytest.mark.parametrize(
    "change",
    [
        "open('data/a.bin', 'r+b').write(b'changed!')",
        "os.truncate('data/a.bin', 0); os.ftruncate(os.open('data/a.bin', os.O_WRONLY), 0); "
        "os.write(os.open('data/a.bin', os.O_WRONLY), b'changed!')",
        "open('data/b', 'wb').write(b'changed!'); os.rename('data/b', 'data/a.bin')",
        "os.unlink('data/a.bin'); open('data/b', 'wb').write(b'changed!'); os.link('data/b', 'data/a.bin')",
    ],
)
def test_a_file_that_is_changed_is_read_where_it_is(folder: Path, change: str) -> None:
    done = traced(folder, sys.executable, "-S", "-c", CHANGES, change)
    assert done.stdout.split() == ["the", "copy", "changed!", "changed!"], done.stderr


def test_a_file_that_was_removed_is_gone(folder: Path) -> None:
    done = traced(folder, sys.executable, "-S", "-c", CHANGES + "show()", "os.remove('data/a.bin')")
    assert done.stdout == "the copy "
    assert "No such file" in done.stderr


def test_a_list_that_cannot_be_known(folder: Path) -> None:
    """It is gone when a file is changed: the process that changes it uses no copy any more."""
    script = """
import os
def show(): print(open("data/a.bin", "rb").read().decode(), open("data/both.bin", "rb").read().decode())
show()
os.rename("list", "other list")
open("data/a.bin", "wb").write(b"changed!")
show()
"""
    done = traced(folder, sys.executable, "-S", "-c", script)
    assert done.stdout == "the copy the copy\nchanged! original\n", done.stderr


def test_a_bad_pointer_is_an_error_of_the_call(folder: Path) -> None:
    script = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p
for call, *rest in ((libc.open, 0), (libc.open, 1), (libc.fopen, b"r"), (libc.unlink,), (libc.truncate, 0)):
    for pointer in (1, 0xDEAD0000, 0):
        ctypes.set_errno(0)
        assert call(ctypes.c_void_p(pointer), *rest) in (-1, None)
        print(ctypes.get_errno(), end=" ")
"""
    done = traced(folder, sys.executable, "-S", "-c", script)
    assert (done.returncode, done.stdout.split()) == (0, ["14"] * 15), done.stderr


def test_without_the_list_nothing_changes(folder: Path) -> None:
    said = dict(line.split(" ", 1) for line in run(folder).stdout.splitlines())
    assert said["absolute"] == said["inherited"] == "original"


@pytest.mark.parametrize("damage", ["nonsense", "cut", "keys"])
def test_a_broken_list_is_a_loss_row(folder: Path, damage: str) -> None:
    """The process that finds it reads its files where they are."""
    whole = (folder / "list").read_bytes()
    slots = int.from_bytes(whole[8:16], "little") * 32
    broken = {"nonsense": b"nonsense", "cut": whole[:-9], "keys": whole[:32] + b"\xff" * slots + whole[32 + slots :]}
    (folder / "list").write_bytes(broken[damage])
    done = traced(folder, sys.executable, "-S", "-c", "print(open('data/a.bin').read())")
    assert (done.returncode, done.stdout) == (0, "original\n")
    trace = stashtrace.load(folder / "run")
    reasons = {trace.text(code) for code in trace.losses["name_code"].tolist()}
    assert ("no_staged_list" in reasons) == (damage != "keys")


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("nothere", None, 2, "no list of staged files"),
        ("bad", b"nonsense", 4, "not a list of staged files"),
        ("list", b"SHSTAG02" + b"\0" * 30, 4, "cut off"),
    ],
)
def test_a_list_that_is_none_is_refused(folder: Path, name: str, content: bytes | None, code: int, said: str) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    done = run(folder, "--staged", name)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not (folder / "run").exists()


def test_without_the_collector_it_is_refused(folder: Path) -> None:
    done = run(folder, "--staged", "list", "--collectors", "proc")
    assert done.returncode == 2
    assert "posix_io" in done.stderr


def test_a_cancelled_open(folder: Path) -> None:
    """Of a pipe, which blocks; the list has other files."""
    (folder / "run").mkdir()
    data = folder / "big.bin"
    data.write_bytes(bytes(1000))
    environment = traced_environment(plain_environment(), run_dir=folder / "run", run_id="1" * 32)
    environment["STASHTRACE_STAGED"] = str(folder / "list")
    command = [compiled("io_scenes.c"), "cancelled_open", data, "10"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_plain_recording_has_no_flag(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    recording = record([sys.executable, "-S", "-c", f"open({str(tmp_path / 'a')!r}).read()"], tmp_path / "run")
    assert recording.of(tmp_path / "a", IoOp.OPEN)
    assert not [row for row in recording.io if row.flags & IoFlag.STAGED]
