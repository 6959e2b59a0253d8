"""The guide on GPU traces shows what the commands print today, and its numbers are those of the job's script."""

from __future__ import annotations

import importlib.util
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from device_text import device_trace
from kineto_job import FORWARD, PARAMETERS, STEPS, UPDATE, write_job

import stashtrace
from stashtrace.analysis.devices.kernels import kernel_diff
from stashtrace.analysis.registry import analyze
from stashtrace.cli import main
from stashtrace.schema.trace import Trace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guide")
    write_job(made / "job")
    write_job(made / "slower", 610)
    return made


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return stashtrace.load(str(folder / "job"))


def test_the_pages_show_what_is_printed() -> None:
    spec = importlib.util.spec_from_file_location("generate_guides", ROOT / "scripts/docs/generate_guides.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for page in module.PAGES:
        if page.name == "sql.md" and find_spec("duckdb") is None:
            continue
        assert module.refreshed(page) == page.read_text(encoding="utf-8"), "run python scripts/docs/generate_guides.py"


def test_the_job_is_read_as_it_was_written(trace: Trace) -> None:
    table = analyze(trace, "breakdown")
    assert table["work_count"].tolist() == [STEPS * (FORWARD + UPDATE + 2)] * 2
    assert table["input_wait_ns"].tolist() == [STEPS * 3_000_000, sum(9_000_000 + 200_000 * s for s in range(STEPS))]
    copies = analyze(trace, "copies")
    assert copies["host_memory"].tolist() == ["pinned", "pinned"]
    assert copies["mean_bytes_per_s"] == pytest.approx(25_690_112 / 1050e-6)


def test_the_link_is_as_fast_as_it_was_made(trace: Trace) -> None:
    (row,) = analyze(trace, "bandwidth").rows()
    assert row["transfer_bus_bytes_per_s"] == pytest.approx(4 * PARAMETERS / 1400e-6, rel=1e-3)
    assert row["bus_bytes_per_s"] < row["transfer_bus_bytes_per_s"] / 3


def test_idle_is_the_loaders(trace: Trace) -> None:
    rows = [r for r in analyze(trace, "idle").rows() if r["rank"] == 1]
    assert max(rows, key=lambda row: row["idle_ns"])["cause"] == "input"


def test_what_became_slower_is_named(folder: Path, trace: Trace) -> None:
    rows = {row["name"]: row for row in kernel_diff(trace, stashtrace.load(str(folder / "slower"))).rows()}
    changed = {name: row["change_ns"] for name, row in rows.items() if row["verdict"] != "no difference"}
    assert set(changed) == {"all", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"}
    assert set(changed.values()) == {190_000 * FORWARD // 4}


def test_options_and_formats(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "breakdown", str(folder / "job"), "--orphans", "drop", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = ("window", "busy", "idle", "compute", "communication", "exposed_communication", "memcpy", "input_wait")
    assert all(isinstance(row[f"{name}_ns"], int) for row in rows for name in names)
    assert [row["rank"] for row in rows] == [0, 1]
    assert main(["analyze", "steps", str(folder / "job"), "--last-step", "drop"]) == 2
    assert "has no option --last-step" in capsys.readouterr().err
    assert main(["diff", str(folder / "job"), str(folder / "slower"), "--of", "kernels", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("name,work,before_ns,after_ns,change_ns")


def test_diff_of_runs_without_steps_is_that_of_kernels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = iter(["rank 0 stream a: AAAA.BB", "rank 0 stream a: AAAA.CCC"])
    monkeypatch.setattr("stashtrace.loading.load.load_trace", lambda path, **_: device_trace(next(drawn)))
    assert main(["diff", str(folder / "job"), str(folder / "slower")]) == 0
    printed = capsys.readouterr().out
    assert "appeared: C +3.00 us" in printed
    assert "vanished: B -2.00 us" in printed
    drawn = iter(["rank 0 stream a: AAAA.BB"] * 2)
    assert main(["diff", str(folder / "job"), str(folder / "slower"), "--of", "stalls"]) == 4
