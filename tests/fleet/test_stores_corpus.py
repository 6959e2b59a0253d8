"""A store of each kind of real trace answers as the files themselves do."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="stores are Parquet files")
pytest.importorskip("dask", reason="ranks are shared out by Dask")

from corpus import corpus
from fleet.test_stores import compare, texts

import stashtrace
from stashtrace.exporters.store import export_store

#: Name -> analyses that have an answer rank by rank, at least.
JOBS = {
    "kineto/dlrm8_v100": 13,
    "kineto/sampled_128": 13,
    "kineto/one_rank_of_many/nccl_meta_rank0_of_2.json.gz": 13,
    "kineto/one_gpu/tb_r50_nw4.pt.trace.json.gz": 11,
    "nsys/h100_2gpu_1s.sqlite": 11,
    "nsys/mock.sqlite": 11,
    "nsys/saxpy-mpi-cuda_perlmutter0.sqlite": 11,
    "dftracer": 7,
}


#: The largest ones; the gate has traces of the same kinds.
LARGE = ("kineto/dlrm8_v100", "dftracer")


@pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in LARGE)) for name in JOBS])
def test_ranks_of_real_jobs_are_attributed_as_without_a_store(name: str, tmp_path: Path) -> None:
    trace = stashtrace.load(corpus(name))
    export_store(trace, tmp_path / "store")
    assert compare(trace, tmp_path / "store") >= JOBS[name]


@pytest.mark.filterwarnings("ignore::stashtrace.errors.DataLossWarning")
@pytest.mark.parametrize(("name", "analysis"), [("darshan/unet3d_a100.darshan", "io"), ("darshan/dxt.darshan", "io")])
def test_logs_without_steps_answer_from_a_store(name: str, analysis: str, tmp_path: Path) -> None:
    pytest.importorskip("darshan", reason="reads Darshan's logs")
    before = stashtrace.load(corpus(name))
    export_store(before, tmp_path / "store")
    after = stashtrace.load(tmp_path / "store")
    found = stashtrace.analyze(after, analysis)
    assert len(found)
    assert texts(found, after.strings) == texts(stashtrace.analyze(before, analysis), before.strings)
