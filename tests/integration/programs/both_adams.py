"""Trains examples/sharded_adam.py with each of its optimizers, one after the other: `both_adams.py FOLDER OPTIONS...`.

In one process group, since most of such a job is the start of its processes. Saves below FOLDER/<optimizer>.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
example = importlib.import_module("sharded_adam")


def main() -> None:
    """Train twice, from the same first parameters and on the same batches."""
    folder, words = sys.argv[1], sys.argv[2:]
    dist.init_process_group("gloo")
    for name in ("replicated", "sharded"):
        sys.argv[1:] = ["--optimizer", name, "--save", f"{folder}/{name}", *words]
        example.train(example.parse_options())
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's threads need the interpreter once more, as in train_ddp.py


if __name__ == "__main__":
    main()
