"""``stashtrace layers``: a file, a run, what is printed and written, and complaints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replay.ddp_runs import MIB, ddp_run, step_ns
from replay.ssgd.mg_wfbp_logs import COSTS, googlenet

from stashtrace.cli import main
from stashtrace.replay.ssgd import Ring, read_layers, write_layers

pytest.importorskip("pyarrow", reason="the run of these tests is a store of Parquet files")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GoogLeNet, measured on 8 nodes."""
    out = tmp_path_factory.mktemp("layers") / "googlenet.tsv"
    write_layers(out, [googlenet("8")])
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with a message per gradient."""
    from stashtrace.exporters.store import export_store

    out = tmp_path_factory.mktemp("layers") / "run.store"
    export_store(ddp_run(1).trace(), out)
    return out


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["layers", *map(str, words), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def hop() -> tuple[str, ...]:
    """Options that make a message of 8 ranks cost what the fit of the logs says."""
    ring = Ring.of_messages(*COSTS["8"], workers=8)
    return ("--latency", f"{ring.latency_ns / 1e3!r}", "--bandwidth", f"{round(1e9 / ring.ns_per_byte)}")


def test_a_file_with_a_given_link(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, file, "--ranks", "1,8", *hop())
    assert (found["layers_count"], found["gradient_bytes"]) == (64, 4 * 13_379_136)
    assert found["merge"]["messages_count"] == 6
    assert found["merge"]["exposed_ns"] / 1e6 == pytest.approx(206.2 - 205.3, abs=0.1)
    assert found["layer_by_layer"]["exposed_ns"] / 1e6 == pytest.approx(233.7 - 205.3, abs=0.1)
    assert found["merge"]["exposed_ns"] <= found["bucket"]["exposed_ns"] < found["layer_by_layer"]["exposed_ns"]
    assert found["bucket"]["bucket_cap_mb"] > 0
    names = [(row["variant"], row["merged"]) for row in found["variants"]]
    assert names == [
        ("naive", False),
        ("prefetch", False),
        ("wfbp", False),
        ("wfbp", True),
        ("caffe-mpi", False),
        ("cntk", False),
        ("mxnet", False),
        ("tensorflow", False),
    ]
    naive = found["variants"][0]["iterations"]
    assert [row["ranks_count"] for row in naive] == [1, 8]
    assert naive[0]["speedup"] == 1
    single = 1.5 * 205.334312e6
    assert naive[0]["iteration_ns"] == pytest.approx(single, rel=1e-6)
    sent = 64 * COSTS["8"][0] + COSTS["8"][1] * 4 * 13_379_136
    assert naive[1]["speedup"] == pytest.approx(8 * single / (single + sent), rel=1e-4)


def test_a_file_with_measured_communication(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, file, "--measured-ranks", "8")
    assert (found["measured_iteration_ns"] - 1.5 * 205.334312e6) / 1e6 == pytest.approx(311.2 - 205.3, abs=0.1)
    assert found["hop"]["fitted_ranks_count"] == 8
    assert main(["layers", str(file), "--measured-ranks", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "64 layers, 64 of them with gradients, 53.5 MB in all"
    assert "one iteration of 8 ranks:" in lines
    assert any("predicted best size of buckets: bucket_cap_mb=" in line for line in lines)
    assert max(map(len, lines)) < 80


def test_the_guide_shows_what_is_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["layers", str(file), "--measured-ranks", "8", "--ranks", "1,2,4,8,16,32"]) == 0
    guide = (Path(__file__).resolve().parents[2] / "docs/guides/ssgd.md").read_text(encoding="utf-8")
    assert f"--ranks 1,2,4,8,16,32\n{capsys.readouterr().out}```" in guide


def test_times_that_no_file_holds(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, file, "--ranks", "8", *hop(), "--io-ms", "900", "--copy-ms", "100", "--update-ms", "1")
    pace = {row["variant"]: row["iterations"][-1]["iteration_ns"] for row in found["variants"]}
    assert pace["caffe-mpi"] == 1000e6
    assert pace["mxnet"] == 900e6
    assert pace["naive"] > 1300e6


def test_times_that_were_given_are_written_too(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "timed.tsv"
    found = asked(capsys, file, *hop(), "--io-ms", "900", "--copy-ms", "100", "--update-ms", "1", "-o", out)
    assert asked(capsys, out, *hop()) == found


def test_a_run_is_shown_and_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run.tsv"
    found = asked(capsys, run, "-o", out)
    assert found["measured_iteration_ns"] == pytest.approx(step_ns(1), abs=20)
    assert found["bucket"]["bucket_cap_mb"] * MIB <= MIB / 4
    written = read_layers(out)
    assert len(written) == 7
    again = asked(capsys, out, "--measured-ranks", "2")
    assert again["measured_iteration_ns"] == pytest.approx(found["measured_iteration_ns"], abs=20)


def test_one_layer_and_one_iteration_are_no_plurals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = tmp_path / "alone.txt"
    alone.write_text("0 fc 100 200 - 4000000\n")
    assert main(["layers", str(alone), *hop(), "--ranks", "1,2", "-o", str(tmp_path / "out.tsv")]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "1 layer with gradients, 4.00 MB in all"
    assert shown.err.endswith("out.tsv: 1 iteration of 1 layer\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 4, "on an unknown number of ranks"),
        (("--latency", "4"), 2, "need each other"),
        (("--latency", "4", "--bandwidth", "0"), 2, "must be more than 0"),
        (("--latency", "-4", "--bandwidth", "1G"), 2, "is not a length of time"),
        (("--bandwidth", "fast", "--latency", "4"), 2, "is not a size"),
        (("--ranks", "0,2"), 2, "is not a list of positive whole numbers"),
        (("--measured-ranks", "1"), 2, "is not a whole number of at least 2"),
        (("--ranks", "1", "--latency", "4", "--bandwidth", "1G"), 2, "nothing to merge"),
    ],
)
def test_requests_that_cannot_be_answered(
    file: Path, words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layers", str(file), *words]) == code
    assert text in capsys.readouterr().err


def test_files_that_hold_no_layers(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare.txt"
    bare.write_text("0 relu 1 2 3 0\n")
    assert main(["layers", str(bare), "--measured-ranks", "2"]) == 4
    assert "no layer has gradients" in capsys.readouterr().err
    bare.write_text("0 relu 1 2 3 zero\n")
    assert main(["layers", str(bare)]) == 4
    assert f"{bare}:1: size is 'zero'" in capsys.readouterr().err
    bare.write_text("0 fc 1 2 - 100\n")
    assert main(["layers", str(bare), "--measured-ranks", "2"]) == 4
    assert "no communication was measured" in capsys.readouterr().err
    assert main(["layers", str(run), "--measured-ranks", "2"]) == 2
    assert "is for files of layers" in capsys.readouterr().err
    assert main(["layers", str(tmp_path / "none")]) == 4
