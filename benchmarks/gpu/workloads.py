"""Two ordinary training loops of known size, each with a stopwatch: what the GPU benchmarks trace.

    python benchmarks/gpu/workloads.py resnet --steps 60 --times times.json [--profiler torch]

``resnet`` is ResNet-50's shape (bottlenecks 3-4-6-3, 25 M parameters), ``gpt`` a decoder of GPT-2 small's shape (124 M
parameters). Data comes from memory through DataLoader workers. With RANK and WORLD_SIZE they train with DDP. The times
are of the host's clock between device synchronisations around blocks of steps, so that nothing inside a step is
synchronised. ``--device cpu --tiny`` is for trying the script without a device.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(tiny: bool) -> nn.Module:
    """Layers 3-4-6-3; tiny: one block each, an eighth as wide."""
    width = 8 if tiny else 64
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = width
    for number, blocks in enumerate((1, 1, 1, 1) if tiny else (3, 4, 6, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width << number, 2 if block == 0 and number else 1))
            inputs = 4 * width << number
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Gpt(nn.Module):
    """Token and place embeddings, pre-norm decoder blocks, shared output matrix."""

    def __init__(self, *, words: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.heads = heads
        self.attention = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.project = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.mix = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth + 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        count, length = tokens.shape
        x = self.words(tokens) + self.places.weight[:length]
        for norm, attention, project, mix in zip(self.norms, self.attention, self.project, self.mix, strict=False):
            query, key, value = (
                part.view(count, length, self.heads, -1).transpose(1, 2) for part in attention(norm(x)).chunk(3, dim=-1)
            )
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + project(seen.transpose(1, 2).reshape(count, length, -1))
            x = x + mix(x)
        return self.norms[-1](x) @ self.words.weight.T


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Noise of ImageNet's shape, cheap to make: the loader is not what is measured."""

    def __init__(self, size: int) -> None:
        self.noise = torch.randn(4, 3, size, size)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.noise[index % 4], index % 1000


class Tokens(Dataset[torch.Tensor]):
    """Random text."""

    def __init__(self, words: int, length: int) -> None:
        self.text = torch.randint(0, words, (1 << 20,))
        self.length = length

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * 97 % (len(self.text) - self.length - 1)
        return self.text[begin : begin + self.length + 1]


def loss_of_images(model: nn.Module, batch: Any) -> torch.Tensor:
    """Cross entropy of a batch of images."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def loss_of_tokens(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next token."""
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def build(options: argparse.Namespace) -> tuple[nn.Module, Dataset[Any], Any, int]:
    """Model, data, loss and batch size."""
    tiny = options.tiny
    if options.model == "resnet":
        return resnet(tiny), Images(32 if tiny else 224), loss_of_images, options.batch_size or (4 if tiny else 128)
    words, length = (256, 16) if tiny else (50304, 1024)
    model = Gpt(words=words, length=length, width=32 if tiny else 768, depth=2 if tiny else 12, heads=2 if tiny else 12)
    return model, Tokens(words, length), loss_of_tokens, options.batch_size or (2 if tiny else 16)


@contextlib.contextmanager
def profiler(name: str) -> Iterator[Any]:
    """torch.profiler over the whole loop, as its users run it; nothing otherwise. Gives the call at each step's end."""
    if name == "none":
        yield lambda: None
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as running:
        yield running.step


def train(options: argparse.Namespace) -> list[float]:
    """Run the loop; seconds per step of each block of ten steps after the warm-up."""
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(
        options.device, local_rank % max(torch.cuda.device_count(), 1) if options.device == "cuda" else 0
    )
    wait = (lambda: torch.cuda.synchronize(device)) if options.device == "cuda" else (lambda: None)
    if options.device == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model, data, loss_of, batch_size = build(options)
    model = model.to(device)
    if world_size > 1:
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(
        data,
        batch_size,
        num_workers=options.workers,
        pin_memory=options.device == "cuda",
        sampler=range(rank * batch_size, len(data)),
    )  # type: ignore[arg-type]
    batches = iter(loader)
    times = []
    with profiler(options.profiler) as step_ended:
        begin = 0.0
        for step in range(options.warmup + options.steps):
            if step >= options.warmup and (step - options.warmup) % options.block == 0:
                wait()
                now = time.perf_counter()
                if begin:
                    times.append((now - begin) / options.block)
                begin = now
            batch = next(batches)
            batch = (
                [part.to(device, non_blocking=True) for part in batch]
                if isinstance(batch, list)
                else batch.to(device, non_blocking=True)
            )
            if options.late_ms and rank == 1:
                time.sleep(options.late_ms / 1000)
            with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
                loss = loss_of(model, batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step_ended()
        wait()
        times.append((time.perf_counter() - begin) / options.block)
    if world_size > 1:
        dist.destroy_process_group()
    return times


def main() -> None:
    """Command line of one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("resnet", "gpt"))
    parser.add_argument("--steps", type=int, default=60, help="counted steps, a multiple of the block")
    parser.add_argument("--block", type=int, default=10, help="steps between two synchronisations")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--late-ms", type=float, default=0.0, help="rank 1 sleeps before its forward")
    parser.add_argument("--profiler", choices=("none", "torch"), default="none")
    parser.add_argument("--times", type=Path)
    options = parser.parse_args()
    if options.steps % options.block:
        parser.error(f"--steps {options.steps} is not a multiple of --block {options.block}")
    times = train(options)
    if options.times and os.environ.get("RANK", "0") == "0":
        options.times.write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    main()
