"""Train a small CNN on images from disk, one process per rank: an ordinary script that knows nothing of stashtrace.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

To see where its time goes, put `stashtrace run --` in front. The image set is written on the first run
(`image_set.py`). The `clock` lines are the script's stopwatch for `--truth`, the `faults` slow it down on
request (`plain_clock.py`); both do nothing otherwise.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from image_set import CLASSES, ImageSet, generate
from plain_clock import Faults, PlainClock
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

HIDDEN = {"small": 64, "medium": 512, "large": 4096}


def build_model(crop: int, size: str) -> nn.Module:
    """Three convolutions and two linear layers; `size` sets the gradient bytes (1, 8 or 64 MiB at 64 pixels)."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]

    features = 64 * (crop // 8) ** 2
    return nn.Sequential(
        *block(3, 16),
        *block(16, 32),
        *block(32, 64),
        nn.Flatten(),
        nn.Linear(features, HIDDEN[size]),
        nn.ReLU(),
        nn.Linear(HIDDEN[size], CLASSES),
    )


def all_reduce_gradients(model: nn.Module, clock: PlainClock) -> None:
    """What DDP does, by hand and one tensor after the other, so that each collective can be timed from here."""
    for parameter in reversed(list(model.parameters())):
        clock.lap("user")
        dist.all_reduce(parameter.grad)
        clock.lap("all_reduce")
        parameter.grad /= dist.get_world_size()  # type: ignore[operator]


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Share of right answers on images that training never sees."""
    model.eval()
    right = total = 0
    for images, labels, _ in loader:
        right += int((model(images).argmax(dim=1) == labels).sum())
        total += len(labels)
    model.train()
    return right / total


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, faults: Faults) -> None:
    """Write to a temporary name first: a crash in between leaves the old checkpoint."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "more": faults.ballast}
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def train(options: argparse.Namespace, rank: int, world_size: int) -> None:
    """The training loop of one rank."""
    torch.manual_seed(options.seed)
    clock, faults = PlainClock(options.truth, rank), Faults(options, rank)
    files = sorted(options.data.glob("image-*"))
    held_out = len(files) // 10
    training = ImageSet(files[held_out:], options.crop, clock, faults)
    validation = ImageSet(files[:held_out], options.crop, clock, faults)
    faults.prepare()

    sampler: DistributedSampler[object] = DistributedSampler(training, world_size, rank, seed=options.seed)
    loader = DataLoader(
        training,
        options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        drop_last=True,
        persistent_workers=options.workers > 0,
        collate_fn=training.collate,
    )
    validation_loader = DataLoader(validation, options.batch_size, collate_fn=validation.collate)

    model = plain_model = build_model(options.crop, options.model_size)
    clock.watch_gradients(plain_model)
    if world_size > 1 and not options.manual_all_reduce:
        model = DistributedDataParallel(plain_model, bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    step, began = 0, time.perf_counter()
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for images, labels, luggage in loader:
            clock.lap("wait")
            del luggage  # freeing it is not part of the wait
            loss = loss_of(model(images), labels)
            clock.lap("forward")
            faults.before_backward()
            clock.lap("sleep")
            optimizer.zero_grad()
            loss.backward()
            clock.lap("backward")
            if world_size > 1 and options.manual_all_reduce:
                all_reduce_gradients(plain_model, clock)
            optimizer.step()
            clock.lap("optimizer")
            clock.end_step()

            step += 1
            if step % options.log_every == 0 and rank == 0:
                rate = options.log_every * options.batch_size * world_size / (time.perf_counter() - began)
                print(f"epoch {epoch}  step {step}/{options.steps}  loss {loss.item():.3f}  {rate:.0f} images/s")
                began = time.perf_counter()
            clock.lap("log")
            if options.checkpoint and step % options.checkpoint_every == 0 and rank == 0:
                save_checkpoint(options.checkpoint, plain_model, optimizer, step, faults)
            clock.lap("checkpoint")
            if options.validate_every and step % options.validate_every == 0:
                accuracy = validate(plain_model, validation_loader)
                if rank == 0:
                    print(f"step {step}  validation accuracy {accuracy:.0%}", flush=True)
                clock.lap("validation")
            if step == options.steps:
                return


def parse_options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, default=Path(__file__).parent / "data", help="folder of the image set")
    add("--images", type=int, default=1000, help="images to generate")
    add("--image-size", type=int, default=400, help="pixels of a stored image, each way")
    add("--generate-only", action="store_true", help="write the image set and stop")
    add("--crop", type=int, default=64, help="pixels that the model sees, each way")
    add("--batch-size", type=int, default=32, help="images per rank and step")
    add("--workers", type=int, default=1, help="DataLoader workers per rank")
    add("--steps", type=int, default=100)
    add("--lr", type=float, default=0.02)
    add("--seed", type=int, default=0)
    add("--model-size", choices=sorted(HIDDEN), default="small")
    add("--bucket-mb", type=float, default=None, help="DDP's bucket_cap_mb")
    add("--manual-all-reduce", action="store_true", help="average the gradients here instead of in DDP")
    add("--checkpoint", type=Path, help="file for checkpoints of rank 0; none if not given")
    add("--checkpoint-every", type=int, default=50, metavar="STEPS")
    add("--validate-every", type=int, default=0, metavar="STEPS", help="0: never")
    add("--log-every", type=int, default=20, metavar="STEPS")
    add("--truth", type=Path, help="folder for the script's times, as JSON lines")
    Faults.add_options(parser)
    return parser.parse_args()


def main() -> None:
    """Entry point of each rank; without torchrun the script trains alone."""
    options = parse_options()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if rank == 0:
        generate(options.data, options.images, options.image_size, options.seed)
    if options.generate_only:
        return
    if world_size > 1:
        dist.init_process_group("gloo")
        dist.barrier()  # the image set is written by now
    train(options, rank, world_size)
    if world_size > 1:
        dist.destroy_process_group()
        # gloo's threads need the interpreter once more to drop the last collective; without a pause one run in thirty
        # finds it gone and aborts after the work is done (seen with torch 2.13).
        time.sleep(0.1)


if __name__ == "__main__":
    main()
