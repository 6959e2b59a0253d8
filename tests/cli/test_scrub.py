"""``stashtrace scrub``: nothing of a secret stays in any byte, every analysis gives the same numbers."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ROOT, Answer
from stash_files import StashWriter, ms, write_run_json

import stashtrace
from stashtrace.analysis.registry import ANALYSES, analyze
from stashtrace.cli import main
from stashtrace.errors import StashtraceError
from stashtrace.format.compact import write_packed
from stashtrace.format.container import pack_segment
from stashtrace.format.reader import open_run
from stashtrace.format.scrub_file import ScrubbedFile
from stashtrace.lab import synth
from stashtrace.scrubbing.pseudonyms import Scrubber, Survey
from stashtrace.scrubbing.secrets import RANK_VARIABLES

Run = Callable[..., Answer]
GOLDEN = ROOT / "tests/data/golden"
HOST = "gpu-node-07"
USER = "jane.doe"
#: Each stands somewhere in the old run; none may stand in the new one.
SECRETS = ("Zk1argument", "Zk2variable", "Zk3password", "Zk4signature", "Zk5equals", "Zk6script")


class Spoiler:
    """In the place of a Scrubber: puts into a file what a recorder without rules would have stored."""

    done: tuple[str, ...] = ()
    survey = Survey()

    def after(self, done: object) -> Spoiler:
        return self

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **facts,
            **OLD_FACTS,
            "env": {
                **facts["env"],
                "SLURM_JWT": SECRETS[1],
                "HF_TOKEN": SECRETS[1],
                "MASTER_ADDR": HOST,
                "SLURM_PROCID": "0",
            },
        }

    def text(self, text: str) -> str:
        if not text.startswith("/"):
            return f"opening {SECRETS[0]} with HF_TOKEN={SECRETS[4]} on {HOST}" if text == "transform" else text
        if text.endswith("0.JPEG"):
            return f"https://me:{SECRETS[2]}@bucket.example{text}?X-Signature={SECRETS[3]}"
        return f"/home/{USER}{text}"


OLD_FACTS = {
    "host": HOST,
    "argv": [
        f"/home/{USER}/bin/python",
        f"/home/{USER}/train.py",
        "--api-key",
        SECRETS[0],
        f"--x.auth_token={SECRETS[4]}",
        "sh -c",
        f"PASSWORD={SECRETS[5]} run",
        "--max-tokens",
        "5",
    ],
}


@pytest.fixture
def old(tmp_path: Path, old_run: Path) -> Path:
    """A copy of :func:`old_run`."""
    return Path(shutil.copytree(old_run, tmp_path / "old"))


@pytest.fixture(scope="module")
def old_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks as a recorder without rules would leave it: merged, summed up, with secrets everywhere."""
    tmp_path = tmp_path_factory.mktemp("older")
    synth.write(tmp_path / "made", synth.SyntheticJob(ranks=2, steps=6, calls_per_batch=6))
    run = tmp_path / "old"
    run.mkdir()
    for path in sorted((tmp_path / "made").glob("*.stash")):
        spoiled = ScrubbedFile(str(path), Spoiler())  # type: ignore[arg-type]
        write_packed(spoiled, str(run / path.name.replace("synth.", f"{HOST}.")))
    facts = json.loads((tmp_path / "made/run.json").read_text())
    facts |= {"host": HOST, "command": OLD_FACTS["argv"], "cwd": f"/home/{USER}"}
    (run / "run.json").write_text(json.dumps(facts))
    (run / f"launch.{HOST}.17.json").write_text(json.dumps({**facts, "parts": [facts]}))
    (run / "notes.txt").write_text(SECRETS[0])
    shutil.rmtree(tmp_path / "made")
    assert main(["merge", str(run)]) == 0
    return run


def everything(place: Path) -> bytes:
    """All bytes below a path, as they lie there and unpacked, and the names of the files."""
    parts: list[bytes] = []
    for path in [place, *sorted(place.rglob("*"))]:
        parts.append(path.name.encode())
        if path.is_dir():
            continue
        data = path.read_bytes()
        parts.append(data)
        if path.suffix == ".gz":
            parts.append(gzip.decompress(data))
        elif path.suffix == ".stash":
            process = open_run(str(path)).processes[0]
            parts += [repr((process.metadata, process.losses)).encode(), *process.text_bytes().values()]
            for found in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", data):  # also what no reader would look at
                unpacked = zlib.decompressobj()
                try:
                    parts.append(unpacked.decompress(data[found.start() :]))
                except zlib.error:
                    continue
        elif path.suffix == ".parquet":
            import pyarrow.parquet

            parts.append(repr(pyarrow.parquet.ParquetFile(path).read().to_pydict()).encode())
    return b"\n".join(parts)


def held(place: Path, words: tuple[str, ...] = SECRETS) -> list[str]:
    text = everything(place)
    return [word for word in words if word.encode() in text]


def numbers(place: Path) -> dict[str, Any]:
    """Numeric columns of every analysis, rows in order of their numbers; its complaint where it has none."""
    trace = stashtrace.load(str(place))
    found: dict[str, Any] = {}
    for name, _, _ in ANALYSES:
        try:
            table = analyze(trace, name)
        except StashtraceError as error:
            found[name] = type(error).__name__
            continue
        columns = [c.name for c in table.schema.columns if not c.is_text and not c.dtype.startswith("U")]
        rows = zip(*(np.asarray(table[c]).tolist() for c in columns), strict=True) if columns else ()
        found[name] = columns, sorted(map(repr, rows))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [(), ("--all",), *(pytest.param((word,), marks=pytest.mark.thorough) for word in ("--paths", "--hosts"))]
)
def test_nothing_stays_and_numbers_are_equal(old: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    before, new = everything(old), tmp_path / "new"
    assert held(old) == list(SECRETS)
    assert main(["scrub", str(old), "-o", str(new), *options]) == 0
    assert held(new) == []
    gone = {"--paths": (USER,), "--hosts": (HOST,), "--all": (USER, HOST)}.get(options[0] if options else "", ())
    assert held(new, (USER, HOST)) == [word for word in (USER, HOST) if word not in gone]
    assert everything(old) == before
    assert {p.suffix for p in new.iterdir()} == {".stash", ".json", ".txt", ".gz"}
    assert not (new / "notes.txt").exists()
    assert oct(new.stat().st_mode & 0o777) == "0o700"
    assert {oct(p.stat().st_mode & 0o777) for p in new.iterdir()} == {"0o600"}
    assert numbers(old) == numbers(new)
    kept = json.loads((new / "run.json").read_text())["command"]
    assert kept[2:] == [
        "--api-key",
        "<scrubbed>",
        "--x.auth_token=<scrubbed>",
        "sh -c",
        "PASSWORD=<scrubbed> run",
        "--max-tokens",
        "5",
    ]
    env = open_run(str(new)).processes[0].metadata["env"]
    assert {"SLURM_PROCID", "RANK"} <= env.keys() <= RANK_VARIABLES


def test_pseudonyms_keep_folders_and_endings(old: Path, tmp_path: Path) -> None:
    assert main(["scrub", str(old), "-o", str(tmp_path / "new"), "--all"]) == 0

    def paths(run: Path) -> list[str]:
        trace = stashtrace.load(str(run))
        return sorted({trace.text(code) for code in trace.io["path_code"].tolist()})

    before, after = paths(old), paths(tmp_path / "new")
    assert len(before) == len(after) > 2
    plain = [
        sorted(
            (p.partition("?")[0].count("/"), p.startswith("https://"), p.partition("?")[0].rpartition(".")[2])
            for p in some
        )
        for some in (before, after)
    ]
    assert plain[0] == plain[1]
    assert sum(is_url for _, is_url, _ in plain[1]) > 0
    local = [[p for p in some if p.startswith("/")] for some in (before, after)]
    assert sorted(p.count("/") for p in local[0]) == sorted(p.count("/") for p in local[1])
    assert len({p.rpartition("/")[0] for p in local[0]}) == len({p.rpartition("/")[0] for p in local[1]})
    (host,) = {p.metadata["host"] for p in open_run(str(tmp_path / "new")).processes}
    assert {p.name.partition(".")[0] for p in (tmp_path / "new").glob("*.stash")} == {host}
    assert (tmp_path / "new" / f"launch.{host}.17.json").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("merged", "v1"),
        ("killed", "v1_devices"),
        pytest.param("merged", "v1_devices", marks=pytest.mark.thorough),
        pytest.param("killed", "v1", marks=pytest.mark.thorough),
    ],
)
def test_golden_files(tmp_path: Path, version: str, name: str) -> None:
    """One file, with and without a ring, and a directory of it."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(GOLDEN / version / f"{name}.stash", run)
    if name == "killed":
        (run / "killed.ring").write_bytes(gzip.decompress((GOLDEN / version / "killed.ring.gz").read_bytes()))
    age(run)
    for source in (run, run / f"{name}.stash"):
        new = tmp_path / f"new-{source.name}"
        assert main(["scrub", str(source), "-o", str(new), "--all"]) == 0
        assert numbers(source) == numbers(new)
        assert b"node01" not in everything(new)
        assert not list(tmp_path.rglob("new*/*.ring"))


def age(directory: Path) -> None:
    """Files of another host that were written just now would be taken for a run that still goes on."""
    for path in directory.iterdir():
        os.utime(path, (1e9, 1e9))


def raw_run(directory: Path) -> None:
    """A process that was killed: secrets in its file, in rows of the ring, and in slots that were drained."""
    for pid, host in ((11, "alpha-1"), (12, "beta-2")):
        env = {"RANK": str(pid - 11), "WORLD_SIZE": "2", "AWS_SECRET": SECRETS[1]}
        argv = {"argv": ["t.py", "--token", SECRETS[0]]}
        file = StashWriter(directory, pid=pid, host=host, boot_id=f"b00{pid}", env=env, metadata=argv)
        file.sync(0, 50)
        url = file.intern(f"s3://u:{SECRETS[2]}@bucket/{'long/' * 20}part.bin?sig={SECRETS[3]}")
        file.add(
            "io_op", [file.row("io_op", begin_ticks=ms(1), duration_ticks=900, path_id=url, op_code=1, result_bytes=7)]
        )
        span = file.row("span", begin_ticks=ms(2), end_ticks=ms(3), name_id=9)
        file.add("span", [span])
        text = f"PASSWORD={SECRETS[5]}".encode()
        file.add_ring("string_part", [(9, 0, len(text), text)])
        file.add_ring(
            "io_op", [file.row("io_op", begin_ticks=ms(4), duration_ticks=50, path_id=url, op_code=1)], dropped=3
        )
        file.save()
    with open(directory / "alpha-1.11.0.ring", "r+b") as ring:  # a slot whose row was drained long ago
        ring.seek(4096 * 2 + 64 * 5)
        ring.write(SECRETS[4].encode())
    write_run_json(directory, host="alpha-1", command=["t.py", "--token", SECRETS[0]])
    age(directory)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("in_place", [False, True])
def test_raw_files_of_two_hosts(tmp_path: Path, in_place: bool) -> None:
    run = tmp_path / "run"
    raw_run(run)
    before = numbers(run)
    assert set(held(run)) == set(SECRETS)
    words = ["--in-place"] if in_place else ["-o", str(tmp_path / "new")]
    assert main(["scrub", str(run), *words, "--all"]) == 0
    new = run if in_place else tmp_path / "new"
    assert held(new, (*SECRETS, "alpha-1", "beta-2", "bucket")) == []
    assert numbers(new) == before
    assert len(list(new.glob("host-*.stash"))) == 2
    assert {loss[1:4:2] for p in open_run(str(new)).processes for loss in p.losses} == {("lane_full_rows", 3)}


@pytest.mark.filterwarnings("ignore")
def test_rows_that_nobody_can_read_are_left_out_and_counted(tmp_path: Path) -> None:
    file = StashWriter(tmp_path / "run", env={"RANK": "0"})
    file.sync(0, 50)
    file.segments.append(
        pack_segment(b"12345678" * 7, record_id=0x777, codec=9, tid=1, ring_id=3, row_count=7, first_sequence=0)
    )
    file.save()
    assert main(["merge", str(tmp_path / "run")]) == 0
    assert main(["scrub", str(tmp_path / "run"), "-o", str(tmp_path / "new")]) == 0
    for run in ("run", "new"):
        found = {loss[1]: loss[3] for p in open_run(str(tmp_path / run)).processes for loss in p.losses}
        assert found == {"unknown_record_rows": 7}
    assert all("record_0x777" not in p.row_counts() for p in open_run(str(tmp_path / "new")).processes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("in_place", "options"),
    [
        (False, ("--all",)),
        (True, ()),
        pytest.param(False, (), marks=pytest.mark.thorough),
        pytest.param(True, ("--all",), marks=pytest.mark.thorough),
    ],
)
def test_store(old: Path, tmp_path: Path, options: tuple[str, ...], in_place: bool) -> None:
    pytest.importorskip("pyarrow")
    store = tmp_path / "a.store"
    assert main(["export", "parquet", str(old), "-o", str(store)]) == 0
    assert len(held(store)) > 3
    before = numbers(store)
    words = ["--in-place"] if in_place else ["-o", str(tmp_path / "new")]
    for _ in range(1 + in_place):  # a second time changes no numbers
        assert main(["scrub", str(store), *words, *options]) == 0
    new = store if in_place else tmp_path / "new"
    assert held(new, (*SECRETS, *((USER, HOST) if options else ()))) == []
    assert numbers(new) == before


class _Interrupter:
    """Raises KeyboardInterrupt instead of the n-th replacement of a file, or behind it."""

    def __init__(self, at: int, behind: bool) -> None:
        self.left, self.behind, self.replace = at, behind, os.replace

    def __call__(self, source: Any, target: Any) -> None:
        self.left -= 1
        if self.left != 0 or self.behind:
            self.replace(source, target)
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore")
def test_interrupted_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted at any replacement, then called again: all is as if it had not been interrupted."""
    run = tmp_path / "run"
    raw_run(run)
    before = numbers(run)
    shutil.rmtree(run)
    interrupted = 0
    for at in range(1, 40):
        raw_run(run)
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", _Interrupter(at, behind=bool(at % 2)))
            code = main(["scrub", str(run), "--in-place", "--all"])
        if code == 0:
            break
        assert code == 130
        interrupted += 1
        stashtrace.load(str(run))
        assert main(["scrub", str(run), "--in-place", "--all"]) == 0
        assert held(run, (*SECRETS, "alpha-1", "beta-2")) == []
        assert numbers(run) == before
        assert sorted(p.suffix for p in run.iterdir()) == [".json", ".stash", ".stash"]
        hosts = {p.metadata["host"] for p in open_run(str(run)).processes}
        assert hosts == {p.name.partition(".")[0] for p in run.glob("*.stash")}
        assert json.loads((run / "run.json").read_text())["host"] in hosts
        shutil.rmtree(run)
    assert interrupted > 5


def test_interrupted_into_a_new_place(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, names = everything(old), set(os.listdir(tmp_path))
    for at in (1, 4):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", _Interrupter(at, behind=False))
            assert main(["scrub", str(old), "-o", str(tmp_path / "new"), "--all"]) == 130
        assert set(os.listdir(tmp_path)) == names
        assert everything(old) == before


KILLED = """
import os, signal, sys
from stashtrace.cli import main
from stashtrace.cli.commands import scrub
scrub._Work._make_views = lambda work, shown: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.mark.filterwarnings("ignore")
def test_killed_on_the_way_into_a_new_place(old: Path, tmp_path: Path) -> None:
    """What a SIGKILL leaves, scrubbed or not yet, goes with the next call for the same place."""
    names = set(os.listdir(tmp_path))
    words = ["scrub", str(old), "-o", str(tmp_path / "new")]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *words], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=100
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = set(os.listdir(tmp_path)) - names
    assert (tmp_path / left).stat().st_mode & 0o777 == 0o700
    assert len(os.listdir(tmp_path / left)) > 2
    assert main(words) == 0
    assert set(os.listdir(tmp_path)) - names == {"new"}


JOB = """
import os, subprocess, sys
import stashtrace
open("/dev/null").close()
for words in (["-o", "new"], ["--in-place"]):
    done = subprocess.run([sys.executable, "-m", "stashtrace", "scrub", os.environ["STASHTRACE_DIR"], *words],
                          capture_output=True, text=True, env={k: v for k, v in os.environ.items()
                          if k != "LD_PRELOAD" and not k.startswith("STASHTRACE")})
    print(done.returncode, done.stderr.splitlines()[0])
"""


@pytest.mark.filterwarnings("ignore")
def test_a_recorded_run(run: Run, tmp_path: Path) -> None:
    """While it records it is refused; afterwards it gives the same numbers."""
    (tmp_path / "job.py").write_text(JOB)
    answer = run("run", "--out", "out", "--", sys.executable, "job.py", "--password", "Zk1argument")
    assert answer.code == 0, answer.err
    first, second = answer.out.splitlines()
    assert first.startswith("4 error: ")
    assert "is still being recorded by `stashtrace run` (process " in first
    assert second.startswith("4 error: ")
    assert not (tmp_path / "new").exists()
    done = run("scrub", "out", "-o", "new", "--all")
    assert done.code == 0, done.err
    assert numbers(tmp_path / "out") == numbers(tmp_path / "new")
    assert str(tmp_path).encode() not in everything(tmp_path / "new")


def test_complaints(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for words, code, text in (
        ([str(old)], 2, "give either -o NEW or --in-place"),
        ([str(old), "-o", str(tmp_path / "n"), "--in-place"], 2, "give either -o NEW or --in-place"),
        ([str(old), "-o", str(old)], 3, "exists already"),
        ([str(old), "-o", str(tmp_path / "a/b")], 3, "no such folder"),
        ([str(tmp_path / "nowhere"), "-o", "n"], 4, "does not exist"),
        ([str(ROOT / "docs"), "-o", str(tmp_path / "n")], 4, "holds no run of stashtrace"),
        ([str(old / "run.json"), "-o", str(tmp_path / "n")], 4, "is not a stashtrace file"),
    ):
        assert main(["scrub", *words]) == code
        assert text in capsys.readouterr().err
    assert not (tmp_path / "n").exists()


def test_texts() -> None:
    survey = Survey()
    survey.add_host("node7.example.org")
    survey.add_file("/home/ann/my data/a.bin")
    survey.add_file("/home/ann.lee/x.tar.gz")
    scrubber = Scrubber(survey, b"k", paths=True, hosts=True)
    assert scrubber.text("forward") == "forward"
    assert scrubber.text("step 5/7 at 10 MB/s") == "step 5/7 at 10 MB/s"
    assert "/ann" not in scrubber.text("cannot read /home/ann/my data/a.bin: gone")
    assert scrubber.text("in /home/ann/my data/a.bin") == "in " + scrubber.path("/home/ann/my data/a.bin")
    assert scrubber.path("/home/ann.lee/x.tar.gz").endswith(".gz")
    assert "." not in scrubber.path("/home/ann.lee")
    assert scrubber.path("/home/ann.lee/x.tar.gz").startswith(scrubber.path("/home/ann.lee") + "/")
    assert scrubber.path("/proc/1/stat") == "/proc/1/stat"
    assert scrubber.path("/dev/shm/ann") != "/dev/shm/ann"
    assert scrubber.text("10.1.2.3:80").endswith(":80")
    assert "10.1.2.3" not in scrubber.text("connected to 10.1.2.3 from node7")
    assert "node7" not in scrubber.text("connected to 10.1.2.3 from node7")
    assert scrubber.text("127.0.0.1:80 and [::1]:9") == "127.0.0.1:80 and [::1]:9"
    assert re.fullmatch(r"at s3://p[0-9a-f]{12}/p[0-9a-f]{12}/p[0-9a-f]{12}\.bin", scrubber.text("at s3://b-x/c/d.bin"))
    assert scrubber.text("tcp://localhost:29500") == "tcp://localhost:29500"
    assert "fe80" not in scrubber.text("[fe80::1:2]:9")
    assert scrubber.words(["python3", "-m", "torch.distributed.run", "train.py"])[:3] == [
        "python3",
        "-m",
        "torch.distributed.run",
    ]
    assert re.fullmatch(r"p[0-9a-f]{12}\.py", scrubber.words(["python3", "train.py"])[1])
