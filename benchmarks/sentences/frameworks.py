"""The same samples and the same clock in the loops of frameworks: who runs the loop is not the job, what it costs is.

    python frameworks.py lightning|accelerate|transformers --clock FOLDER [options of jobs.py]

A step ends where the optimizer's update returns, as the framework calls it; a wait is a call of the loader's next, as
the framework makes it. What else the framework does between them is compute, but for what neither runs nor queues.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import jobs
import torch
from torch.utils.data import DataLoader


class TimedSGD(torch.optim.SGD):
    """Ends the clock's step where an update returns."""

    clock: jobs.Clock

    def step(self, *arguments: Any, **named: Any) -> Any:
        result = super().step(*arguments, **named)
        self.clock.end_step("train")
        return result


class TimedLoader(DataLoader[Any]):
    """A loader whose waits the clock knows, whoever asks for batches."""

    clock: jobs.Clock

    def __iter__(self) -> Any:
        with self.clock.lap("wait"):
            inner = super().__iter__()
        name = str(self.dataset.name)  # type: ignore[attr-defined]
        epoch = self.clock.epochs[name] = self.clock.epochs.get(name, -1) + 1
        return TimedBatches(inner, self.clock, name, epoch)


class TimedBatches:
    """Iterator of a loader."""

    def __init__(self, inner: Iterator[Any], clock: jobs.Clock, name: str, epoch: int) -> None:
        self._inner, self._clock, self._name, self._epoch, self._number = inner, clock, name, epoch, 0

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        begin = time.monotonic_ns()
        with self._clock.lap("wait"):
            batch = next(self._inner)
        self._clock.batches.append((self._name, self._epoch, self._number, begin, time.monotonic_ns()))
        self._number += 1
        return batch


class Net(torch.nn.Module):
    """The job's model; costs what was asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(jobs.WIDTH, jobs.WIDTH) for _ in range(options.layers)))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        jobs.burn(self.options.compute_ms if self.training else self.options.forward_ms)
        return {"loss": self.layers(x).square().mean()}


class Named(jobs.Samples):
    """Samples by name, as Trainer wants them."""

    def __getitem__(self, index: int) -> Any:
        return {"x": super().__getitem__(index)}


def loader(options: argparse.Namespace, clock: jobs.Clock, name: str, batches: int) -> TimedLoader:
    """A loader of the options, timed."""
    TimedLoader.clock = clock
    samples = jobs.Samples(options, name, batches * options.batch)
    kept = options.persistent and options.workers > 0
    return TimedLoader(samples, options.batch, num_workers=options.workers, persistent_workers=kept)


def run_lightning(options: argparse.Namespace, clock: jobs.Clock) -> None:
    """``Trainer.fit``."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(options)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.net(batch)["loss"]

        def validation_step(self, batch: torch.Tensor, _: int) -> None:
            self.net(batch)

        def on_validation_batch_end(self, *_: Any) -> None:
            clock.end_step("validation")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return TimedSGD(self.parameters(), lr=1e-4)

    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    validation = loader(options, clock, "validation", options.validate) if options.validate else None
    trainer.fit(Module(), loader(options, clock, "train", options.steps // options.epochs), validation)


def run_accelerate(options: argparse.Namespace, clock: jobs.Clock) -> None:
    """A loop of one's own around what ``Accelerator.prepare`` returns."""
    from accelerate import Accelerator

    accelerator, net = Accelerator(cpu=True), Net(options)
    batches = DataLoader(
        jobs.Samples(options, "train", options.steps * options.batch), options.batch, num_workers=options.workers
    )
    model, optimizer, prepared = accelerator.prepare(net, TimedSGD(net.parameters(), lr=1e-4), batches)
    clock.restart()
    with clock.lap("wait"):
        iterator = iter(prepared)
    while True:
        with clock.lap("wait"):
            batch = next(iterator, None)
        if batch is None:
            return
        optimizer.zero_grad()
        accelerator.backward(model(batch)["loss"])
        optimizer.step()


def run_transformers(options: argparse.Namespace, clock: jobs.Clock) -> None:
    """``Trainer.train``."""
    import transformers

    class Trainer(transformers.Trainer):
        def get_batch_samples(self, *arguments: Any, **named: Any) -> Any:
            with clock.lap("wait"):
                return super().get_batch_samples(*arguments, **named)

        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(samples)  # the clock counts batches in order

    net = Net(options)
    settings = transformers.TrainingArguments(
        output_dir=str(options.clock / "out"),
        per_device_train_batch_size=options.batch,
        max_steps=options.steps,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_num_workers=options.workers,
        remove_unused_columns=False,
    )
    optimizer = TimedSGD(net.parameters(), lr=1e-4)
    samples = Named(options, "train", options.steps * options.batch)
    Trainer(net, settings, train_dataset=samples, optimizers=(optimizer, None)).train()


LOOPS = {"lightning": run_lightning, "accelerate": run_accelerate, "transformers": run_transformers}


def main() -> None:
    """Run one loop."""
    name = sys.argv.pop(1)
    options = jobs.parsed()
    torch.set_num_threads(1)
    jobs.prepare(options)
    clock = jobs.Clock(options.clock)
    TimedSGD.clock = clock
    LOOPS[name](options, clock)


if __name__ == "__main__":
    main()
