"""Train with the Trainer of Hugging Face transformers, which wraps the model in DistributedDataParallel.

    torchrun --nproc-per-node 2 trainer_loop.py --clock FOLDER [--fault 1:sleep:40] ...

Points at which faults strike: ``forward`` where the loss is computed, ``log`` in a callback at the end of a step, and
``batch`` in the data collator, on the step thread.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import torch
from faults import Faults
from framework import begin
from stopwatch import Stopwatch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

WIDTH = 512


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Random rows."""

    def __init__(self, count: int) -> None:
        self.values = torch.randn(count, WIDTH)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"values": self.values[number]}


class Model(torch.nn.Module):
    """A few layers; what is planted happens before their backward."""

    def __init__(self, watch: Stopwatch, faults: Faults) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.watch, self.faults = watch, faults

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, as models of the library do."""
        loss = self.layers(values).pow(2).mean()
        self.faults.strike("forward", self.watch.step)
        self.watch.arrive("all_reduce")
        return {"loss": loss}


class EndOfStep(TrainerCallback):  # type: ignore[misc]
    """End the step on the stopwatch."""

    def __init__(self, watch: Stopwatch, faults: Faults) -> None:
        self.watch, self.faults = watch, faults

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Do what is planted at the end of a step."""
        self.faults.strike("log", self.watch.step)
        self.watch.end_step()


def main() -> None:
    """Train."""
    options, world, watch, faults = begin(__doc__ or "")

    def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        faults.strike("batch", watch.step)
        return {"values": torch.stack([sample["values"] for sample in samples])}

    arguments = TrainingArguments(
        output_dir=str(options.clock / "trainer"),
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=Model(watch, faults),
        args=arguments,
        train_dataset=Rows(options.steps * options.batch * world),
        data_collator=collate,
        callbacks=[EndOfStep(watch, faults)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
