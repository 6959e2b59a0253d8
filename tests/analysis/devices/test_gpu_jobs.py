"""Whose GPU a rank uses by the site's account: recorded from its files, and said where it is another job's."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import MS, TraceBuilder
from traced import run_traced

from stashtrace.analysis.devices.device_identity import gpu_jobs
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary

GPU, MIG = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae00", "MIG-265a219d-a49f-578a-825d-222c72699c16"


def job(own: str, site: dict[str, str], uuids: tuple[tuple[str, str], ...] = ((GPU, ""), (GPU, ""))) -> Trace:
    """A job of two ranks with a device each; ``site``: what its files say, ``uuids``: of the device and of its GPU."""
    build = TraceBuilder()
    code = build.strings.code
    for rank, (uuid, gpu) in enumerate(uuids):
        process = build.rank(rank)
        process.io(0, MS)
        build.add(
            "devices",
            process_id=process.process_id,
            rank=rank,
            device_index=0,
            uuid_code=code(uuid),
            gpu_uuid_code=code(gpu),
            name_code=code("H100"),
        )
        facts = {f"gpu_job {name}": text for name, text in site.items()}
        for key, value in (facts | ({"env.SLURM_JOB_ID": own} if own else {})).items():
            build.say(key, value, process.process_id)
    return build.trace("./x")


def said(trace: Trace) -> str:
    return " ".join(summary(trace).split())


def test_a_gpu_of_another_job_is_said() -> None:
    text = said(job("4710", {GPU: "4711"}))
    assert f"the site says that the GPU {GPU} of ranks 0,1 belongs to job 4711, and this is job 4710" in text


def test_several_gpus_of_another_job() -> None:
    other = GPU[:-1] + "1"
    text = said(job("4710", {GPU: "4711", other: "4711"}, ((GPU, ""), (other, ""))))
    assert f"the site says that 2 GPUs, {GPU} among them, of ranks 0,1 belong to job 4711, and this is job 4710" in text


@pytest.mark.parametrize(
    ("own", "site"), [("4710", {GPU: "4710"}), ("", {GPU: "4711"}), ("4710", {}), ("4710", {GPU[:-1] + "1": "4711"})]
)
def test_nothing_is_said_without_a_mismatch(own: str, site: dict[str, str]) -> None:
    assert "the site says" not in said(job(own, site))


def test_an_instance_of_a_gpu_is_named_first() -> None:
    found = gpu_jobs(job("7", {MIG: "7", GPU: "8"}, ((MIG, GPU), (MIG[:-1] + "0", GPU))))
    assert [(one.rank, one.site_job, one.is_of_another) for one in found] == [(0, "7", False), (1, "8", True)]


def test_the_files_of_the_site_are_recorded(tmp_path: Path) -> None:
    site = tmp_path / "gpu stat"
    site.mkdir()
    for name, text in ((GPU, "4711 1000\n"), (MIG, "4712 1000\n"), ("0", "4711 1000\n"), ("GPU-empty", "")):
        (site / name).write_text(text)
    (site / "GPU-folder").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/trackio.py").write_text("")  # any module that probes wait for
    run = run_traced("import trackio", tmp_path / "run", env={"STASHTRACE_GPU_JOBS": str(site)})
    found = {}
    for row in run.trace.metadata.rows():
        key = run.trace.text(row["key_code"])
        if key.startswith("gpu_job"):
            found[key] = run.trace.text(row["value_code"])
    assert found == {f"gpu_job {GPU}": "4711", f"gpu_job {MIG}": "4712"}
