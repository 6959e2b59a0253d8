"""Train with the Trainer of Lightning and its DDP strategy.

    torchrun --nproc-per-node 2 lightning_loop.py --clock FOLDER [--fault 1:sleep:40] ...

Points at which faults strike: ``forward`` in ``training_step``, ``log`` in ``on_train_batch_end``, and ``batch`` while
a batch is collated, on the step thread.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import lightning
import torch
from faults import Faults
from framework import begin
from lightning.pytorch.strategies import DDPStrategy
from stopwatch import Stopwatch
from torch.utils.data import DataLoader, TensorDataset, default_collate

WIDTH = 512


class Model(lightning.LightningModule):
    """A few layers; what is planted happens in their training step."""

    def __init__(self, watch: Stopwatch, faults: Faults) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.watch, self.faults = watch, faults

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss: torch.Tensor = self.layers(batch[0]).pow(2).mean()
        self.faults.strike("forward", number)
        self.log("loss", loss)
        return loss

    def on_before_backward(self, loss: torch.Tensor) -> None:
        """Note that the rank comes to the all-reduce."""
        self.watch.arrive("all_reduce")

    def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
        """End the step on the stopwatch."""
        self.faults.strike("log", number)
        self.watch.end_step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-5)


def main() -> None:
    """Train."""
    options, world, watch, faults = begin(__doc__ or "")

    def collate(samples: list[Any]) -> Any:
        faults.strike("batch", watch.step)
        return default_collate(samples)

    data = TensorDataset(torch.randn(options.steps * options.batch * world, WIDTH))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=options.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(watch, faults), DataLoader(data, batch_size=options.batch, collate_fn=collate))


if __name__ == "__main__":
    main()
