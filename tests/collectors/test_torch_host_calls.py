"""Compilations, samplers and collectives of objects of a real script: named with their lines, and nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from installed import needs_torch
from traced import TracedRun, run_traced

from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.table import Table

pytestmark = pytest.mark.torch
needs_torch()

SCRIPT = """
    import json, time
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Sampler
    import stashtrace

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))

    class Slow(Sampler):
        def __iter__(self):
            time.sleep(0.05)
            return iter(range(4))
        def __len__(self):
            return 4

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))
        def forward(self, x):
            return (torch.sin(x) * self.weight).sum()

    def add(x):
        return x + 1

    torch.manual_seed(1)
    net = Net()
    compiled, plain = torch.compile(net, backend="aot_eager", dynamic=False), torch.compile(add, backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, batch in enumerate(DataLoader(torch.arange(4.0), batch_size=1, sampler=Slow())):
        loss = compiled(plain(torch.ones(2 + number // 2, 4)) * batch)
        loss.backward()
        optimizer.step()
        stashtrace.step()
    gathered = [None]
    dist.all_gather_object(gathered, {str(n): n for n in range(50_000)})
    torch._dynamo.reset()
    net.zero_grad()
    torch.compile(net, backend="aot_eager")(torch.ones(7, 4)).backward()
    dist.destroy_process_group()
    print(json.dumps([loss.item().hex(), len(gathered[0]), net.weight.grad.tolist()]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return run_traced(SCRIPT, tmp_path_factory.mktemp("host_calls"), compiles=True)


def spans(run: TracedRun, kind: SpanKind) -> Table:
    return run.trace.spans.take(run.trace.spans["kind_code"] == kind).sort_by("begin_ns")


def test_compilations_are_spans_with_function_and_number(run: TracedRun) -> None:
    found = spans(run, SpanKind.COMPILE)
    named = list(zip(run.texts(found, "name_code"), found["value"].tolist(), strict=True))
    functions = [(name.removeprefix("torch.compile ").partition(" (")[0], before) for name, before in named]
    assert functions == [
        ("add", 0),
        ("Net.forward", 0),
        ("backward of Net.forward", 0),
        ("add", 1),
        ("Net.forward", 1),
        ("backward of Net.forward", 1),
        ("Net.forward", 2),  # after torch._dynamo.reset(), which removes all callbacks
        ("backward of Net.forward", 2),
    ]
    assert (found["end_ns"] > found["begin_ns"]).all()


def test_why_a_function_is_compiled_again_is_reported_by_torch(run: TracedRun) -> None:
    reasons, found = spans(run, SpanKind.COMPILE_REASON), spans(run, SpanKind.COMPILE)
    texts = run.texts(reasons, "name_code")
    assert len(texts) == 2
    assert all("size mismatch at index 0. expected 2, actual 3" in text for text in texts)
    assert not any(text[0].isdecimal() for text in texts)
    again = found["begin_ns"][(found["value"] == 1)]
    assert np.isin(reasons["begin_ns"], again).all()


def test_samplers_and_collectives_of_objects_are_named_with_their_lines(run: TracedRun) -> None:
    library = spans(run, SpanKind.LIBRARY)
    # Each index is drawn from it, and only the first draw sleeps: another one is recorded where the machine is busy.
    drawn = [
        (name, end - begin)
        for name, begin, end in zip(
            run.texts(library, "name_code"), library["begin_ns"].tolist(), library["end_ns"].tolist(), strict=True
        )
        if "sampler" in name
    ]
    sampler, longest_ns = max(drawn, key=lambda draw: draw[1])
    assert sampler.startswith("sampler Slow (")
    assert longest_ns >= 50_000_000
    assert {name for name, _ in drawn} == {sampler}
    objects = spans(run, SpanKind.OBJECTS)
    assert len(objects) == 1
    script = sampler.partition("(")[2].partition(":")[0]
    assert run.texts(objects, "name_code")[0].startswith(f"all_gather_object ({script}:")
    calls = run.texts(library, "name_code")
    assert "import torch" in calls
    for name in ("init_process_group", "DistributedDataParallel"):
        assert any(call.startswith(f"{name} ({script}:") for call in calls), "not the line of our wrapper"


def test_nothing_was_lost(run: TracedRun) -> None:
    assert run.losses() == []


@pytest.mark.thorough
def test_the_results_are_the_same(run: TracedRun, tmp_path: Path) -> None:
    assert run.results() == run_traced(SCRIPT, tmp_path / "untraced", compiles=True, traced=False).results()
