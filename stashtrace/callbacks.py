"""Callbacks of training frameworks: mark the steps, and show the live figures where the framework logs.

    Trainer(callbacks=[stashtrace.callbacks.LightningCallback()])         # Lightning
    stashtrace.callbacks.mark_trainer_steps(trainer)                      # Hugging Face transformers
    stashtrace.callbacks.mark_accelerate_steps(accelerator)               # Hugging Face Accelerate

They are for loops in which no torch optimizer steps (a framework's engine) or where a step is several of its own
steps: elsewhere stashtrace finds the steps itself. Outside of a traced job they do nothing. The framework is imported
when its class is asked for, and nothing else is.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from importlib import import_module
from typing import Any

from stashtrace.probes.annotations import step

#: Seconds between two looks at the live figures.
LOG_EVERY_S = 30.0


def live_numbers() -> dict[str, float]:
    """Return the figures of the newest steps of this host's ranks, as ``stashtrace run --live`` knows them now.

    ``stashtrace/live/step_s``: mean length; ``stashtrace/live/KIND_ratio``: share of each kind of time that occurs;
    they add up to 1. Empty outside of a followed run, and until steps have closed.
    """
    directory = os.environ.get("STASHTRACE_DIR")
    if not directory:
        return {}
    try:
        with open(os.path.join(directory, f"live-{os.uname().nodename}.json"), encoding="utf-8") as file:
            ranks = list(json.load(file)["ranks"].values())
        whole_ns = sum(rank["newest_ns"] for rank in ranks)
        steps_count = sum(rank["newest_count"] for rank in ranks)
        if not whole_ns:
            return {}
        kinds = ranks[0]["newest_stall_ns"]
        shares = {kind: sum(rank["newest_stall_ns"][kind] for rank in ranks) / whole_ns for kind in kinds}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # nobody follows the run, or its state is of another version
    return {
        "stashtrace/live/step_s": whole_ns / steps_count / 1e9,
        **{f"stashtrace/live/{kind}_ratio": share for kind, share in shares.items() if share},
    }


class _Clock:
    """Says when it is time to log again."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last_s = time.monotonic()

    def numbers(self) -> dict[str, float]:
        """Return the live figures if it is time, else nothing."""
        now_s = time.monotonic()
        if now_s - self._last_s < self._every_s:
            return {}
        self._last_s = now_s
        return live_numbers()


def mark_accelerate_steps(accelerator: Any, *, every_s: float = LOG_EVERY_S) -> None:
    """Mark a step at each step of the optimizers that ``accelerator.prepare`` has seen so far.

    With gradient accumulation that is when gradients are applied. With trackers (``log_with``) the live figures are
    logged every ``every_s`` seconds from the main process.
    """
    clock = _Clock(every_s)

    def stepped(optimizer: Any, *_: Any) -> None:
        step()
        if accelerator.is_main_process and accelerator.trackers and (numbers := clock.numbers()):
            accelerator.log(numbers)

    for prepared in accelerator._optimizers[:1]:  # further ones step with the first, in the same step
        getattr(prepared, "optimizer", prepared).register_step_post_hook(stepped)


def mark_trainer_steps(trainer: Any, *, every_s: float = 0.0) -> None:
    """Mark the steps of a Trainer of transformers, and add the live figures to what it logs.

    The callback comes before those of ``report_to``, which log what it adds; one that is given as ``callbacks=`` comes
    after them.
    """
    trainer.callback_handler.callbacks.insert(0, _hugging_face()(every_s=every_s))


@functools.cache
def _lightning() -> Any:
    name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    base: Any = import_module(name).Callback

    class LightningCallback(base):  # type: ignore[misc]
        """Mark a step at the end of each training batch, and log the live figures every ``every_s`` seconds."""

        def __init__(self, *, every_s: float = LOG_EVERY_S) -> None:
            super().__init__()
            self._clock = _Clock(every_s)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            step()
            if trainer.is_global_zero and trainer.logger is not None and (numbers := self._clock.numbers()):
                trainer.logger.log_metrics(numbers, step=trainer.global_step)

    return LightningCallback


@functools.cache
def _hugging_face() -> Any:
    base: Any = import_module("transformers").TrainerCallback

    class HuggingFaceCallback(base):  # type: ignore[misc]
        """Mark a step at the end of each of the Trainer's, and add the live figures to what it logs."""

        def __init__(self, *, every_s: float = 0.0) -> None:
            self._clock = _Clock(every_s)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs is not None and state.is_world_process_zero:
                logs.update(self._clock.numbers())

    return HuggingFaceCallback


_CLASSES = {"LightningCallback": _lightning, "HuggingFaceCallback": _hugging_face}


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return _CLASSES[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
