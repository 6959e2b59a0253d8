"""The job goes on as if untraced: redirected descriptors, children that share memory, programs of one thread.

All verdicts are bytes, counts and exit codes. The programs are in ``programs/`` and run under the preloaded library.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from other_users import let_others_in

from stashtrace.format.reader import open_run
from stashtrace.record.environment import LIBRARY_PATH, preload_path

PROGRAMS = Path(__file__).parent / "programs"
HANG_S = 300  # only against tests that never end


class Traced:
    """Compiles a program of ``programs/``, runs it traced, reads its run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_directory = folder / "run"
        self.run_directory.mkdir()

    def program(self, name: str) -> str:
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler is not None, "a C compiler is needed, as for the package itself"
        path = self.folder / name
        command = [compiler, "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", str(path)]
        subprocess.run([*command, str(PROGRAMS / f"{name}.c")], check=True)
        return str(path)

    def run(
        self, *command: str, limits: dict[int, int] | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")}
        environment = own | {
            "LD_PRELOAD": preload_path(LIBRARY_PATH),
            "STASHTRACE_DIR": str(self.run_directory),
            "STASHTRACE_RUN_ID": "0dd",
            **variables,
        }

        def limit() -> None:
            for kind, value in (limits or {}).items():
                resource.setrlimit(kind, (value, value))

        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            preexec_fn=limit if limits else None,
        )

    def reads(self) -> tuple[int, int]:
        """Reads of 16 bytes that were recorded, and rows that are said to be lost."""
        kept = lost = 0
        for process in (stash.load() for stash in open_run(self.run_directory).processes):
            for name in process.records.keys() & {"io_op", "io_op_long"}:
                kept += int((process.records[name].rows["result_bytes"] == 16).sum())
            if "loss" in process.records:
                lost += int(process.records["loss"].rows["lost_count"].sum())
            lost += sum(loss[3] for loss in process.losses)
        return kept, lost


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


@pytest.mark.parametrize("drainer", ["auto", "thread"])
@pytest.mark.parametrize("attacker", ["thread", "handler", "vfork"])
def test_no_byte_of_ours_reaches_a_redirected_descriptor(traced: Traced, attacker: str, drainer: str) -> None:
    done = traced.run(
        traced.program("redirects"), attacker, "4", STASHTRACE_RING_BYTES="8192", STASHTRACE_DRAINER=drainer
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "changed 0 size +0 reads 48000 redirected 1\n"
    kept, lost = traced.reads()
    assert kept + lost >= 48_000


def test_the_process_has_no_descriptor_of_ours(traced: Traced) -> None:
    """What a process does not have, none of its threads can redirect."""
    script = (
        "import os\n"
        "file = open('/dev/zero', 'rb', buffering=0)\n"
        "for _ in range(20_000): file.read(16)\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    if os.path.exists(f'/proc/self/fd/{fd}'): print(os.readlink(f'/proc/self/fd/{fd}'))\n"
    )
    done = traced.run(sys.executable, "-c", script, STASHTRACE_RING_BYTES="8192")
    assert (done.returncode, done.stderr) == (0, "")
    assert "/dev/zero" in done.stdout.splitlines()
    assert str(traced.run_directory) not in done.stdout
    assert traced.reads()[0] == 20_000


@pytest.mark.parametrize("kind", ["plain", "vfork", "clone_vm", "clone_vm_vfork", "clone_files", "raw_fork"])
@pytest.mark.parametrize("drainer", ["auto", "thread"])
def test_children_end_and_are_waited_for(traced: Traced, kind: str, drainer: str) -> None:
    program = traced.program("odd_children")
    done = traced.run(program, kind, "5", "3000", STASHTRACE_RING_BYTES="8192", STASHTRACE_DRAINER=drainer)
    assert (done.returncode, done.stderr) == (0, "")
    kept, lost = traced.reads()
    assert kept + lost == 15_000


def test_threads_keep_their_rows_if_a_vfork_child_made_the_first(traced: Traced) -> None:
    """A ring made by the child is of its parent's thread: under the thread's id, and no other's while that lives."""
    done = traced.run(traced.program("first_row_in_child"), "6", "2000")
    assert (done.returncode, done.stderr) == (0, "")
    process = next(
        process
        for process in (stash.load() for stash in open_run(traced.run_directory).processes)
        if len(process.records["io_op"].rows) > 1000
    )
    records = process.records["io_op"]
    tids, counts = np.unique(records.tid[records.rows["result_bytes"] == 16], return_counts=True)
    assert dict(zip(tids.tolist(), counts.tolist(), strict=True)) == {int(tid): 2000 for tid in done.stdout.split()}
    assert set(tids.tolist()) <= set(process.records["thread_info"].rows["tid"].tolist())


def test_samples_go_on_after_a_busy_vfork_child(traced: Traced) -> None:
    """The thread that samples must be the parent's, also if the child was the first to record much."""
    program = traced.program("odd_children")
    done = traced.run(program, "vfork", "1", "20000", "2000000", STASHTRACE_DRAINER="thread", STASHTRACE_SAMPLE_MS="1")
    assert done.returncode == 0
    process = max(
        (stash.load() for stash in open_run(traced.run_directory).processes), key=lambda p: len(p.records["io_op"].rows)
    )
    last_read = int(process.records["io_op"].rows["begin_ticks"].max())
    first_read = int(process.records["io_op"].rows["begin_ticks"].min())
    samples = process.records["process_sample"].rows["ticks"]
    assert len(samples) > 2
    assert int(samples.max()) > first_read + (last_read - first_read) // 2  # none came after the child had ended


def test_a_program_of_one_thread_stays_one(traced: Traced) -> None:
    program = traced.program("stays_single")
    done = traced.run(program, "400000")
    alone = subprocess.run([program, "1000"], capture_output=True, text=True, timeout=HANG_S)
    assert alone.stdout.startswith("tasks 1 ")
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")
    assert traced.reads()[0] == 400_000


def test_python_does_not_warn_of_threads_at_fork(traced: Traced) -> None:
    script = (
        "import os\n"
        "file = open('/dev/zero', 'rb', buffering=0)\n"
        "for _ in range(100_000): file.read(16)\n"
        "print(len(os.listdir('/proc/self/task')))\n"
        "if os.fork() == 0: os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    done = traced.run(sys.executable, "-W", "error::DeprecationWarning", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n0\n", "")


def test_a_process_that_leaves_its_namespace_of_ids_says_nothing(traced: Traced) -> None:
    """It may have no more threads, so that none can write its files; what it starts records as ever."""
    command = ["unshare", "--pid", "--fork", traced.program("odd_children"), "plain", "0", "0", "1000"]
    if shutil.which("unshare") is None or subprocess.run(command, check=False).returncode != 0:
        pytest.skip("no namespace of process ids can be had")
    done = traced.run(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert traced.reads() == (1000, 0)


def test_without_another_process_or_thread_the_job_goes_on_and_we_say_so(traced: Traced) -> None:
    """Where no thread can be had to write files, recording is off, which one line says."""
    if os.geteuid() != 0:
        pytest.skip("only root can become a user without processes")
    program = traced.program("stays_single")
    traced.run_directory.chmod(0o777)
    let_others_in(traced.folder)
    library = traced.folder / LIBRARY_PATH.name  # the path of the checkout, or the cache, may be closed to that user
    shutil.copy(LIBRARY_PATH, library)
    library.chmod(0o755)
    starter = (
        "import os, resource, sys\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "os.environ['LD_PRELOAD'] = sys.argv[1]\n"
        "os.execv(sys.argv[2], sys.argv[2:])\n"
    )
    done = traced.run(sys.executable, "-c", starter, str(library), program, "3000", LD_PRELOAD="")
    assert done.returncode == 0
    assert done.stdout.startswith("tasks 1 ")
    assert done.stderr.count("\n") == 1
    assert "recording is off: cannot start a thread to write files: Resource temporarily unavailable" in done.stderr


@pytest.mark.parametrize("byte", ["0", "17", "255"])
def test_memory_mapped_over_ours_is_left_alone(traced: Traced, byte: str) -> None:
    done = traced.run(traced.program("maps_over"), "30000", byte, STASHTRACE_RING_BYTES="65536")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("changed 0\n")


@pytest.mark.parametrize("call", ["execve", "execvp"])
def test_a_handler_on_a_small_stack_executes_a_script(traced: Traced, call: str) -> None:
    program = traced.program("exec_on_small_stack")
    script = traced.folder / "script"
    script.write_text("#!/bin/true\n")
    script.chmod(0o755)
    name = script.name if call == "execvp" else str(script)
    done = traced.run(program, call, name, PATH=f"{traced.folder}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_started_program_is_looked_at_without_a_number_of_the_process(traced: Traced) -> None:
    """Where its file had one, a descriptor that another thread put there was closed."""
    done = traced.run(traced.program("spawns_beside_dup2"), "500")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
