"""Steps by kind against the job's log: their number in the gate, their times where the machine is quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from installed import needs_torch
from measurements import Measurements
from traced import TracedRun, run_traced

from stashtrace.analysis.registry import analyze

pytestmark = pytest.mark.torch
needs_torch()

HEAD = """
    import json, time
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    log = {}
    now = time.perf_counter

    class Rows(Dataset):
        def __init__(self, count): self.count = count
        def __len__(self): return self.count
        def __getitem__(self, i): return torch.full((8,), float(i)), i % 3

    def work(seconds):
        end = now() + seconds
        while now() < end: pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 3)
        def forward(self, x):
            work(0.012 if torch.is_grad_enabled() else 0.006)
            return self.inner(x)

    def update(net, optimizer, rows, kinds):
        nn.functional.cross_entropy(net(rows), kinds).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
#: Two loaders with workers; the log has the time of each pass through the loop, and of each epoch.
EPOCHS = """
    def main():
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        train, check = (DataLoader(Rows(n), 4, num_workers=2) for n in (56, 40))
        log.update(train=[], validation=[])
        for epoch in range(4):
            last = now()
            for rows, kinds in train:
                update(net, optimizer, rows, kinds)
                log["train"].append(now() - last)
                last = now()
            last = now()
            with torch.no_grad():
                for rows, kinds in check:
                    net(rows)
                    log["validation"].append(now() - last)
                    last = now()
        print(json.dumps(log))
    if __name__ == "__main__": main()
"""
ROLLOUTS = """
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    log.update(iteration=[], rollout=[])
    for iteration in range(12):
        begin = now()
        with torch.no_grad():
            seen = [net(torch.ones(4, 8)) for _ in range(10)]
        log["rollout"].append(now() - begin)
        for _ in range(4):
            update(net, optimizer, torch.ones(4, 8), torch.zeros(4, dtype=torch.long))
        log["iteration"].append(now() - begin)
    print(json.dumps(log))
"""
INFERENCE = """
    net = Net().eval()
    log.update(inference=[])
    last = now()
    for rows, kinds in DataLoader(Rows(80), 4):
        with torch.inference_mode():
            net(rows)
        log["inference"].append(now() - last)
        last = now()
    print(json.dumps(log))
"""
ADVERSARIAL = """
    made, judge = Net(), Net()
    optimizers = [torch.optim.Adam(made.parameters()), torch.optim.Adam(judge.parameters())]
    log.update(train=[])
    last = now()
    for rows, kinds in DataLoader(Rows(64), 4):
        update(judge, optimizers[1], rows, kinds)
        update(made, optimizers[0], rows, kinds)
        log["train"].append(now() - last)
        last = now()
    print(json.dumps(log))
"""
JOBS = {"epochs": EPOCHS, "rollouts": ROLLOUTS, "inference": INFERENCE, "adversarial": ADVERSARIAL}
EXPECTED = {
    "epochs": {"train": 56, "validation": 40},
    "rollouts": {"iteration": 12},
    "inference": {"inference": 20},
    "adversarial": {"train": 16},
}


def record(name: str, folder: Path) -> TracedRun:
    return run_traced(HEAD + JOBS[name], folder)


def by_kind(run: TracedRun, **options: Any) -> dict[str, dict[str, Any]]:
    return {row["kind"]: row for row in analyze(run.trace, "step_kinds", **options).rows() if row["rank"] == 0}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.thorough] * (name in ("rollouts", "inference"))) for name in JOBS],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, TracedRun]:
    return request.param, record(request.param, tmp_path_factory.mktemp(request.param) / "job")


def test_the_job_counts_as_many(job: tuple[str, TracedRun]) -> None:
    name, run = job
    rows = by_kind(run)
    assert {kind: row["steps_count"] + row["warmup_count"] for kind, row in rows.items()} == EXPECTED[name]
    everything = by_kind(run, warmup=True)
    assert {kind: row["steps_count"] for kind, row in everything.items()} == EXPECTED[name]
    log = run.results()[0]
    assert {kind: len(log[kind]) for kind in EXPECTED[name]} == EXPECTED[name]


def test_the_budget_of_each_kind_of_step(job: tuple[str, TracedRun]) -> None:
    name, run = job
    rows = analyze(run.trace, "stalls", by="step_kind")
    together = analyze(run.trace, "stalls", by="rank")
    assert set(rows["step_kind"].tolist()) == set(EXPECTED[name])
    counted = by_kind(run)
    for kind in EXPECTED[name]:
        own = rows.take(rows["step_kind"] == kind)
        assert int(own["stall_ns"].sum()) == counted[kind]["total_ns"]
        assert set(own["steps_count"].tolist()) == {counted[kind]["steps_count"]}
        assert own["share_ratio"].sum() == pytest.approx(1)
    assert int(together["stall_ns"].sum()) == sum(row["total_ns"] for row in counted.values())
    assert set(together["steps_count"].tolist()) == {sum(row["steps_count"] for row in counted.values())}


def inner(times: list[float], kind: str) -> npt.NDArray[np.float64]:
    """Times of the steps in which no loader begins: what lies between two loops is not in the job's log."""
    each = {"train": 14, "validation": 10, "inference": 20}.get(kind, len(times))
    return np.delete(np.asarray(times, dtype=np.float64), np.arange(0, len(times), each))


@pytest.mark.truth
@pytest.mark.parametrize("name", JOBS)
def test_the_times_are_those_of_the_jobs_log(name: str, tmp_path: Path) -> None:
    def same(run: TracedRun) -> None:
        log = run.results()[0]
        steps = analyze(run.trace, "steps")
        rows = by_kind(run, warmup=True)
        for kind in EXPECTED[name]:
            of_kind = steps["kind"] == kind
            ours = (steps["end_ns"] - steps["begin_ns"])[of_kind]
            assert rows[kind]["median_ns"] == pytest.approx(1e9 * float(np.median(log[kind])), rel=0.03)
            assert rows[kind]["total_ns"] == int(ours.sum())
            assert inner(ours.tolist(), kind).mean() == pytest.approx(1e9 * inner(log[kind], kind).mean(), rel=0.03)
        if name == "rollouts":
            assert rows["iteration"]["rollout_ns"] == pytest.approx(1e9 * float(np.mean(log["rollout"])), rel=0.03)

    Measurements(lambda folder: record(name, folder), tmp_path).agree(same)
