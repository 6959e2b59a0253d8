"""A real job of two ranks, run again with buckets that its script does not ask for, as ``stashtrace tune`` does it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import stashtrace
from installed import needs_torch
from ports import free_port
from replay.ddp_runs import MIB

from stashtrace.loading.load import load_trace
from stashtrace.replay.communication.messages import ddp_facts, gradient_messages
from stashtrace.replay.communication.overlap import bucket_ends

needs_torch()

#: Six layers of 257 KiB; with an argument the script chooses its buckets itself. It starts its ranks itself.
JOB = """
import os, subprocess, sys
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(r)}) for r in (0, 1)]
    sys.exit(max(rank.wait() for rank in ranks))
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
own = {"bucket_cap_mb": float(sys.argv[1])} if len(sys.argv) > 1 else {}
model = DistributedDataParallel(layers, **own)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(16):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
print("trained")
dist.destroy_process_group()
"""
GRADIENTS = [size for _ in range(6) for size in (4 * 256, 4 * 256 * 256)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Folder with the script and one recorded run of it, with a size of buckets that is none, and variables of both."""
    folder = tmp_path_factory.mktemp("apply")
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    words = ["run", "--out", str(folder / "run"), "--", sys.executable, str(folder / "job.py")]
    done = stashtrace(*words, **settings, STASHTRACE_BUCKET_MB="x")
    assert done.code == 0, done.err
    return folder, settings


def messages_of_a_step(run: Path) -> list[int]:
    """Bytes of the buckets of one backward pass, in order."""
    messages = gradient_messages(load_trace(run))
    last = messages.step == messages.step.max()
    return messages.bytes[last & messages.within].tolist()


def test_a_run_says_what_its_buckets_are_and_a_size_that_is_none_changes_nothing(
    job: tuple[Path, dict[str, str]],
) -> None:
    trace = load_trace(job[0] / "run")
    assert "bucket_not_applied" in {trace.text(int(code)) for code in trace.losses["name_code"]}
    facts = ddp_facts(trace)
    assert (facts.bucket_mib, facts.sources) == (25.0, ("default",))
    assert sorted(facts.gradients_bytes.tolist()) == sorted(GRADIENTS)
    # Torch's first bucket is one of 1 MiB.
    assert messages_of_a_step(job[0] / "run") == [4 * sum(GRADIENTS[:2]), 2 * sum(GRADIENTS[:2])]


def test_other_buckets_are_applied_as_the_replay_predicts(job: tuple[Path, dict[str, str]]) -> None:
    folder, settings = job
    second = folder / "other"
    words = ["run", "--out", str(second), "--", sys.executable, str(folder / "job.py")]
    assert stashtrace(*words, **settings, STASHTRACE_BUCKET_MB="0.5").code == 0
    assert messages_of_a_step(second) == [2 * sum(GRADIENTS[:2])] * 3
    gradients = ddp_facts(load_trace(folder / "run")).gradients_bytes
    predicted, anywhere = bucket_ends(messages_of_a_step(folder / "run"), MIB / 2, gradients_bytes=gradients)
    assert not anywhere
    assert predicted.tolist() == np.cumsum(messages_of_a_step(second)).tolist()
    assert ddp_facts(load_trace(second)).sources == ("applied",)


@pytest.mark.thorough
def test_what_the_script_chose_stays(job: tuple[Path, dict[str, str]]) -> None:
    folder, settings = job
    words = ["run", "--out", str(folder / "own"), "--", sys.executable, str(folder / "job.py"), "0.5"]
    assert stashtrace(*words, **settings, STASHTRACE_BUCKET_MB="4").code == 0
    assert messages_of_a_step(folder / "own") == [2 * sum(GRADIENTS[:2])] * 3
    assert ddp_facts(load_trace(folder / "own")).sources == ("script",)
