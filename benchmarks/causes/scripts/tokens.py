"""Generate tokens with a small network, one after the other, and pick each in Python.

    python tokens.py --clock FOLDER [--steps 60] [--fault 0:python:30:always:sample]

Points at which faults strike: ``prompt`` before a sequence, ``sample`` after each forward.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from faults import Faults
from stopwatch import Stopwatch

VOCABULARY = 512


def main() -> None:
    """Generate sequences of eight tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--fault", action="append", default=[])
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    watch = Stopwatch(options.clock, rank)
    faults = Faults(options.fault, watch, world, options.clock)
    embed = torch.nn.Embedding(VOCABULARY, options.width)
    layers = [torch.nn.Linear(options.width, options.width) for _ in range(6)]
    model = torch.nn.Sequential(embed, *layers, torch.nn.Linear(options.width, VOCABULARY)).eval()
    tokens = torch.zeros(1, 1, dtype=torch.long)
    with torch.inference_mode():
        for step in range(options.steps):
            if step % 8 == 0:
                tokens = tokens[:, :1]
                faults.strike("prompt", step)
            scores = model(tokens.repeat(16, 1))[:1, -1]
            faults.strike("sample", step)
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
            watch.end_step("generate")


if __name__ == "__main__":
    main()
