"""What DataLoaders of every kind say of their samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

from stashtrace.analysis.steps.epochs import FACT
from stashtrace.schema.kinds import BatchPhase

pytestmark = pytest.mark.torch
needs_torch()

SCRIPT = """
    import json
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset
    from torch.utils.data import Sampler, SequentialSampler
    import stashtrace

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(range(8))
        def __len__(self):
            raise SystemExit("an iterable data set is not asked")

    class Unknown(Sampler):
        def __iter__(self):
            return iter(range(6))
        def __len__(self):
            raise RuntimeError("nobody knows")

    class Shards(BatchSampler):  # as accelerate cuts batches
        split_batches, num_processes = True, 2

    loaders = {
        "whole": DataLoader(range(12), batch_size=5),
        "dropped": DataLoader(range(12), batch_size=5, drop_last=True),
        "distributed": DataLoader(range(11), batch_size=2, sampler=DistributedSampler(range(11), 2, 0)),
        "batches": DataLoader(range(12), batch_sampler=BatchSampler(SequentialSampler(range(9)), 4, False)),
        "shards": DataLoader(range(12), batch_sampler=Shards(SequentialSampler(range(12)), 6, False)),
        "iterable": DataLoader(Endless(), batch_size=4),
        "single": DataLoader(range(3), batch_size=None),
        "unknown": DataLoader(range(6), batch_size=2, sampler=Unknown()),
    }
    results = {}
    for name, loader in loaders.items():
        with stashtrace.annotate(name):
            results[name] = sum(1 for batch in loader)
    with stashtrace.annotate("many"):
        for _ in range(100):
            next(iter(loaders["whole"]))
    print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("facts"))


def facts(run: TracedRun) -> dict[int, str]:
    rows = [(run.trace.text(r["key_code"]), run.trace.text(r["value_code"])) for r in run.trace.metadata.rows()]
    return {int(key[len(FACT) :], 16): value for key, value in rows if key.startswith(FACT)}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("whole", "5 12 12"),
        ("dropped", "5 10 12"),
        ("distributed", "2 6 11"),
        ("batches", "4 12 12"),
        ("shards", "3 6 12"),
        ("iterable", "4 0 0 iterable"),
        ("single", "0 0 0"),
        ("unknown", "2 0 6"),
    ],
)
def test_samples_of_a_batch_an_epoch_and_the_data_set(run: TracedRun, name: str, said: str) -> None:
    spans = run.trace.spans
    at = next(i for i, code in enumerate(spans["name_code"].tolist()) if run.trace.text(code) == name)
    batches = run.trace.batches
    inside = (batches["begin_ns"] >= spans["begin_ns"][at]) & (batches["end_ns"] <= spans["end_ns"][at])
    inside &= batches["phase_code"] == BatchPhase.WAIT
    (loader,) = np.unique(batches["loader_id"][inside]).tolist()
    assert facts(run)[loader] == said


def test_not_every_iterator_of_a_job_says_so(run: TracedRun) -> None:
    assert len(facts(run)) == 64


def test_nothing_was_lost(run: TracedRun) -> None:
    assert run.losses() == []


@pytest.mark.thorough
def test_the_job_saw_none_of_it(run: TracedRun, tmp_path: Path) -> None:
    assert run.results() == run_traced(SCRIPT, tmp_path, traced=False).results()
