"""Runs of several launchers, as a scheduler would start them; no scheduler and no torch is needed here.

What SLURM and MPI pass to their processes is played by `task`; the launchers, their files and the merge are real.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, environment, started
from stash_files import StashWriter, ms

Run = Callable[..., Answer]
READ = "import sys; open(sys.executable, 'rb').read(5000)"
JOB = [sys.executable, "-S", "-c", READ]


def task(number: int, tasks: int, **more: str) -> dict[str, str]:
    """What srun passes to a task."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_NTASKS": str(tasks),
        **more,
    }


def start(folder: Path, words: list[Any], **variables: str) -> subprocess.Popen[str]:
    return started("run", *words, cwd=folder, stdin=subprocess.PIPE, **variables)


def info(run: Run, path: str, *more: str) -> dict[str, Any]:
    answer = run("info", path, "--format", "json", *more)
    assert answer.code == 0, answer.err
    facts: dict[str, Any] = json.loads(answer.out)
    return facts


def test_the_last_of_several_launchers_merges(run: Run, tmp_path: Path) -> None:
    first = run("run", "--", *JOB, **task(0, 2))
    assert first.code == 0
    assert first.err.startswith(
        "stashtrace: ./stash-slurm-4711.0 holds 1 of 2 parts of slurm-4711.0; "
        "`stashtrace merge ./stash-slurm-4711.0 OTHER...` brings them together\n"
    )
    assert "rank 1 of 2: no file" in " ".join(first.err.split())
    last = run("run", "--", *JOB, **task(1, 2))
    assert last.code == 0
    assert "\nstashtrace  2 ranks, 1 host" in last.err
    facts = info(run, "stash-slurm-4711.0")
    assert (facts["ranks"], facts["missing_ranks"], facts["exit_code"], facts["merged"]) == ([0, 1], [], 0, True)
    assert [launcher["exit_code"] for launcher in facts["launchers"]] == [0, 0]
    assert not (tmp_path / "stash-slurm-4711.0" / "merging").exists()


def test_launchers_that_begin_together(run: Run, tmp_path: Path) -> None:
    """They find no directory, make it, and end at the same moment: all are there, and somebody has merged."""
    started = [start(tmp_path, ["--", *JOB], **task(number, 3)) for number in range(3)]
    said = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 3, said
    assert [path.name for path in tmp_path.iterdir()] == ["stash-slurm-4711.0"]
    assert any("3 ranks, 1 host" in text for text in said), said
    assert info(run, "stash-slurm-4711.0")["ranks"] == [0, 1, 2]


def test_one_that_fails_merges_what_is_there(run: Run, tmp_path: Path) -> None:
    """Its peer may be dead, or wait for it until a time-out; and when the peer ends after all, it merges again."""
    slow = start(tmp_path, ["--out", "d", "--", sys.executable, "-S", "-c", READ + "; input()"], **task(0, 2))
    while not list((tmp_path / "d").glob("*.stash")):
        assert slow.poll() is None
        time.sleep(0.05)
    failed = run("run", "--out", "d", "--", sys.executable, "-S", "-c", READ + "; sys.exit(3)", **task(1, 2))
    assert failed.code == 3
    assert "1 of 2 launchers of slurm-4711.0 still running on " in failed.err
    assert "merging what is there" in failed.err
    assert "2 ranks, 1 host" in failed.err, "the living one is read as it is, and left alone"
    assert slow.poll() is None
    slow.kill()
    slow.communicate()  # closes its stdin, which ends the job that it left behind
    merged = run("merge", "d")
    assert merged.code == 0
    assert "the job ended with exit code 3" in merged.err


def test_a_second_run_does_not_get_in(run: Run) -> None:
    assert run("run", "--out", "d", "--no-merge", "--", *JOB, **task(0, 2)).code == 0
    other = run("run", "--out", "d", "--", *JOB, **task(0, 2, SLURM_STEP_ID="1"))
    assert other.code == 3
    assert other.err.startswith("error: run directory d already holds a run")
    alone = run("run", "--out", "d", "--", *JOB)
    assert "--run-id JOB on every host" in alone.err


def test_a_name_said_by_the_user_joins_too(run: Run) -> None:
    for number in ("0", "1"):
        assert run("run", "--run-id", "night", "--out", "d", "--", *JOB, RANK=number, WORLD_SIZE="2").code == 0
    assert info(run, "d")["ranks"] == [0, 1]


def test_scratch_is_brought_home(run: Run, tmp_path: Path) -> None:
    answer = run("run", "--out", "d", "--scratch", "local/disk", "--", *JOB)
    assert answer.code == 0
    assert "1 rank, 1 host" in answer.err
    assert list((tmp_path / "local/disk").iterdir()) == [], "nothing is left behind"
    assert info(run, "d")["merged"]
    assert json.loads((tmp_path / "d/run.json").read_text())["exit_code"] == 0


def test_scratch_that_cannot_be_brought_home_is_kept(run: Run, tmp_path: Path) -> None:
    script = f"import os, shutil; {READ}; shutil.rmtree('d'); open('d', 'w').close()"
    answer = run("run", "--out", "d", "--scratch", "s", "--", sys.executable, "-S", "-c", script)
    assert answer.code == 0, "the job is not to blame"
    assert "error: cannot copy the records from" in answer.err
    (tmp_path / "d").unlink()
    [kept] = (tmp_path / "s").iterdir()
    assert f"`stashtrace merge {tmp_path / 'd'} {kept}`" in answer.err
    assert run("merge", kept, "--out", "d").code == 0
    assert info(run, "d")["ranks"] == [0]


def test_scratch_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = run("run", "--scratch", "file/below", "--out", "d", "--", "true")
    assert answer.code == 3
    assert answer.err.startswith("error: cannot write into scratch directory file/below: not a directory\n\nhint: ")


def test_a_url_takes_the_whole_run(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="the extra stashtrace[remote] is not installed")
    url = f"file://{tmp_path}/far/run"
    answer = run("run", "--out", url, "--scratch", "s", "--", *JOB)
    assert answer.code == 0
    assert answer.err.endswith(f"stashtrace: delivered to {url}\n")
    assert (tmp_path / "far/run/summary.txt").exists()
    assert list((tmp_path / "s").iterdir()) == []
    assert run("merge", url, "--out", "here").code == 0
    assert info(run, "here")["ranks"] == [0]


def test_hosts_that_meet_at_a_url(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="the extra stashtrace[remote] is not installed")
    url = f"file://{tmp_path}/far/run"
    for number in (0, 1):
        answer = run("run", "--out", url, "--scratch", "s", "--", *JOB, **task(number, 2))
        assert answer.code == 0
        assert f"files delivered to {url}; run `stashtrace merge {url}` when all hosts have ended" in answer.err
    merged = run("merge", url)
    assert merged.code == 0, merged.err
    assert "2 ranks, 1 host" in merged.err
    assert [launcher["exit_code"] for launcher in info(run, "run")["launchers"]] == [0, 0]


def test_variables_for_a_command_that_stays_as_it_is(run: Run, tmp_path: Path) -> None:
    """Two pods that share a directory: no launcher of ours, and the command is that of the container."""
    for pod in ("0", "1"):
        variables = run("env", "--out", "d", "--run-id", "uid-1", JOB_COMPLETION_INDEX=pod)
        assert variables.code == 0
        script = f'{variables.out}\nexec {shlex.quote(sys.executable)} -S -c "{READ}"'
        subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment(JOB_COMPLETION_INDEX=pod), check=True)
    assert "2 ranks, 1 host" in run("merge", "d").err
    assert info(run, "d")["ranks"] == [0, 1]


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("dotenv", "STASHTRACE_DIR=/shared/run 7\n"),
        ("kubernetes", '- name: STASHTRACE_DIR\n  value: "/shared/run 7"\n'),
        ("openmpi", "-x STASHTRACE_DIR='/shared/run 7' "),
        ("mpich", "-genv STASHTRACE_DIR '/shared/run 7' "),
        ("json", '"STASHTRACE_DIR": "/shared/run 7",'),
    ],
)
def test_variables_for_another_machine(run: Run, tmp_path: Path, form: str, line: str) -> None:
    answer = run("env", "--format", form, "--out", "/shared/run 7", "--collectors", "posix_io")
    assert line in answer.out
    assert str(tmp_path) not in answer.out
    assert list(tmp_path.iterdir()) == [], "the directory is on the other machine"


def test_variables_that_cannot_be(run: Run) -> None:
    assert run("env", "--format", "json").err.startswith("error: --format json needs --out")
    assert run("env", "--out", "s3://bucket/x").err.startswith(
        "error: s3://bucket/x is a URL, and processes can only write"
    )


def test_status_of_a_run_on_another_host(run: Run, tmp_path: Path) -> None:
    """Its launcher's process id says nothing here, so it is not called gone."""
    assert run("run", "--out", "d", "--no-merge", "--", *JOB, **task(0, 2)).code == 0
    facts = json.loads((tmp_path / "d/run.json").read_text())
    (tmp_path / "d/run.json").write_text(json.dumps(facts | {"host": "node7", "place": "elsewhere"}))
    answer = run("live", "d", "--once")
    assert (answer.code, answer.err) == (0, "")
    assert "gone" not in answer.out
    assert "ended" not in answer.out.replace("no step has ended", "")


class TestMerge:
    """Directories of hosts that were recorded apart, made by hand."""

    def host(
        self,
        folder: Path,
        name: str,
        ranks: range,
        *,
        world: int = 8,
        run_id: str = "5eed" * 4,
        begin_s: int = 0,
        **env: str,
    ) -> Path:
        for rank in ranks:
            begin = {"start_realtime_ns": (1_700_000_000 + begin_s) * 10**9}
            writer = StashWriter(
                folder / name,
                pid=100 + rank,
                host=name,
                run_id=run_id,
                boot_id=name,
                env={"RANK": str(rank), "WORLD_SIZE": str(world), **env},
                metadata=begin,
            )
            writer.add("io_op", [writer.row("io_op", begin_ticks=ms(1), duration_ticks=1000, result_bytes=1)])
            writer.save()
        (folder / name / "run.json").write_text(json.dumps({"format": 1, "run_id": run_id, "host": name}))
        return folder / name

    def test_a_folder_of_hosts(self, run: Run, tmp_path: Path) -> None:
        for number in range(4):
            self.host(tmp_path / "all", f"node{number}", range(2 * number, 2 * number + 2))
        answer = run("merge", "all")
        assert answer.code == 0
        said = " ".join(answer.err.split())
        assert "hosts: node0 ranks 0,1, node1 ranks 2,3, node2 ranks 4,5, node3 ranks 6,7" in said
        assert info(run, "all")["ranks_of_hosts"]["node3"] == [6, 7]
        again = run("merge", "all", *(f"all/node{number}" for number in range(4)))
        assert again.code == 0
        assert info(run, "all")["processes"] == 8, "what was there before is there once"

    def test_the_parts_stay_as_they_are(self, run: Run, tmp_path: Path) -> None:
        for number in range(2):
            self.host(tmp_path, f"node{number}", range(4 * number, 4 * number + 4))
        before = sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file())
        assert run("merge", "node0", "node1", "--out", "whole").code == 0
        after = sorted((p, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file() and "whole" not in p.parts)
        assert after == before
        assert info(run, "whole")["ranks"] == list(range(8))

    def test_missing_ranks_and_hosts_are_named(self, run: Run, tmp_path: Path) -> None:
        self.host(tmp_path, "d", range(5))
        parts = [{"run_id": "5eed" * 4, "host": name} for name in ("d", "node7")]
        (tmp_path / "d/run.json").write_text(json.dumps({"format": 1, "run_id": "5eed" * 4, "parts": parts}))
        assert "ranks 5-7 of 8: no file (its part on node7)" in " ".join(run("merge", "d").err.split())
        [loss] = [row for row in info(run, "d")["losses"] if row["reason"] == "ranks_missing"]
        assert loss["lost_count"] == 3

    def test_a_rank_of_another_process_in_both(self, run: Run, tmp_path: Path) -> None:
        self.host(tmp_path, "node0", range(5))
        self.host(tmp_path, "node1", range(3, 8))
        answer = run("merge", "node0", "node1")
        assert (answer.code, answer.out) == (4, "")
        assert answer.err.startswith("error: node0 and node1 are not parts of one job: both hold ranks 3,4\n\nhint: ")

    def test_ranks_of_different_runs(self, run: Run, tmp_path: Path) -> None:
        self.host(tmp_path, "node0", range(4), run_id="aaaa" * 4)
        self.host(tmp_path, "node1", range(4, 8), run_id="bbbb" * 4, world=16)
        answer = run("merge", "node0", "node1")
        assert answer.code == 4
        assert answer.err.startswith(
            "error: node0 and node1 are not parts of one job: ranks or world sizes do not fit\n\nhint: compare them"
        )

    def test_the_same_name_on_another_day(self, run: Run, tmp_path: Path) -> None:
        """A rendezvous endpoint makes the same run id each time it is used."""
        self.host(tmp_path, "node0", range(4))
        self.host(tmp_path, "node1", range(4, 8), begin_s=90_000)
        answer = run("merge", "node0", "node1")
        assert answer.code == 4
        assert answer.err.startswith("error: node0 and node1 are not parts of one run: their recordings lie 25")

    def test_a_rendezvous_that_was_used_again(self, run: Run, tmp_path: Path) -> None:
        """The hosts of a torchrun end together, so a part that begins after another ended is of the next run."""
        self.host(tmp_path, "node0", range(1), world=2, GROUP_RANK="0")
        self.host(tmp_path, "node1", range(1, 2), world=2, begin_s=60, GROUP_RANK="1")
        facts = json.loads((tmp_path / "node0/run.json").read_text())
        for code, answer in ((0, 4), (1, 0)):
            ended = facts | {"exit_code": code, "end_realtime_ns": 1_700_000_030 * 10**9}
            (tmp_path / "node0/run.json").write_text(json.dumps(ended))
            merged = run("merge", "node0", "node1")
            assert merged.code == answer, "one that failed may have been started again by its scheduler"
            if code == 0:
                assert merged.err.startswith(
                    "error: node0 and node1 are not parts of one run: node0 had ended when node1 began\n\nhint: "
                )

    def test_an_elastic_job_may_have_a_rank_on_two_hosts(self, run: Run, tmp_path: Path) -> None:
        restart = {"GROUP_RANK": "0"}
        self.host(tmp_path, "node0", range(2), world=2, **restart)
        self.host(tmp_path, "node1", range(2), world=2, begin_s=60, TORCHELASTIC_RESTART_COUNT="1", **restart)
        assert run("merge", "node0", "node1").code == 0
        shown = info(run, "node0")
        assert shown["hosts"] == ["node1"]
        assert "--run 5eed5eed.0 has the others" in " ".join(row["advice"] for row in shown["losses"])
        assert info(run, "node0", "--run", "5eed.0")["hosts"] == ["node0"]
        missing = run("info", "node0", "--run", "5eed.2")
        assert missing.err == "error: run 5eed5eed has no start 2\n\nhint: it has 2 starts, counted from 0\n"

    def test_a_host_that_left_nothing(self, run: Run, tmp_path: Path) -> None:
        self.host(tmp_path / "all", "node0", range(4), world=4)
        self.host(tmp_path / "all", "node1", range(4, 5), world=4)
        [broken] = (tmp_path / "all/node1").glob("*.stash")
        broken.write_bytes(b"nothing of ours")
        answer = run("merge", "all")
        assert answer.code == 0
        assert "warning: all/node1 was left out: all/node1 holds no readable trace" in answer.err
        assert info(run, "all")["ranks"] == [0, 1, 2, 3]

    def test_a_copy_taken_while_the_job_ran_is_completed(self, run: Run, tmp_path: Path) -> None:
        self.host(tmp_path, "node0", range(2), world=3)
        self.host(tmp_path, "node1", range(2, 3), world=3)
        [early] = (tmp_path / "node1").glob("*.stash")
        assert run("merge", "node0", "node1").code == 0
        before = info(run, "node0")["records"]["posix_io"]
        early.unlink()
        writer = StashWriter(
            tmp_path / "node1",
            pid=102,
            host="node1",
            run_id="5eed" * 4,
            boot_id="node1",
            env={"RANK": "2", "WORLD_SIZE": "3"},
            metadata={"start_realtime_ns": 1_700_000_000 * 10**9},
        )
        rows = [writer.row("io_op", begin_ticks=ms(t), duration_ticks=1000, result_bytes=1) for t in (1, 5, 9)]
        writer.add("io_op", rows)
        writer.save()
        assert run("merge", "node0", "node1").code == 0
        assert info(run, "node0")["records"]["posix_io"] == before + 2

    def test_hosts_of_one_name_and_pid(self, run: Run, tmp_path: Path) -> None:
        """Containers of two machines that were given the same host name."""
        for number, boot in enumerate("ab"):
            writer = StashWriter(
                tmp_path / boot,
                pid=1,
                host="worker",
                boot_id=boot,
                run_id="5eed" * 4,
                env={"RANK": str(number), "WORLD_SIZE": "2"},
            )
            writer.sync(0)
            writer.save()
        assert run("merge", "a", "b", "--out", "c").code == 0
        assert info(run, "c")["ranks"] == [0, 1]
        assert sorted(p.name for p in (tmp_path / "c").glob("*.stash")) == ["worker.1.0.stash", "worker.1.1.stash"]

    def test_nothing_at_all(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert run("merge", "empty").err.startswith("error: empty holds no trace\n\nhint: ")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
    def test_a_read_only_part(self, run: Run, tmp_path: Path) -> None:
        part = self.host(tmp_path, "node0", range(2), world=2)
        part.chmod(0o500)
        assert run("merge", "node0", "--out", "whole").code == 0
        shutil.rmtree(tmp_path / "whole")
