"""The job of a layers study: ``python -m stashtrace.lab.sweep.study_worker start TASK.json`` runs its ranks here.

Each rank is ``study_worker TASK.json`` with the variables that launchers set: what torchrun would do, without its
import of torch. What ranks print goes into files next to the task; a rank that fails takes the others with it.

A rank is an ordinary training loop under the tracer, which is all that measures here; torch is imported here and
nowhere else. Gradients go through DistributedDataParallel as in any job. Buffers of batch norms are not broadcast, so
that gradients are all that is sent.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stashtrace.lab.processes import RankFailedError, last_line, rank_processes, wait_for_ranks
from stashtrace.lab.sweep import shapes

_TIMEOUT_S = 120
_MIB = 1 << 20


def main(argv: list[str]) -> int:
    """Train as the task says, printing nothing; after ``start``, run the ranks of the task."""
    if argv[0] == "start":
        return start(Path(argv[1]))
    task = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = task["cores"][rank]
    if cores:
        # Before torch makes threads: those of gloo stay on the rank's cores too.
        os.sched_setaffinity(0, cores)
    torch = importlib.import_module("torch")
    torch.set_num_threads(max(len(cores), 1))
    torch.set_flush_denormal(True)  # without residual links and batch norm activations vanish
    if ranks > 1:
        importlib.import_module("torch.distributed")
        torch.distributed.init_process_group(
            "nccl" if task["device"] == "cuda" else "gloo",
            init_method=f"file://{task['rendezvous']}",
            rank=rank,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=_TIMEOUT_S),
        )
    try:
        train(torch, task, rank, ranks)
    finally:
        if ranks > 1:
            torch.distributed.destroy_process_group()
    return 0


def train(torch: Any, task: Mapping[str, Any], rank: int, ranks: int) -> None:
    """Forward, backward, update, as many times as the task says."""
    net = shapes.network(**task["network"])
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


# The networks of ``lab.sweep.shapes`` in torch, with their input: plain layers, nothing pretrained.


def build(torch: Any, net: shapes.Network) -> Any:
    """The network as a module, its parameters in the order of ``gradient_shapes``."""
    return {"resnet": _resnet, "vgg": _vgg, "transformer": _transformer}[net.family](torch, net)


def synthetic_batch(torch: Any, net: shapes.Network, samples: int, device: str) -> tuple[Any, Any]:
    """Input and labels that never change: noise, on the device from the start."""
    made = torch.Generator().manual_seed(1)
    if net.family == "transformer":
        shape = (samples, net.tokens_count)
        words, following = (torch.randint(net.classes_count, shape, generator=made) for _ in range(2))
        return words.to(device), following.to(device)
    images = torch.randn((samples, 3, net.image_pixels, net.image_pixels), generator=made)
    return images.to(device), torch.randint(net.classes_count, (samples,), generator=made).to(device)


def loss_of(torch: Any, scores: Any, labels: Any) -> Any:
    """Cross entropy over images, or over the words of all sentences."""
    return torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


def _convolution(
    torch: Any, net: shapes.Network, inputs: int, outputs: int, kernel: int, *, stride: int = 1, active: bool = True
) -> list[Any]:
    nn = torch.nn
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=not net.batch_norm)]
    if net.batch_norm:
        layers.append(nn.BatchNorm2d(outputs))
    if active:
        layers.append(nn.ReLU(inplace=True))
    return layers


def _sum_of(torch: Any, body: Any, shortcut: Any, *, active: bool) -> Any:
    """Module of ``body(x) + shortcut(x)``."""

    class Sum(torch.nn.Module):  # type: ignore[misc]  # torch is not there when this file is checked
        def __init__(self) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            out = self.body(x) + self.shortcut(x)
            return torch.relu_(out) if active else out

    return Sum()


def _block(
    torch: Any, net: shapes.Network, inputs: int, middle: int, stride: int, *, deep: bool, projected: bool
) -> Any:
    nn = torch.nn
    if deep:
        outputs = middle * shapes.BOTTLENECK
        layers = [
            *_convolution(torch, net, inputs, middle, 1),
            *_convolution(torch, net, middle, middle, 3, stride=stride),
            *_convolution(torch, net, middle, outputs, 1, active=False),
        ]
    else:
        outputs = middle
        layers = [
            *_convolution(torch, net, inputs, middle, 3, stride=stride),
            *_convolution(torch, net, middle, outputs, 3, active=False),
        ]
    if not net.residual:
        return nn.Sequential(*layers, nn.ReLU(inplace=True))
    shortcut = nn.Identity()
    if projected:
        shortcut = nn.Sequential(*_convolution(torch, net, inputs, outputs, 1, stride=stride, active=False))
    return _sum_of(torch, nn.Sequential(*layers), shortcut, active=True)


def _resnet(torch: Any, net: shapes.Network) -> Any:
    nn = torch.nn
    kernel = shapes.first_kernel(net)
    layers = _convolution(torch, net, 3, net.width, kernel, stride=2 if kernel == 7 else 1)
    if kernel == 7:
        layers.append(nn.MaxPool2d(3, 2, 1))
    blocks, deep = shapes.RESNET_STAGES[net.depth]
    inputs = net.width
    for stage, count in enumerate(blocks):
        middle = net.width << stage
        outputs = middle * (shapes.BOTTLENECK if deep else 1)
        for number in range(count):
            stride = 2 if number == 0 and stage > 0 else 1
            projected = number == 0 and (stage > 0 or inputs != outputs)
            layers.append(_block(torch, net, inputs, middle, stride, deep=deep, projected=projected))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, net.classes_count))


def _vgg(torch: Any, net: shapes.Network) -> Any:
    nn = torch.nn
    layers: list[Any] = []
    inputs = 3
    for factor, count in zip(shapes.VGG_CHANNELS, shapes.VGG_STAGES[net.depth], strict=True):
        for _ in range(count):
            layers += _convolution(torch, net, inputs, factor * net.width, 3)
            inputs = factor * net.width
        layers.append(nn.MaxPool2d(2))
    hidden = 64 * net.width
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(shapes.vgg_features(net), hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, net.classes_count),
    )


def _transformer(torch: Any, net: shapes.Network) -> Any:
    nn, width, heads = torch.nn, net.width, shapes.heads_count(net.width)

    class Words(nn.Module):  # type: ignore[misc,name-defined]
        """Embedding of words and of their positions."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(net.classes_count, width)
            self.positions = nn.Parameter(torch.zeros(net.tokens_count, width))

        def forward(self, x: Any) -> Any:
            return self.words(x) + self.positions

    class Attention(nn.Module):  # type: ignore[misc,name-defined]
        """Causal self-attention."""

        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            samples, tokens, _ = x.shape
            parts = self.inputs(x).view(samples, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            return self.outputs(mixed.transpose(1, 2).reshape(samples, tokens, width))

    def half(body: list[Any]) -> Any:
        layers = nn.Sequential(nn.LayerNorm(width), *body)
        return _sum_of(torch, layers, nn.Identity(), active=False) if net.residual else layers

    layers: list[Any] = [Words()]
    for _ in range(net.depth):
        layers.append(half([Attention()]))
        layers.append(half([nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]))
    return nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, net.classes_count))


#: The module of this file, as the ranks are started by it.
_WORKER = "stashtrace.lab.sweep.study_worker"


def start(task: Path) -> int:
    """Run the ranks of one task; return the exit code of the first that failed."""
    ranks = int(json.loads(task.read_text(encoding="utf-8"))["ranks"])
    with rank_processes(_WORKER, [task] * ranks, rank_logs(task, ranks), os.environ) as workers:
        try:
            wait_for_ranks(workers)
        except RankFailedError as error:
            return abs(error.code)
    return 0


def rank_logs(task: Path, ranks: int) -> list[Path]:
    """Files for the output of each rank."""
    return [task.with_name(f"{task.stem}.rank{rank}.txt") for rank in range(ranks)]


def last_words(task: Path, ranks: int) -> str:
    """Last line that a rank printed, the lowest rank first."""
    said = (f"rank {rank}: {line}" for rank, log in enumerate(rank_logs(task, ranks)) if (line := last_line(log)))
    return next(said, "no rank said why")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
