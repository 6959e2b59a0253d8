"""Files of other tools that are not what they should be: one line, a hint, exit code 4; what can be used is used."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer, environment
from corpus import corpus
from kineto_job import write_job

from stashtrace.errors import ImporterError
from stashtrace.loading import foreign_files

Run = Callable[..., Answer]
READING = ("analyze summary", "analyze stalls", "info", "export perfetto", "export csv", "view --no-browser")


def words_of(command: str, path: str) -> list[str]:
    name, *rest = command.split()
    return [name, *rest, path, *(["-o", "out"] if name == "export" else [])]


def refused(answer: Answer) -> str:
    """The one line of an error, which has a hint."""
    # On a busy machine a read takes long enough to be shown.
    lines = [line for line in answer.err.splitlines() if not line.startswith("reading: ")]
    assert (answer.code, answer.out) == (4, "")
    assert lines[0].startswith("error: ")
    assert [lines[1], lines[2][:6]] == ["", "hint: "]
    assert len(lines) == 3
    return lines[0].removeprefix("error: ")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Folder of two ranks, one file each."""
    write_job(tmp_path / "job")
    return tmp_path / "job"


@pytest.mark.parametrize("command", READING)
def test_empty_file(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "rank0.json").touch()
    assert refused(run(*words_of(command, "rank0.json"))) == "rank0.json is empty"


@pytest.mark.parametrize("command", READING)
def test_garbage(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / "junk").mkdir()
    noise = bytes((i * 73 + i // 7) % 251 for i in range(4000))
    for name, begin in (("a.json", b""), ("b.json.gz", b"\x1f\x8b"), ("c.sqlite", b"SQLite format 3\0")):
        (tmp_path / "junk" / name).write_bytes(begin + noise)
    assert "; nor can 2 more files in the same place be read" in refused(run(*words_of(command, "junk")))
    assert "cannot be decompressed" in refused(run(*words_of(command, "junk/b.json.gz")))
    assert "not a trace that stashtrace knows" in refused(run(*words_of(command, "junk/a.json")))


@pytest.mark.parametrize("command", READING)
def test_a_folder_of_runs_names_the_newest(run: Run, tmp_path: Path, command: str) -> None:
    for name, at in (("old run", 100), ("new run", 200)):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "run.json").write_text("{}")
        os.utime(tmp_path / "jobs" / name, (at, at))
    for name in ("a.json", "b.json"):
        (tmp_path / "jobs" / name).write_text("no trace")
    answer = run(*words_of(command, "jobs"))
    assert refused(answer) == "jobs is no run, but holds some"
    assert "the newest in it is 'jobs/new run'" in answer.err


@pytest.mark.parametrize("command", ["analyze summary", "info"])
def test_pipe_is_not_waited_for(run: Run, tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert refused(run(*words_of(command, "pipe.json"))) == "pipe.json is not a regular file"


def test_links_in_circles_cost_nothing(run: Run, job: Path) -> None:
    (job / "again").symlink_to(".")
    (job / "a.json").symlink_to("b.json")
    (job / "b.json").symlink_to("a.json")
    (job / "gone.json").symlink_to("nowhere.json")
    os.mkfifo(job / "pipe.json")
    facts = json.loads(run("info", "job", "--format", "json").out)
    assert facts["ranks"] == [0, 1]
    reported = {Path(row["advice"].split()[0]).name: row["advice"] for row in facts["losses"]}
    assert "Too many levels of symbolic links" in reported["a.json"]
    assert "No such file" in reported["gone.json"]
    assert "not a regular file" in reported["pipe.json"]


def test_file_without_permission(job: Path) -> None:
    first = sorted(job.iterdir())[0]
    first.chmod(0)
    inner = job / "inner"
    inner.mkdir(mode=0)
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if without and shutil.which("setpriv") is None:
        pytest.skip("root reads everything")
    words = [*without, sys.executable, "-m", "stashtrace", "info", "--format", "json"]
    ask = {"cwd": job.parent, "env": environment(), "capture_output": True, "text": True, "check": False}
    try:
        found = json.loads(subprocess.run([*words, "job"], **ask).stdout)  # type: ignore[call-overload]
        alone = subprocess.run([*words, str(first)], **ask)  # type: ignore[call-overload]
        closed = subprocess.run([*words, "job/inner"], **ask)  # type: ignore[call-overload]
    finally:
        inner.chmod(0o700)
    assert len(found["ranks"]) == 1
    unreadable = [row["advice"] for row in found["losses"] if row["reason"] == "unreadable_file"]
    assert sorted(text.split()[0] for text in unreadable) == sorted([f"job/{first.name}", "job/inner"])
    assert f"{first} cannot be read: Permission denied" in refused(Answer(alone.returncode, "", alone.stderr))
    assert refused(Answer(closed.returncode, "", closed.stderr)) == "job/inner: Permission denied"


def test_many_files_of_one_fault_are_one_line(run: Run, job: Path) -> None:
    for index in range(500):
        (job / f"more{index:03}.json").write_text("{")
        (job / f"none{index:03}.json").touch()
    reported = " ".join(run("analyze", "summary", "job").out.split())
    assert "! job/none000.json is empty (and 499 more like it)" in reported
    assert "500 importers/file_not_recognised" not in run("info", "job").out
    assert "497 importers/unreadable_file (data_loss) in 497 more lines" in run("info", "job").out


def test_path_with_spaces(run: Run, job: Path) -> None:
    job.rename(job.parent / "my job")
    for command in ("analyze summary", "info", "export perfetto"):
        assert run(*words_of(command, "my job")).code == 0


def test_merge_says_that_files_of_others_need_none(run: Run, job: Path) -> None:
    answer = run("merge", "job")
    assert refused(answer) == "job holds no .stash files to merge"
    assert "analyze summary" in answer.err


def test_ranks_of_different_runs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name in ("dlrm8_v100/rank0.pt.trace", "one_rank_of_many/nccl_meta_rank0_of_2"):
        shutil.copy(corpus(f"kineto/{name}.json.gz"), tmp_path / "mixed")
    for command in ("analyze summary", "analyze stalls", "info", "export perfetto"):
        assert refused(run(*words_of(command, "mixed"))) == (
            "mixed holds files of 2 jobs: nccl_meta_rank0_of_2.json.gz (2 ranks); rank0.pt.trace.json.gz (8 ranks)"
        )


def test_two_jobs_of_one_gpu(run: Run, tmp_path: Path) -> None:
    """Files that do not say their rank were all taken to be rank 0, and one of them hid the other."""
    (tmp_path / "mixed").mkdir()
    for name in ("alexnet", "param_resnet"):
        shutil.copy(corpus(f"kineto/one_gpu/{name}.json.gz"), tmp_path / "mixed")
    answer = run("analyze", "summary", "mixed")
    reported = refused(answer)
    assert reported.startswith("mixed holds files of 2 jobs: ")
    assert "alexnet.json.gz (rank 0)" in reported
    assert "param_resnet.json.gz (rank 0)" in reported
    assert "if they are ranks of one job, call the files rank0, rank1, ..." in answer.err


def test_two_jobs_in_separate_folders(run: Run, tmp_path: Path) -> None:
    for name, pid in (("a", 100), ("b", 200)):
        write_job(tmp_path / "mixed" / name)
        for path in (tmp_path / "mixed" / name).iterdir():
            content = json.loads(path.read_text())
            for event in content["traceEvents"]:
                event["pid"] = pid if event.get("cat") != "kernel" else event["pid"]
            path.write_text(json.dumps(content))
    reported = refused(run("info", "mixed"))
    assert reported.startswith("mixed holds files of 2 jobs: a/rank0")
    assert "(ranks 0,1); b/rank0" in reported
    assert run("info", "mixed/a").code == 0


def test_two_exports_of_nsight(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name in ("mock", "h100_2gpu_1s"):
        shutil.copy(corpus(f"nsys/{name}.sqlite"), tmp_path / "mixed")
    reported = refused(run("analyze", "summary", "mixed"))
    assert "h100_2gpu_1s.sqlite (ranks 0,1)" in reported
    assert "mock.sqlite (rank 0)" in reported


def test_missing_ranks_leave_transfers_in_doubt(run: Run) -> None:
    path = corpus("kineto/one_rank_of_many/nccl_meta_rank0_of_2.json.gz")
    reported = " ".join(run("analyze", "summary", path).out.split())
    assert "transfers of all-reduce are in flight 14.6 ms a step" in reported
    assert "part of it may be waiting: rank 1 left no record here" in reported
    assert "no file of rank 1 of 2: who was late is only known among the others" in reported
    assert "after every rank had arrived" not in reported


@pytest.mark.parametrize("zipped", [True, False])
def test_cut_files(run: Run, tmp_path: Path, zipped: bool) -> None:
    whole = corpus("kineto/dlrm8_v100/rank3.pt.trace.json.gz").read_bytes()
    content = whole if zipped else gzip.decompress(whole)
    path = tmp_path / f"rank3.json{'.gz' if zipped else ''}"
    path.write_bytes(content[: len(content) * 2 // 3])
    answer = run("info", path.name, "--format", "json")
    facts = json.loads(answer.out)
    assert (answer.code, facts["ranks"]) == (0, [3])
    assert [row["advice"] for row in facts["losses"] if row["reason"] == "file_cut"]


def test_a_load_ends_before_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = foreign_files.MemoryLimit()
    monkeypatch.setattr(foreign_files, "free_bytes", lambda: 5 << 30)
    limit.check(1 << 30, "big.json")
    monkeypatch.setattr(foreign_files, "free_bytes", lambda: 100 << 20)
    limit.check(1 << 10, "big.json")  # not worth a look yet
    with pytest.raises(ImporterError, match=r"big\.json does not fit into memory: .* are kept so far, 105 MB are free"):
        limit.check(1 << 30, "big.json")


def test_memory_of_this_machine_is_known() -> None:
    free = foreign_files.free_bytes()
    assert free is not None
    assert free > 1 << 20
    assert foreign_files.held_bytes() > 1 << 20


def test_memory_that_ends_is_an_error_of_one_line(job: Path) -> None:
    code = (
        "import sys; from unittest import mock; from stashtrace.cli import main\n"
        "with mock.patch('stashtrace.importers.kineto.read', side_effect=MemoryError):\n"
        "    sys.exit(main(['analyze', 'summary', 'job']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=job.parent, env=environment(), capture_output=True, text=True, check=False
    )
    assert "does not fit into memory" in refused(Answer(done.returncode, done.stdout, done.stderr))


@pytest.mark.parametrize("marked", [True, False])
def test_steps_that_do_not_match(run: Run, job: Path, marked: bool) -> None:
    path = job / "rank1.pt.trace.json"
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = f"ProfilerStep#{int(event['name'].partition('#')[2]) + 70}" if marked else "train"
    path.write_text(json.dumps(content))
    facts = json.loads(run("info", "job", "--format", "json").out)
    reported = [row["advice"] for row in facts["losses"] if row["reason"] == "steps_of_their_own"]
    assert len(reported) == 1
    assert reported[0].startswith("rank 1 recorded none of the steps of the others (rank 1: ")
    assert run("analyze", "stalls", "job").code == 0


def test_newer_schema_is_reported(run: Run, job: Path) -> None:
    path = job / "rank1.pt.trace.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schemaVersion": 99}))
    losses = json.loads(run("info", "job", "--format", "json").out)["losses"]
    reported = [row for row in losses if "schema" in row["reason"]]
    assert [(row["reason"], row["severity"]) for row in reported] == [("newer_schema", "error")]
    assert "schemaVersion is 99" in reported[0]["advice"]


def test_half_a_surrogate_pair_ends_nothing(run: Run, tmp_path: Path) -> None:
    call = {"id": 0, "name": "read", "cat": "POSIX", "pid": 7, "tid": 7, "ph": "X", "ts": 17 * 10**14, "dur": 9}
    line = json.dumps(call | {"args": {"fname": "/data/\ud800.h5", "ret": 5}})
    (tmp_path / "a.pfw").write_text(f"[\n{line}\n", encoding="utf-8")
    for command in ("analyze summary", "export perfetto -o a.pftrace", "export parquet -o a.store"):
        answer = run(*command.split(), str(tmp_path / "a.pfw"))
        assert answer.code == 0, (command, answer.err)


def test_info_keeps_all_that_a_rank_said(run: Run, tmp_path: Path) -> None:
    """Several facts of one name, and processes that serve no rank."""
    begun = {"time_created_ns": 1_700_000_000 * 10**9}
    entry = {"profiling_name": "gloo:all_reduce", "process_group": ["0", "world"], **begun}
    entries = [{**entry, "record_id": n, "collective_seq_id": n, "state": "scheduled"} for n in (1, 2, 3)]
    dump = {"version": "2.4", "pg_config": {"0": {"desc": "world", "ranks": "[0]"}}, "entries": entries}
    (tmp_path / "nccl_trace_rank_0.json").write_text(json.dumps(dump))
    answer = run("info", str(tmp_path), "--format", "json")
    reported = json.loads(answer.out)["facts"]["flight_recorder.unfinished_operation of 0"].split("; ")
    assert [text.split(" of ")[0] for text in reported] == ["all_reduce 1", "all_reduce 2", "all_reduce 3"]
    lines = run("info", str(tmp_path)).out.splitlines()
    assert any(line.startswith("  flight_recorder.unfinished_operation of 0 all_reduce 1") for line in lines)


def test_a_trace_without_times_says_so(run: Run) -> None:
    answer = run("analyze", "summary", str(corpus("et")))
    assert "no times" in answer.out
    assert "optimizer" not in answer.out
    assert "no file was read" not in answer.out


@pytest.mark.parametrize("command", ["export perfetto", "view --no-browser"])
@pytest.mark.parametrize("files", ["et", "kineto/dlrm8_v100/et_3.json.gz", "kineto/one_gpu/param_resnet_et.json.gz"])
def test_a_trace_without_times_has_no_time_line(run: Run, tmp_path: Path, files: str, command: str) -> None:
    answer = run(*words_of(command, str(corpus(files))))
    assert refused(answer).endswith(
        "has no timeline: an execution trace holds operators, sizes and their order, and no times"
    )
    assert "torch.profiler trace of the same run" in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "name", "instead"),
    [
        ("horovod/horovod_timeline_small.json.gz", "a timeline of Horovod", "torch.profiler"),
        ("horovod", "a timeline of Horovod", "torch.profiler"),
        ("dlio_hpe_unet3d_h100/3_output.json.gz", "a result of the DLIO benchmark", "DFTRACER_ENABLE=1"),
        ("dlio_hpe_unet3d_h100/summary.json.gz", "a result of the DLIO benchmark", "DFTRACER_ENABLE=1"),
        ("dlio_hpe_unet3d_h100/per_epoch_stats.json.gz", "a result of the DLIO benchmark", "DFTRACER_ENABLE=1"),
        ("dlio_hpe_unet3d_h100", "a result of the DLIO benchmark", "DFTRACER_ENABLE=1"),
        ("straggler/timeline-AR.json.gz", "a drawing of a StragglerAnalysis trace", "trace-*.parquet"),
    ],
)
def test_formats_that_are_not_read_are_refused_by_name(run: Run, files: str, name: str, instead: str) -> None:
    for command in ("analyze summary", "info", "export perfetto"):
        answer = run(*words_of(command, str(corpus(files))))
        assert f"is {name}, which is not read: " in refused(answer)
        assert instead in answer.err


def test_results_next_to_a_trace_are_no_loss(run: Run, job: Path) -> None:
    shutil.copy(corpus("dlio_hpe_unet3d_h100/3_output.json.gz"), job)
    losses = json.loads(run("info", "job", "--format", "json").out)["losses"]
    assert [(row["reason"], row["severity"]) for row in losses] == [("file_not_recognised", "info")]
    assert "a result of the DLIO benchmark" in losses[0]["advice"]


def test_hosts_that_no_file_names_are_not_one(run: Run) -> None:
    answer = run("summary", "--all", str(corpus("kineto/sampled_128")))
    assert "transfers between ranks;" in " ".join(answer.out.split())


def test_a_moment_has_its_unit_in_its_title(run: Run, job: Path) -> None:
    titles = run("analyze", "collectives", str(job)).out.splitlines()[0].split()
    assert {"begin_ns", "end_ns", "wait", "transfer"} <= set(titles)
