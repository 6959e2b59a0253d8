"""One rank that trains a network of the study: ``python -m stashtrace.experiments.layer_worker TASK.json``.

Started by ``layer_ranks`` with the variables that launchers set. An ordinary training loop under the tracer, which is
all that measures here; torch is imported here and nowhere else. Gradients go through DistributedDataParallel as in any
job. Buffers of batch norms are not broadcast, so that gradients are all that is sent.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TIMEOUT_S = 120
_MIB = 1 << 20
#: Bytes of a bucket that no two tensors fit into.
ONE_TENSOR_BYTES = 1


def main(argv: list[str]) -> int:
    """Train, and say nothing."""
    task = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = task["cores"][rank]
    if cores:
        # Before torch makes threads: those of gloo stay on the rank's own cores too.
        os.sched_setaffinity(0, cores)
    torch = importlib.import_module("torch")
    torch.set_num_threads(max(len(cores), 1))
    torch.set_flush_denormal(True)  # without residual links and batch norm activations vanish
    if ranks > 1:
        importlib.import_module("torch.distributed")
        torch.distributed.init_process_group(
            "nccl" if task["device"] == "cuda" else "gloo",
            init_method=f"file://{task['rendezvous']}",
            rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=_TIMEOUT_S),
        )  # fmt: skip
    try:
        train(torch, task, rank, ranks)
    finally:
        if ranks > 1:
            torch.distributed.destroy_process_group()
    return 0


def train(torch: Any, task: Mapping[str, Any], rank: int, ranks: int) -> None:
    """Forward, backward, update, as many times as the task says."""
    from stashtrace.experiments.layer_networks import build, loss_of, synthetic_batch
    from stashtrace.models.networks import network

    net = network(**task["network"])
    device = "cpu"
    if task["device"] == "cuda":
        torch.cuda.set_device(rank)
        device = f"cuda:{rank}"
    torch.manual_seed(1)
    module = build(torch, net).to(device)
    if ranks > 1:
        module = torch.nn.parallel.DistributedDataParallel(
            module, bucket_cap_mb=task["bucket_bytes"] / _MIB, broadcast_buffers=False, gradient_as_bucket_view=True
        )
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    data, labels = synthetic_batch(torch, net, task["batch_samples"], device)
    for _ in range(task["iterations"]):
        optimizer.zero_grad()
        loss_of(torch, module(data), labels).backward()
        optimizer.step()
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
