"""A job of several ranks with one setting of DistributedDataParallel or FSDP, and what a seed adds; on CPUs.

``python settings_job.py SETTING,... SEED,... FOLDER`` makes one job after the other; torch.profiler's files of each go
to FOLDER/SETTING.SEED. By the seed, ranks sleep in some steps, under names or not, a loader makes the batches, and the
profiler records some windows with some of its options.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

#: Name, whether a rank sleeps in a step, and for how many milliseconds.
Act = tuple[str, Callable[[int, int], bool], float]
STEPS = 12
WIDTH = 1024


def part(width: int = WIDTH) -> nn.Sequential:
    """5.3 MB of parameters with the default width."""
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))


class Halves(nn.Module):
    """Two halves, of which a step may use one alone."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.first, self.second, self.both = part(), part(), both

    def forward(self, x: Any, step: int = 0) -> Any:
        if self.both:
            return self.first(x) + self.second(x)
        return (self.first if step % 2 else self.second)(x)


def ddp(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **options)


def with_hook(hook: Callable[..., Any], state: Any = None) -> DistributedDataParallel:
    model = ddp(part())
    model.register_comm_hook(state, hook)
    return model


def by_gathering(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, and refuses text
    """Sum the gradients of all ranks, as a hook may do itself."""
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, bucket.buffer(), async_op=True)
    return work.get_future().then(lambda _: torch.stack(parts).mean(0))


def sharded() -> nn.Module:
    model = part()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))


#: Name -> what makes the model.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: ddp(part()),
    "find_unused": lambda: ddp(Halves(both=False), find_unused_parameters=True),
    "find_unused_all": lambda: ddp(Halves(both=True), find_unused_parameters=True),
    "static_graph": lambda: ddp(Halves(both=True), static_graph=True),
    "bucket_view": lambda: ddp(part(), gradient_as_bucket_view=True, bucket_cap_mb=1),
    "buffers": lambda: ddp(normalised(), broadcast_buffers=True),
    "join": lambda: ddp(part(256)),
    "no_sync": lambda: ddp(part()),
    "mixed_precision": lambda: ddp(part()),
    "half_hook": lambda: with_hook(default_hooks.fp16_compress_hook, dist.group.WORLD),
    "gather_hook": lambda: with_hook(by_gathering),
    "compiled": lambda: torch.compile(ddp(part(256)), backend="eager"),  # type: ignore[return-value]
    "two_models": lambda: ddp(part(256)),
    "by_hand": lambda: part(256),
    "fully_shard": sharded,
    "fsdp": lambda: FullyShardedDataParallel(part(), device_id=torch.device("cpu")),
}


def sleep(acts: Sequence[Act], step: int) -> None:
    """Sleep as the seed says, under a name or not."""
    rank = dist.get_rank()
    for name, which, ms in acts:
        if which(rank, step):
            with torch.profiler.record_function(name) if name else contextlib.nullcontext():
                time.sleep(ms / 1e3)


def acts_of(draw: random.Random) -> list[Act]:
    """Some sleeps."""
    acts: list[Act] = []
    for _ in range(draw.randrange(4)):
        rank, every, since = draw.randrange(2), draw.choice([1, 1, 2, 5]), draw.choice([0, 0, STEPS // 2])
        acts.append(
            (draw.choice(["", "augment", "log"]), partial(_is_now, rank, every, since), draw.choice([2, 10, 30]))
        )
    return acts


def _is_now(rank: int, every: int, since: int, of_rank: int, step: int) -> bool:
    return of_rank == rank and step >= since and step % every == 0


def batches(draw: random.Random, count: int) -> Iterator[Any]:
    """The batches of a rank: made in place, or by a loader."""
    if draw.random() < 0.5:
        yield from (torch.randn(32, 256) for _ in range(count))
        return
    data = torch.randn(32 * count, 256)
    yield from DataLoader(data, batch_size=32, num_workers=draw.choice([0, 1]))  # type: ignore[arg-type]


def profiler(draw: random.Random, folder: Path) -> Any:
    """torch.profiler with some windows and some of its options."""
    wait, active, repeat = draw.choice([0, 1]), draw.choice([2, 4, 8]), draw.choice([0, 1, 2])
    windows = torch.profiler.schedule(wait=wait, warmup=1, active=active, repeat=repeat)
    rank, made = dist.get_rank(), iter(range(100))
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=draw.choice([windows, windows, None]),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / f"rank{rank}.{next(made)}.pt.trace.json.gz")),
        record_shapes=draw.random() < 0.5,
        with_stack=draw.random() < 0.3,
    )


def talk_by_hand(model: nn.Module, step: int) -> None:
    """What a job without a wrapper sends: gradients one by one, objects, messages between two ranks."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    dist.all_gather_object([None, None], {"step": step})
    if dist.get_rank() == 0:
        dist.send(torch.ones(64), 1)
    else:
        dist.recv(torch.ones(64), 0)
    if step % 4 == 0:
        dist.barrier()


def train(setting: str, seed: int, folder: Path) -> None:
    """Make the steps."""
    draw = random.Random(seed)
    model, other = MODELS[setting](), ddp(part(256)) if setting == "two_models" else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    acts, count = acts_of(draw), STEPS - 3 * dist.get_rank() * (setting == "join")
    joined = model.join() if setting == "join" else contextlib.nullcontext()
    with joined, profiler(draw, folder) as profile:
        for step, batch in enumerate(batches(draw, count)):
            sleep(acts, step)
            alone = model.no_sync() if setting == "no_sync" and step % 3 else contextlib.nullcontext()
            half = torch.autocast("cpu", torch.bfloat16) if setting == "mixed_precision" else contextlib.nullcontext()
            with alone:
                with half:
                    result = model(batch, step) if setting.startswith("find_unused") else model(batch)
                result.float().pow(2).mean().backward()
            if other is not None:
                other(batch).mean().backward()
            if setting == "by_hand":
                talk_by_hand(model, step)
            if alone.__class__ is contextlib.nullcontext:
                optimizer.step()
                optimizer.zero_grad()
            profile.step()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    for setting in sys.argv[1].split(","):
        for seed in sys.argv[2].split(","):
            folder = Path(sys.argv[3]) / f"{setting}.{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            train(setting, int(seed), folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
