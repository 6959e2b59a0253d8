"""The example under `stashtrace run`, small enough for a test; test_end_to_end.py runs it once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forked_commands import ROOT, environment, run_command

STEPS = 12
ENVIRONMENT = environment()


def stashtrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A stashtrace command in this folder."""
    return run_command(arguments, cwd, ENVIRONMENT, 300)


def command_of_ranks(ranks: int, *script: str) -> list[str]:
    """A job of some ranks, as torchrun starts it, but for the import of torch in the launcher."""
    launcher = ROOT / "tests" / "ground_truth" / "launch_ranks.py"
    return [sys.executable, str(launcher), "--ranks", str(ranks), "--", sys.executable, *script]


def run_example(folder: Path) -> subprocess.CompletedProcess[str]:
    """Trace two ranks of the example; the folder then holds `run` (the trace) and `truth`."""
    script = [
        *(str(ROOT / "examples" / "train_ddp.py"), "--data", str(folder / "data"), "--images", "300"),
        *("--image-size", "64", "--batch-size", "8", "--steps", str(STEPS), "--log-every", "4", "--workers", "1"),
        *("--checkpoint", str(folder / "model.pt"), "--checkpoint-every", "6", "--truth", str(folder / "truth")),
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    return stashtrace("run", "--out", "run", "--", *torchrun, cwd=folder)
