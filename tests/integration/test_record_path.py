"""Whatever happens to a process, the rows it recorded are read back: fork, exec, signals, full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from stashtrace import _native
from stashtrace.format.reader import open_run
from stashtrace.record.environment import LIBRARY_PATH, preload_path
from stashtrace.schema.kinds import Severity
from stashtrace.schema.trace import RawProcess


class Actor:
    """Runs the actor in a fresh run directory and reads the directory back."""

    def __init__(self, program: Path, directory: Path) -> None:
        self.program = program
        self.directory = directory
        self.code = 0
        self.output = ""
        self.errors = ""

    def environment(self, **variables: str) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")}
        return own | {"STASHTRACE_DIR": str(self.directory), "STASHTRACE_RUN_ID": "c0ffee", **variables}

    def run(self, scenario: str, rows: int = 100, program: str | Path = "", **variables: str) -> Actor:
        done = subprocess.run(
            [str(self.program), scenario, str(rows), program],
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr
        return self

    def processes(self) -> list[RawProcess]:
        return [process.load() for process in open_run(self.directory).processes]

    def values(self) -> dict[str, list[int]]:
        """Counter values by name, over all processes, in the order of their time stamps."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for process in self.processes():
            if "counter" not in process.records:
                continue
            rows = process.records["counter"].rows
            for ticks, value, name in zip(rows["ticks"], rows["value"], rows["name_id"], strict=True):
                found[process.strings[int(name)]].append((int(ticks), int(value)))
        return {name: [value for _, value in sorted(pairs)] for name, pairs in found.items()}

    def rings(self) -> list[Path]:
        return sorted(self.directory.glob("*.ring"))


@pytest.fixture
def actor(record_actor: Path, tmp_path: Path) -> Actor:
    directory = tmp_path / "run"
    directory.mkdir()
    return Actor(record_actor, directory)


@pytest.mark.parametrize("drainer", ["auto", "thread", "self", "off"])
def test_plain_exit_leaves_one_finished_file(actor: Actor, drainer: str) -> None:
    actor.run("plain", 300, STASHTRACE_DRAINER=drainer)
    assert (actor.code, actor.output, actor.errors) == (0, "300\n", "")
    assert actor.values() == {"main": list(range(300))}
    assert actor.rings() == []
    assert len(os.listdir(actor.directory)) == 1


def test_many_rows_are_drained_on_the_way(actor: Actor) -> None:
    actor.run("plain", 50_000, STASHTRACE_DRAINER="self")
    assert actor.values() == {"main": list(range(50_000))}
    (process,) = actor.processes()
    assert process.losses == []
    assert process.metadata["run_id"] == "c0ffee"
    assert process.metadata["parent_incarnation"] == -1


def test_nothing_recorded_leaves_nothing(actor: Actor) -> None:
    actor.run("silent", 0)
    names = [path.suffix for path in actor.directory.iterdir()]
    assert names in ([], [".stash"])  # interning a name is a record; a process without any leaves no file
    done = subprocess.run(
        ["/bin/true"],
        env={
            "LD_PRELOAD": preload_path(LIBRARY_PATH),
            "STASHTRACE_DIR": str(actor.directory),
            "STASHTRACE_COLLECTORS": "annotations",
        },
        check=False,
    )
    assert done.returncode == 0
    assert [path.suffix for path in actor.directory.iterdir()] == names


@pytest.mark.parametrize(
    ("scenario", "code"),
    [("kill", -signal.SIGKILL), ("terminate", -signal.SIGTERM), ("abort", -signal.SIGABRT)],
)
@pytest.mark.parametrize("rows", [1, 1_000, 20_000])
def test_sudden_death_loses_nothing(actor: Actor, scenario: str, code: int, rows: int) -> None:
    actor.run(scenario, rows, STASHTRACE_DRAINER="self" if rows > 400 else "auto")
    assert actor.code == code
    assert len(actor.rings()) == 1
    assert actor.values() == {"main": list(range(rows))}
    assert [loss for process in actor.processes() for loss in process.losses if loss[2] > 0] == []


@pytest.mark.parametrize("rows", [1, 20_000])
def test_end_without_destructors_leaves_no_ring(actor: Actor, rows: int) -> None:
    actor.run("quick_exit", rows, STASHTRACE_DRAINER="self" if rows > 400 else "auto")
    assert (actor.code, actor.rings()) == (0, [])
    assert actor.values() == {"main": list(range(rows))}


CHILDREN = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
ends = {"_exit": os._exit, "_Exit": libc._Exit, "quick_exit": libc.quick_exit}
for number in range(5):
    if os.fork() == 0:
        open("/dev/null").close()
        ends[sys.argv[1]](number)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == number
"""


@pytest.mark.parametrize("end", ["_exit", "_Exit", "quick_exit"])
def test_forked_children_leave_no_ring(tmp_path: Path, end: str) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("STASHTRACE_")}
    recording = {"STASHTRACE_DIR": str(tmp_path), "STASHTRACE_RUN_ID": "c0ffee"}
    variables = own | {"LD_PRELOAD": preload_path(LIBRARY_PATH)} | recording
    done = subprocess.run([sys.executable, "-I", "-S", "-c", CHILDREN, end], env=variables, check=False, timeout=120)
    assert done.returncode == 0
    children = [each for each in open_run(tmp_path).processes if each.load().metadata["parent_incarnation"] >= 0]
    assert len(children) == 5
    assert all(len(each.load().records["io_op"].rows) > 0 for each in children)
    assert list(tmp_path.glob("*.ring")) == []


@pytest.mark.parametrize("drainer", ["thread", "self"])
@pytest.mark.parametrize("delay_ms", [0, 3, 17, 40])
def test_killed_in_the_middle_of_draining(actor: Actor, drainer: str, delay_ms: int) -> None:
    with subprocess.Popen(
        [str(actor.program), "endless"],
        env=actor.environment(STASHTRACE_DRAINER=drainer),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recording\n"
        time.sleep(delay_ms / 1000)
        process.kill()
    values = actor.values()["endless"]
    (read_back,) = actor.processes()
    dropped = sum(loss[3] for loss in read_back.losses if loss[2] == 2)
    if "loss" in read_back.records:
        dropped += int(read_back.records["loss"].rows["lost_count"].sum())
    assert values == sorted(set(values))  # nothing twice, nothing out of order
    assert 0 <= values[-1] + 1 - len(values) <= dropped  # a gap is a counted drop


@pytest.mark.parametrize("scenario", ["fork", "raw_fork"])
def test_forked_children_write_separate_files(actor: Actor, scenario: str) -> None:
    actor.run(scenario, 150)
    assert (actor.code, actor.errors) == (0, "")
    values = actor.values()
    assert values["parent"] == list(range(300))
    assert values["child"] == values["grandchild"] == list(range(150))
    assert values["named before the fork"] == [0]  # its text is in the parent's file
    by_pid = {process.metadata["pid"]: process.metadata for process in actor.processes()}
    assert len(by_pid) == 3
    parents = {pid: facts["ppid"] for pid, facts in by_pid.items() if facts["parent_incarnation"] == 0}
    (first,) = by_pid.keys() - parents.keys()
    assert by_pid[first]["parent_incarnation"] == -1
    (child,) = (pid for pid, parent in parents.items() if parent == first)
    assert parents[next(pid for pid in parents if pid != child)] == child


def test_vforked_child_records_into_its_parent(actor: Actor) -> None:
    actor.run("vfork", 100)
    assert actor.code == 0
    assert actor.values() == {"parent": list(range(200)), "vforked": list(range(100))}
    assert len(actor.processes()) == 1


def test_sealed_process_has_written_all_and_calls_the_system_no_more(actor: Actor) -> None:
    actor.run("seal", 500)
    assert (actor.code, actor.errors) == (0, "")  # its child would have been killed by any system call of ours
    assert actor.values() == {"before": list(range(500))}
    (process,) = actor.processes()
    reasons = [process.strings[int(name)] for name in process.records["loss"].rows["reason_id"]]
    assert reasons == ["sealed_for_the_test"]
    assert actor.rings() == []


def test_exec_makes_a_new_incarnation(actor: Actor) -> None:
    actor.run("exec", 200)
    assert actor.code == 0
    first, second = actor.processes()
    assert (first.metadata["incarnation"], second.metadata["incarnation"]) == (0, 1)
    assert first.metadata["pid"] == second.metadata["pid"]
    assert sorted(actor.values()["main"]) == sorted(2 * list(range(200)))
    assert actor.rings() == []


@pytest.fixture(params=["no format", "no interpreter", "busy"])
def unsuited(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, int]]:
    """A file that looks like a program until the kernel reads it, and the error of its execution."""
    program = tmp_path / "program"
    kind = request.param
    program.write_bytes(
        {"no format": b"no program", "no interpreter": b"#!/no/such/interpreter\n"}.get(kind)
        or Path("/bin/true").read_bytes()
    )
    program.chmod(0o755)
    with open(program, "ab" if kind == "busy" else "rb"):
        yield program, {"no format": errno.ENOEXEC, "no interpreter": errno.ENOENT, "busy": errno.ETXTBSY}[kind]


@pytest.mark.parametrize(("end", "rows"), [("", 100), ("", 20_000), ("_killed", 100), ("_killed", 20_000)])
def test_recording_goes_on_when_exec_fails(actor: Actor, unsuited: tuple[Path, int], end: str, rows: int) -> None:
    program, error = unsuited
    actor.run("exec_fails" + end, rows, program, STASHTRACE_DRAINER="self")
    assert actor.output == f"-1 {error} new\n", "what exec said, and a ring that was put back"
    assert (actor.code, actor.errors) == (-signal.SIGKILL if end else 0, "")
    assert actor.values() == {"main": list(range(2 * rows))}
    (process,) = actor.processes()
    assert [loss for loss in process.losses if loss[2] > 0] == []
    assert len(actor.rings()) == (1 if end else 0)


def test_recording_ends_where_the_ring_cannot_be_put_back(actor: Actor, unsuited: tuple[Path, int]) -> None:
    program, error = unsuited
    actor.run("exec_fails_limited", 100, program, STASHTRACE_DRAINER="self")
    assert (actor.code, actor.output, actor.errors) == (0, f"-1 {error} none\n", "")
    assert actor.values() == {"main": list(range(100))}
    (process,) = actor.processes()
    reasons = [process.strings[int(name)] for name in process.records["loss"].rows["reason_id"]]
    assert reasons == ["ring_lost_at_exec"]
    assert actor.rings() == []


def test_exec_leaves_the_ring_of_others_alone(actor: Actor) -> None:
    """Of a vfork child's parent, of a child's parent, and of other threads that record."""
    actor.run("exec_elsewhere", 100)
    assert (actor.code, actor.errors) == (0, "")
    assert actor.values() == {"main": list(range(100))}
    assert len(actor.rings()) == 1


@pytest.mark.root
def test_exec_beyond_reach_of_the_run_directory_is_silent(actor: Actor) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    actor.run("exec_as_nobody", 100)
    assert (actor.code, actor.errors) == (0, "")
    assert actor.values() == {"main": list(range(100))}
    assert len(actor.rings()) == 1, "it holds the rows"


@pytest.mark.parametrize("drainer", ["self", "thread", "off"])
@pytest.mark.parametrize("rows", [2_031, 2_032, 2_033, 2_048, 2_049, 9_000, 32_000])
def test_large_ring_gets_its_space_when_it_is_used(actor: Actor, rows: int, drainer: str) -> None:
    """It has space for 2,048 rows at first, of which 16 are kept for signal handlers."""
    actor.run("large", rows, STASHTRACE_DRAINER=drainer, STASHTRACE_COLLECTORS="core")
    assert (actor.code, actor.output) == (-signal.SIGKILL, f"{rows}\n")
    (process,) = actor.processes()
    assert process.records["io_op"].rows["offset_bytes"].tolist() == list(range(rows))
    (ring,) = actor.rings()
    assert (ring.stat().st_blocks * 512 <= MOST_RING_BYTES) == (rows <= 2_032)


def test_large_ring_without_space_for_its_rest(actor: Actor) -> None:
    actor.run("large_limited", 9_000, STASHTRACE_DRAINER="self", STASHTRACE_COLLECTORS="core")
    assert (actor.code, actor.output, actor.errors) == (-signal.SIGKILL, "2032\n", "")
    (process,) = actor.processes()
    assert process.records["io_op"].rows["offset_bytes"].tolist() == list(range(2_032))
    assert counted_lost(actor) == 9_000 - 2_032


def test_count_of_rows_without_a_ring_outlives_the_process(actor: Actor) -> None:
    actor.run("end_without_ring", 100)
    assert (actor.code, actor.errors) == (0, "")
    assert actor.values() == {"main": list(range(100))}
    assert counted_lost(actor) == 2, "open and close"
    assert len(actor.rings()) == 1, "it holds the count"


#: What the ring of a killed process with few rows may take on the disk.
MOST_RING_BYTES = 256 * 1024


def test_many_processes_leave_little_and_lose_nothing(actor: Actor, tmp_path: Path) -> None:
    unsuited = tmp_path / "program"
    unsuited.write_bytes(b"no program")
    unsuited.chmod(0o755)
    actor.run("ends", 50, unsuited)
    assert (actor.code, actor.errors) == (0, "")
    expected = {way: sorted(4 * list(range(50))) for way in ("exit", "_exit", "exec", "failed", "killed")}
    assert {way: sorted(values) for way, values in actor.values().items()} == expected
    assert len(actor.rings()) == 4, "those of the killed"
    assert max(ring.stat().st_blocks * 512 for ring in actor.rings()) <= MOST_RING_BYTES


def test_short_threads_share_few_rings(actor: Actor) -> None:
    actor.run("threads", 3_000)
    assert actor.code == 0
    assert int(actor.output) < 60
    assert sorted(actor.values()["thread"]) == sorted(3_000 * list(range(5)))
    (process,) = actor.processes()
    infos = process.records["thread_info"].rows
    assert len(infos) >= 3_000  # and perhaps the drainer; the system may give a thread the number of one that ended


def test_closed_and_reused_descriptors(actor: Actor) -> None:
    actor.run("close", 2_000, STASHTRACE_DRAINER="self")
    assert actor.code == 0, actor.errors
    assert actor.values() == {"daemon": list(range(4_000)), "daemon's thread": list(range(2_000))}
    assert (actor.directory / "own.txt").read_bytes() == b""


@pytest.mark.parametrize("drainer", ["self", "thread"])
def test_signal_handlers_that_record(actor: Actor, drainer: str) -> None:
    actor.run("interrupted", 100_000, STASHTRACE_DRAINER=drainer)
    kept, handled = map(int, actor.output.split())
    values = actor.values()
    assert handled > 0
    assert values["handler"] == list(range(handled))
    assert len(values["main"]) == kept
    assert kept + counted_lost(actor) >= 100_000  # a row is read or counted


def counted_lost(actor: Actor) -> int:
    """Rows of the first process that were lost and counted, whoever's they were."""
    (process, *_) = actor.processes()
    lost = sum(loss[3] for loss in process.losses)
    if "loss" in process.records:
        lost += int(process.records["loss"].rows["lost_count"].sum())
    return lost


def test_exit_while_other_threads_record(actor: Actor) -> None:
    actor.run("exit_among_threads", 1_000)
    assert (actor.code, actor.errors) == (0, "")
    main = actor.values()["main"]
    assert main == sorted(set(main))
    assert main[:100] == list(range(100)), "before anything is full"
    # Busy threads and a busy machine may fill a ring faster than it can be drained. Then rows are counted.
    assert len(main) == 1_000 or len(main) + counted_lost(actor) >= 1_000


def test_threads_of_a_process_are_drained_for(actor: Actor) -> None:
    """Several producers that drained themselves would drop rows whenever one of them was held up while draining."""
    actor.run("exit_among_threads", 5_000)
    (process,) = actor.processes()
    assert "stashtrace drainer" in process.strings.values()


def test_file_size_limit_does_not_end_the_process(actor: Actor) -> None:
    actor.run("limited", 5_000, STASHTRACE_DRAINER="self")
    assert actor.code == 0
    kept = int(actor.output)
    values = actor.values()
    assert values["before the limit"] == list(range(10))
    assert len(values.get("beyond the limit", [])) == kept
    assert "error: cannot write records" in actor.errors


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no permission to mount a small tmpfs")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def lost_rows(actor: Actor) -> Counter[str]:
    """Rows lost, by reason: those that the process reported and those that the reader found."""
    found: Counter[str] = Counter()
    for process in actor.processes():
        for loss in process.losses:
            if loss[2] == Severity.DATA_LOSS:
                found[loss[1]] += loss[3]
        for row in process.records["loss"].rows if "loss" in process.records else ():
            if row["severity_code"] == Severity.DATA_LOSS:
                found[process.strings[int(row["reason_id"])]] += int(row["lost_count"])
    return found


@pytest.mark.parametrize("small_disk", ["256k"], indirect=True)
def test_full_disk(actor: Actor, small_disk: Path) -> None:
    actor.directory = small_disk
    actor.run("plain", 20_000, STASHTRACE_DRAINER="self")
    assert actor.code == 0
    kept = int(actor.output)
    assert 0 < kept < 20_000
    assert actor.values()["main"] == list(range(kept))
    assert "No space left on device" in actor.errors
    lost = lost_rows(actor)
    assert lost.total() >= 20_000 - kept
    assert lost.keys() <= {"no_space", "no_space_rows"}, lost
    (small_disk / "filler").write_bytes(b"")
    full = Actor(actor.program, small_disk).run("plain", 10, STASHTRACE_DRAINER="self")  # not even a header fits now
    assert (full.code, full.output) == (0, "0\n")
    assert full.errors.count("\n") == 1
    assert "recording is off" in full.errors


@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_disk_that_stays_full_is_the_cause_of_every_loss(actor: Actor, small_disk: Path) -> None:
    """The drainer tries to write once a second, and reports what was lost more often."""
    actor.directory = small_disk
    actor.run("steady", 140_000, STASHTRACE_DRAINER="thread")
    kept = int(actor.output)
    assert 0 < kept < 140_000
    lost = lost_rows(actor)
    assert lost.total() >= 140_000 - kept
    assert lost.keys() <= {"no_space", "no_space_rows"}, lost


def test_a_child_of_a_fork_inside_the_loader_ends(actor: Actor) -> None:
    actor.run("fork_in_loader", 10)
    assert actor.code == 0, "2: the child hangs"
    assert actor.values()["child"] == list(range(10))


def test_few_descriptors_stay_the_programs(actor: Actor) -> None:
    actor.run("few_descriptors", 20)
    assert (actor.code, actor.output) == (0, "0 fewer\n")


def test_directory_that_takes_no_files(actor: Actor) -> None:
    actor.directory = actor.directory / "missing"
    actor.run("plain", 10, RANK="3")
    assert (actor.code, actor.output) == (0, "0\n")
    assert actor.errors.startswith("stashtrace[3 ")
    message = f"error: recording is off, cannot write: {actor.directory}: No such file or directory\n"
    assert actor.errors.endswith(message)


def test_spawned_workers_of_multiprocessing(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import multiprocessing, struct\n"
        "from stashtrace import _native\n"
        "def work(n):\n"
        "    for i in range(200):\n"
        "        _native.emit(0x12, struct.pack('<QdII', _native.now_ticks(), i, _native.intern('worker'), 0))\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork', 'forkserver'):\n"
        "        context = multiprocessing.get_context(method)\n"
        "        workers = [context.Process(target=work, args=(n,)) for n in range(2)]\n"
        "        [w.start() for w in workers]\n"
        "        [w.join() for w in workers]\n"
        "        assert [w.exitcode for w in workers] == [0, 0]\n",
        encoding="utf-8",
    )
    directory = tmp_path / "run"
    directory.mkdir()
    environment = {
        **os.environ,
        "STASHTRACE_DIR": str(directory),
        "LD_PRELOAD": preload_path(LIBRARY_PATH),
        "STASHTRACE_COLLECTORS": "annotations",
        "PYTHONPATH": str(Path(_native.__file__).resolve().parents[1]),
    }
    subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=120)
    values = Actor(Path(), directory).values()
    assert sorted(values["worker"]) == sorted(6 * list(range(200)))
