"""Archives are read where they hold traces, within bounds; hostile ones are refused with one line."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from kineto_job import write_job
from mutations import mutated

import stashtrace
from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import StashtraceError
from stashtrace.importers import unpack_archive
from stashtrace.importers.source import Source
from stashtrace.importers.unpack_archive import archive_kind, unpack

pytestmark = pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")

Pack = Callable[[Path, Mapping[str, bytes]], None]


def tar(path: Path, files: Mapping[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as opened:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))


def tar_gz(path: Path, files: Mapping[str, bytes]) -> None:
    tar(path, files, "w:gz")


def packed(path: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files.items():
            opened.writestr(name, content)


PACKS: tuple[Pack, ...] = (tar, tar_gz, packed)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, bytes]:
    """Name in a folder and content of the files of two ranks."""
    write_job(tmp_path / "job")
    return {f"job/{path.name}": path.read_bytes() for path in sorted((tmp_path / "job").iterdir())}


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which an archive is refused, which has a hint."""
    assert main(["info", str(path)]) == 4
    first, empty, hint, *rest = capsys.readouterr().err.splitlines()
    assert (first[:7], empty, hint[:6], rest) == ("error: ", "", "hint: ", [])
    return first.removeprefix("error: ")


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


# What is read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", PACKS)
def test_an_archive_is_read_as_its_folder(pack: Pack, job: dict[str, bytes], tmp_path: Path) -> None:
    pack(tmp_path / "job.archive", job)
    whole, inside = stashtrace.load(tmp_path / "job"), stashtrace.load(tmp_path / "job.archive")
    assert sorted(inside.processes["rank"]) == sorted(whole.processes["rank"]) == [0, 1]
    one, other = (stashtrace.analyze(trace, "stalls", by="rank") for trace in (whole, inside))
    assert list(one.rows()) == list(other.rows())
    assert inside.path == str(tmp_path / "job.archive")


def test_a_run_of_ours_is_read_from_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_synthetic([str(tmp_path / "made"), "--ranks", "2", "--steps", "8"]) == 0
    files = {f"made/{path.name}": path.read_bytes() for path in (tmp_path / "made").iterdir()}
    packed(tmp_path / "made.archive", files)
    capsys.readouterr()
    for words in (["summary"], ["analyze", "stalls", "--by", "run"], ["whatif"]):
        assert main([*words, str(tmp_path / "made")]) == 0
        folder = capsys.readouterr().out.replace(str(tmp_path / "made"), "RUN")
        assert main([*words, str(tmp_path / "made.archive")]) == 0
        assert capsys.readouterr().out.replace(str(tmp_path / "made.archive"), "RUN") == folder


def test_what_is_unpacked_is_private_and_gone_at_the_end(job: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    tar(tmp_path / "here/job.tar", job)
    script = (
        "import os, stashtrace, sys; stashtrace.load('job.tar'); place = sys.argv[1]; (name,) = os.listdir(place)\n"
        "print(oct(os.stat(os.path.join(place, name)).st_mode & 0o777))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "there")],
        cwd=tmp_path / "here",
        env={**os.environ, "TMPDIR": str(tmp_path / "there")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0o700\n", "")
    assert os.listdir(tmp_path / "there") == []
    assert os.listdir(tmp_path / "here") == ["job.tar"]


def test_what_is_no_trace_stays_packed(job: dict[str, bytes], tmp_path: Path) -> None:
    more = {"job/a.jpg": b"x", "job/.hidden": b"x", "__MACOSX/job/rank0": b"x", "job/weights.safetensors": b"x"}
    packed(tmp_path / "job.zip", job | more)
    (tmp_path / "out").mkdir()
    asked: list[str] = []

    def is_wanted(name: str) -> bool:
        asked.append(name)
        return name.endswith(".json")

    assert unpack(tmp_path / "job.zip", "zip", tmp_path / "out", is_wanted) == 2
    assert written(tmp_path / "out") == sorted(job)
    assert sorted(asked) == sorted(job | more)
    trace = stashtrace.load(tmp_path / "job.zip")
    assert len(trace.losses) == len(stashtrace.load(tmp_path / "job").losses)


def test_messages_name_the_archive(job: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed(tmp_path / "job.zip", {**job, "job/rank2.json": b""})
    assert main(["info", str(tmp_path / "job.zip")]) == 0
    assert f"{tmp_path}/job.zip/rank2.json is empty" in capsys.readouterr().out
    packed(tmp_path / "none.zip", {"a/x.json": b"{}", "a/y.json": b"{}"})
    assert refusal(tmp_path / "none.zip", capsys) == f"{tmp_path}/none.zip holds no trace"


def test_sql_names_the_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The column ``run`` had the folders into which they were unpacked."""
    pytest.importorskip("duckdb")
    paths = []
    for name in ("one", "two"):
        assert write_synthetic([str(tmp_path / name), "--ranks", "1", "--steps", "8"]) == 0
        paths.append(str(tmp_path / f"{name}.zip"))
        packed(Path(paths[-1]), {f"made/{path.name}": path.read_bytes() for path in (tmp_path / name).iterdir()})
    capsys.readouterr()
    assert main(["sql", *paths, "select distinct run from steps order by run", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "run\none.zip\ntwo.zip\n"


def test_a_changed_archive_is_unpacked_again(job: dict[str, bytes], tmp_path: Path) -> None:
    packed(tmp_path / "job.zip", job)
    assert sorted(stashtrace.load(tmp_path / "job.zip").processes["rank"]) == [0, 1]
    name, content = next(iter(job.items()))
    packed(tmp_path / "job.zip", {name: content})
    assert sorted(stashtrace.load(tmp_path / "job.zip").processes["rank"]) == [0]


def test_archives_in_a_folder_or_in_an_archive_stay_packed(
    job: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    packed(tmp_path / "in/inner.zip", job)
    inner = (tmp_path / "in/inner.zip").read_bytes()
    shown = "is a zip archive, which is unpacked only where it is given by its name"
    assert refusal(tmp_path / "in", capsys) == f"{tmp_path}/in/inner.zip {shown}"
    packed(tmp_path / "outer.zip", {"inner.zip": inner})
    assert refusal(tmp_path / "outer.zip", capsys) == f"{tmp_path}/outer.zip/inner.zip {shown}"


def test_several_archives_are_parts_of_one_job(job: dict[str, bytes], tmp_path: Path) -> None:
    for number, (name, content) in enumerate(job.items()):
        packed(tmp_path / f"host{number}.zip", {name: content})
    trace = stashtrace.load([tmp_path / "host0.zip", tmp_path / "host1.zip"])
    assert sorted(trace.processes["rank"]) == [0, 1]


@pytest.mark.parametrize("words", [["merge"], ["scrub", "--in-place"]])
def test_an_archive_is_not_written_to(
    words: list[str], job: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed(tmp_path / "job.zip", job)
    before = (tmp_path / "job.zip").read_bytes()
    assert main([*words, str(tmp_path / "job.zip")]) in (2, 4)
    assert "is an archive, which is not written to" in capsys.readouterr().err
    assert (tmp_path / "job.zip").read_bytes() == before


# What is refused -----------------------------------------------------------------------------------------


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (link("rank0.json", "/etc/passwd"), "'rank0.json' in it is a link"),
        (link("rank0.json", "../x", tarfile.LNKTYPE), "'rank0.json' in it is a link"),
        (link("tty", "", tarfile.CHRTYPE), "'tty' in it is no plain file"),
        (link("pipe", "", tarfile.FIFOTYPE), "'pipe' in it is no plain file"),
        (tarfile.TarInfo("/etc/x.json"), "'/etc/x.json' in it has an absolute name"),
        (tarfile.TarInfo("a/../../x.json"), "'a/../../x.json' in it lies outside of it"),
    ],
)
def test_hostile_entries_of_tar(
    entry: tarfile.TarInfo, shown: str, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as opened:
        opened.addfile(entry)
    assert refusal(tmp_path / "evil.tar", capsys) == f"{tmp_path}/evil.tar is not unpacked: {shown}"
    assert written(tmp_path) == ["evil.tar"]
    assert written(temporary) == []


@pytest.mark.parametrize(
    ("name", "mode", "shown"),
    [
        ("rank0.json", stat.S_IFLNK | 0o777, "is a link"),
        ("rank0.json", stat.S_IFIFO | 0o777, "is no plain file"),
        ("/etc/x.json", stat.S_IFREG | 0o644, "has an absolute name"),
        ("../x.json", 0, "lies outside of it"),
    ],
)
def test_hostile_entries_of_zip(
    name: str, mode: int, shown: str, tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as opened:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        opened.writestr(entry, "/etc/passwd")
    assert refusal(tmp_path / "evil.zip", capsys) == f"{tmp_path}/evil.zip is not unpacked: {name!r} in it {shown}"
    assert written(tmp_path) == ["evil.zip"]
    assert written(temporary) == []


@pytest.mark.parametrize("pack", [tar_gz, packed])
def test_bombs_are_refused_when_they_have_grown_too_large(
    pack: Pack, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stashtrace.importers.import_limits.FREE_BYTES", 1 << 20)
    monkeypatch.setattr(unpack_archive, "FREE_BYTES", 1 << 20)
    pack(tmp_path / "bomb", {"rank0.json": bytes(4 << 20)})
    assert "unpacks to " in refusal(tmp_path / "bomb", capsys)
    assert written(temporary) == []


def test_a_sparse_entry_counts_as_long_as_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GNU's sparse entries say how many zeros to write; the archive holds none of them."""
    monkeypatch.setattr(unpack_archive, "FREE_BYTES", 1 << 20)
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    entry = tarfile.TarInfo("rank0.json")
    entry.pax_headers = {**headers, "GNU.sparse.name": "rank0.json"}
    content = b"1\n%d\n0\n" % (1 << 40)
    entry.size = 512
    with tarfile.open(tmp_path / "sparse.tar", "w", format=tarfile.PAX_FORMAT) as opened:
        opened.addfile(entry, io.BytesIO(content.ljust(512, b"\0")))
    assert "unpacks to more than" in refusal(tmp_path / "sparse.tar", capsys)


def test_a_header_that_would_fill_the_memory_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = tarfile.TarInfo("pax")
    entry.type, entry.size = tarfile.XHDTYPE, 4 << 30
    (tmp_path / "huge.tar").write_bytes(entry.tobuf() + bytes(4096))
    assert "a header is larger than any" in refusal(tmp_path / "huge.tar", capsys)


@pytest.mark.parametrize(("limit", "shown"), [("MOST_ENTRIES", "entries"), ("MOST_FILES", "files that may be traces")])
@pytest.mark.parametrize("pack", PACKS)
def test_entries_and_files_are_counted(
    pack: Pack,
    limit: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(unpack_archive, limit, 3)
    pack(tmp_path / "many", {f"rank{n}.json": b"{}" for n in range(4)})
    assert refusal(tmp_path / "many", capsys) == f"{tmp_path}/many holds more than 3 {shown}"


def test_folders_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar(tmp_path / "deep.tar", {"a/" * 30 + "rank0.json": b"{}"})
    assert "folders inside folders" in refusal(tmp_path / "deep.tar", capsys)


def test_a_full_disk_is_reported_before_it_is_full(
    job: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packed(tmp_path / "job.zip", job)
    monkeypatch.setattr(unpack_archive, "_RESERVE_BYTES", 1 << 62)
    assert "does not fit into" in refusal(tmp_path / "job.zip", capsys)


def test_an_encrypted_archive_says_so(
    job: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed(tmp_path / "job.zip", job)
    content = bytearray((tmp_path / "job.zip").read_bytes())
    for signature, flags_at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := content.find(signature, at + 1)) >= 0:
            content[at + flags_at] |= 1
    (tmp_path / "job.zip").write_bytes(content)
    assert refusal(tmp_path / "job.zip", capsys) == f"{tmp_path}/job.zip is encrypted"


def test_a_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed(tmp_path / "model.pt", {"model/data.pkl": b"x", "model/data/0": b"y", "model/version": b"3"})
    assert "is a file of torch.save" in refusal(tmp_path / "model.pt", capsys)


def test_an_archive_of_pictures_holds_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar(tmp_path / "shard.tar", {f"{n}.jpg": b"x" for n in range(3)})
    assert refusal(tmp_path / "shard.tar", capsys) == f"{tmp_path}/shard.tar is a tar archive without a trace"
    packed(tmp_path / "my shard.zip", {"a.jpg": b"x"})
    assert main(["info", str(tmp_path / "my shard.zip")]) == 4
    assert f"hint: `unzip -l '{tmp_path}/my shard.zip'` shows what is in it" in capsys.readouterr().err
    tar(tmp_path / "twice.tar", {"a": b"x", "a/b.json": b"{}"})
    assert "twice.tar is a damaged tar archive: 'a' in it is a file and a folder" in refusal(
        tmp_path / "twice.tar", capsys
    )


@pytest.mark.parametrize("pack", PACKS)
def test_damage_is_one_line_or_an_answer(pack: Pack, job: dict[str, bytes], tmp_path: Path, temporary: Path) -> None:
    pack(tmp_path / "whole", job)
    content = (tmp_path / "whole").read_bytes()
    answers = []
    for seed in range(30):
        path = tmp_path / f"damaged{seed}"
        path.write_bytes(mutated(content, random.Random(seed)))
        try:
            answers.append(stashtrace.load(path).path)
        except StashtraceError as error:
            answers.append(str(error))
    assert all(answer.startswith(str(tmp_path)) for answer in answers), (
        "the archive is named, not where it was unpacked"
    )
    assert {name for name in os.listdir(tmp_path) if not name.startswith("damaged")} == {"job", "whole"}


# What is an archive --------------------------------------------------------------------------------------


def test_what_is_no_archive(job: dict[str, bytes]) -> None:
    for content in (*job.values(), b"", bytes(512), b"x" * 512, b"PK", b"\x1f\x8b" + bytes(600)):
        assert archive_kind(content) is None


def test_a_tar_of_the_oldest_format_is_one(tmp_path: Path) -> None:
    """Without `ustar` in its header only the checksum shows it."""
    tar(tmp_path / "old.tar", {"a": b"x"})
    block = bytearray((tmp_path / "old.tar").read_bytes()[:512])
    block[257:265] = bytes(8)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert archive_kind(bytes(block)) == "tar"


def test_compression_is_seen_through(job: dict[str, bytes], tmp_path: Path) -> None:
    tar(tmp_path / "job.tar", job)
    (tmp_path / "job").with_suffix(".bin").write_bytes(gzip.compress((tmp_path / "job.tar").read_bytes()))
    assert archive_kind(Source(tmp_path / "job.bin").head) == "tar"
