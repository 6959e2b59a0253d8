"""Checkpoints in the background of a real job: who asked, and who waited, as the job did it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from builders import MS
from installed import needs_torch
from traced import run_traced

from stashtrace import analyze
from stashtrace.analysis.graph import EdgeKind, Resource, build

pytestmark = pytest.mark.torch
needs_torch()

#: Saves take 600 ms and more. The first one is waited for two steps later, the second one is done long before that.
SCRIPT = """
    import io, json, time
    from concurrent.futures import ThreadPoolExecutor
    import torch

    class Slow:
        def __reduce__(self):
            time.sleep(0.6)
            return (int, ())

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    writers = ThreadPoolExecutor(max_workers=1)
    pending, waited = None, []
    for step in range(16):
        model(torch.ones(4, 8)).sum().backward()
        time.sleep(0.01 if step < 8 else 0.15)
        optimizer.step()
        optimizer.zero_grad()
        if step in (2, 8):
            pending = writers.submit(torch.save, {"model": model.state_dict(), "slow": Slow()}, io.BytesIO())
        if step in (4, 14):
            begin = time.monotonic()
            pending.result()
            waited.append(time.monotonic() - begin)
    print(json.dumps(waited))
"""


def test_a_job_that_saves_behind_its_back(tmp_path: Path) -> None:
    run = run_traced(SCRIPT, tmp_path, steps=None)
    first_s, second_s = json.loads(run.stdout[0])
    assert first_s > 0.1 > second_s  # the job is what it is taken for
    graph = build(run.trace)
    saves = np.flatnonzero(graph.resource == Resource.CHECKPOINT)
    assert len(saves) == 2
    assert (graph.work_ns[saves] >= 600 * MS).all()
    started = np.flatnonzero(graph.edge_kind == EdgeKind.START)
    assert graph.target[started].tolist() == saves.tolist()
    assert (graph.lag_ns[started] < 5 * MS).all()
    joined = np.flatnonzero(graph.edge_kind == EdgeKind.JOIN)
    assert graph.source[joined].tolist() == [saves[0]]
    assert (graph.step_ns(graph.replay()) == graph.measured_step_ns).all()

    slack = analyze(run.trace, "slack")
    mine = slack["resource"] == "checkpoint"
    assert slack["slack_ns"][mine].tolist() == [0, -1]
    shares = analyze(run.trace, "critical_path")
    on_path = shares.take(shares["resource"] == "checkpoint")
    assert set(on_path["name"].tolist()) == {"torch.save"}
    assert on_path["held_ns"].sum() == graph.work_ns[saves[0]]

    # Without the save's time, the steps that waited for it take none of it.
    shorter = graph.work_ns.copy()
    shorter[saves] = 0
    gained = (graph.measured_step_ns - graph.step_ns(graph.replay(shorter))).max()
    assert gained == pytest.approx(first_s * 1e9, rel=0.15)
