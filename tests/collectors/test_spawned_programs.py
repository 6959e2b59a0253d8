"""Programs that cannot live with the library in front: started without it, ending as they do untraced, and named."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import compiled, plain_environment, record

from stashtrace.analysis.findings.rules.trust import trust
from stashtrace.record import doctor
from stashtrace.record.doctor import checks
from stashtrace.record.environment import LIBRARY_PATH, preload_path
from stashtrace.record.program import preload_obstacle
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
        reported = trust(done.trace, {}).invisible
        assert f"{unsuited.name} ({ELSEWHERE if way in MOVED else REASONS[unsuited.name]})" in reported, way


ASKS = "import ctypes.util, subprocess; print(ctypes.util.find_library('c'))"


@pytest.mark.skipif(not Path("/sbin/ldconfig").exists(), reason="no /sbin/ldconfig")
def test_a_tool_of_the_administrator_is_no_blind_spot(tmp_path: Path) -> None:
    """Python asks ldconfig for the name of a library, without what the job's environment holds."""
    empty = "; subprocess.run(['/bin/true'], env={})"
    done = record([sys.executable, "-c", ASKS + empty], tmp_path / "run")
    assert "libc" in done.stdout
    invisible = str(trust(done.trace, {}).invisible)
    assert "ldconfig" not in invisible
    assert "true (" in invisible


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


SAYS_PLUGIN = (
    "#include <stdio.h>\n#include <stdlib.h>\n"
    'int main() { const char* p = getenv("NCCL_PROFILER_PLUGIN"); puts(p != NULL ? p : "none"); }\n'
)


@pytest.mark.parametrize("own", ["", "/x/libinspector.so"])
def test_nccl_in_an_unsuited_program_does_not_load_the_recorder(tmp_path: Path, own: str) -> None:
    """It would map a library that the program cannot live with, or write where the program must not be recorded."""
    loader = tmp_path / "ld-other"
    shutil.copy(os.path.realpath(LOADERS[os.uname().machine]), loader)
    (tmp_path / "says.c").write_text(SAYS_PLUGIN)
    program = tmp_path / "says"
    subprocess.run(["gcc", "-w", f"-Wl,--dynamic-linker={loader}", "-o", program, tmp_path / "says.c"], check=True)
    env = {"NCCL_PROFILER_PLUGIN": own} if own else {}
    heard = (own or "none") + "\n"
    for way in ("execve", "posix_spawn", "system"):
        command = [compiled("spawn_scenes.c"), way, program]
        done = record(command, tmp_path / way, collectors=("posix_io", "nccl"), env=env)
        assert done.stdout == heard, way
        command = ["env", "-u", "LD_PRELOAD", *command]  # loaded by nothing but NCCL: its hooks are not in front
        done = record(command, tmp_path / f"bare {way}", collectors=("posix_io", "nccl"), env=env)
        assert done.stdout == f"{preload_path(LIBRARY_PATH)}\n"
    command = [sys.executable, "-m", "stashtrace", "run", "--out", str(tmp_path / "run"), "--", str(program)]
    done = subprocess.run(command, env=plain_environment(env), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(heard)


#: Starts `cat FILE` with another environment: os.execve, os.posix_spawn, subprocess (vfork), system (a shell).
GIVING = """
import os, subprocess, sys
way, path, variables = sys.argv[1], sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:])
base = {} if variables.pop("alone", "") else {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
if way == "execve": os.execve("/bin/cat", ["cat", path], base | variables)
elif way == "posix_spawn": os.waitpid(os.posix_spawn("/bin/cat", ["cat", path], base | variables), 0)
else: subprocess.run(["/bin/cat", path], env=base | variables, check=True)
"""
GIVEN_BY = ("execve", "posix_spawn", "subprocess")


@pytest.fixture
def other_library(tmp_path: Path) -> Path:
    """A library to preload that says in each process how the loader was asked for it."""
    source = tmp_path / "mine.c"
    source.write_text(
        "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        '__attribute__((constructor)) void a() { char* v = getenv("LD_PRELOAD"); write(2, v, strcspn(v, ":")); }\n'
    )
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", tmp_path / "mine.so", source], check=True)
    return tmp_path / "mine.so"


@pytest.mark.parametrize("way", [*GIVEN_BY, "env"])
def test_a_program_with_another_preload_is_traced_too(tmp_path: Path, other_library: Path, way: str) -> None:
    """As jemalloc is used: `env LD_PRELOAD=libjemalloc.so python train.py`. It stays the first."""
    (tmp_path / "data").write_text("of cat")
    preload = f"LD_PRELOAD={other_library}"
    command = [sys.executable, "-c", GIVING, way, tmp_path / "data", preload]
    done = record(["env", preload, "cat", tmp_path / "data"] if way == "env" else command, tmp_path / "run")
    assert (done.stdout, done.stderr) == ("of cat", str(other_library))
    assert [row.result for row in done.of(tmp_path / "data", IoOp.READ)][:1] == [6]
    assert "cat" not in str(trust(done.trace, {}).invisible)


@pytest.mark.parametrize("way", GIVEN_BY)
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (["alone=1"], "started without LD_PRELOAD"),  # env={}
        ([], "started without LD_PRELOAD"),
        (["LD_PRELOAD="], "started without LD_PRELOAD"),
        (["alone=1", "LD_PRELOAD=/no/such.so"], "started without STASHTRACE_DIR"),
    ],
)
def test_a_program_whose_environment_leaves_us_out_is_named(
    tmp_path: Path, way: str, variables: list[str], reason: str
) -> None:
    """A choice of the job: it is left as it is."""
    (tmp_path / "data").write_text("of cat")
    done = record([sys.executable, "-c", GIVING, way, tmp_path / "data", *variables], tmp_path / "run")
    assert done.stdout == "of cat"
    assert done.of(tmp_path / "data", IoOp.READ) == []
    assert f"cat ({reason})" in trust(done.trace, {}).invisible


def test_a_sanitizer_may_be_preloaded_in_a_job(tmp_path: Path) -> None:
    """Its library ends a process in which another one comes first."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    library = Path(found.strip()).resolve()
    if not Path(found.strip()).is_absolute() or "libasan" not in library.name:
        pytest.skip("no AddressSanitizer here")
    (tmp_path / "data").write_text("of cat")
    done = record(
        ["env", f"LD_PRELOAD={library}", "ASAN_OPTIONS=detect_leaks=0", "cat", tmp_path / "data"], tmp_path / "run"
    )
    assert done.stdout == "of cat"
    assert [row.result for row in done.of(tmp_path / "data", IoOp.READ)][:1] == [6]


def test_first_program(tmp_path: Path, unsuited: Path) -> None:
    command = [sys.executable, "-m", "stashtrace", "run", "--out", tmp_path / "run", "--", unsuited]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == "said 1\n"
    assert REASONS[unsuited.name] in (tmp_path / "run" / "run.json").read_text()
    (reported,) = [check for check in checks([str(unsuited)]) if check.name == "this command"]
    assert reported.state == "invisible"
    assert REASONS[unsuited.name] in reported.detail


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what doctor measures of the machine, which takes six processes."""
    monkeypatch.setattr(doctor, "record_cost_ns", lambda: 1.0)
    monkeypatch.setattr(doctor, "gpu_checks", list)


@pytest.mark.usefixtures("unmeasured")
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
        (["env", "NAME=x", "LD_PRELOAD=/no/such.so", "ls"], "ok"),
        (["env", "NAME=x", sys.executable, "-I", "x.py"], "partly"),
        (["nice", "-n", "5", sys.executable, "-I", "x.py"], "partly"),
        (["nice", "no-such-command"], "broken"),
        (["timeout", "60", "env", "A=b", "nice", sys.executable, "-E", "x.py"], "partly"),
        (["timeout", "60", "no-such-command"], "broken"),
        (["env"], "ok"),
    ],
)
def test_doctor_says_what_will_be_seen(command: list[str], state: str) -> None:
    (reported,) = [check for check in checks(command) if check.name == "this command"]
    assert reported.state == state, reported


@pytest.mark.usefixtures("unmeasured")
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
