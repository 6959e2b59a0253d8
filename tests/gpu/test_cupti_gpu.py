"""Deep mode on a real GPU: what docs/collectors/cupti.md lists as not run yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from installed import needs_gpu
from traced import TracedRun, run_traced

from stashtrace.schema.kinds import DeviceWork

pytestmark = needs_gpu()

JOB = """
import contextlib, json, torch
device = torch.device("cuda")
layer = torch.nn.Linear(1024, 1024, device=device)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
host = torch.ones(4096, 1024).pin_memory()
kernels = 0
for step in range(8):
    profiler = contextlib.nullcontext()
    if step == PROFILED_STEP:
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with profiler as profile:
        layer(host.to(device, non_blocking=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
    if profile is not None:
        kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())
import time; time.sleep(1.5)
print(json.dumps(kernels))
"""


def job(folder: Path, profiled_step: int = -1) -> TracedRun:
    return run_traced(JOB.replace("PROFILED_STEP", str(profiled_step)), folder, kernels_steps="3:6")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TracedRun:
    return job(tmp_path_factory.mktemp("kernels"))


def test_every_step_of_the_window_has_its_kernels_and_copies(run: TracedRun) -> None:
    kernels = run.trace.kernels
    work = kernels["work_code"]
    assert np.count_nonzero(work == DeviceWork.COPY) >= 3, "one copy a step"
    assert np.count_nonzero(work == DeviceWork.KERNEL) >= 9
    assert kernels["size_bytes"][work == DeviceWork.COPY].max() == 4096 * 1024 * 4
    texts = set(run.texts(kernels, "name_code"))
    assert not any(text.startswith("_Z") for text in texts), "names are demangled"
    assert [loss for loss in run.losses() if loss[0] == "cupti"] == []


def test_work_follows_its_launch_on_the_common_clock(run: TracedRun) -> None:
    kernels = run.trace.kernels
    launched = (kernels["launch_ns"] >= 0) & (kernels["work_code"] == DeviceWork.KERNEL)
    assert np.count_nonzero(launched) >= 9
    lead = kernels["begin_ns"][launched] - kernels["launch_ns"][launched]
    assert lead.min() > -20_000, "nothing runs before it was launched, but for the error of the clocks"
    assert (kernels["thread_track_id"][launched] >= 0).all()


def test_the_users_profiler_works_and_ends_deep_mode(tmp_path: Path) -> None:
    done = job(tmp_path, profiled_step=4)
    assert done.results()[0] > 0, "torch.profiler saw its kernels"
    assert "another_profiler" in {reason for _, reason, _ in done.losses()}
