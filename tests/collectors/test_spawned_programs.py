"""Programs that cannot live with the library in front: started without it, ending as they do untraced, and named."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import compiled, plain_environment, record

from stashtrace.analysis.findings.trust import trust
from stashtrace.record.doctor import checks
from stashtrace.record.environment import LIBRARY_PATH
from stashtrace.record.program import preload_obstacle, without_library
from stashtrace.schema.kinds import IoOp

PROGRAM = '#include <stdio.h>\nint main(int n, char** v) { printf("said %d\\n", n); return n > 1 ? 7 : 3; }\n'
#: glibc's loader, by architecture.
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
#: These find the program where file actions lead, or along PATH.
MOVED = ("chdir spawn", "chdir spawnp", "fchdir spawn", "chdir path")
ALONG_PATH = ("path spawnp", "path execvp")
WAYS = (
    "posix_spawn",
    "posix_spawnp",
    "vfork",
    "execve",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execvp",
    "execvpe",
    "fexecve",
    "execveat",
    "system",
    "popen",
    *MOVED,
    *ALONG_PATH,
)
BY_SHELL = ("system", "popen")
ELSEWHERE = "in a folder that its file actions choose"
REASONS = {"asan": "built with AddressSanitizer", "musl": "not built for glibc", "other": "not built for glibc"}


@pytest.fixture(params=["asan", "musl", "other"])
def unsuited(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A program built with AddressSanitizer, one for musl, and one whose loader has a name that is not glibc's."""
    kind = request.param
    compiler = shutil.which("musl-gcc" if kind == "musl" else "gcc")
    if compiler is None:
        pytest.skip("no musl-gcc (musl-tools)" if kind == "musl" else "no C compiler")
    source = tmp_path / "program.c"
    source.write_text(PROGRAM)
    extra = {"asan": ["-fsanitize=address"], "musl": [], "other": [f"-Wl,--dynamic-linker={tmp_path}/ld-other"]}[kind]
    built = subprocess.run(
        [compiler, *extra, "-o", tmp_path / kind, source], capture_output=True, text=True, check=False
    )
    if built.returncode != 0 and kind == "asan":
        pytest.skip("no AddressSanitizer here")
    assert built.returncode == 0, built.stderr
    if kind == "other":
        shutil.copy(os.path.realpath(LOADERS[os.uname().machine]), tmp_path / "ld-other")
    return tmp_path / kind


def test_children_end_as_they_do_untraced_and_are_named(
    tmp_path: Path, unsuited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    shutil.copy("/bin/true", tmp_path / "here" / unsuited.name)  # what a relative name does not mean to the child
    monkeypatch.chdir(tmp_path / "here")
    script = tmp_path / "script"
    script.write_text(f"#!{unsuited}\n")
    script.chmod(0o755)
    assert preload_obstacle(unsuited) == preload_obstacle(script) == REASONS[unsuited.name]
    for number, way in enumerate(WAYS):
        command = [compiled("spawn_scenes.c"), way, unsuited]
        plain = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=False)
        done = record(command, tmp_path / f"run{number}", exit_code=None)
        assert (done.exit_code, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr), way
        assert plain.returncode == (3 if way in BY_SHELL else 7), way
        told = trust(done.trace, {}).invisible
        assert f"{unsuited.name} ({ELSEWHERE if way in MOVED else REASONS[unsuited.name]})" in told, way


def test_other_file_actions_leave_a_program_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a relative name, which means the same file to the child: it is recorded, or left alone if it is unsuited."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writes.c").write_text(
        '#include <fcntl.h>\nint main() { return write(creat("made", 0600), "x", 1) - 1; }\n'
    )
    subprocess.run(["gcc", "-w", "-o", "writes", "writes.c"], check=True)
    command = [compiled("spawn_scenes.c"), "actions spawn", "writes"]
    done = record(command, tmp_path / "run")
    assert [row.result for row in done.of(tmp_path / "made", IoOp.WRITE)] == [1]
    assert "writes" not in str(trust(done.trace, {}).invisible)


def test_what_was_not_started_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, way in enumerate(("actions spawn", "chdir spawn")):
        done = record([compiled("spawn_scenes.c"), way, "./missing"], tmp_path / f"run{number}", exit_code=97)
        assert list(done.directory.glob("*.stash")) == [] or "missing" not in str(trust(done.trace, {}).invisible)


@pytest.mark.parametrize("unsuited", ["other"], indirect=True)
def test_other_preloads_stay(tmp_path: Path, unsuited: Path) -> None:
    source = tmp_path / "mine.c"
    source.write_text('#include <unistd.h>\n__attribute__((constructor)) void a() { write(1, "mine ", 5); }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "mine.so", source], check=True)
    command = [compiled("spawn_scenes.c"), "execve", unsuited]
    done = record(command, tmp_path / "run", exit_code=7, env={"LD_PRELOAD": str(tmp_path / "mine.so")})
    assert done.stdout == "mine mine said 2\n"
    assert without_library(f"{LIBRARY_PATH}:/x/mine.so other.so") == "/x/mine.so:other.so"


def test_first_program(tmp_path: Path, unsuited: Path) -> None:
    command = [sys.executable, "-m", "stashtrace", "run", "--out", tmp_path / "run", "--", unsuited]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == "said 1\n"
    assert REASONS[unsuited.name] in (tmp_path / "run" / "run.json").read_text()
    (told,) = [check for check in checks([str(unsuited)]) if check.name == "this command"]
    assert told.state == "invisible"
    assert REASONS[unsuited.name] in told.detail


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (["env", "-i", "ls"], "invisible"),
        ([sys.executable, "-I", "x.py"], "partly"),
        ([sys.executable, "-uE", "x.py"], "partly"),
        ([sys.executable, "-c", "-I"], "ok"),
        (["ls", "-I"], "ok"),
        (["no-such-command"], "broken"),
        (["env", "NAME=x", "ls"], "ok"),
        (["env", "NAME=x", "LD_PRELOAD=", "ls"], "invisible"),
        (["env", "NAME=x", sys.executable, "-I", "x.py"], "partly"),
        (["nice", "-n", "5", sys.executable, "-I", "x.py"], "partly"),
        (["nice", "no-such-command"], "broken"),
        (["timeout", "60", "env", "A=b", "nice", sys.executable, "-E", "x.py"], "partly"),
        (["timeout", "60", "no-such-command"], "broken"),
        (["env"], "ok"),
    ],
)
def test_doctor_says_what_will_be_seen(command: list[str], state: str) -> None:
    (told,) = [check for check in checks(command) if check.name == "this command"]
    assert told.state == state, told


def test_doctor_looks_at_the_interpreter_of_a_script(tmp_path: Path) -> None:
    python = tmp_path / "python"  # the kernel ends the path in such a line at its first space
    python.symlink_to(sys.executable)
    for line, state in (
        ("/bin/sh", "ok"),
        (f"{python} -I", "partly"),
        (f"/usr/bin/env {python}", "ok"),
    ):
        script = tmp_path / "script"
        script.write_text(f"#!{line}\n")
        script.chmod(0o755)
        test_doctor_says_what_will_be_seen([str(script)], state)


def test_program_of_32_bits(tmp_path: Path) -> None:
    head = bytearray(Path(sys.executable).resolve().read_bytes()[:4096])
    head[4] = 1
    struct.pack_into("<H", head, 18, 3)
    (tmp_path / "old").write_bytes(head)
    assert preload_obstacle(tmp_path / "old") == "built for another processor or 32 bits"
