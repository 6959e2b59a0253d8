"""What a recording says of its job: ranks, hardware, versions, batch, data and command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stashtrace.analysis.compare.job_identity import FIELDS, job_facts
from stashtrace.analysis.compare.steps_of_run import steps_of_run
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.epochs import FACT
from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.errors import MissingDataError
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.loading.load import load_trace
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import BatchPhase, ProcessRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    run = tmp_path_factory.mktemp("made") / "run"
    write(run, SyntheticJob(ranks=2, workers=3, steps=40, calls_per_batch=0))
    return load_trace(str(run))


def ranks_of(trace: Trace) -> list[int]:
    processes = trace.processes
    return processes["process_id"][processes["role_code"] == ProcessRole.RANK].tolist()


def with_facts(trace: Trace, of_run: dict[str, str], *of_ranks: dict[str, str]) -> Trace:
    """The same run, having said these facts of itself and of its ranks."""
    rows = []
    for process, facts in [(-1, of_run), *zip(ranks_of(trace), of_ranks, strict=True)]:
        rows += [(process, trace.strings.code(key), trace.strings.code(value)) for key, value in facts.items()]
    return trace.replace(metadata=Table.from_rows(TABLES["metadata"], rows))


def with_device(trace: Trace, *names: str) -> Trace:
    """The same run, each rank with a separate device."""
    rows = [
        (process, rank, 0, 0, *(trace.strings.code(text) for text in (f"GPU-{rank}", "", name, "")), 80, 132, 90, 13020)
        for rank, (process, name) in enumerate(zip(ranks_of(trace), names, strict=True))
    ]
    return trace.replace(devices=Table.from_rows(TABLES["devices"], rows))


def test_what_is_recorded(trace: Trace) -> None:
    common = {"torch_version": "2.13.0", "backend": "nccl", "torch_threads": "4", "argv": "python train.py --lr 0.1"}
    loaders = {}
    for rank in (0, 1):
        waits = (trace.batches["rank"] == rank) & (trace.batches["phase_code"] == BatchPhase.WAIT)
        (loader,) = np.unique(trace.batches["loader_id"][waits]).tolist()
        loaders[rank] = {f"{FACT}{loader:016x}": "32 500 1000"}
    of_run = {"cpu": "EPYC", "cores_count": "64", "stashtrace_version": "0.1.0", "gpu_driver": "present"}
    full = with_device(with_facts(trace, of_run, common | loaders[0], common | loaders[1]), "H200", "H200")
    facts = job_facts(full, counted_steps(steps(full)), ["host"])
    assert facts == {
        "ranks": 2,
        "batch": 32,
        "device": "H200",
        "hosts": 1,
        "devices": 2,
        "driver": 13020,
        "cpu": "EPYC",
        "cores": 64,
        "torch": "2.13.0",
        "backend": "nccl",
        "threads": "4",
        "workers": 3,
        "micro_batches": 1,
        "dataset": 1000,
        "epoch": 1000,
        "steps": 35,
        "method": "host",
        "stashtrace": "0.1.0",
        "collectors": None,
        "importer": None,
        "command": "python train.py --lr 0.1",
    }
    assert facts.keys() == {field.name for field in FIELDS}


def test_what_ranks_say_differently(trace: Trace) -> None:
    mixed = with_facts(trace, {}, {"torch_version": "2.13.0"}, {"torch_version": "2.12.0"})
    facts = job_facts(with_device(mixed, "H200", "A100"))
    assert (facts["torch"], facts["device"]) == ("2.12.0 and 2.13.0", "A100 and H200")


def test_workers_of_each_epoch_are_those_of_one_loader(trace: Trace) -> None:
    """A loader that starts its workers again with each of three epochs has 3, not 9."""
    processes = trace.processes
    workers = processes.take(processes["role_code"] == ProcessRole.WORKER)
    again = [workers.replace(process_id=workers["process_id"] + 1000 * epoch) for epoch in (1, 2)]
    assert job_facts(trace.replace(processes=Table.concat(TABLES["processes"], [processes, *again])))["workers"] == 3


def test_what_nobody_says(trace: Trace) -> None:
    facts = job_facts(with_facts(trace, {}, {}, {}))
    assert (facts["ranks"], facts["hosts"], facts["workers"]) == (2, 1, 3)
    unknown = {name for name, value in facts.items() if value is None}
    assert unknown == facts.keys() - {"ranks", "hosts", "workers"}
    assert job_facts(with_facts(trace, {"gpu_driver": "none"}, {}, {}))["device"] == "none"


def test_nonsense_is_not_recorded(trace: Trace) -> None:
    assert job_facts(with_facts(trace, {"cores_count": "many"}, {}, {}))["cores"] is None


def test_steps_are_means_over_ranks_and_add_up(tmp_path: Path) -> None:
    write(tmp_path / "run", SyntheticJob(ranks=3, steps=40, calls_per_batch=12, late_rank=1, late_ns=9_000_000))
    trace = load_trace(str(tmp_path / "run"))
    found = steps_of_run(trace, "name")
    assert (found.name, found.steps_count, found.facts["method"]) == ("name", 35, "host")
    table = stalls(trace)
    counted = counted_steps(steps(trace))
    inside = np.isin(table["step"], counted["step"])
    for kind in found.kinds[1:]:
        total = table["stall_ns"][inside & (table["kind"] == kind)].sum()
        assert found.of(kind).sum() == pytest.approx(total / 3, abs=35)
    assert sum(found.of(kind).sum() for kind in found.kinds[1:]) == pytest.approx(found.of("step").sum(), abs=35 * 12)
    assert found.of("checkpoint").tolist() == [0] * 35
    late = [found.ranks_ns[rank]["compute"] for rank in (0, 1, 2)]
    assert late[1] - late[0] == pytest.approx(9_000_000, rel=0.01)
    assert found.ranks_ns[0]["straggler"] == pytest.approx(9_000_000, rel=0.01)


def test_a_trace_without_steps(trace: Trace) -> None:
    empty = trace.replace(**{name: Table.empty(TABLES[name]) for name in ("phases", "batches", "spans")})
    with pytest.raises(MissingDataError):
        steps_of_run(empty)
